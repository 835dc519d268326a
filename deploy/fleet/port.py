"""The fleet port: a gRPC service over mutual TLS through which devices get messages and reply.

All calls run on one event loop: a held call is a waiting coroutine, not a thread. Each is admitted
by its certificate before anything that it sends is awaited.
"""

import asyncio
import math
import re
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field
from time import monotonic, time
from typing import Any

import grpc.aio
from google.protobuf.message import DecodeError

from fairbloom.logs import log
from fairbloom.protocol.version import PROTOCOL
from fairbloom.text import text_if

from .admission import IDLE_SECONDS, PAUSE_SECONDS, Admission, CallRefusedError
from .connections import FULL, count_sockets
from .content import StoredContent
from .faults import SAY_SECONDS, Faults
from .federation import COPIED, COPY_SECONDS
from .lineage import PROCESS_BYTES, Lineage, Verdict
from .mailbox import Mailbox, QueuedMessage, Reply, describe_fault
from .members import Members
from .messages import CHUNK_BYTES, HELD_SECONDS, LARGEST_CHUNK, SERVICE, in_chunks, node_id_of
from .profiles import Hourly, keep
from .wire_pb2 import Chunk, Drop, Head, Kept, Taken, Told, Working

# Seconds that a device counts as online after its last sign of life.
ONLINE_SECONDS = 30.0

# A reply may have REPLY_TIMES × the message's bytes + REPLY_BYTES.
REPLY_BYTES = 4 << 20
REPLY_TIMES = 2

# Code of the error that replaces a refused reply. Flower's codes are below 100.
REFUSED_REPLY = 413

# Most characters that are accepted of a device's reason, and those that the status has of what a
# device says.
LONGEST_REASON = 4000
LONGEST_SHOWN = 300

# Seconds that a call may take to send its first chunk, and each further one. On the slowest line
# that is supported, 10 kB a second, a chunk takes 105 seconds.
FIRST_CHUNK_SECONDS = 10.0
CHUNK_SECONDS = 120.0

# Chunks that a reply may have beyond those that its size needs.
MORE_CHUNKS = 2

# What a client says of itself: its version and protocol.
AGENT = re.compile(rf"fairbloom/(\S{{1,{LONGEST_SHOWN}}}) protocol/(\d{{1,9}}) ")

OPTIONS = (
    ("grpc.max_concurrent_streams", 8),
    ("grpc.max_receive_message_length", LARGEST_CHUNK),
    # a compressed chunk of 1 MB may hold 1 GB; devices compress nothing
    ("grpc.per_message_decompression", 0),
    ("grpc.server_handshake_timeout_ms", 5_000),
    ("grpc.max_connection_idle_ms", int(1000 * IDLE_SECONDS)),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.so_reuseport", 0),  # a second server on the same port must fail
)


@dataclass
class PortDevice:
    """One client's calls.

    Only the newest call of each kind counts, because older calls may hang on a dead connection.
    """

    session: bytes = b""
    seen: float = -math.inf
    nexts: int = 0
    # The number of the held call of Next, 0 if no call is held.
    held: int = 0
    # The received part of the reply that is being sent.
    receiving: StoredContent | None = None
    # The version of Fairbloom in the client's last call for a message.
    version: str = ""
    # The number of times that a second process with this client's key was refused.
    others_seen: int = 0
    lineage: Lineage = field(default_factory=Lineage)
    # When a copy of this client's machine was noticed last, in seconds since 1970, or 0.
    copied_at: float = 0.0
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def online(self) -> bool:
        """Whether a call is held, or there was a sign of life within ONLINE_SECONDS."""
        return self.held > 0 or monotonic() - self.seen < ONLINE_SECONDS


