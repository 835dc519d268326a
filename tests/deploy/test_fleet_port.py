"""The fleet port: admission, and messages, replies and calls that go wrong.

Limits of the fleet port: what a certificate may hold, and what ends with it.
"""

import asyncio
import contextlib
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from blake3 import blake3

from benchmarks.flower import wait_until
from benchmarks.processes import free_port
from fairbloom import __version__
from fairbloom.deploy import pki
from fairbloom.deploy.device.client import ClientSettings
from fairbloom.deploy.device.connectivity import connection_fault
from fairbloom.deploy.errors import DeployError
from fairbloom.deploy.fleet import admission, calls, grid, port
from fairbloom.deploy.fleet.admission import Admission, Caller as Allowance, CallRefusedError
from fairbloom.deploy.fleet.calls import RefusedError
from fairbloom.deploy.fleet.connections import OTHER_CONNECTIONS, OWN_FILES, connection_limit
from fairbloom.deploy.fleet.content import Content, StoredContent
from fairbloom.deploy.fleet.daemon import SECOND, read_identity
from fairbloom.deploy.fleet.enrolment import enroll, revoke
from fairbloom.deploy.fleet.faults import Faults
from fairbloom.deploy.fleet.federation import Federation, read_now
from fairbloom.deploy.fleet.mailbox import Envelope
from fairbloom.deploy.fleet.members import Members
from fairbloom.deploy.fleet.messages import (
    BYTES_WITH_HEAD,
    CHUNK_BYTES,
    LARGEST_CHUNK,
    SERVICE,
    Start,
    in_chunks,
)
from fairbloom.deploy.fleet.port import REFUSED_REPLY, REPLY_BYTES, Port
from fairbloom.deploy.fleet.runs import STOPPED, Order, submit
from fairbloom.deploy.fleet.wire_pb2 import Chunk, Head, Taken, Working
from fairbloom.protocol.version import PROTOCOL
from tests.checkout import ROOT
from tests.deploy.served import RUN, Caller, Served, code_of, give_reply, make_place, next_later

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
    assert served.port.devices["a"].version == __version__
    assert not served.port.admission.reasons
    served.send("2")
    assert calls.next("digest").head.settings == ""  # the device has these settings


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


def test_an_unwanted_reply_is_answered_with_the_reason(served: Served) -> None:
    calls = served.calls()
    assert give_reply(calls, Head(id="x", run=RUN), b"update").answer == Taken.LATER
    assert give_reply(calls, Head(id="x", run=RUN + 1), b"update").answer == Taken.DROP
    assert calls.beat("x", RUN) == ""
    assert calls.beat("x", RUN + 1) == "the run is over"
    served.send("1", device="b")
    assert give_reply(calls, Head(id="1", run=RUN), b"forged").answer == Taken.LATER
    assert served.collect("1") is None


def test_a_reply_that_is_too_large_ends_as_an_error(served: Served) -> None:
    served.send("1")
    calls = served.calls()
    calls.next("")
    taken = give_reply(calls, Head(id="1", run=RUN), bytes(REPLY_BYTES + 100))
    assert "max-reply" in taken.reason
    assert served.collect("1").code == REFUSED_REPLY
    assert served.port.admission.refused == {"reply": 1}
    assert served.port.admission.reasons == {"a": taken.reason}


