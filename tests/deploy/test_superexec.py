"""The SuperExec's executor: processes that are started again where they were killed, and tokens that nobody sees."""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from flwr.proto.runtime_pb2 import AcquireTaskResponse
from flwr.proto.task_pb2 import Task

from fairbloom.deploy import pki
from fairbloom.deploy.flower.server import superexec
from fairbloom.deploy.flower.server.superexec import ExpectedEnds, ServerApps, SuperLink
from fairbloom.protocol.settings import SettingsError
from fairbloom.rounds.loop import NothingLearnedError
from fairbloom.server.run_folder.errors import RunFolderError
from tests.deploy.flower import PATIENCE, ROOT, wait_until

TOKEN = "a-token-that-is-nobodys-business"
WAITING = "import sys, time; token = sys.stdin.read(); print(token, flush=True); time.sleep(600)"


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands of the processes that are started; what they run in place of a ServerApp waits."""
    started, popen = list[list[str]](), subprocess.Popen

    def start(command: list[str], **given: Any) -> Any:
        started.append(command)
        heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # which tests in the background would not
        waiting = [sys.executable, "-c", WAITING, *command[4:]]
        return popen(waiting, stdout=subprocess.DEVNULL, preexec_fn=heed, **given)

    monkeypatch.setattr(superexec.subprocess, "Popen", start)
    monkeypatch.setattr(superexec, "AGAIN_SECONDS", 0.0)
    return started


@pytest.fixture
def apps(commands: list[list[str]]) -> Iterator[ServerApps]:
    made = ServerApps("127.0.0.1:1", Path("/none"))
    yield made
    made.close()


def process(apps: ServerApps, task_id: int = 1) -> subprocess.Popen[bytes]:
    return apps._started[task_id].process


def end(apps: ServerApps, number: int, task_id: int = 1) -> None:
    found = process(apps, task_id)
    found.send_signal(number)
    found.wait(PATIENCE)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_process_that_was_killed_is_started_again(apps: ServerApps, number: int) -> None:
    apps.start(1, TOKEN)
    apps.start(2, TOKEN)
    first, other = process(apps), process(apps, 2)
    apps.look_after()
    assert process(apps) is first
    end(apps, number)
    apps.look_after()
    assert process(apps) is not first
    assert process(apps).poll() is None
    assert process(apps, 2) is other


@pytest.mark.parametrize("code", [0, 1])
def test_a_process_that_ended_by_itself_is_forgotten(
    apps: ServerApps, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "WAITING", f"raise SystemExit({code})")
    apps.start(1, TOKEN)
    process(apps).wait(PATIENCE)
    apps.look_after()
    assert apps._started == {}
    assert len(commands) == 1


def test_a_process_that_ended_itself_as_its_token_was_taken_back_is_forgotten(
    apps: ServerApps, commands: list[list[str]]
) -> None:
    """Flower's answer to 401 is a SIGINT to itself."""
    apps.start(1, TOKEN)
    end(apps, signal.SIGINT)
    apps.look_after()
    assert apps._started == {}
    assert len(commands) == 1


def test_a_process_that_is_killed_each_time_is_left(apps: ServerApps, commands: list[list[str]]) -> None:
    apps.start(1, TOKEN)
    while apps._started:
        end(apps, signal.SIGKILL)
        apps.look_after()
    assert len(commands) == 1 + superexec.MOST_IN_A_ROW


