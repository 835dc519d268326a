"""A SuperExec whose runs outlive their processes, and whose processes show nobody their tokens.

Flower's starts a run's process with its token on the command line, which every account of the machine can read, and
gives a run up when its process dies. Here the token goes by a pipe, and a process that was killed is started again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairbloom.errors import is_expected
from fairbloom.logs import colour_on_terminals_alone, log
from fairbloom.system.parents import end_with_parent

from ...operator.federation import Federation
from ...server.supervisor import STARTED
from ..environment import LOG_LEVEL
from ..relied_on import SERVERAPP, SUPEREXEC, SUPEREXEC_LOOP, look_up, replace
from ..retries import Retries, retry_soon

AGAIN_SECONDS = 1.0
"""Pause before a process that was killed is started again."""

HELD_SECONDS, MOST_IN_A_ROW = 60.0, 5
"""A process that is killed more often than this in a row, each time within HELD_SECONDS of its start, is not started
again here: the SuperLink hands its run out again after a minute."""


@dataclass
class Started:
    """One run's process."""

    spec: Any
    process: subprocess.Popen[bytes]
    since: float
    in_a_row: int = 0


class ServerAppExecutor:
    """Flower's executor interface: runs each run's server side in a process, which is restarted if it is killed."""

    def __init__(self) -> None:
        self._started: dict[int, Started] = {}

    def get_eligible_capacity(self, supported_task_types: set[Any], **place: Any) -> tuple[set[Any], set[str]]:
        """Return what kinds of work can be started: all, whatever runs already."""
        return supported_task_types, set()

    def wait_for_capacity(self, task_type: Any = None, **place: Any) -> None:
        """Return at once."""

    def launch(self, spec: Any) -> Any:
        """Start the process of a run."""
        from flwr.supercore.superexec.executor import LaunchResult

        self._started[spec.task_id] = Started(spec, _start(spec), time.monotonic())
        return LaunchResult.accepted()

    def reconcile(self) -> None:
        """Start again what was killed, and forget what has ended by itself: Flower knows how."""
        for task_id, one in list(self._started.items()):
            code = one.process.poll()
            if code is None:
                continue
            held = time.monotonic() - one.since
            one.in_a_row = 0 if held > HELD_SECONDS else one.in_a_row + 1
            # By SIGINT a process of Flower's ends itself, when its token is no longer good.
            if code >= 0 or code == -signal.SIGINT or one.in_a_row > MOST_IN_A_ROW:
                del self._started[task_id]
                continue
            log.warning("the process of a run was killed by signal %d: it is started again", -code)
            time.sleep(AGAIN_SECONDS)
            one.process, one.since = _start(one.spec), time.monotonic()

    def close(self) -> None:
        """Kill what runs: asked to end, a run's process would report its run as failed. Another one continues it."""
        for one in self._started.values():
            one.process.kill()
            one.process.wait()


def _start(spec: Any) -> subprocess.Popen[bytes]:
    place = ["--runtime-api-address", spec.runtime_api_address]
    safety = ["--insecure"] if spec.insecure else ["--root-certificates", str(spec.root_certificates_path)]
    python = [
        sys.executable,
        "-P",
        "-c",
        f"from fairbloom.deploy.flower.server.superexec import serverapp; serverapp({os.getpid()})",
    ]
    # A run's log is for its operator to read; the SuperExec's own is quieter.
    environment = {key: value for key, value in os.environ.items() if key != LOG_LEVEL}
    process = subprocess.Popen([*python, *place, *safety], stdin=subprocess.PIPE, env=environment)  # noqa: S603 (ours)
    if process.stdin is None:
        raise RuntimeError("a process was started without the pipe for its token")
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:  # broken: it was killed already
        pipe.write(spec.token.encode())
    return process


def serverapp(parent: int) -> None:
    """Run the server's side of a run, with the token that comes by standard input, as long as the parent lives."""
    end_with_parent(parent)
    # Flower ends a run by a SIGINT to itself, which a server that was begun in the background leaves ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    token = sys.stdin.read()
    sys.argv = ["flwr-serverapp", *sys.argv[1:], "--token", token]  # of this process's memory, not of its command line
    run_serverapp = look_up(SERVERAPP, "flwr_serverapp")
    colour_on_terminals_alone(never=True)  # its lines go to the operator as well
    logging.getLogger("flwr").addFilter(ExpectedEnds())
    _wait_in_silence("the SuperLink is away: this run goes on when it is back")
    # The run's own copy of Fairbloom, which comes in its bundle, is the one that it runs, not the one installed here.
    for name in [name for name in sys.modules if name.partition(".")[0] == "fairbloom"]:
        del sys.modules[name]
    run_serverapp()


class ExpectedEnds(logging.Filter):
    """Says in one sentence why a run ends, where its user can remedy that; other errors keep their traceback."""

    def __init__(self) -> None:
        super().__init__()
        self._expected = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is logged; what Flower says of its exit code adds nothing to the sentence."""
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if error is not None and is_expected(error):
            self._expected = True
            record.msg, record.args, record.exc_info = "the run ends: %s", (str(error),), None
        return not (self._expected and str(record.msg).startswith("Exit Code:"))


def _wait_in_silence(away: str) -> None:
    """Let Flower say once that the SuperLink is away, and look for it often."""
    logging.getLogger("flwr").addFilter(Retries(log.warning, away))
    retry_soon()


def retry_faults(invoker: Any) -> Any:
    """Let a call be tried again as well when the SuperLink had a fault of its own that may pass."""
    gives_up = invoker.should_giveup
    invoker.should_giveup = lambda error: _is_final(error) and gives_up(error)
    return invoker


def _is_final(error: Any) -> bool:
    response = getattr(error, "response", None)
    return response is None or response.status_code < 500


def main(parent: int) -> None:
    """Run the SuperExec of the federation's folder that is named, as long as the parent lives."""
    end_with_parent(parent)
    federation = Federation(Path(sys.argv[1]))
    (federation.state / STARTED).touch()
    make_invoker = look_up(SUPEREXEC_LOOP, "make_simple_http_retry_invoker")
    replace(SUPEREXEC_LOOP, "get_executor", lambda *given, **place: ServerAppExecutor())
    replace(SUPEREXEC_LOOP, "make_simple_http_retry_invoker", lambda: retry_faults(make_invoker()))
    colour_on_terminals_alone()
    _wait_in_silence("the SuperLink is away: the SuperExec looks for it")
    place = ["--runtime-api-address", federation.control, "--root-certificates", str(federation.authority)]
    secret = ["--superexec-auth-secret-file", str(federation.runtime_secret)]
    sys.argv = ["flower-superexec", *place, *secret]
    look_up(SUPEREXEC, "flower_superexec")()
