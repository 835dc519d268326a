"""The fleet port: a gRPC service over mutual TLS by which devices get messages and give replies.

All calls run on one event loop: a held call is a waiting coroutine and no thread.
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

# How long a device counts as online after its last sign of life.
ONLINE_SECONDS = 30.0

# A reply may have REPLY_TIMES × the message's bytes + REPLY_BYTES.
REPLY_BYTES = 4 << 20
REPLY_TIMES = 2

# Code of the error that takes the place of a reply which is refused; Flower's own codes are below
# 100.
REFUSED_REPLY = 413

# Most characters of a reason that are taken from a device.
LONGEST_REASON = 4000

# Connections beyond four a client: strangers count until their handshake fails.
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
    ("grpc.so_reuseport", 0),  # another server on the same port is an error
)


@dataclass
class Device:
    """One client's calls. The newest of a kind counts: older ones may hang on a dead connection."""

    session: bytes = b""
    seen: float = -math.inf
    nexts: int = 0
    held: int = 0
    """Number of the call of Next that is held, 0 for none."""
    receiving: Content | None = None
    """What has come of the reply that is on its way."""
    others_seen: int = 0
    """How often a second process with this client's key was refused."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def online(self) -> bool:
        """Whether a call is held, or there was a sign of life within ONLINE_SECONDS."""
        return self.held > 0 or monotonic() - self.seen < ONLINE_SECONDS


class Port:
    """The service for devices.

    `settings` returns the digest and the JSON of a run's settings by its number.
    """

    def __init__(
        self, members: Members, mailbox: Mailbox, *, max_reply: int = 0, max_clients: int = 1000
    ) -> None:
        self._members = members
        self._mailbox = mailbox
        self._max_reply = max_reply
        self._max_clients = max_clients
        self.devices: dict[str, Device] = {}
        self.settings: dict[int, tuple[str, str]] = {}
        """Digest and JSON of the settings of each run that is going on."""
        self._server: grpc.aio.Server | None = None
        mailbox.on_message = self.wake

    async def start(self, address: str, key: bytes, certificate: bytes, authority: bytes) -> int:
        """Listen at HOST:PORT; return the port. RuntimeError where nothing can listen there."""
        most = 4 * self._max_clients + OTHER_CONNECTIONS
        options = [*OPTIONS, ("grpc.max_allowed_incoming_connections", most)]
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
        """End all calls and listen no longer."""
        if self._server is not None:
            await self._server.stop(0.5)

    def wake(self, names: Collection[str]) -> None:
        """Wake the held calls of these clients: for a message, or because of a revocation."""
        for name in names:
            if (device := self.devices.get(name)) is not None:
                device.wake.set()

    def online(self) -> list[tuple[int, str]]:
        """Return the node ids and names of the clients that are online, those revoked excepted."""
        found = (
            (name, self._members.by_name.get(name))
            for name, device in self.devices.items()
            if device.online
        )
        return sorted(
            (node_id_of(name), name)
            for name, member in found
            if member is not None and not member.revoked
        )

    # Calls ----------------------------------------------------------------------------------------

    async def next(self, working: Working, context: Any) -> AsyncIterator[Chunk]:
        """Hand out the next message for the device that calls, or nothing where none comes."""
        name, device = await self._enter(context, working.session)
        device.nexts += 1
        number = device.held = device.nexts
        device.wake.set()  # an older call ends
        try:
            letter = await self._wait(name, device, number, context)
            if letter is not None:
                letter.working = True
                digest, settings = self.settings.get(letter.run, ("", ""))
                head = Head(
                    id=letter.address.id,
                    run=letter.run,
                    round=letter.address.group,
                    type=letter.address.type,
                    seconds=max(0.0, letter.until - monotonic()),
                    protocol=PROTOCOL,
                    size=letter.content.size,
                    sha256=letter.content.sha256,
                    settings="" if working.settings == digest else settings,
                )
                for chunk in in_chunks(head, letter.content.pieces()):
                    await self._admit(context)
                    if number != device.nexts:
                        break
                    yield chunk
                else:
                    letter.times += 1
            device.seen = monotonic()  # not where the call was cut
        finally:
            if device.held == number:
                device.held = 0

    async def _wait(
        self, name: str, device: Device, number: int, context: Any
    ) -> QueuedMessage | None:
        """Wait for a message; return None where none comes, or the device calls again."""
        until = monotonic() + HELD_SECONDS
        while number == device.nexts:
            await self._admit(context)
            if (letter := self._mailbox.next(name)) is not None:
                return letter
            device.wake.clear()
            try:
                async with asyncio.timeout(until - monotonic()):
                    await device.wake.wait()
            except TimeoutError:
                break
        return None

    async def reply(self, chunks: AsyncIterator[Chunk], context: Any) -> Taken:
        """Take a reply, or say what becomes of it.

        An error takes the place of one that is refused.
        """
        first = await anext(aiter(chunks), None)
        if first is None:
            return await self._refuse(
                context, grpc.StatusCode.INVALID_ARGUMENT, "a reply without a head"
            )
        head = first.head
        name, device = await self._enter(context, head.session)
        device.seen = monotonic()
        judged = self._mailbox.judge(name, head.id, head.run)
        letter = self._mailbox.find(name, head.id)
        if letter is None or judged.answer != Taken.TAKEN:
            return judged
        if head.code:
            self._mailbox.answer(letter, Reply(None, head.code, head.reason[:LONGEST_REASON]))
            return judged
        most = max(self._max_reply, REPLY_TIMES * letter.content.size + REPLY_BYTES)
        if head.size > most:
            words = (
                f"the reply has {head.size} bytes, and at most {most} are taken (max-reply in"
                " federation.toml)"
            )
            return self._take_refusal(letter, words)
        content = Content(self._mailbox.room)
        try:
            await self._receive(content, first, chunks, device, context)
        except OSError as error:
            content.close()
            words = f"the server cannot keep the reply now: {error.strerror}"
            log.error(
                "the reply of client %s is not taken, and the client tries again: %s", name, error
            )
            return await self._refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, words)
        except BaseException:  # the call was cut, or refused
            content.close()
            raise
        if content.size != head.size or content.sha256 != head.sha256:
            content.close()
            return self._take_refusal(
                letter, "the reply's bytes are not those that its head announces"
            )
        self._mailbox.answer(letter, Reply(content))
        return judged

    async def _receive(
        self,
        content: Content,
        first: Chunk,
        chunks: AsyncIterator[Chunk],
        device: Device,
        context: Any,
    ) -> None:
        """Append what comes, at most what the head says.

        A call that breaks off, or is not the newest, is refused.
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
        if content.size < first.head.size:  # a call that is cut may end as a stream does
            await self._refuse(context, grpc.StatusCode.ABORTED, "the reply broke off")

    async def beat(self, working: Working, context: Any) -> Drop:
        """Take a sign of life from a device; return why it is to drop its work, "" for going on."""
        name, device = await self._enter(context, working.session)
        device.seen = monotonic()
        judged = self._mailbox.judge(name, working.id, working.run)
        return Drop(reason=judged.reason if judged.answer == Taken.DROP else "")

    # Who calls ------------------------------------------------------------------------------------

    async def _admit(self, context: Any) -> Member:
        """Return the caller by its connection's certificate and the current registry."""
        certificate = context.auth_context().get("x509_pem_cert", [b""])[0]
        try:
            return self._members.admit(certificate)
        except NotAdmittedError as error:
            await self._refuse(context, grpc.StatusCode.PERMISSION_DENIED, str(error))

    async def _enter(self, context: Any, session: bytes) -> tuple[str, Device]:
        """Return the name and the calls of the client that calls.

        End the call of a second process with its key.
        """
        name = (await self._admit(context)).name
        device = self.devices.setdefault(name, Device())
        if session != device.session:
            if device.session and device.online:
                device.others_seen += 1
                words = (
                    f"another process with the key of client {name!r} is connected, from another"
                    " state folder: end one of the two, or ask the federation's operator for a key"
                    " of its own"
                )
                await self._refuse(context, grpc.StatusCode.ALREADY_EXISTS, words)
            device.session = session
        return name, device

    def _take_refusal(self, letter: QueuedMessage, words: str) -> Taken:
        """Let an error take the place of a reply."""
        self._mailbox.answer(letter, Reply(None, REFUSED_REPLY, words))
        log.warning("the reply of client %s is refused: %s", letter.address.device, words)
        return Taken(answer=Taken.TAKEN, reason=words)

    async def _refuse(self, context: Any, code: grpc.StatusCode, words: str) -> NoReturn:
        await context.abort(code, words)
        raise AssertionError("abort raises")
