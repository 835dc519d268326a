"""Who may call the fleet port and how much: certificates, and limits for each of them.

A certificate is known by its key, so that a client's revoked certificate takes nothing from its new
one.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from dataclasses import dataclass, field
from time import monotonic, time
from typing import Any, NoReturn

import grpc.aio

from .connections import close_connections
from .faults import SAY_SECONDS, Faults
from .members import Members, NotAdmittedError, identity_in

# Calls of a certificate that may be open at once. A device has two: for a message or a reply, and a
# sign of life.
OPEN_CALLS = 4

# Calls of a certificate that may be unfinished, which includes those that were ended: their last
# words may wait for a device that reads nothing.
UNFINISHED_CALLS = 8

# A certificate's calls at once, and those added each second. A device makes 100 to 200 a second if
# the rounds are small.
CALLS_AT_ONCE = 1000.0
CALLS_A_SECOND = 500.0

# Seconds before a call beyond these limits is answered. Without it, a client that repeats the call
# at once would keep this process busy with refusals.
PAUSE_SECONDS = 1.0

# Connections of a certificate that have calls; the oldest ones beyond are closed.
CONNECTIONS = 8

# Seconds after its last call that a connection counts. gRPC closes it before, after IDLE_SECONDS.
IDLE_SECONDS = 25.0
CONNECTION_SECONDS = 30.0

# Seconds that the last words of a call may take: an answer, and the reason why the call ended.
ANSWER_SECONDS = 120.0
REASON_SECONDS = 1.0


class CallRefusedError(Exception):
    """The reason why a call ends."""

    def __init__(self, code: grpc.StatusCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


@dataclass(eq=False)
class OpenCall:
    """A call of the client `name` with an undelivered final status.

    `sending` is True once the handler sends messages, `refusal` the reason why the call is to end,
    and `answered` the time at which its handler ended.
    """

    name: str
    certificate: bytes
    peer: str
    task: asyncio.Task[Any] | None
    sending: bool = False
    refusal: CallRefusedError | None = None
    answered: float | None = None

    def end(self, refusal: CallRefusedError) -> None:
        """Have the call end with this reason."""
        if self.refusal is None:
            self.refusal = refusal
            if self.answered is None and self.task is not None:
                self.task.cancel()

    def is_stuck(self, now: float) -> bool:
        """Whether the device does not read the final status."""
        if self.answered is None:
            return False
        seconds = ANSWER_SECONDS if self.refusal is None else REASON_SECONDS
        return now - self.answered > seconds


@dataclass
class Caller:
    """The calls and connections of one certificate.

    `tokens` is the number of calls that it may make at once, as of `filled`. `peers` maps each
    connection to the time of its last call, the oldest connection first.
    """

    filled: float
    tokens: float = CALLS_AT_ONCE
    calls: list[OpenCall] = field(default_factory=list)
    peers: dict[str, float] = field(default_factory=dict)

    def take_token(self, now: float) -> bool:
        """Count a call; return whether it is within the limit."""
        self.tokens = min(CALLS_AT_ONCE, self.tokens + (now - self.filled) * CALLS_A_SECOND)
        self.filled = now
        if self.tokens < 1.0:
            return False
        self.tokens -= 1.0
        return True

    def make_room(self, peer: str) -> bool:
        """Return whether one more call may be open, and end the oldest one if need be.

        Only calls of other connections are ended, which may be dead: the system notices that a peer
        has vanished only after the keepalive.
        """
        running = [call for call in self.calls if call.refusal is None]
        if len(self.calls) >= UNFINISHED_CALLS:
            return False
        if len(running) < OPEN_CALLS:
            return True
        for call in running:
            if call.peer != peer:
                call.end(
                    CallRefusedError(
                        grpc.StatusCode.RESOURCE_EXHAUSTED,
                        "a newer connection of this client has taken the place of this one",
                    )
                )
                return True
        return False


class Admission:
    """Admits calls by their certificates, and ends calls that are no longer admitted."""

    def __init__(
        self,
        members: Members,
        clock: Callable[[], float] = monotonic,
        close: Callable[[Collection[str]], None] = close_connections,
    ) -> None:
        self._members = members
        self._clock = clock
        self._close = close
        # The callers by the digest of their key.
        self._callers: dict[str, Caller] = {}
        # The caller to which each connection belongs: addresses are used again.
        self._owners: dict[str, Caller] = {}
        # How many calls and replies were refused, by kind.
        self.refused = Counter({"reply": 0})
        # The last reason and its moment, by client.
        self.reasons: dict[str, str] = {}
        self.reasons_at: dict[str, float] = {}
        # The connections to close when calls are next checked.
        self._unwelcome: set[str] = set()
        self._faults = Faults(clock)

    @contextlib.asynccontextmanager
    async def admit(self, context: Any) -> AsyncIterator[OpenCall]:
        """Run a call while it is admitted; abort it otherwise, or with a CallRefusedError."""
        certificate = context.auth_context().get("x509_pem_cert", [b""])[0]
        peer = context.peer()
        caller = self._caller(certificate, peer)
        if not caller.take_token(self._clock()):
            await self._refuse_excess(certificate, context)
        try:
            member = self._members.admit(certificate)
        except NotAdmittedError as error:
            try:
                await self._abort(
                    context, certificate, grpc.StatusCode.PERMISSION_DENIED, str(error)
                )
            finally:
                self._unwelcome.add(peer)
        if not caller.make_room(peer):
            await self._refuse_excess(certificate, context)
        call = OpenCall(member.name, certificate, peer, asyncio.current_task())
        caller.calls.append(call)
        context.add_done_callback(lambda _: self._forget(caller, call))
        try:
            yield call
        except asyncio.CancelledError:
            if call.refusal is None:  # the device has ended the call
                raise
        except CallRefusedError as error:
            call.refusal = error
        except grpc.aio.BaseError:  # gRPC's own
            raise
        except Exception as error:
            words = f"a call failed by {type(error).__name__}, and the client repeats it"
            self._faults.say(words, words, SAY_SECONDS, error)
            call.refusal = CallRefusedError(
                grpc.StatusCode.INTERNAL, "the server failed: its log has the reason"
            )
        finally:
            call.answered = self._clock()
        if call.refusal is not None:
            if call.sending:
                # the reason would wait behind what the device may never take
                self._unwelcome.add(peer)
                raise asyncio.CancelledError
            await self._abort(context, certificate, call.refusal.code, call.refusal.reason)

    def end_unadmitted(self) -> None:
        """End calls and connections that are no longer admitted; called once a second."""
        now = self._clock()
        close = self._unwelcome
        self._unwelcome = set()
        for key, caller in [*self._callers.items()]:
            close.update(self._end_calls(caller, now))
            busy = {call.peer for call in caller.calls}
            for peer, at in [*caller.peers.items()]:
                if peer not in busy and now - at > CONNECTION_SECONDS:
                    self._disown(caller, peer)
            for peer in [*caller.peers][:-CONNECTIONS]:
                close.add(peer)
                self._disown(caller, peer)
            is_quiet = now - caller.filled > CALLS_AT_ONCE / CALLS_A_SECOND
            if is_quiet and not caller.peers and not caller.calls:
                del self._callers[key]
        if close:
            try:
                self._close(close)
            except OSError:
                self._unwelcome |= close
                raise

    def _end_calls(self, caller: Caller, now: float) -> Iterator[str]:
        """End the calls of a certificate that is no longer admitted; yield stuck connections."""
        for call in caller.calls:
            try:
                self._members.admit(call.certificate)
            except NotAdmittedError as error:
                call.end(CallRefusedError(grpc.StatusCode.PERMISSION_DENIED, str(error)))
                self._unwelcome.add(call.peer)  # closed at the next check, after the last words
            if call.is_stuck(now):
                yield call.peer

    def _caller(self, certificate: bytes, peer: str) -> Caller:
        """Return a call's caller, and note its connection."""
        key = identity_in(certificate).key
        now = self._clock()
        caller = self._callers.setdefault(key, Caller(now))
        owner = self._owners.setdefault(peer, caller)
        if owner is not caller:
            self._disown(owner, peer)
            self._owners[peer] = caller
        caller.peers[peer] = now
        return caller

    def _disown(self, caller: Caller, peer: str) -> None:
        caller.peers.pop(peer, None)
        self._owners.pop(peer, None)

    def _forget(self, caller: Caller, call: OpenCall) -> None:
        caller.calls.remove(call)
        if call.peer in caller.peers:
            caller.peers[call.peer] = self._clock()

    async def _refuse_excess(self, certificate: bytes, context: Any) -> NoReturn:
        name = identity_in(certificate).name
        self._faults.say(
            f"calls of {name}",
            f"client {name} calls too often: a certificate may have {OPEN_CALLS} open calls and"
            f" make {CALLS_A_SECOND:.0f} calls a second; the excess is refused",
            SAY_SECONDS,
        )
        await asyncio.sleep(PAUSE_SECONDS)
        await self._abort(
            context,
            certificate,
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "this client calls too often: the server takes the call later",
        )

    def note_reason(self, name: str, reason: str) -> None:
        """Note why a client's call or reply was refused, or what it failed with."""
        self.reasons[name] = reason
        self.reasons_at[name] = time()

    async def _abort(
        self, context: Any, certificate: bytes, code: grpc.StatusCode, reason: str
    ) -> NoReturn:
        """Refuse a call for this reason."""
        self.refused[code.name.replace("_", " ").lower()] += 1
        self.note_reason(identity_in(certificate).name, reason)
        await context.abort(code, reason)
        raise AssertionError("abort raises")