class Port:
    """The service for devices."""

    def __init__(
        self,
        members: Members,
        mailbox: Mailbox,
        *,
        max_reply: int = 0,
        max_connections: int = 5000,
    ) -> None:
        self._members = members
        self._mailbox = mailbox
        self.admission = Admission(members)
        self._max_reply = max_reply
        self._max_connections = max_connections
        self._own_sockets = 0
        self._faults = Faults()
        self._told = Hourly()
        self._keeping = asyncio.Lock()
        self.devices: dict[str, PortDevice] = {}
        # The digest and the JSON of the settings of each open run, by its number.
        self.settings: dict[int, tuple[str, str]] = {}
        self.connections = {"open": 0, "limit": max_connections}
        self._server: grpc.aio.Server | None = None
        # Set until a handshake has taken it.
        self._identity: Any = None
        mailbox.on_message = self.wake

    async def start(self, address: str, key: bytes, certificate: bytes, authority: bytes) -> int:
        """Listen at HOST:PORT; return the port. Raise RuntimeError if that is not possible."""
        self._server = grpc.aio.server(
            options=[*OPTIONS, ("grpc.max_allowed_incoming_connections", self._max_connections)]
        )
        self._server.add_generic_rpc_handlers((Service(self),))
        self.serve_as(key, certificate, authority)
        port = self._server.add_secure_port(
            address,
            grpc.dynamic_ssl_server_credentials(
                self._take_identity(), self._take_identity, require_client_authentication=True
            ),
        )
        await self._server.start()
        self._own_sockets = count_sockets()
        return int(port)

    def serve_as(self, key: bytes, certificate: bytes, authority: bytes) -> None:
        """Take these for the handshakes from now on; open connections stay."""
        self._identity = grpc.ssl_server_certificate_configuration([(key, certificate)], authority)

    def _take_identity(self) -> Any:
        """Return the identity for the next handshakes, None if it has not changed."""
        identity = self._identity
        self._identity = None
        return identity

    async def stop(self) -> None:
        """End all calls and stop listening."""
        if self._server is not None:
            await self._server.stop(0.5)

    def wake(self, names: Collection[str]) -> None:
        """Wake the held calls of these clients, for a new message."""
        for name in names:
            device = self.devices.get(name)
            if device is not None:
                device.wake.set()

    def online(self) -> list[tuple[int, str]]:
        """Return the node ids and names of the clients that are online and not revoked."""
        members = self._members.by_name
        return sorted(
            (node_id_of(name), name)
            for name, device in self.devices.items()
            if device.online and name in members and not members[name].revoked
        )

    def close_unadmitted(self) -> None:
        """Close calls that are no longer admitted; count connections. Called once a second.

        Logs once a minute that all connections are in use.
        """
        self.admission.end_unadmitted()
        limit = self._max_connections
        number = min(limit, max(0, count_sockets() - self._own_sockets))
        self.connections = {"open": number, "limit": limit}
        if number >= FULL * limit:
            self._faults.say(
                "connections",
                f"all {limit} connections of the port are in use, and further devices are kept out:"
                " limit the connections of an address by a firewall (docs/deployment.md)",
                SAY_SECONDS,
            )

    # Calls ----------------------------------------------------------------------------------------

    async def next(self, sent: AsyncIterator[bytes], context: Any) -> None:
        """Send the calling device its next message, or nothing if none comes in HELD_SECONDS."""
        async with self.admission.admit(context) as call:
            working = await receive(sent, Working, FIRST_CHUNK_SECONDS)
            device = self._enter(call.name, working, context)
            device.nexts += 1
            number = device.held = device.nexts
            device.wake.set()  # an older call notices that it is not the newest, and ends
            try:
                message = await self._wait(call.name, device, number)
                if message is not None:
                    call.sending = True
                    await self._send(message, working.settings, device, number, context)
                device.seen = monotonic()  # not reached if the call was cut
            finally:
                if device.held == number:
                    device.held = 0

    async def _wait(self, name: str, device: PortDevice, number: int) -> QueuedMessage | None:
        """Wait for a message; return None if none comes, or if the device calls again."""
        until = monotonic() + HELD_SECONDS
        while number == device.nexts:
            message = self._mailbox.next(name)
            if message is not None:
                return message
            device.wake.clear()
            try:
                async with asyncio.timeout(until - monotonic()):
                    await device.wake.wait()
            except TimeoutError:
                break
        return None

    async def _send(
        self, message: QueuedMessage, known: str, device: PortDevice, number: int, context: Any
    ) -> None:
        """Send a message to a device that knows the settings with the digest `known`."""
        self._mailbox.begin_work(message)
        digest, settings = self.settings.get(message.run, ("", ""))
        head = Head(
            id=message.envelope.id,
            run=message.run,
            round=message.envelope.group,
            type=message.envelope.type,
            seconds=max(0.0, message.until - monotonic()),
            protocol=PROTOCOL,
            size=message.content.size,
            digest=message.content.digest(),
            settings=text_if(known != digest, settings),
        )
        for chunk in in_chunks(head, message.content.pieces()):
            if number != device.nexts:
                return
            try:
                async with asyncio.timeout(CHUNK_SECONDS):
                    await context.write(chunk)
            except TimeoutError:
                raise CallRefusedError(
                    grpc.StatusCode.DEADLINE_EXCEEDED,
                    f"the client did not take a chunk within {CHUNK_SECONDS:.0f} s",
                ) from None
        message.deliveries += 1

    async def reply(self, sent: AsyncIterator[bytes], context: Any) -> bytes:
        """Take a reply, and answer whether it is used; an error replaces a refused reply."""
        async with self.admission.admit(context) as call:
            first = await receive(sent, Chunk, FIRST_CHUNK_SECONDS)
            device = self._enter(call.name, first.head, context)
            taken = await self._take(call.name, device, first, sent)
        return bytes(taken.SerializeToString())

    async def _take(
        self, name: str, device: PortDevice, first: Chunk, sent: AsyncIterator[bytes]
    ) -> Taken:
        head = first.head
        device.seen = monotonic()
        status = self._mailbox.work_status(name, head.id, head.run)
        message = self._mailbox.find(name, head.id)
        if message is None or status.answer != Taken.TAKEN:
            return status
        if head.code:
            self.admission.note_reason(name, head.reason[:LONGEST_SHOWN])
            self._mailbox.answer(message, Reply(None, head.code, head.reason[:LONGEST_REASON]))
            return status
        limit = max(self._max_reply, REPLY_TIMES * message.content.size + REPLY_BYTES)
        if head.size > limit:
            return self._take_refusal(
                message,
                f"the reply has {head.size} bytes, and at most {limit} are taken (max-reply in"
                " federation.toml)",
            )
        try:
            content = StoredContent(self._mailbox.budget, head.size)
            fault = await self._receive(content, first, sent, device)
        except (OSError, MemoryError) as error:
            self._faults.say(
                f"replies of {name}",
                f"the reply of client {name} is not taken, and the client tries again:"
                f" {describe_fault(error)}",
            )
            # a code that is not in `calls.FINAL`, so that the device keeps the reply and retries
            raise CallRefusedError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"the server cannot keep the reply now: {describe_fault(error)}",
            ) from None
        self._faults.clear(f"replies of {name}")
        if content.size != head.size or content.digest() != head.digest:
            fault = fault or "the reply's bytes are not those that its head announces"
        if fault:
            return self._take_refusal(message, fault)
        self._mailbox.answer(message, Reply(content))
        return status

    async def _receive(
        self, content: StoredContent, first: Chunk, sent: AsyncIterator[bytes], device: PortDevice
    ) -> str:
        """Append the chunks to `content`, up to the size in the head; return why not, or "".

        Refuse a call that breaks off, or that is not the newest.
        """
        if device.receiving is not None:
            device.receiving.close()  # of an older call, which may never end
        device.receiving = content
        size = first.head.size
        try:
            content.append(first.data)
            # an empty chunk counts as well: a reply cannot go on for ever
            for _ in range(size // CHUNK_BYTES + MORE_CHUNKS):
                if content.size >= size:
                    break
                piece = await receive_bytes(sent, CHUNK_SECONDS)
                if device.receiving is not content:
                    raise CallRefusedError(
                        grpc.StatusCode.ABORTED, "the same client replies in a newer call"
                    )
                device.seen = monotonic()
                content.append(piece)
        except BaseException:  # the call was cut, or refused; its traceback may live on
            content.close()
            raise
        finally:
            if device.receiving is content:
                device.receiving = None
        if content.size < size:
            return f"the reply of {size} bytes comes in more chunks than it needs"
        return ""

    async def beat(self, sent: AsyncIterator[bytes], context: Any) -> bytes:
        """Take a sign of life from a device; return why it must drop its work, or ""."""
        async with self.admission.admit(context) as call:
            working = await receive(sent, Working, FIRST_CHUNK_SECONDS)
            self._enter(call.name, working, context).seen = monotonic()
            status = self._mailbox.work_status(call.name, working.id, working.run)
        drop = Drop(reason=text_if(status.answer == Taken.DROP, status.reason))
        return bytes(drop.SerializeToString())

    async def tell(self, sent: AsyncIterator[bytes], context: Any) -> bytes:
        """Keep what a device's owner tells the operator, unread, and one message at a time."""
        async with self.admission.admit(context) as call:
            await receive(sent, Told, FIRST_CHUNK_SECONDS)  # empty: a profile may come slowly
            try:
                self._told.count(call.name)  # before its content, which a flood would send in vain
            except ValueError as error:
                await asyncio.sleep(PAUSE_SECONDS)
                raise CallRefusedError(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error)) from None
            message = await receive(sent, Told, CHUNK_SECONDS)
            folder = self._members.folder.parent
            try:
                async with self._keeping:
                    await asyncio.to_thread(keep, folder, call.name, message)  # it blocks
            except ValueError as error:
                raise CallRefusedError(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from None
        return bytes(Kept().SerializeToString())

    async def refuse_unknown(self, sent: AsyncIterator[bytes], context: Any) -> None:
        """Refuse a call that the port does not have, within the limits of all calls."""
        async with self.admission.admit(context):
            raise CallRefusedError(grpc.StatusCode.UNIMPLEMENTED, "the port has no such call")

    def _enter(self, name: str, caller: Working | Head, context: Any) -> PortDevice:
        """Return the calling client's calls; refuse a second process with its key.

        A client of another protocol is away until one of the two is upgraded. Messages wait for it,
        so that an upgrade in either order costs no round.
        """
        device = self.devices.setdefault(name, PortDevice())
        # calls.OPTIONS come before what gRPC says of itself
        metadata = dict(context.invocation_metadata())
        agent = AGENT.match(metadata.get("user-agent", ""))
        if agent is not None:
            device.version = agent[1]
            theirs = int(agent[2])
            if theirs != PROTOCOL:
                device.seen = -math.inf
                older = "the server" if theirs > PROTOCOL else "this client"
                raise CallRefusedError(
                    grpc.StatusCode.FAILED_PRECONDITION,
                    f"the server speaks protocol {PROTOCOL} and this client {theirs}: upgrade"
                    f" {older}",
                )
        if caller.session != device.session:
            if device.session and device.online:
                device.others_seen += 1
                raise CallRefusedError(
                    grpc.StatusCode.ALREADY_EXISTS,
                    f"another process with the key of client {name!r} is connected, from another"
                    " state folder: end one of the two, or ask the federation's operator for a key"
                    " of its own",
                )
            device.session = caller.session
            device.lineage = Lineage()
        verdict = device.lineage.judge(
            caller.process[:PROCESS_BYTES], caller.start, online=device.online
        )
        if verdict != Verdict.USUAL:
            self._note_copy(name, device)
        if verdict == Verdict.WAITS:
            raise CallRefusedError(
                grpc.StatusCode.ALREADY_EXISTS,
                f"another process with the key and a copy of the state folder of client {name!r} is"
                " connected: this machine is a clone, or was restored from a backup. End one of the"
                " two, or ask the federation's operator to enrol this one under a name of its own,"
                " and give it an empty state-dir",
            )
        return device

    def _note_copy(self, name: str, device: PortDevice) -> None:
        device.copied_at = time()
        self._faults.say(f"copy of {name}", f"client {name}: {COPIED}", COPY_SECONDS)

    def _take_refusal(self, message: QueuedMessage, reason: str) -> Taken:
        """Take an error in place of a refused reply."""
        self._mailbox.answer(message, Reply(None, REFUSED_REPLY, reason))
        self.admission.refused["reply"] += 1
        self.admission.note_reason(message.envelope.device, reason)
        log.warning("the reply of client %s is refused: %s", message.envelope.device, reason)
        return Taken(answer=Taken.TAKEN, reason=reason)


class Service:
    """The port's calls by their paths.

    All of them stream, and none has a deserializer: otherwise gRPC would await a call's content
    before it shows the call to the port.
    """

    def __init__(self, port: Port) -> None:
        self._handlers = {
            f"/{SERVICE}/Next": grpc.stream_stream_rpc_method_handler(port.next),
            f"/{SERVICE}/Reply": grpc.stream_unary_rpc_method_handler(port.reply),
            f"/{SERVICE}/Beat": grpc.stream_unary_rpc_method_handler(port.beat),
            f"/{SERVICE}/Tell": grpc.stream_unary_rpc_method_handler(port.tell),
        }
        self._unknown = grpc.stream_stream_rpc_method_handler(port.refuse_unknown)

    def service(self, handler_call_details: Any) -> Any:
        """Return the handler of a call."""
        return self._handlers.get(handler_call_details.method, self._unknown)


async def receive(sent: AsyncIterator[bytes], kind: type[Any], seconds: float) -> Any:
    """Return the next thing that a call sends; refuse the call if that takes too long."""
    data = await receive_bytes(sent, seconds)
    try:
        return kind.FromString(data)
    except DecodeError:
        raise CallRefusedError(
            grpc.StatusCode.INVALID_ARGUMENT, "the call's content is not what the port reads"
        ) from None


async def receive_bytes(sent: AsyncIterator[bytes], seconds: float) -> bytes:
    """Return the next bytes that a call sends; refuse the call if that takes too long."""
    try:
        async with asyncio.timeout(seconds):
            data = await anext(aiter(sent), None)
    except TimeoutError:
        raise CallRefusedError(
            grpc.StatusCode.DEADLINE_EXCEEDED,
            f"the call's next chunk did not come within {seconds:.0f} s",
        ) from None
    if data is None:  # a cut call may look like a finished one
        raise CallRefusedError(grpc.StatusCode.ABORTED, "the call broke off")
    return data
