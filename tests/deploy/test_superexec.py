"""The SuperExec's executor: processes that are started again where they were killed, and tokens that nobody sees."""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from flwr.supercore.superexec import run_superexec
from flwr.supercore.superexec.executor import Executor, LaunchResult

from benchmarks.flower import PATIENCE, ROOT, wait_until
from fairbloom.deploy.flower.server import superexec
from fairbloom.deploy.flower.server.superexec import ExpectedEnds, ServerAppExecutor, retry_faults
from fairbloom.protocol.settings import SettingsError
from fairbloom.rounds.loop import NothingLearnedError
from fairbloom.server.run_folder.errors import RunFolderError

TOKEN = "a-token-that-is-nobodys-business"
WAITING = "import sys, time; token = sys.stdin.read(); print(token, flush=True); time.sleep(600)"


def spec(task_id: int = 1) -> Any:
    return SimpleNamespace(
        task_id=task_id,
        token=TOKEN,
        runtime_api_address="127.0.0.1:1",
        insecure=False,
        root_certificates_path="/none",
    )


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
def apps(commands: list[list[str]]) -> Iterator[ServerAppExecutor]:
    made = ServerAppExecutor()
    yield made
    made.close()


def process(apps: ServerAppExecutor, task_id: int = 1) -> subprocess.Popen[bytes]:
    return apps._started[task_id].process


def end(apps: ServerAppExecutor, number: int, task_id: int = 1) -> None:
    found = process(apps, task_id)
    found.send_signal(number)
    found.wait(PATIENCE)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_process_that_was_killed_is_started_again(apps: ServerAppExecutor, number: int) -> None:
    assert apps.launch(spec()) == LaunchResult.accepted()
    apps.launch(spec(2))
    first, other = process(apps), process(apps, 2)
    apps.reconcile()
    assert process(apps) is first
    end(apps, number)
    apps.reconcile()
    assert process(apps) is not first
    assert process(apps).poll() is None
    assert process(apps, 2) is other


@pytest.mark.parametrize("code", [0, 1])
def test_a_process_that_ended_by_itself_is_forgotten(
    apps: ServerAppExecutor, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "WAITING", f"raise SystemExit({code})")
    apps.launch(spec())
    process(apps).wait(PATIENCE)
    apps.reconcile()
    assert apps._started == {}
    assert len(commands) == 1


def test_a_process_that_ended_itself_as_its_token_was_taken_back_is_forgotten(
    apps: ServerAppExecutor, commands: list[list[str]]
) -> None:
    """Flower's answer to 401 is a SIGINT to itself."""
    apps.launch(spec())
    end(apps, signal.SIGINT)
    apps.reconcile()
    assert apps._started == {}
    assert len(commands) == 1


def test_a_process_that_is_killed_each_time_is_left(apps: ServerAppExecutor, commands: list[list[str]]) -> None:
    apps.launch(spec())
    while apps._started:
        end(apps, signal.SIGKILL)
        apps.reconcile()
    assert len(commands) == 1 + superexec.MOST_IN_A_ROW


def test_a_process_that_held_is_started_again_whenever_it_is_killed(
    apps: ServerAppExecutor, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(superexec, "HELD_SECONDS", 0.0)
    apps.launch(spec())
    for _ in range(2 * superexec.MOST_IN_A_ROW):
        end(apps, signal.SIGKILL)
        apps.reconcile()
    assert process(apps).poll() is None


def test_close_kills_all(apps: ServerAppExecutor) -> None:
    for task_id in range(3):
        apps.launch(spec(task_id))
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
    apps = ServerAppExecutor()
    try:
        apps.launch(spec())
        wait_until(lambda: out.read_text() == f"{TOKEN}\n", out.read_text)
        seen = Path(f"/proc/{process(apps).pid}")
        assert b"runtime-api-address" in (seen / "cmdline").read_bytes()
        assert TOKEN.encode() not in (seen / "cmdline").read_bytes()
        assert TOKEN.encode() not in (seen / "environ").read_bytes()
        assert TOKEN not in (seen / "status").read_text()
    finally:
        apps.close()


def test_the_process_is_told_whose_it_is_and_the_way(apps: ServerAppExecutor, commands: list[list[str]]) -> None:
    apps.launch(spec())
    (command,) = commands
    assert command[1] == "-P"
    assert f"serverapp({os.getpid()})" in command[3]
    assert command[4:] == ["--runtime-api-address", "127.0.0.1:1", "--root-certificates", "/none"]


def test_a_serverapp_ends_with_its_superexec(tmp_path: Path) -> None:
    code = """
import sys
from types import SimpleNamespace
from fairbloom.deploy.flower.server.superexec import ServerAppExecutor
import time
apps = ServerAppExecutor()
place = "127.0.0.1:9"
apps.launch(SimpleNamespace(task_id=1, token="t", runtime_api_address=place, insecure=True, root_certificates_path=""))
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


def fault(status: int | None) -> Exception:
    request = httpx.Request("POST", "https://localhost")
    if status is None:
        return httpx.ConnectError("refused", request=request)
    return httpx.HTTPStatusError("a fault", request=request, response=httpx.Response(status, request=request))


def invoker() -> Any:
    made: Any = retry_faults(run_superexec.make_simple_http_retry_invoker())
    made.wait_function = lambda seconds: None
    return made


@pytest.mark.parametrize("status", [None, 500, 503])
def test_calls_are_tried_again_while_the_superlink_is_away_or_has_a_fault(status: int | None) -> None:
    faults = [fault(status)] * 5

    def call() -> str:
        if faults:
            raise faults.pop()
        return "done"

    assert invoker().invoke(call) == "done"


@pytest.mark.parametrize("status", [400, 404])
def test_calls_that_are_refused_are_not_tried_again(status: int) -> None:
    calls = list[Callable[[], None]]()

    def call() -> None:
        calls.append(call)
        raise fault(status)

    with pytest.raises(httpx.HTTPStatusError):
        invoker().invoke(call)
    assert len(calls) == 1


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


def test_the_executor_is_what_flowers_loop_asks_of_one() -> None:
    asked = {name for name in vars(Executor) if not name.startswith("_") and callable(getattr(Executor, name))}
    assert asked >= {"launch", "reconcile", "close"}
    assert asked <= set(dir(ServerAppExecutor))


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
