"""A run's process: it calls the ServerApp with a grid that uses the pipe to the server."""

import logging
import signal
import sys
from multiprocessing.connection import Connection

from flwr.app import Context, RecordDict
from flwr.serverapp import ServerApp

from fairbloom.errors import is_expected
from fairbloom.flower import identify
from fairbloom.logs import colour_on_terminals_alone, escape_all_records, log
from fairbloom.system.parents import end_with_parent

from ..processes import load_app
from .grid import RunGrid

# Flower's node id of a server, and the exit code of a run that raised.
SERVER_NODE = 1
FAILED = 1


def main(parent: int) -> None:
    """Carry out a run: `run_process.py FD`, the pipe through which the server sends it."""
    end_with_parent(parent)
    # a shell starts background processes with SIGINT ignored, and children inherit that
    signal.signal(signal.SIGINT, signal.default_int_handler)
    pipe = Connection(int(sys.argv[1]))
    given = pipe.recv()
    colour_on_terminals_alone(never=True)
    escape_all_records()
    logging.getLogger("flwr").setLevel(logging.INFO)
    if given["folder"]:
        sys.path.insert(0, given["folder"])
    run_id = int(given["run"])
    identify(run_id=run_id, node_id=SERVER_NODE, task_id=0)
    context = Context(run_id, SERVER_NODE, {}, RecordDict(), given["settings"])
    try:
        load_app(given["app"], ServerApp, "this run")(
            grid=RunGrid(pipe, run_id, given["place"]), context=context
        )
    except KeyboardInterrupt:
        log.error("the run ends: it was stopped")
        sys.exit(FAILED)
    except Exception as error:
        log.error("the run ends: %s", error, exc_info=not is_expected(error))
        sys.exit(FAILED)
