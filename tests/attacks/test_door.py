"""Somebody with an account on the server's machine, but without the operator's credential, gets nothing done."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairbloom.deploy.operator.folder import write_flower_home
from tests.deploy.federation import Deployment, cmdline, federation, wait_for_rounds
from tests.deploy.flower import SCRIPTS
from tests.runtimes.test_wheel import APP

from .unhurried import start_unhurried_client

pytestmark = pytest.mark.slow

NOBODY = 65534
ENDLESS: dict[str, Any] = {"clients": 1, "fraction": 1.0, "num-rounds": 100_000, "evaluate-every": 0, "device": "cpu"}
LOOK = """
import pathlib, sys
for process in pathlib.Path("/proc").glob("[0-9]*"):
    for part in ("cmdline", "environ"):
        try:
            print((process / part).read_bytes().replace(bytes(1), b" ").decode(errors="replace"))
        except OSError:
            pass
"""
CALL = """
import sys, ssl, urllib.request, urllib.error
authority, address, header, token = sys.argv[1:5]
context = ssl.create_default_context(cafile=authority)
for path in sys.argv[5:]:
    call = urllib.request.Request(f"https://{address}{path}", data=b"", headers={header: token} if token else {})
    try:
        print(path, urllib.request.urlopen(call, context=context).status)
    except urllib.error.HTTPError as error:
        print(path, error.code)
"""
CONTROL = [f"/v1/control/{call}" for call in ("start-run", "list-runs", "stop-run", "stream-logs", "register-node")]
RUNTIME = [
    f"/v1/runtime/{call}"
    for call in ("acquire-task", "create-task", "pull-messages", "pull-task-input", "push-messages", "get-nodes")
]


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A federation with one client, and an endless run."""
    with federation(tmp_path_factory.mktemp("door") / "home", 1) as runtime:
        start_unhurried_client(runtime, "client-0")
        runtime.submitting({**ENDLESS, "out": str(runtime.home / "run")})
        wait_for_rounds(runtime.home / "run", 2)
        yield runtime


@pytest.fixture
def stranger(there: Deployment, tmp_path: Path) -> Iterator[Path]:
    """A folder of another account, with all that is public: the CA certificate and the addresses."""
    if os.geteuid() != 0:
        pytest.skip("only root can be another account for once")
    folder = Path("/tmp") / f"fairbloom-stranger-{os.getpid()}"  # pytest closes its own folders to others
    folder.mkdir(mode=0o755)
    shutil.copy(there.folder / "ca.crt", folder)
    os.chown(folder, NOBODY, NOBODY)
    yield folder
    shutil.rmtree(folder)


def as_stranger(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        env={"PATH": os.environ["PATH"], "HOME": "/tmp", **environment},
        cwd="/tmp",
        capture_output=True,
        text=True,
        timeout=300,
    )


def python_of_all() -> str:
    """An interpreter that another account may run: the environment's may lie in a closed folder."""
    candidates = [sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"]
    for candidate in candidates:
        if as_stranger("sh", "-c", f"{candidate} -c 'import ssl'").returncode == 0:
            return candidate
    pytest.skip(f"another account can run none of {candidates}")


def test_another_account_cannot_read_the_folder(there: Deployment, stranger: Path) -> None:
    for name in ("operator.token", "operators.toml", "runtime.secret", "ca.key", "server.key", "state/superlink.db"):
        assert (there.folder / name).exists()
        assert as_stranger("cat", str(there.folder / name)).returncode != 0
        assert (there.folder / name).stat().st_mode & 0o077 == 0


def test_another_account_sees_no_secret_of_a_process(there: Deployment, stranger: Path) -> None:
    seen = as_stranger(python_of_all(), "-c", LOOK).stdout
    token = (there.folder / "operator.token").read_text()
    assert "'server.superlink'" in seen  # it does look at the server's processes
    (process,) = there.serverapps()
    assert cmdline(process).split(b"\0")[-2] == str(there.folder / "ca.crt").encode()  # and not a token behind it
    for secret in (token, (there.folder / "runtime.secret").read_bytes().decode("latin-1")):
        assert secret not in seen


@pytest.mark.parametrize("token", ["", "Bearer ", "Bearer none", "Basic operator", "Bearer HASH"])
def test_the_control_api_refuses_another_account_in_every_call(there: Deployment, stranger: Path, token: str) -> None:
    known = hashlib.sha256((there.folder / "operator.token").read_bytes()).hexdigest()
    place = [str(stranger / "ca.crt"), f"127.0.0.1:{there.control}", "Authorization", token.replace("HASH", known)]
    done = as_stranger(python_of_all(), "-c", CALL, *place, *CONTROL, "/fairbloom/server")
    answers = [line.split()[1] for line in done.stdout.splitlines()]
    assert answers == ["401"] * len(CONTROL) + [answers[-1]], done.stdout + done.stderr
    assert answers[-1] in ("401", "405")  # which is asked by GET


@pytest.mark.parametrize("token", ["", "none", "0" * 64])
def test_the_runtime_api_refuses_another_account_in_every_call(there: Deployment, stranger: Path, token: str) -> None:
    place = [str(stranger / "ca.crt"), f"127.0.0.1:{there.control}", "flwr-task-token", token]
    done = as_stranger(python_of_all(), "-c", CALL, *place, *RUNTIME)
    assert [line.split()[1] for line in done.stdout.splitlines()] == ["401"] * len(RUNTIME), done.stdout + done.stderr


def test_flowers_command_does_nothing_without_the_credential(there: Deployment, tmp_path: Path) -> None:
    home = tmp_path / "flower"
    home.mkdir()
    everything = (["list"], ["run", str(APP)], ["supernode", "list"], ["stop", "1"], ["log", "1"])
    for token, commands in ((None, everything[:1]), ("guessed", everything)):
        write_flower_home(home, f"127.0.0.1:{there.control}", there.folder / "ca.crt", token or "")
        if token is None:
            (home / "credentials.yaml").unlink()
        for command in commands:
            where = [*command, "federation"]
            done = subprocess.run(
                [SCRIPTS / "flwr", *where], env={**os.environ, "FLWR_HOME": str(home)}, capture_output=True, text=True
            )
            assert "authenticat" in (done.stdout + done.stderr).lower(), done.stdout + done.stderr
    assert there.online() == {"client-0"}


def test_the_run_went_on_and_the_attempts_are_in_the_log(there: Deployment) -> None:
    before = (there.home / "run" / "rounds.csv").read_text().count("\n")
    wait_for_rounds(there.home / "run", before + 2)
    log = there.log(there.server)
    refused = re.findall(r"refused: .* \(call (\S+), peer (\S+?)(?:, times \d+)?\)", log)
    assert {call for call, _ in refused} >= {*CONTROL, *RUNTIME} - {"/v1/runtime/acquire-task"}
    assert {peer for _, peer in refused} == {"127.0.0.1"}
    assert log.count("run submitted (operator operator, ") == 1


def test_the_server_stops_in_order_while_a_runs_log_is_followed(there: Deployment) -> None:
    there.stop(there.server)
    log = there.log(there.server)
    assert log.rstrip().endswith("fairbloom server: stopped")
    assert "it is killed" not in log