def test_a_reply_with_a_false_head_ends_as_an_error(served: Served) -> None:
    with grpc.secure_channel(served.address, served.credentials("a")) as channel:
        reply: Any = channel.stream_unary(f"/{SERVICE}/Reply", None, Taken.FromString)
        for id, size, data in (("1", 5, b"other"), ("2", 2, b"longer")):
            served.send(id)
            head = Head(
                id=id,
                run=RUN,
                size=size,
                digest=blake3(b"bytes").digest(),
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
    give_reply(served.calls(), Head(id="1", run=RUN, code=2, reason="the app raised " * 1000), b"")
    found = served.collect("1")
    assert (found.code, found.reason[:14], len(found.reason)) == (2, "the app raised", 4000)
    assert served.port.admission.reasons == {"a": found.reason[:300]}


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
    assert give_reply(served.calls(), Head(id="1", run=RUN), b"update").answer == Taken.TAKEN
    assert not faults
    assert served.collect("1").data == b"update"


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
    assert give_reply(served.calls(), Head(id="1", run=RUN), b"update").answer == Taken.TAKEN
    assert served.collect("1").data == b"update"


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
            return error.code()
    return grpc.StatusCode.OK


def test_strangers_reach_no_handler(served: Served, tmp_path: Path) -> None:
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
    assert {who: refusal(served, each) for who, each in strangers.items()} == dict.fromkeys(
        strangers, grpc.StatusCode.UNAVAILABLE
    )
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


def test_without_pinning_any_key_of_an_enrolled_name_works(served: Served) -> None:
    old = served.credentials("a")
    enroll(Federation.read(served.place), "a")
    unpinned = Members(served.place / "clients", pin_keys=False)
    unpinned.refresh()
    served.port.admission._members = unpinned
    assert refusal(served, old) == grpc.StatusCode.OK


def test_a_second_process_with_the_same_key_is_refused(served: Served) -> None:
    first = served.calls()
    second = served.calls(start=Start(b"2" * 16))
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


def started(process: bytes, number: int) -> Start:
    return Start(b"1" * 16, process, number)


def test_of_two_machines_with_a_state_folder_the_second_waits(served: Served) -> None:
    """The copy is taken for a restart until the first one calls again."""
    first = served.calls(start=started(b"first", 4))
    second = served.calls(start=started(b"second", 5))
    held = next_later(first)
    wait_until(lambda: bool(served.do(served.port.online)))
    of_second = next_later(second)
    assert held.result(30) is None  # its call is no longer the newest, so it calls again
    assert served.port.devices["a"].copied_at == 0.0
    held = next_later(first)
    assert of_second.result(30) is None
    assert served.port.devices["a"].copied_at > 0.0
    for call in (second.connect, lambda: second.next("")):
        with pytest.raises(
            RefusedError, match="copy of the state folder of client 'a' is connected"
        ):
            call()
    served.send("1")
    message = held.result(30)
    assert message.head.id == "1"
    with pytest.raises(RefusedError, match="copy of the state folder"):
        give_reply(second, Head(id="1", run=RUN), b"of the copy")
    assert give_reply(first, message.head, b"update").answer == Taken.TAKEN
    assert served.collect("1").data == b"update"


def test_a_restarted_client_goes_on_at_once(served: Served) -> None:
    held = next_later(served.calls(start=started(b"before", 4)))
    wait_until(lambda: bool(served.do(served.port.online)))
    served.send("1")
    assert held.result(30).head.id == "1"
    again = served.calls(start=started(b"after", 5))
    assert again.next("").head.id == "1"
    assert served.port.devices["a"].copied_at == 0.0


def test_a_restored_backup_is_noticed_and_goes_on_alone(served: Served) -> None:
    served.calls(start=started(b"before", 9)).connect()
    backup = served.calls(start=started(b"restored", 3))
    with pytest.raises(RefusedError, match="was restored from a backup"):
        backup.connect()
    served.port.devices["a"].seen -= 60.0  # the first process is offline
    backup.connect()
    assert served.port.devices["a"].copied_at > 0.0


def test_a_damaged_file_keeps_its_client_out_and_no_other(served: Served) -> None:
    (served.place / "clients" / "a.toml").write_text("name = 'b'\npartition = 'x'")
    served.look()
    assert refusal(served, served.credentials("a")) == grpc.StatusCode.PERMISSION_DENIED
    assert refusal(served, served.credentials("b")) == grpc.StatusCode.OK


@pytest.mark.parametrize(
    ("program", "also"),
    [
        ("import fairbloom.deploy.fleet.daemon", ()),
        ("import fairbloom.deploy.fleet.client", ()),
        (
            "import sys; from fairbloom.cli.main import main; sys.argv[1:] = ['deploy', 'status',"
            " '--check', '--dir', 'federation']\ntry: main()\nexcept SystemExit: pass",
            ("grpc", "pydantic", "fairbloom.server", "fairbloom.client"),
        ),
    ],
)
def test_small_processes_load_neither_flower_nor_pytorch(
    made: Path, program: str, also: tuple[str, ...]
) -> None:
    """The server's, a device's, and the one of deploy status --check."""
    code = f"{program}\nimport sys; print({{'flwr', 'torch', 'numpy', *{also}}} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "set()", done.stderr


def test_the_port_listens_on_ipv6(tmp_path: Path) -> None:
    port = Served(make_place(tmp_path / "place"), "[::1]:0")
    try:
        assert refusal(port, port.credentials("a")) == grpc.StatusCode.OK
    finally:
        port.stop()


def test_a_port_that_is_taken_is_an_error(served: Served, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="bind"):
        Served(served.place, served.address)


def served_certificate(served: Served) -> bytes:
    """Return the certificate of a new handshake, in PEM."""
    bundle = served.place / "bundles" / "a"
    context = ssl.create_default_context(cafile=str(served.place / "ca.crt"))
    context.check_hostname = False
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(bundle / "certificate", bundle / "key")
    host, _, port = served.address.rpartition(":")
    with socket.create_connection((host, int(port))) as plain, context.wrap_socket(plain) as line:
        return ssl.DER_cert_to_PEM_cert(line.getpeercert(binary_form=True) or b"").encode()


def test_a_new_certificate_is_served_without_a_restart(served: Served) -> None:
    """To each new connection, again and again; a call that is open stays."""
    held = next_later(served.calls())
    federation = Federation.read(served.place)
    for _ in range(2):
        before = federation.identity[0].read_bytes()
        assert served_certificate(served) == served_certificate(served) == before
        federation.renew()
        served.do(lambda: served.port.serve_as(*read_identity(federation)))
        assert served_certificate(served) == federation.identity[0].read_bytes() != before
    served.send("1")
    assert held.result(30).head.id == "1"


def test_an_authority_is_changed_without_a_gap(served: Served, tmp_path: Path) -> None:
    """By the steps of docs/deployment.md: devices of the old and the new one are let in."""
    federation = Federation.read(served.place)
    authority, key = federation.authority
    new = (tmp_path / "ca.crt", tmp_path / "ca.key")
    pki.make_authority(*new, days=1000.0)
    callers = {"old": served.credentials("a")}

    def admitted() -> set[str]:
        served.look()
        served.do(lambda: served.port.serve_as(*read_identity(federation)))
        return {name for name, each in callers.items() if refusal(served, each) == OK}

    authority.write_bytes(authority.read_bytes() + new[0].read_bytes())
    callers["both"] = served.credentials("a")
    assert admitted() == {"old", "both"}
    key.write_bytes(new[1].read_bytes())
    federation.renew()
    bundle = enroll(federation, "b")
    callers["new"] = served.credentials("b")
    assert admitted() == {"both", "new"}  # the old one does not trust the server's certificate
    client = ClientSettings.of({"state-dir": str(tmp_path)}, bundle / "client.toml")
    assert len(client.tls_context().get_ca_certs()) == 2
    assert pki.days_left(bundle / "ca.crt") == pytest.approx(1000.0, abs=0.1)  # the shorter one
    authority.write_bytes(new[0].read_bytes())
    assert admitted() == {"new"}
    pki.make_authority(tmp_path / "other.crt", key)
    with pytest.raises(DeployError, match="does not belong to"):
        federation.renew()


METHODS = ("Next", "Reply", "Beat", "Tell")
WORKING = Working(session=b"1" * 16).SerializeToString()
OK = grpc.StatusCode.OK
YEARS = 365 * 24 * 3600.0


@pytest.fixture
def caller(served: Served) -> Caller:
    return Caller(served)


def beat(caller: Caller) -> grpc.StatusCode | None:
    """Return the code that a sign of life ends with."""
    return code_of(caller.call("Beat", WORKING, silent=False))


def begin_reply(served: Served, caller: Caller, size: int = 1_000_000) -> Any:
    """Begin a reply to a new message, which then does not go on."""
    served.send("1")
    head = Head(id="1", run=RUN, size=size, session=b"1" * 16)
    call = caller.call("Reply", Chunk(head=head, data=b"begun").SerializeToString())
    devices = served.port.devices
    # on a busy machine, a short limit may have ended it already
    wait_until(
        lambda: call.done() or ("a" in devices and devices["a"].receiving is not None),
    )
    return call


def forget(served: Served, name: str) -> None:
    """Revoke a client, and have the server look once."""
    revoke(Federation.read(served.place), name)
    served.look()


def connections(served: Served) -> int:
    """Have the server look once, and return the number of connections."""
    served.do(served.port.close_unadmitted)
    return served.port.connections["open"] // 2  # this process has both ends of each


def wait_for_calls(served: Served, number: int) -> None:
    """Wait until the server has this number of open calls."""
    callers = served.port.admission._callers
    wait_until(
        lambda: (
            number
            == sum(
                call.refusal is None for caller in [*callers.values()] for call in [*caller.calls]
            )
        )
    )


# Before a call says anything ----------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_a_revoked_client_is_refused_before_it_sends(served: Served, method: str) -> None:
    caller = Caller(served)
    forget(served, "a")
    began = time.monotonic()
    call = caller.call(method)
    assert code_of(call) == grpc.StatusCode.PERMISSION_DENIED
    assert "was revoked by the federation's operator" in call.details()
    assert served.port.admission.refused == {"reply": 0, "permission denied": 1}
    assert served.port.admission.reasons == {"a": call.details()}
    assert time.monotonic() - began < 2.0
    wait_until(lambda: connections(served) == 0)  # it cannot keep its connection either


@pytest.mark.parametrize("method", METHODS)
def test_a_silent_call_ends_soon(
    served: Served, caller: Caller, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (port.FIRST_CHUNK_SECONDS, port.CHUNK_SECONDS) == (10.0, 120.0)
    with monkeypatch.context() as patch:
        patch.setattr(port, "FIRST_CHUNK_SECONDS", 0.3)
        call = caller.call(method)
        assert code_of(call) == grpc.StatusCode.DEADLINE_EXCEEDED
    assert "did not come within" in call.details()
    assert beat(caller) == grpc.StatusCode.OK


def test_a_reply_that_stops_ends_and_is_given_again(
    served: Served, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port, "CHUNK_SECONDS", 0.3)
    assert code_of(begin_reply(served, caller)) == grpc.StatusCode.DEADLINE_EXCEEDED
    assert served.mailbox.budget.used == len(b"model")
    give_reply(served.calls(), Head(id="1", run=RUN), b"update")
    assert served.collect("1").data == b"update"


@pytest.mark.parametrize("size", [0, BYTES_WITH_HEAD, BYTES_WITH_HEAD + 1, CHUNK_BYTES])
def test_a_line_of_10_kilobytes_a_second_is_fast_enough(size: int) -> None:
    first, *others = [len(chunk) for chunk in in_chunks(Head(id="1"), [bytes(size)])]
    assert first / 10_000 < port.FIRST_CHUNK_SECONDS / 2
    assert all(each / 10_000 < port.CHUNK_SECONDS for each in others)


@pytest.mark.parametrize("is_revoked", [False, True])
def test_a_client_that_takes_nothing_does_not_hold_its_call(
    served: Served, caller: Caller, monkeypatch: pytest.MonkeyPatch, is_revoked: bool
) -> None:
    if not is_revoked:
        monkeypatch.setattr(port, "CHUNK_SECONDS", 0.3)
    served.send("1", data=bytes(30_000_000))
    call = caller.call("Next", WORKING)  # and no read
    wait_until(lambda: "a" in served.port.devices)
    if is_revoked:
        forget(served, "a")
    wait_until(lambda: connections(served) == 0)
    assert code_of(call) == grpc.StatusCode.UNAVAILABLE


def test_a_connection_without_calls_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = dict(port.OPTIONS) | {"grpc.max_connection_idle_ms": 500}
    monkeypatch.setattr(port, "OPTIONS", tuple(options.items()))
    served = Served(make_place(tmp_path / "place"))
    idle, busy = (Caller(served, name) for name in "ab")
    ended, held = (each.call("Next", WORKING) for each in (idle, busy))
    wait_until(lambda: connections(served) == 2)
    ended.cancel()
    wait_until(lambda: connections(served) == 1)
    assert code_of(held, 0.1) is None
    served.stop()


def test_empty_chunks_count_as_chunks(served: Served, caller: Caller) -> None:
    served.send("1")
    head = Chunk(head=Head(id="1", run=RUN, size=100, session=b"1" * 16))
    call = caller.call("Reply", head.SerializeToString(), *[b""] * 1000)
    assert code_of(call) == grpc.StatusCode.OK
    found = served.collect("1")
    assert (found.code, found.reason) == (
        REFUSED_REPLY,
        "the reply of 100 bytes comes in more chunks than it needs",
    )
    assert served.mailbox.budget.used == len(b"model")


def test_nonsense_is_refused_and_leaves_no_traceback(
    served: Served, caller: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    assert [
        method
        for method in METHODS
        if code_of(caller.call(method, b"\xff\xff\xff")) != grpc.StatusCode.INVALID_ARGUMENT
    ] == []
    assert code_of(caller.call("Push")) == grpc.StatusCode.UNIMPLEMENTED
    assert caplog.text == ""


def test_a_fault_of_the_server_is_logged_once(
    served: Served,
    caller: Caller,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(name: str, id: str, run: int) -> None:
        raise ZeroDivisionError("of a bug")

    with monkeypatch.context() as patch:
        patch.setattr(served.mailbox, "work_status", fail)
        for _ in range(3):
            assert beat(caller) == grpc.StatusCode.INTERNAL
    assert caplog.text.count("a call failed by ZeroDivisionError") == 1
    assert beat(caller) == grpc.StatusCode.OK


class DeafContext:
    """A call of a client that does not read its last words."""

    def __init__(self, certificate: bytes) -> None:
        self.certificate = certificate

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"x509_pem_cert": [self.certificate]}

    def peer(self) -> str:
        return "ipv4:10.0.0.1:5000"

    def add_done_callback(self, callback: object) -> None:
        """It is never done."""

    async def abort(self, code: grpc.StatusCode, reason: str) -> None:
        await asyncio.sleep(60)


@pytest.mark.parametrize(("is_ended", "seconds"), [(True, 1.0), (False, 120.0)])
def test_a_connection_that_takes_no_last_words_is_closed(
    bundle: Path, is_ended: bool, seconds: float
) -> None:
    now = [0.0]
    closed = list[set[str]]()
    faults = [OSError("Too many open files")]

    def close(peers: Collection[str]) -> None:
        if faults:
            raise faults.pop()
        closed.append({*peers})

    members = Members(bundle.parents[1] / "clients")
    members.refresh()
    made = Admission(members, lambda: now[0], close)

    async def call() -> None:
        async with made.admit(DeafContext((bundle / "certificate").read_bytes())):
            if is_ended:
                raise CallRefusedError(grpc.StatusCode.ABORTED, "a fault")

    async def watch() -> None:
        task = asyncio.create_task(call())
        await asyncio.sleep(0.01)
        now[0] += seconds
        made.end_unadmitted()
        assert closed == []
        now[0] += 0.1
        with pytest.raises(OSError, match="Too many"):
            made.end_unadmitted()
        made.end_unadmitted()  # again
        assert closed == [{"ipv4:10.0.0.1:5000"}]
        task.cancel()

    asyncio.run(watch())


# Revocation, and the end of a certificate ---------------------------------------------------------


@pytest.mark.parametrize("ends", ["revoked", "expired"])
def test_every_open_call_ends_with_its_certificate(
    served: Served, caller: Caller, ends: str
) -> None:
    calls = [begin_reply(served, caller), caller.call("Beat"), caller.call("Reply")]
    served.do(lambda: served.mailbox.end(RUN))
    calls.append(caller.call("Next", WORKING))
    other = Caller(served, "b")
    others = other.call("Next", WORKING)
    wait_until(lambda: len(served.do(served.port.online)) == 2)
    wait_for_calls(served, 5)
    began = time.monotonic()
    if ends == "revoked":
        forget(served, "a")
    else:
        served.members._clock = lambda: time.time() + 5 * YEARS
        served.look()
        assert code_of(others, 0.3) is None  # ten years are not over
        served.members._clock = lambda: time.time() + 11 * YEARS
        served.look()
    assert [call for call in calls if code_of(call) != grpc.StatusCode.PERMISSION_DENIED] == []
    assert time.monotonic() - began < 2.0
    if ends == "revoked":
        assert code_of(others, 0.3) is None
    else:
        assert "the certificate of client 'a' expired on" in calls[0].details()
        assert beat(other) == grpc.StatusCode.PERMISSION_DENIED


# Many calls and connections -----------------------------------------------------------------------


def test_a_fifth_open_call_is_refused(
    served: Served, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "PAUSE_SECONDS", 0.0)
    calls = [caller.call("Reply") for _ in range(4)]
    wait_for_calls(served, 4)
    assert beat(caller) == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert beat(Caller(served, "b")) == grpc.StatusCode.OK
    calls[0].cancel()
    wait_until(lambda: beat(caller) == grpc.StatusCode.OK)


def test_a_new_connection_takes_the_place_of_an_old_one(served: Served) -> None:
    callers = [Caller(served) for _ in range(6)]
    calls = list[Any]()
    for number, each in enumerate(callers, 1):
        calls.append(each.call("Reply"))
        wait_for_calls(served, min(number, 4))
        wait_until(lambda: sum(call.done() for call in calls) == max(0, len(calls) - 4))
    ended = [code_of(call, 0.1) for call in calls]
    assert ended == [grpc.StatusCode.RESOURCE_EXHAUSTED] * 2 + [None] * 4


def test_the_newest_eight_connections_of_a_client_remain(served: Served) -> None:
    callers = [Caller(served) for _ in range(12)]
    assert [each for each in callers if beat(each) != grpc.StatusCode.OK] == []
    wait_until(lambda: connections(served) == 8)
    newest = callers[-1].call("Reply")
    assert connections(served) == 8
    assert code_of(newest, 0.2) is None


def test_a_certificate_has_500_calls_a_second() -> None:
    caller = Allowance(0.0)
    assert sum(caller.take_token(0.0) for _ in range(1500)) == 1000
    assert sum(caller.take_token(1.0) for _ in range(1500)) == 500
    assert sum(caller.take_token(1.5) for _ in range(1500)) == 250
    assert sum(caller.take_token(100.0) for _ in range(1500)) == 1000
    second = 0.0
    for _ in range(2000):  # a device in small rounds
        second += 1 / 200
        assert caller.take_token(100.0 + second)


def test_calls_beyond_that_are_refused_and_logged_once(
    served: Served,
    caller: Caller,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(admission, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(admission, "CALLS_AT_ONCE", 10.0)
    monkeypatch.setattr(admission, "CALLS_A_SECOND", 0.001)
    codes = [beat(caller) for _ in range(20)]
    assert codes == [grpc.StatusCode.OK] * 10 + [grpc.StatusCode.RESOURCE_EXHAUSTED] * 10
    assert code_of(caller.call("Push")) == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert caplog.text.count("client a calls too often") == 1


class Small(Served):
    """A port that takes two connections."""

    def _make(self) -> Port:
        return Port(self.members, self.mailbox, max_connections=2)


def test_a_device_learns_that_the_server_is_full(tmp_path: Path) -> None:
    place = make_place(tmp_path / "place")
    served = Small(place)
    client = replace(
        ClientSettings.of({}, place / "bundles" / "a" / "client.toml"), server=served.address
    )
    host, _, number = served.address.rpartition(":")
    held = Caller(served).call("Next", WORKING)
    wait_for_calls(served, 1)
    stranger = socket.create_connection((host, int(number)))
    wait_until(lambda: "the server is full" in (connection_fault(client) or ""))
    served.send("1")
    assert Chunk.FromString(next(held)).data == b"model"  # a connected device goes on
    stranger.close()
    wait_until(lambda: connection_fault(client) is None)
    served.stop()


def test_a_fault_is_said_again_after_a_while(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    faults = Faults(lambda: now[0])
    for at, words in ((0.0, "a"), (10.0, "a"), (11.0, "b"), (70.9, "b"), (71.1, "b")):
        now[0] = at
        faults.say("subject", words, every=60.0)
    assert [record.getMessage() for record in caplog.records] == ["a", "b", "b"]
    faults.clear("subject")
    faults.say("subject", "b")
    assert len(caplog.records) == 4


@pytest.mark.parametrize(
    ("clients", "files", "expected"),
    [(1000, 524_288, 5000), (1000, 1024, 768), (2, 20_000, 1008), (2, 100, 1)],
)
def test_connections_leave_256_files_for_the_server(
    clients: int, files: int, expected: int
) -> None:
    assert connection_limit(clients, files) == expected


# Not by preexec_fn: it forks, and gRPC in this process then begins to poll in the child.
WITH_FEW_FILES = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (100, int(sys.argv[1])))
daemon = [sys.executable, "-m", "fairbloom.deploy.fleet.daemon", sys.argv[2]]
os.execv(sys.executable, daemon)
"""


def test_a_server_with_few_files_survives_strangers(tmp_path: Path) -> None:
    port = free_port()
    federation = Federation.init(tmp_path / "fed", ["localhost"], port)
    files = OWN_FILES + 64
    log = tmp_path / "log"
    with (
        log.open("w") as writing,
        subprocess.Popen(
            [sys.executable, "-c", WITH_FEW_FILES, str(files), str(federation.path)],
            stderr=writing,
        ) as server,
        contextlib.ExitStack() as afterwards,
    ):
        afterwards.callback(server.kill)  # without effect on a server that has ended
        said = log.read_text
        wait_until(lambda: "ready" in said(), said)
        for _ in range(200):
            afterwards.enter_context(
                contextlib.closing(socket.create_connection(("localhost", port)))
            )
        wait_until(lambda: "all 64 connections of the port are in use" in said(), said)
        began = time.monotonic()
        run = submit(federation.runs, Order("app:app", "app", "1", {}))
        run.stop()
        wait_until(lambda: f"run {run.number} stopped" in said(), said)
        assert run.status == STOPPED
        limit = f"at most 64 connections are taken; this process may have {files} open files"
        assert limit in said()
        ours = [line for line in said().splitlines() if line.startswith("fairbloom server: ")]
        assert len({*ours}) == 4, said()
        # The strangers are one line, said again after a minute.
        assert len(ours) <= 4 + (time.monotonic() - began) // 60, said()
        assert read_now(federation).connections["limit"] == 64
        server.terminate()
        assert server.wait(60) == 0


def test_security_names_the_limits() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    section = text.partition("## Limits of the port")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:3] for line in section.splitlines() if line.startswith("|")][2:]
    options = dict(port.OPTIONS)
    assert [
        [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", limit)]
        for _, limit in rows
    ] == [
        [options["grpc.server_handshake_timeout_ms"] / 1000],
        [options["grpc.max_connection_idle_ms"] / 1000],
        [4, OTHER_CONNECTIONS, OWN_FILES],
        [admission.CONNECTIONS],
        [admission.OPEN_CALLS],
        [admission.CALLS_AT_ONCE, admission.CALLS_A_SECOND],
        [port.FIRST_CHUNK_SECONDS],
        [port.CHUNK_SECONDS],
        [grid.MORE_ITEMS, grid.MAX_ARRAYS],
        [grid.MAX_VALUES, grid.MORE_ITEMS],
        [grid.MAX_UNREADABLE],
        [2 * SECOND],
    ]


@pytest.mark.parametrize(("theirs", "older"), [(-1, "this client"), (1, "the server")])
def test_a_client_of_another_protocol_is_away(
    served: Served, monkeypatch: pytest.MonkeyPatch, theirs: int, older: str
) -> None:
    before = served.calls()
    before.connect()
    served.send("1")
    assert [name for _, name in served.do(served.port.online)] == ["a"]
    agent = f"fairbloom/0.9 protocol/{PROTOCOL + theirs}"
    options = dict(calls.OPTIONS) | {"grpc.primary_user_agent": agent}
    with monkeypatch.context() as changed:
        changed.setattr(calls, "OPTIONS", (*options.items(),))
        upgraded = served.calls()
    words = f"protocol {PROTOCOL} and this client {PROTOCOL + theirs}: upgrade {older}"
    for call in (
        upgraded.connect,
        lambda: upgraded.next(""),
        lambda: give_reply(upgraded, Head(id="1", run=RUN), b"misread"),
    ):
        with pytest.raises(RefusedError, match=words):
            call()
    assert served.do(served.port.online) == []
    assert words in served.port.admission.reasons["a"]
    assert served.collect("1") is None  # it waits
    assert served.calls().next("").head.id == "1"  # the remedy
