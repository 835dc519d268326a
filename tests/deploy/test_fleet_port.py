"""The fleet port: admission, and messages, replies and calls that go wrong."""

import asyncio
import hashlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from benchmarks.flower import wait_until
from fairbloom.deploy.fleet.calls import RefusedError
from fairbloom.deploy.fleet.content import Content, StoredContent
from fairbloom.deploy.fleet.enrolment import enroll, revoke
from fairbloom.deploy.fleet.federation import Federation
from fairbloom.deploy.fleet.mailbox import Envelope
from fairbloom.deploy.fleet.members import Members
from fairbloom.deploy.fleet.messages import (
    CHUNK_BYTES,
    LARGEST_CHUNK,
    SERVICE,
    in_chunks,
)
from fairbloom.deploy.fleet.port import REFUSED_REPLY, REPLY_BYTES
from fairbloom.deploy.fleet.wire_pb2 import Chunk, Head, Taken, Working
from fairbloom.protocol.version import PROTOCOL
from tests.deploy.served import RUN, Served, give_reply, make_place, next_later

# Messages and replies -----------------------------------------------------------------------------


def test_a_message_and_its_reply_arrive_complete(served: Served) -> None:
    data = bytes(range(256)) * (3 * CHUNK_BYTES // 256) + b"rest"
    calls = served.calls()
    held = next_later(calls)
    wait_until(lambda: [name for _, name in served.do(served.port.online)] == ["a"])
    served.send("1", data=data)
    message = held.result(30)
    assert message.content.map() == data
    head = message.head
    assert (head.id, head.run, head.round, head.type, head.protocol) == (
        "1",
        RUN,
        "group",
        "train",
        PROTOCOL,
    )
    assert 590.0 < head.seconds <= 600.0
    assert head.settings == '{"settings": {}}'
    assert give_reply(calls, Head(id="1", run=RUN), data[::-1]).answer == Taken.TAKEN
    assert served.collect("1").data == data[::-1]
    served.send("2")
    assert calls.next("digest").head.settings == ""  # the device has these settings
    calls.close()


def test_a_device_that_comes_back_gets_its_message_again(served: Served) -> None:
    first = served.calls()
    again = served.calls()
    held = next_later(first)  # its connection still looks alive
    wait_until(lambda: bool(served.do(served.port.online)))
    later = next_later(again)
    assert held.result(30) is None
    served.send("1")
    assert later.result(30).head.id == "1"
    assert again.next("").head.id == "1"  # the device was started again
    for calls in (first, again):
        calls.close()


def test_an_unwanted_reply_is_answered_with_the_reason(served: Served) -> None:
    calls = served.calls()
    assert give_reply(calls, Head(id="x", run=RUN), b"update").answer == Taken.LATER
    assert give_reply(calls, Head(id="x", run=RUN + 1), b"update").answer == Taken.DROP
    assert calls.beat("x", RUN) == ""
    assert calls.beat("x", RUN + 1) == "the run is over"
    served.send("1", device="b")
    assert give_reply(calls, Head(id="1", run=RUN), b"forged").answer == Taken.LATER
    assert served.collect("1") is None
    calls.close()


def test_a_reply_that_is_too_large_ends_as_an_error(served: Served) -> None:
    served.send("1")
    calls = served.calls()
    calls.next("")
    taken = give_reply(calls, Head(id="1", run=RUN), bytes(REPLY_BYTES + 100))
    assert "max-reply" in taken.reason
    assert served.collect("1").code == REFUSED_REPLY
    calls.close()


def test_a_reply_with_a_false_head_ends_as_an_error(served: Served) -> None:
    with grpc.secure_channel(served.address, served.credentials("a")) as channel:
        reply: Any = channel.stream_unary(f"/{SERVICE}/Reply", None, Taken.FromString)
        for id, size, data in (("1", 5, b"other"), ("2", 2, b"longer")):
            served.send(id)
            head = Head(
                id=id,
                run=RUN,
                size=size,
                sha256=hashlib.sha256(b"bytes").digest(),
                session=b"1" * 16,
            )
            assert "head announces" in reply(in_chunks(head, [b"", data])).reason
            assert served.collect(id).code == REFUSED_REPLY
        assert served.mailbox.budget.used == len(b"model")  # the replies have left no bytes


def test_a_chunk_beyond_the_limit_ends_the_call(served: Served) -> None:
    served.send("1")
    head = Head(id="1", run=RUN, size=2 * LARGEST_CHUNK, session=b"1" * 16)
    with grpc.secure_channel(served.address, served.credentials("a")) as channel:
        reply: Any = channel.stream_unary(f"/{SERVICE}/Reply", None, Taken.FromString)
        with pytest.raises(grpc.RpcError):
            reply(in_chunks(head, [b"", bytes(LARGEST_CHUNK + 1)]), timeout=30.0)
    wait_until(lambda: served.mailbox.budget.used == len(b"model"))
    assert served.collect("1") is None


def test_an_error_of_the_app_is_a_reply(served: Served) -> None:
    served.send("1")
    calls = served.calls()
    give_reply(calls, Head(id="1", run=RUN, code=2, reason="the app raised " * 1000), b"")
    found = served.collect("1")
    assert (found.code, found.reason[:14], len(found.reason)) == (2, "the app raised", 4000)
    calls.close()


def test_a_full_disk_refuses_a_reply_until_there_is_room(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.send("1")
    append = StoredContent.append
    faults = [OSError(28, "No space left on device")]

    def full_once(self: StoredContent, piece: bytes) -> None:
        if faults:
            raise faults.pop()
        append(self, piece)

    monkeypatch.setattr(StoredContent, "append", full_once)
    calls = served.calls()
    assert give_reply(calls, Head(id="1", run=RUN), b"update").answer == Taken.TAKEN
    assert not faults
    assert served.collect("1").data == b"update"
    calls.close()


def test_a_cut_reply_leaves_nothing_and_is_given_again(served: Served) -> None:
    served.send("1")
    cut = threading.Event()

    def pieces() -> Iterator[bytes]:
        yield from in_chunks(Head(id="1", run=RUN, size=100, session=b"1" * 16), [b"begun"])
        cut.wait(30)

    channel = grpc.secure_channel(served.address, served.credentials("a"))
    reply: Any = channel.stream_unary(f"/{SERVICE}/Reply", None, Taken.FromString)
    begun = reply.future(pieces())
    wait_until(lambda: served.mailbox.budget.used == len(b"model") + 100)
    older = reply.future(pieces())  # a newer call replaces one that may never end
    wait_until(lambda: served.mailbox.budget.used == len(b"model") + 100)
    older.cancel()
    cut.set()
    channel.close()
    wait_until(lambda: served.mailbox.budget.used == len(b"model"))
    assert begun.code() in (
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNAVAILABLE,
    )
    calls = served.calls()
    assert give_reply(calls, Head(id="1", run=RUN), b"update").answer == Taken.TAKEN
    assert served.collect("1").data == b"update"
    calls.close()


def test_held_calls_hold_no_thread(served: Served) -> None:
    names = [f"client-{number}" for number in range(20)]
    for name in names:
        enroll(Federation.read(served.place), name)
    served.look()

    async def hold() -> list[str]:
        channels = [
            grpc.aio.secure_channel(served.address, served.credentials(name)) for name in names
        ]
        path = f"/{SERVICE}/Next"
        makers = (Working.SerializeToString, Chunk.FromString)
        held = [each.unary_stream(path, *makers)(Working(session=b"1" * 16)) for each in channels]
        reads = [asyncio.ensure_future(each.read()) for each in held]
        while len(served.port.online()) < len(names):
            await asyncio.sleep(0.05)
        threads.append(threading.active_count())
        for name in names:
            digest = served.mailbox.store(Content(name.encode()))
            served.mailbox.send(
                RUN, [Envelope(name, name, 1, "", "train", digest, 600.0, kept=True)]
            )
        found = [(await each).data.decode() for each in reads]
        for channel in channels:
            await channel.close()
        return found

    threads = [threading.active_count()]
    assert asyncio.run_coroutine_threadsafe(hold(), served.loop).result(60) == names
    assert threads[1] <= threads[0] + 2


# Who is let in ------------------------------------------------------------------------------------


def refusal(served: Served, credentials: grpc.ChannelCredentials) -> grpc.StatusCode:
    """Return the code that a call for the next message ends with."""
    with grpc.secure_channel(served.address, credentials) as channel:
        beat: Any = channel.unary_unary(
            f"/{SERVICE}/Beat", Working.SerializeToString, Working.FromString
        )
        try:
            beat(Working(), timeout=10)
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code
    return grpc.StatusCode.OK


def test_strangers_reach_no_handler(
    served: Served, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    authority = (served.place / "ca.crt").read_bytes()
    theirs = make_place(tmp_path / "theirs") / "bundles" / "a"
    key = (theirs / "key").read_bytes()
    certificate = (theirs / "certificate").read_bytes()
    server = [(served.place / name).read_bytes() for name in ("server.key", "server.crt")]
    strangers = {
        "no certificate": grpc.ssl_channel_credentials(authority),
        "another authority's": grpc.ssl_channel_credentials(authority, key, certificate),
        "the server's": grpc.ssl_channel_credentials(authority, *server),
    }
    for who, credentials in strangers.items():
        with subtests.test(who=who, credentials=credentials):
            assert refusal(served, credentials) == grpc.StatusCode.UNAVAILABLE, who
    assert served.port.devices == {}
    assert refusal(served, served.credentials("a")) == grpc.StatusCode.OK


def test_a_device_cannot_pass_for_the_server(served: Served) -> None:
    bundle = served.place / "bundles" / "b"
    for file, name in (("key", "server.key"), ("certificate", "server.crt")):
        (served.place / name).write_bytes((bundle / file).read_bytes())
    liar = Served(served.place)
    try:
        assert refusal(liar, served.credentials("a")) == grpc.StatusCode.UNAVAILABLE
    finally:
        liar.stop()


def test_a_client_is_identified_by_its_key_at_each_call(served: Served) -> None:
    calls = served.calls()
    old = served.credentials("a")
    held = next_later(calls)
    wait_until(lambda: bool(served.do(served.port.online)))
    revoke(Federation.read(served.place), "a")
    served.look()
    with pytest.raises(RefusedError, match="client 'a' was revoked by the federation's operator"):
        held.result(30)
    enroll(Federation.read(served.place), "a")
    served.look()
    assert refusal(served, old) == grpc.StatusCode.PERMISSION_DENIED
    with pytest.raises(RefusedError, match="is enrolled with another key"):
        calls.next("")
    assert refusal(served, served.credentials("a")) == grpc.StatusCode.OK
    (served.place / "clients" / "a.toml").unlink()
    served.look()
    assert refusal(served, served.credentials("a")) == grpc.StatusCode.PERMISSION_DENIED
    calls.close()


def test_without_pinning_any_key_of_an_enrolled_name_works(served: Served) -> None:
    old = served.credentials("a")
    enroll(Federation.read(served.place), "a")
    unpinned = Members(served.place / "clients", pin_keys=False)
    unpinned.look()
    served.port._admission._members = unpinned
    assert refusal(served, old) == grpc.StatusCode.OK


def test_a_second_process_with_the_same_key_is_refused(served: Served) -> None:
    first = served.calls()
    second = served.calls(session=b"2" * 16)
    held = next_later(first)
    wait_until(lambda: bool(served.do(served.port.online)))
    with pytest.raises(
        RefusedError, match="another process with the key of client 'a' is connected"
    ):
        second.next("")
    assert served.port.devices["a"].others_seen == 1
    served.send("1")
    assert held.result(30).head.id == "1"
    wait_until(lambda: served.port.devices["a"].held == 0)
    served.port.devices["a"].seen -= 60.0  # the first process is offline
    assert second.next("").head.id == "1"
    for calls in (first, second):
        calls.close()


def test_a_damaged_file_keeps_its_client_out_and_no_other(served: Served) -> None:
    (served.place / "clients" / "a.toml").write_text("name = 'b'\npartition = 'x'")
    served.look()
    assert refusal(served, served.credentials("a")) == grpc.StatusCode.PERMISSION_DENIED
    assert refusal(served, served.credentials("b")) == grpc.StatusCode.OK


@pytest.mark.parametrize("module", ["daemon", "client"])
def test_server_and_device_load_neither_flower_nor_pytorch(module: str) -> None:
    code = (
        f"import sys, fairbloom.deploy.fleet.{module}; print({{'flwr', 'torch', 'numpy'}} &"
        " {*sys.modules})"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
        == "set()\n"
    ), module


def test_the_port_listens_on_ipv6(tmp_path: Path) -> None:
    port = Served(make_place(tmp_path / "place"), "[::1]:0")
    try:
        assert refusal(port, port.credentials("a")) == grpc.StatusCode.OK
    finally:
        port.stop()


def test_a_port_that_is_taken_is_an_error(served: Served, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="bind"):
        Served(served.place, served.address)
