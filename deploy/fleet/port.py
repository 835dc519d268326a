"""The fleet port: a gRPC service over mutual TLS through which devices get messages and reply.

All calls run on one event loop: a held call is a waiting coroutine, not a thread.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NoReturn

import grpc
import grpc.aio

from fairbloom.logs import log
from fairbloom.protocol.version import PROTOCOL

from .mailbox import Content, Mailbox, QueuedMessage, Reply
from .members import Member, Members, NotAdmittedError
from .messages import HELD_SECONDS, LARGEST_CHUNK, SERVICE, in_chunks, node_id_of
from .wire_pb2 import Chunk, Drop, Head, Taken, Working

# Seconds that a device counts as online after its last sign of life.
ONLINE_SECONDS = 30.0

# A reply may have REPLY_TIMES × the message's bytes + REPLY_BYTES.
REPLY_BYTES = 4 << 20
REPLY_TIMES = 2

# Code of the error that replaces a refused reply. Flower's codes are below 100.
REFUSED_REPLY = 413

# Most characters that are accepted of a device's reason.
LONGEST_REASON = 4000

# Connections beyond four a client. Strangers count until their handshake fails: with a tight limit
# they would lock devices out.
OTHER_CONNECTIONS = 1000

OPTIONS = (
    ("grpc.max_concurrent_streams", 8),
    ("grpc.max_receive_message_length", LARGEST_CHUNK),
    # a compressed chunk of 1 MB may hold 1 GB; devices compress nothing
    ("grpc.per_message_decompression", 0),
    ("grpc.server_handshake_timeout_ms", 5_000),
    ("grpc.max_connection_idle_ms", 60_000),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.so_reuseport", 0),  # a second server on the same port must fail
)


@dataclass
class Device:
    """One client's calls.

    Only the newest call of each kind counts, because older calls may hang on a dead connection.
    """

    session: bytes = b""
    seen: float = -math.inf
    nexts: int = 0
    held: int = 0
    """The number of the held call of Next, 0 if no call is held."""
    receiving: Content | None = None
    """The received part of the reply that is being sent."""
    others_seen: int = 0
    """The number of times that a second process with this client's key was refused."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def online(self) -> bool:
        """Whether a call is held, or there was a sign of life within ONLINE_SECONDS."""
        return self.held > 0 or monotonic() - self.seen < ONLINE_SECONDS