def test_a_process_that_held_is_started_again_whenever_it_is_killed(
    apps: ServerApps, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(superexec, "HELD_SECONDS", 0.0)
    apps.start(1, TOKEN)
    for _ in range(2 * superexec.MOST_IN_A_ROW):
        end(apps, signal.SIGKILL)
        apps.look_after()
    assert process(apps).poll() is None


def test_close_kills_all(apps: ServerApps) -> None:
    for task_id in range(3):
        apps.start(task_id, TOKEN)
    end(apps, signal.SIGKILL, 1)
    apps.close()
    assert [process(apps, task_id).poll() for task_id in range(3)] == [-signal.SIGKILL] * 3


def test_a_token_reaches_the_process_and_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Command lines are there for every account of the machine to read, environments for the account's own."""
    out, popen = tmp_path / "out", subprocess.Popen

    def start(command: list[str], **given: Any) -> Any:
        with out.open("wb") as file:
            return popen([sys.executable, "-c", WAITING, *command], stdout=file, **given)

    monkeypatch.setattr(superexec.subprocess, "Popen", start)
    apps = ServerApps("127.0.0.1:1", Path("/none"))
    try:
        apps.start(1, TOKEN)
        wait_until(lambda: out.read_text() == f"{TOKEN}\n", out.read_text)
        seen = Path(f"/proc/{process(apps).pid}")
        assert b"runtime-api-address" in (seen / "cmdline").read_bytes()
        assert TOKEN.encode() not in (seen / "cmdline").read_bytes()
        assert TOKEN.encode() not in (seen / "environ").read_bytes()
        assert TOKEN not in (seen / "status").read_text()
    finally:
        apps.close()


def test_the_process_is_told_whose_it_is_and_the_way(apps: ServerApps, commands: list[list[str]]) -> None:
    apps.start(1, TOKEN)
    (command,) = commands
    assert command[1] == "-P"
    assert f"serverapp({os.getpid()})" in command[3]
    assert command[4:] == ["--runtime-api-address", "127.0.0.1:1", "--root-certificates", "/none"]


def test_a_serverapp_ends_with_its_superexec(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from fairbloom.deploy.flower.server.superexec import ServerApps
import time
apps = ServerApps("127.0.0.1:9", Path("/none"))
apps.start(1, "t")
print(apps._started[1].process.pid, flush=True)
time.sleep(600)
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert parent.stdout is not None
    child = Path("/proc") / parent.stdout.readline().strip()
    parent.kill()
    parent.wait()
    parent.stdout.close()

    def gone() -> bool:
        try:
            return (child / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except (FileNotFoundError, ProcessLookupError):
            return True

    wait_until(gone, lambda: "it lives on")


# Calls --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def superlink(tmp_path: Path) -> SuperLink:
    pki.make_authority(tmp_path / "ca.crt", tmp_path / "ca.key")
    (tmp_path / "runtime.secret").write_bytes(b"secret")
    place: Any = SimpleNamespace(
        control="127.0.0.1:1", authority=tmp_path / "ca.crt", runtime_secret=tmp_path / "runtime.secret"
    )
    return SuperLink(place)


def test_a_superexec_asks_for_work_with_its_secret(superlink: SuperLink, caplog: pytest.LogCaptureFixture) -> None:
    found = AcquireTaskResponse(task=Task(task_id=7), token=TOKEN).SerializeToString()
    answers = [None, 500, 401, (200, b""), (200, found)]
    asked = list[httpx.Request]()

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        said = answers.pop(0)
        if said is None:
            raise httpx.ConnectError("refused", request=request)
        return httpx.Response(said) if isinstance(said, int) else httpx.Response(said[0], content=said[1])

    superlink._client._transport = httpx.MockTransport(answer)
    with caplog.at_level("WARNING", "flwr"):
        assert [superlink.acquire_task() for _ in range(5)] == [None, None, None, None, (7, TOKEN)]
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        *["the SuperLink is away, or has a fault"] * 3,  # each other fault is said once
        "back",
    ]
    assert {str(request.url) for request in asked} == {"https://127.0.0.1:1/v1/runtime/acquire-task"}
    assert {request.headers["authorization"] for request in asked} == {f"Bearer {b'secret'.hex()}"}


# Start --------------------------------------------------------------------------------------------------------------


class HersError(NothingLearnedError):
    """An error of a user's own that a user can mend."""


def told(error: Exception, caplog: pytest.LogCaptureFixture) -> str:
    """Return what a run's process logs when its app raises this, as Flower does."""
    log, ends = logging.getLogger("flwr"), ExpectedEnds()
    log.addFilter(ends)
    try:
        log.error("%s raised an exception", "ServerApp", exc_info=error)
        log.error("Exit Code: 201\n\nAn unhandled exception occurred in the ServerApp.")
        log.error("something else")
    finally:
        log.removeFilter(ends)
    return caplog.text


@pytest.mark.parametrize(
    "error",
    [
        NothingLearnedError("the run has learned nothing for 3 rounds"),
        SettingsError("clients = 0: give at least 1"),
        RunFolderError("round 7 cannot be written to /runs/a: No space left on device"),
        HersError("hers"),
    ],
)
def test_an_end_that_can_be_mended_is_one_sentence(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    said = told(error, caplog)
    assert f"the run ends: {error}" in said
    assert "Traceback" not in said
    assert "raised an exception" not in said
    assert "Exit Code" not in said
    assert "something else" in said


def test_an_end_that_nobody_expects_keeps_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ValueError("a bug")
    except ValueError as error:
        said = told(error, caplog)
    assert "ServerApp raised an exception" in said
    assert "Traceback" in said
    assert "ValueError: a bug" in said
    assert "Exit Code: 201" in said


def test_the_sentence_is_also_that_of_another_fairbloom_which_the_run_has_brought(tmp_path: Path) -> None:
    # The modules are another time in memory, as when a run's bundle has its own copy.
    code = """
import sys
from fairbloom.errors import is_expected
del sys.modules["fairbloom.errors"]
from fairbloom.errors import FairbloomError
assert is_expected(type("TheirError", (FairbloomError,), {})("x"))
assert not is_expected(ValueError("x"))
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


SERVERAPP = """
import importlib, os, sys
import fairbloom.server  # as the server's own process may have imported it
def flwr_serverapp():
    sys.path.insert(0, {folder!r})  # as Flower does with the folder of a run's bundle
    print([importlib.import_module(name).WHOSE for name in ("fairbloom", "fairbloom.server", "fairbloom.server.app")])
    print("token" in sys.argv)
importlib.import_module("flwr.superlink.cli.flwr_serverapp").flwr_serverapp = flwr_serverapp
from fairbloom.deploy.flower.server.superexec import serverapp
serverapp(os.getppid())
"""


@pytest.mark.slow
def test_a_fairbloom_that_a_run_brings_runs_and_not_the_one_that_is_installed(tmp_path: Path) -> None:
    own = (ROOT / "fairbloom" / "__init__.py").read_text()
    for name, text in (("fairbloom", own), ("strategies", ""), ("server", ""), ("server/app", "")):
        file = tmp_path / (f"{name}.py" if "/" in name else f"{name}/__init__.py")
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"{text}\nWHOSE = 'the run'\n")
    program = [sys.executable, "-P", "-W", "ignore", "-c", SERVERAPP.format(folder=str(tmp_path))]
    done = subprocess.run(program, cwd=ROOT, input="token", capture_output=True, text=True)
    assert done.stdout.splitlines() == [str(["the run"] * 3), "True"], done.stderr


INTERRUPTED = """
import importlib, os, signal
def flwr_serverapp():
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        print("ended")
importlib.import_module("flwr.superlink.cli.flwr_serverapp").flwr_serverapp = flwr_serverapp
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a process inherits it that was begun by `command &` of a script
from fairbloom.deploy.flower.server.superexec import serverapp
serverapp(os.getppid())
"""


@pytest.mark.slow
def test_flowers_interrupt_ends_a_run_of_a_server_that_was_begun_in_the_background() -> None:
    program = [sys.executable, "-P", "-W", "ignore", "-c", INTERRUPTED]
    done = subprocess.run(program, cwd=ROOT, input="token", capture_output=True, text=True)
    assert done.stdout.splitlines() == ["ended"], done.stderr
