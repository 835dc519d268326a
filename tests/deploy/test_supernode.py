"""The parts of a warm client that need no federation: Flower's names, the node's own port, its waits."""

import contextlib
import importlib
import inspect
import os
import socket
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fairbloom.deploy.device.client import ClientSettings
from fairbloom.deploy.device.supervisor import CONNECTED
from fairbloom.deploy.flower.device import supernode as warm
from fairbloom.deploy.flower.device.inbox import LOOP
from fairbloom.deploy.flower.device.supernode import RELIED_ON, USED, Pace
from fairbloom.deploy.flower.relied_on import missing_names
from fairbloom.deploy.flower.retries import Retries

with warnings.catch_warnings(action="ignore"):  # Flower's, about its own dependencies
    command = importlib.import_module("flwr.supernode.cli.flower_supernode")


# Flower's names -----------------------------------------------------------------------------------------------------


def test_flower_has_every_name_that_is_replaced_or_used() -> None:
    assert missing_names(RELIED_ON) == []


@pytest.mark.parametrize(
    "name", ["flwr.no_such_module:thing", "flwr.app:NoSuchThing", next(iter(USED)).replace("_insert", "_inserts")]
)
def test_a_name_that_is_gone_is_found_out(name: str) -> None:
    assert missing_names({name: ()}) == [f"{name}()"]


def test_a_parameter_that_is_gone_is_found_out() -> None:
    assert missing_names({"flwr.app:Message": ("content", "colour")}) == ["flwr.app:Message(content, colour)"]


@pytest.fixture
def other_flower(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """A Flower that lacks a name; the arguments with which its own SuperNode was started."""
    started = list[list[str]]()
    monkeypatch.setattr(warm, "missing_names", lambda names: ["flwr.x:y()"])
    monkeypatch.setattr(warm, "end_with_parent", lambda parent: None)
    monkeypatch.setattr(command, "flower_supernode", lambda: started.append(list(sys.argv)))
    monkeypatch.setattr(warm, "leave", sys.exit)
    return started


def test_flower_logs_the_words_by_which_a_client_is_known_to_be_connected() -> None:
    loop, retry = (importlib.import_module(name) for name in (LOOP, "flwr.supercore.retry.grpc_retry"))
    assert f'"{CONNECTED.decode()} %s"' in inspect.getsource(loop.start_client_internal)
    for words in (Retries.ATTEMPTS[0], Retries.SUCCESS):
        assert f'"{words}' in inspect.getsource(retry.make_simple_grpc_retry_invoker)


def test_without_the_names_flowers_own_way_is_taken_and_said(
    other_flower: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["warm", "--isolated", "--any-bundle", "--", "--superlink", "a:1"])
    with pytest.raises(SystemExit):
        warm.main(os.getpid())
    assert other_flower == [["flower-supernode", "--superlink", "a:1"]]
    assert "this version of Flower has no flwr.x:y(): going on in Flower's own way" in capsys.readouterr().err


def test_without_the_names_a_client_of_installed_code_does_not_start(
    other_flower: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Flower's own way unpacks and runs whatever comes."""
    monkeypatch.setattr(sys, "argv", ["warm", "--", "--superlink", "a:1"])
    with pytest.raises(SystemExit):
        warm.main(os.getpid())
    assert other_flower == []
    assert "this version of Flower has no flwr.x:y(): without, this client cannot keep code" in capsys.readouterr().err


# The node's own port ------------------------------------------------------------------------------------------------


def listening(pid: int) -> list[str]:
    """Return the local addresses on which a process listens."""
    held = set[str]()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile, as files are that are being read
            held.add(str(file.readlink()))
    rows = [line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()]
    return [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in held]


@pytest.mark.runtimes
@pytest.mark.parametrize("options", [{}, {"bundles": "any"}, {"isolated": True}], ids=str)
def test_a_node_serves_no_api_on_its_device(options: dict[str, Any], tmp_path: Path) -> None:
    """Whoever can connect to Flower's may take a message and answer it in the client's name."""
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections and says nothing
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        client = ClientSettings(superlink=address, insecure=True, state_dir=str(tmp_path), **options)
        node = subprocess.Popen(client.command(), env=client.environment(), stderr=subprocess.PIPE, text=True)
        assert node.stderr is not None
        try:
            silent.settimeout(120)
            silent.accept()[0].close()  # the loop has begun: Flower's API would be there by now
            assert listening(node.pid) == []
        finally:
            node.kill()
            node.wait()
            node.stderr.close()


# Waits --------------------------------------------------------------------------------------------------------------


def test_a_busy_node_waits_little_and_an_idle_one_never_more_than_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    pace = Pace()
    pace.sleep(3.0)
    while clock.now < 5.0:
        pace.sleep(3.0)
    assert clock.slept[0] == warm.SHORTEST_SECONDS
    assert 0.4 < clock.slept[-1] < 0.5
    while clock.now < 3600.0:
        pace.sleep(3.0)
    assert clock.slept[-1] == warm.LONGEST_SECONDS
    pace.worked()
    pace.sleep(3.0)
    pace.sleep(0.01)
    assert clock.slept[-2:] == [warm.SHORTEST_SECONDS, 0.01]


class Clock:
    """A clock that sleeping and `now` move."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.slept = 0.0, list[float]()
        monkeypatch.setattr(warm, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep))

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
