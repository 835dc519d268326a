"""A node that speaks the protocol by itself, with an enrolled key, another's, or none."""

import contextlib
import math
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest
from flwr.proto.fleet_pb2_grpc import FleetStub
from flwr.proto.message_pb2 import ObjectTree, PullObjectRequest, PushObjectRequest
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from tests.deploy.federation import Deployment, federation, rounds, wait_for_rounds
from tests.deploy.peer import Peer, Whole, enrolled, flooded, message_of, pushed

from .unhurried import start_unhurried_client

pytestmark = pytest.mark.slow

ENDLESS: dict[str, Any] = {"clients": 2, "fraction": 1.0, "num-rounds": 100_000, "evaluate-every": 0, "device": "cpu"}


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A federation with an honest client, and an endless run that a second, enrolled one is part of as well."""
    with federation(tmp_path_factory.mktemp("nodes") / "home") as runtime:
        runtime.enroll("honest", "mallory")
        start_unhurried_client(runtime, "honest")
        settings = {**ENDLESS, "clients": 1, "round-timeout": 20.0, "out": str(runtime.home / "run")}
        runtime.submitting(settings)
        wait_for_rounds(runtime.home / "run", 2)
        yield runtime


@pytest.fixture(params=[False, True], ids=["part by part", "whole"])
def whole(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def refusal(call: Any, request: Any) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as refused:
        call(request, timeout=300)
    return refused.value


def test_an_unregistered_key_is_refused(there: Deployment, whole: bool) -> None:
    stranger = Peer(there, ec.generate_private_key(ec.SECP384R1()), 7, whole=whole)
    request = ActivateNodeRequest(public_key=public_key_to_bytes(stranger.key.public_key()), heartbeat_interval=30.0)
    assert refusal(stranger.stub.ActivateNode, request).code() == grpc.StatusCode.FAILED_PRECONDITION
    calls = (stranger.stub.PullMessages, PullMessagesRequest(node=stranger.node))
    assert refusal(*calls).code() == grpc.StatusCode.UNAUTHENTICATED


def test_a_call_without_a_key_is_refused(there: Deployment, whole: bool) -> None:
    credentials = grpc.ssl_channel_credentials((there.folder / "ca.crt").read_bytes())
    channel = grpc.secure_channel(f"localhost:{there.fleet}", credentials)
    stub: Any = Whole(channel, FleetStub(channel)) if whole else FleetStub(channel)
    assert refusal(stub.PullMessages, PullMessagesRequest()).code() == grpc.StatusCode.UNAUTHENTICATED


def test_another_nodes_id_is_refused(there: Deployment, whole: bool) -> None:
    mallory, honest = enrolled(there, "mallory", whole=whole), enrolled(there, "honest", whole=whole)
    request = PullMessagesRequest(node=honest.node)
    assert refusal(mallory.stub.PullMessages, request).code() == grpc.StatusCode.UNAUTHENTICATED


def test_a_reply_in_another_nodes_name_is_refused_and_noted(there: Deployment, whole: bool) -> None:
    mallory, honest = enrolled(there, "mallory", whole=whole), enrolled(there, "honest", whole=whole)
    error = refusal(mallory.stub.PushMessages, pushed(mallory, message_of(honest.node.node_id)))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "refused: a reply in another node's name (client mallory" in there.log(there.server)


@pytest.mark.parametrize("seconds", [math.inf, math.nan, -1.0, 1e300])
def test_a_reply_with_an_impossible_time_is_refused(there: Deployment, whole: bool, seconds: float) -> None:
    """They are summed up for each run; `flwr list` cannot print an infinite sum."""
    mallory = enrolled(there, "mallory", whole=whole)
    reply = message_of(mallory.node.node_id, int(there.submitted_run()))
    error = refusal(mallory.stub.PushMessages, pushed(mallory, reply, seconds=seconds))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "refused: a reply with an impossible time (client mallory" in there.log(there.server)


def test_deep_and_wide_object_trees_are_refused(there: Deployment, whole: bool) -> None:
    mallory = enrolled(there, "mallory", whole=whole)
    run_id = int(there.submitted_run())
    deep = ObjectTree(object_id="0" * 64)
    for number in range(80):
        deep = ObjectTree(object_id=f"{number + 1:064x}", children=[deep])
    wide = [ObjectTree(object_id=f"{i:064x}") for i in range(20_000)]
    for below in ([deep], wide):
        reply = message_of(mallory.node.node_id, run_id)
        tree = ObjectTree(object_id=reply.metadata.message_id, children=below)
        assert not mallory.stub.PushMessages(pushed(mallory, reply, tree), timeout=300).objects_to_push
    part = PushObjectRequest(node=mallory.node, run_id=run_id, object_id="0" * 64, object_content=b"x" * 1000)
    assert not mallory.stub.PushObject(part, timeout=300).stored
    nothing = PullObjectRequest(node=mallory.node, run_id=run_id, object_id="f" * 64)
    assert not mallory.stub.PullObject(nothing, timeout=300).object_found


def test_a_flood_of_calls_ends_neither_the_run_nor_the_server(there: Deployment, whole: bool) -> None:
    mallory, run_id = enrolled(there, "mallory", whole=whole), int(there.submitted_run())
    over, superlink = time.monotonic() + 6.0, there.part("superlink")
    made = [0]

    def flood() -> None:
        while time.monotonic() < over:
            for call, request in flooded(mallory, run_id):
                with contextlib.suppress(grpc.RpcError):
                    call(request, timeout=300)
                made[0] += 1

    before = len(rounds(there.home / "run"))
    threads = [threading.Thread(target=flood) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_for_rounds(there.home / "run", before + 3)
    rows = rounds(there.home / "run")[before:]
    assert made[0] > 50
    assert all(row["replies_used"] == "1" and not row["missing"] for row in rows)
    assert there.part("superlink") == superlink  # it was not started again
