"""An enrolled device that speaks the protocol by itself: it floods, and answers for another one."""

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from benchmarks.deployment import Deployment, federation, rounds, wait_for_rounds
from fairbloom.deploy.fleet.messages import SERVICE, in_chunks
from fairbloom.deploy.fleet.wire_pb2 import Drop, Head, Taken, Working

from .unhurried import start_unhurried_client

pytestmark = pytest.mark.slow

ENDLESS: dict[str, Any] = {
    "clients": 1,
    "fraction": 1.0,
    "num-rounds": 100_000,
    "evaluate-every": 0,
    "device": "cpu",
}


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A federation with an honest client in an endless run, and an enrolled hostile device."""
    with federation(tmp_path_factory.mktemp("nodes") / "home") as runtime:
        runtime.enroll("honest", "mallory")
        start_unhurried_client(runtime, "honest")
        settings = {
            **ENDLESS,
            "min-clients": 1,
            "training-clients": "honest",
            "out": str(runtime.home / "run"),
        }
        runtime.submitting(settings)
        wait_for_rounds(runtime.home / "run", 2)
        yield runtime


class Mallory:
    """The calls of an enrolled device."""

    def __init__(self, there: Deployment) -> None:
        bundle = there.bundle("mallory")
        parts = [(bundle / name).read_bytes() for name in ("ca.crt", "key", "certificate")]
        credentials = grpc.ssl_channel_credentials(*parts)
        self.channel = grpc.secure_channel(f"localhost:{there.fleet}", credentials)
        self.beat: Any = self.channel.unary_unary(
            f"/{SERVICE}/Beat", Working.SerializeToString, Drop.FromString
        )
        self.reply: Any = self.channel.stream_unary(f"/{SERVICE}/Reply", None, Taken.FromString)


def honest_messages(there: Deployment) -> tuple[int, list[str]]:
    """Return the run's number, and the start of each id of the honest client's messages."""
    words = [
        line.split()
        for line in there.log(there.clients["honest"]).splitlines()
        if "received train" in line
    ]
    return int(words[-1][-1]), [each[5] for each in words]


def test_a_reply_to_another_devices_message_changes_nothing(
    there: Deployment, subtests: pytest.Subtests
) -> None:
    mallory = Mallory(there)
    (run, ids) = honest_messages(there)
    for id in (*ids[-3:], "0" * 32):
        with subtests.test(id=id):
            head = Head(id=id, run=run, session=b"m" * 16, code=2, reason="mine")
            assert mallory.reply(in_chunks(head, []), timeout=30).answer == Taken.LATER
    before = len(rounds(there.home / "run"))
    wait_for_rounds(there.home / "run", before + 3)
    assert not any(row["refused"] or row["missing"] for row in rounds(there.home / "run"))


def test_a_flood_of_calls_ends_neither_the_run_nor_the_server(there: Deployment) -> None:
    run, _ = honest_messages(there)
    over = time.monotonic() + 6.0
    made = [0]

    def flood() -> None:
        mallory = Mallory(there)
        while time.monotonic() < over:
            with contextlib.suppress(grpc.RpcError):
                mallory.beat(Working(session=b"m" * 16, id="x", run=run), timeout=60)
            with contextlib.suppress(grpc.RpcError):
                head = Head(id="x", run=run, session=b"m" * 16, size=8_000_000)
                mallory.reply(in_chunks(head, [bytes(1 << 20)] * 8), timeout=60)
            made[0] += 2

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
    assert there.server.poll() is None
