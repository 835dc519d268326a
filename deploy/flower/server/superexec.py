"""A SuperExec whose runs outlive their processes, and whose processes show nobody their tokens.

Flower's own starts a run's process with its token on the command line, which every account of the machine can read, and
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

import httpx
from flwr.proto import runtime_pb2

from fairbloom.errors import is_expected
from fairbloom.logs import colour_on_terminals_alone, log
from fairbloom.system.parents import end_with_parent
from fairbloom.system.supervise import StopSignal

from ...device.connectivity import tls_context
from ...device.outage import Outage
from ...operator.federation import Federation
from ...server.supervisor import STARTED
from ..environment import LOG_LEVEL
from ..relied_on import RUN_SERVERAPP, SERVERAPP, look_up, replace
from ..retries import Retries, retry_soon
from .grid import WholeGrid

ACQUIRE_PATH = "/v1/runtime/acquire-task"
"""The call by which a SuperExec asks for work."""

ASK_SECONDS, CALL_SECONDS = 1.0, 30.0
"""Seconds between two such calls, and how long one may take."""

AGAIN_SECONDS = 1.0
"""Pause before a process that was killed is started again."""

HELD_SECONDS, MOST_IN_A_ROW = 60.0, 5
"""A process that is killed more often than this in a row, each time within HELD_SECONDS of its start, is not started
again here: the SuperLink hands its run out again after a minute."""


@dataclass
class Started:
    """One run's process."""

    token: str
    process: subprocess.Popen[bytes]
    since: float
    in_a_row: int = 0


class ServerApps:
    """Runs each run's server side in a process, which is restarted if it is killed."""

    def __init__(self, place: str, authority: Path) -> None:
        self._arguments = ["--runtime-api-address", place, "--root-certificates", str(authority)]
        self._started: dict[int, Started] = {}

    def start(self, task_id: int, token: str) -> None:
        """Start the process of a run, which knows itself by this token."""
        self._started[task_id] = Started(token, self._start(token), time.monotonic())

    def look_after(self) -> None:
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
            one.process, one.since = self._start(one.token), time.monotonic()

    def close(self) -> None:
        """Kill what runs: asked to end, a run's process would report its run as failed. Another one continues it."""
        for one in self._started.values():
            one.process.kill()
            one.process.wait()

    def _start(self, token: str) -> subprocess.Popen[bytes]:
        code = f"from fairbloom.deploy.flower.server.superexec import serverapp; serverapp({os.getpid()})"
        command = [sys.executable, "-P", "-c", code, *self._arguments]
        # A run's log is for its operator to read; the SuperExec's own is quieter.
        environment = {key: value for key, value in os.environ.items() if key != LOG_LEVEL}
        process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)  # noqa: S603 (ours)
        if process.stdin is None:
            raise RuntimeError("a process was started without the pipe for its token")
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:  # broken: it was killed already
            pipe.write(token.encode())
        return process


def serverapp(parent: int) -> None:
    """Run the server's side of a run, with the token that comes by standard input, as long as the parent lives."""
    end_with_parent(parent)
    # Flower ends a run by a SIGINT to itself, which a server that was begun in the background leaves ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    token = sys.stdin.read()
    sys.argv = ["flwr-serverapp", *sys.argv[1:], "--token", token]  # of this process's memory, not of its command line
    run_serverapp = look_up(SERVERAPP, "flwr_serverapp")
    replace(RUN_SERVERAPP, "HttpGrid", WholeGrid)
    colour_on_terminals_alone(never=True)  # its lines go to the operator as well
    logging.getLogger("flwr").addFilter(ExpectedEnds())
    logging.getLogger("flwr").addFilter(Retries(Outage(log.warning), "the SuperLink is away"))
    retry_soon()
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


class SuperLink:
    """The SuperLink's runtime API, as a SuperExec asks it for work."""

    def __init__(self, federation: Federation) -> None:
        head = {
            "content-type": "application/protobuf",
            "authorization": f"Bearer {federation.runtime_secret.read_bytes().hex()}",
        }
        self._client = httpx.Client(
            base_url=f"https://{federation.control}",
            headers=head,
            verify=tls_context(str(federation.authority)),
            trust_env=False,  # it would go by a proxy of the environment
            timeout=CALL_SECONDS,
        )
        self._outage = Outage(log.warning)

    def acquire_task(self) -> tuple[int, str] | None:
        """Return the number and the token of a run that waits for its process; None for none, or where none is told."""
        request = runtime_pb2.AcquireTaskRequest(supported_task_types=["flwr-serverapp"])
        try:
            answer = self._client.post(ACQUIRE_PATH, content=request.SerializeToString()).raise_for_status()
        except httpx.HTTPError as error:
            self._outage.fault(f"the SuperLink is away, or has a fault: {error}")
            return None
        self._outage.end()
        found = runtime_pb2.AcquireTaskResponse.FromString(answer.content)
        return (found.task.task_id, found.token) if found.token else None


def main(parent: int) -> None:
    """Run the SuperExec of the federation's folder that is named, as long as the parent lives."""
    end_with_parent(parent)
    federation = Federation(Path(sys.argv[1]))
    (federation.state / STARTED).touch()
    colour_on_terminals_alone()
    stopped, apps = StopSignal(), ServerApps(federation.control, federation.authority)
    superlink = SuperLink(federation)
    try:
        while not stopped.came:
            apps.look_after()
            if task := superlink.acquire_task():
                apps.start(*task)
            time.sleep(ASK_SECONDS)
    finally:
        apps.close()
