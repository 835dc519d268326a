"""Which process a client's node is to its SuperLink, and how soon it connects again."""

import os
import subprocess
import sys
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
from flwr.client.grpc_rere_client import connection
from flwr.proto.fleet_pb2 import ActivateNodeRequest, ActivateNodeResponse, PullMessagesRequest, PullMessagesResponse
from flwr.proto.fleet_pb2_grpc import FleetServicer, FleetStub, add_FleetServicer_to_server
from flwr.supercore import heartbeat

from fairbloom.deploy.device import instance
from fairbloom.deploy.device.instance import HEADER, INSTANCE, Instance
from fairbloom.deploy.flower.device import channel
from fairbloom.deploy.flower.device import supernode as warm
from fairbloom.deploy.flower.retries import LONGEST_RETRY_SECONDS
from tests.deploy.commands import ROOT

HOLD = """
import sys
from fairbloom.deploy.device.instance import Instance
held = Instance(sys.argv[1])
print(held.name, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text("a key")
    return path


def holding(key: Path) -> tuple[subprocess.Popen[str], str]:
    """Start a process that holds a key as a client does; return it, and the name of its instance."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(key)], env=environment, text=True, **pipes)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


@pytest.mark.skipif(not instance.BOOT.exists(), reason="this system names no boot")
def test_a_client_that_was_killed_and_started_again_is_the_same_instance(key: Path) -> None:
    first, name = holding(key)
    kill(first)
    second, again = holding(key)
    kill(second)
    assert name == again
    assert len(name) == 32


def test_a_second_one_at_the_same_time_is_another_instance(key: Path) -> None:
    first, name = holding(key)
    second, other = holding(key)
    kill(second)
    kill(first)
    assert name != other


def test_one_with_a_copy_of_the_key_is_another_instance_and_so_is_one_after_a_reboot(
    key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "copy").write_text(key.read_text())
    names = [Instance(str(tmp_path / "copy")).name]
    first, name = holding(key)
    kill(first)
    monkeypatch.setattr(instance, "BOOT", key)
    names.append(Instance(str(key)).name)
    assert len({name, *names}) == 3


@pytest.mark.parametrize("path", ["", "/nowhere/key"])
def test_without_a_key_each_process_is_another_instance(path: str) -> None:
    assert Instance(path).name != Instance(path).name


class Heard(FleetServicer):  # type: ignore[misc]
    """Stands for a SuperLink; keeps the instances that the calls named."""

    def __init__(self) -> None:
        self.instances: list[tuple[str, str | None]] = []

    def _note(self, call: str, context: grpc.ServicerContext) -> None:
        self.instances.append((call, dict(context.invocation_metadata()).get(HEADER)))

    def ActivateNode(self, request: Any, context: grpc.ServicerContext) -> ActivateNodeResponse:  # noqa: N802
        self._note("activate", context)
        return ActivateNodeResponse(node_id=1)

    def PullMessages(self, request: Any, context: grpc.ServicerContext) -> PullMessagesResponse:  # noqa: N802
        self._note("pull", context)
        return PullMessagesResponse()


def test_the_call_by_which_a_node_comes_names_its_instance_and_no_other_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(INSTANCE, "abc")
    heard, server = Heard(), grpc.server(futures.ThreadPoolExecutor(2))
    add_FleetServicer_to_server(heard, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with channel.create_channel(f"127.0.0.1:{port}", insecure=True) as connected:
        stub = FleetStub(connected)
        stub.ActivateNode(ActivateNodeRequest())
        stub.PullMessages(PullMessagesRequest())
    server.stop(None)
    assert heard.instances == [("activate", "abc"), ("pull", None)]


def test_flowers_node_connects_by_it_and_its_heart_beats_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "create_channel", connection.create_channel)
    monkeypatch.setattr(heartbeat, "exponential", heartbeat.exponential)
    warm.connect_soon()
    assert connection.create_channel is channel.create_channel
    pauses = heartbeat.exponential(max_delay=20)
    assert max(next(pauses) for _ in range(10)) == LONGEST_RETRY_SECONDS
    options = dict(channel.OPTIONS)
    attempt = options["grpc.min_reconnect_backoff_ms"] + 1.2 * options["grpc.max_reconnect_backoff_ms"]
    assert attempt + 1000 * LONGEST_RETRY_SECONDS < 30_000
    assert options["grpc.keepalive_time_ms"] + options["grpc.keepalive_timeout_ms"] <= 30_000