class Port:
    """The service for devices."""

    def __init__(
        self, members: Members, mailbox: Mailbox, *, max_reply: int = 0, max_clients: int = 1000
    ) -> None:
        self._members = members
        self._mailbox = mailbox
        self._max_reply = max_reply
        self._max_clients = max_clients
        self.devices: dict[str, Device] = {}
        self.settings: dict[int, tuple[str, str]] = {}
        """The digest and the JSON of the settings of each open run, by its number."""
        self._server: grpc.aio.Server | None = None
        mailbox.on_message = self.wake

    async def start(self, address: str, key: bytes, certificate: bytes, authority: bytes) -> int:
        """Listen at HOST:PORT; return the port. Raise RuntimeError if that is not possible."""
        limit = 4 * self._max_clients + OTHER_CONNECTIONS
        options = [*OPTIONS, ("grpc.max_allowed_incoming_connections", limit)]
        self._server = grpc.aio.server(options=options)
        handlers = {
            "Next": grpc.unary_stream_rpc_method_handler(
                self.next, Working.FromString, Chunk.SerializeToString
            ),
            "Reply": grpc.stream_unary_rpc_method_handler(
                self.reply, Chunk.FromString, Taken.SerializeToString
            ),
            "Beat": grpc.unary_unary_rpc_method_handler(
                self.beat, Working.FromString, Drop.SerializeToString
            ),
        }
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, handlers),)
        )
        credentials = grpc.ssl_server_credentials(
            [(key, certificate)], authority, require_client_auth=True
        )
        port = self._server.add_secure_port(address, credentials)
        await self._server.start()
        return int(port)

    async def stop(self) -> None:
        """End all calls and stop listening."""
        if self._server is not None:
            await self._server.stop(0.5)

    def wake(self, names: Collection[str]) -> None:
        """Wake the held calls of these clients, for a new message or a revocation."""
        for name in names:
            if (device := self.devices.get(name)) is not None:
                device.wake.set()

    def online(self) -> list[tuple[int, str]]:
        """Return the node ids and names of the clients that are online and not revoked."""
        online = list[tuple[int, str]]()
        for name, device in self.devices.items():
            member = self._members.by_name.get(name)
            if device.online and member is not None and not member.revoked:
                online.append((node_id_of(name), name))
        return sorted(online)

    # Calls ----------------------------------------------------------------------------------------

    async def next(self, working: Working, context: Any) -> AsyncIterator[Chunk]:
        """Send the calling device its next message, or nothing if none comes in HELD_SECONDS."""
        name, device = await self._enter(context, working.session)
        device.nexts += 1
        number = device.held = device.nexts
        device.wake.set()  # an older call notices that it is not the newest, and ends
        try:
            message = await self._wait(name, device, number, context)
            if message is not None:
                message.working = True
                digest, settings = self.settings.get(message.run, ("", ""))
                head = Head(
                    id=message.envelope.id,
                    run=message.run,
                    round=message.envelope.group,
                    type=message.envelope.type,
                    seconds=max(0.0, message.until - monotonic()),
                    protocol=PROTOCOL,
                    size=message.content.size,
                    sha256=message.content.sha256,
                    settings="" if working.settings == digest else settings,
                )
                for chunk in in_chunks(head, message.content.pieces()):
                    await self._admit(context)
                    if number != device.nexts:
                        break
                    yield chunk
                else:
                    message.deliveries += 1
            device.seen = monotonic()  # not reached if the call was cut
        finally:
            if device.held == number:
                device.held = 0

    async def _wait(
        self, name: str, device: Device, number: int, context: Any
    ) -> QueuedMessage | None:
        """Wait for a message; return None if none comes, or if the device calls again."""
        until = monotonic() + HELD_SECONDS
        while number == device.nexts:
            await self._admit(context)
            if (message := self._mailbox.next(name)) is not None:
                return message
            device.wake.clear()
            try:
                async with asyncio.timeout(until - monotonic()):
                    await device.wake.wait()
            except TimeoutError:
                break
        return None

    async def reply(self, chunks: AsyncIterator[Chunk], context: Any) -> Taken:
        """Take a reply, and answer whether it is used; an error replaces a refused reply."""
        first = await anext(aiter(chunks), None)
        if first is None:
            return await self._refuse(
                context, grpc.StatusCode.INVALID_ARGUMENT, "a reply without a head"
            )
        head = first.head
        name, device = await self._enter(context, head.session)
        device.seen = monotonic()
        status = self._mailbox.work_status(name, head.id, head.run)
        message = self._mailbox.find(name, head.id)
        if message is None or status.answer != Taken.TAKEN:
            return status
        if head.code:
            self._mailbox.answer(message, Reply(None, head.code, head.reason[:LONGEST_REASON]))
            return status
        limit = max(self._max_reply, REPLY_TIMES * message.content.size + REPLY_BYTES)
        if head.size > limit:
            reason = (
                f"the reply has {head.size} bytes, and at most {limit} are taken (max-reply in"
                " federation.toml)"
            )
            return self._take_refusal(message, reason)
        content = Content(self._mailbox.budget)
        try:
            await self._receive(content, first, chunks, device, context)
        except OSError as error:
            content.close()
            # a code that is not in `calls.FINAL`, so that the device keeps the reply and retries
            reason = f"the server cannot keep the reply now: {error.strerror}"
            log.error(
                "the reply of client %s is not taken, and the client tries again: %s", name, error
            )
            return await self._refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
        except BaseException:  # the call was cut, or refused
            content.close()
            raise
        if content.size != head.size or content.sha256 != head.sha256:
            content.close()
            return self._take_refusal(
                message, "the reply's bytes are not those that its head announces"
            )
        self._mailbox.answer(message, Reply(content))
        return status

    async def _receive(
        self,
        content: Content,
        first: Chunk,
        chunks: AsyncIterator[Chunk],
        device: Device,
        context: Any,
    ) -> None:
        """Append the chunks to `content`, up to the size in the head.

        Abort a call that breaks off, or that is not the newest.
        """
        if device.receiving is not None:
            device.receiving.close()  # of an older call, which may never end
        device.receiving = content
        content.append(first.data)
        async for chunk in chunks:
            await self._admit(context)
            if device.receiving is not content:
                break
            device.seen = monotonic()
            content.append(chunk.data)
            if content.size > first.head.size:
                break
        if device.receiving is not content:
            await self._refuse(
                context, grpc.StatusCode.ABORTED, "the same client replies in a newer call"
            )
        device.receiving = None
        if content.size < first.head.size:  # a cut call may look like a finished stream
            await self._refuse(context, grpc.StatusCode.ABORTED, "the reply broke off")

    async def beat(self, working: Working, context: Any) -> Drop:
        """Take a sign of life from a device; return why it must drop its work, or ""."""
        name, device = await self._enter(context, working.session)
        device.seen = monotonic()
        status = self._mailbox.work_status(name, working.id, working.run)
        if status.answer == Taken.DROP:
            return Drop(reason=status.reason)
        return Drop()

    # Who calls ------------------------------------------------------------------------------------

    async def _admit(self, context: Any) -> Member:
        """Return the caller, found by its connection's certificate in the current registry."""
        certificate = context.auth_context().get("x509_pem_cert", [b""])[0]
        try:
            return self._members.admit(certificate)
        except NotAdmittedError as error:
            await self._refuse(context, grpc.StatusCode.PERMISSION_DENIED, str(error))

    async def _enter(self, context: Any, session: bytes) -> tuple[str, Device]:
        """Return the calling client's name and calls; refuse a second process with its key."""
        name = (await self._admit(context)).name
        device = self.devices.setdefault(name, Device())
        if session != device.session:
            if device.session and device.online:
                device.others_seen += 1
                reason = (
                    f"another process with the key of client {name!r} is connected, from another"
                    " state folder: end one of the two, or ask the federation's operator for a key"
                    " of its own"
                )
                await self._refuse(context, grpc.StatusCode.ALREADY_EXISTS, reason)
            device.session = session
        return name, device

    def _take_refusal(self, message: QueuedMessage, reason: str) -> Taken:
        """Take an error in place of a refused reply."""
        self._mailbox.answer(message, Reply(None, REFUSED_REPLY, reason))
        log.warning("the reply of client %s is refused: %s", message.envelope.device, reason)
        return Taken(answer=Taken.TAKEN, reason=reason)

    async def _refuse(self, context: Any, code: grpc.StatusCode, reason: str) -> NoReturn:
        await context.abort(code, reason)
        raise AssertionError("abort raises")
