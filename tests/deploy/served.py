"""A fleet port in the tests' process, and callers that do not behave like a device."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import grpc

from fairbloom.deploy.fleet.calls import Calls, Outage
from fairbloom.deploy.fleet.content import Content, MemoryBudget
from fairbloom.deploy.fleet.enrolment import enroll
from fairbloom.deploy.fleet.federation import Federation
from fairbloom.deploy.fleet.mailbox import Envelope, Mailbox
from fairbloom.deploy.fleet.members import Members
from fairbloom.deploy.fleet.messages import SERVICE, Start
from fairbloom.deploy.fleet.port import Port
from fairbloom.deploy.fleet.wire_pb2 import Head, Taken

RUN = 7
FIRST_START = Start(b"1" * 16)
T = TypeVar("T")


class Served:
    """A port in this process, on an event loop in a thread, with a mailbox and the run RUN."""

    def __init__(self, place: Path, address: str = "127.0.0.1:0") -> None:
        self.place = place
        self.opened = contextlib.ExitStack()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.members = Members(place / "clients")
        self.members.refresh()
        self.mailbox = Mailbox(MemoryBudget(place))
        self.mailbox.begin(RUN)
        self.port = self.do(self._make)
        self.port.settings[RUN] = ("digest", '{"settings": {}}')
        parts = [(place / name).read_bytes() for name in ("server.key", "server.crt", "ca.crt")]
        started = asyncio.run_coroutine_threadsafe(self.port.start(address, *parts), self.loop)
        self.address = f"{address.rpartition(':')[0]}:{started.result(30)}"

    async def _call(self, function: Callable[[], T]) -> T:
        return function()

    def do(self, function: Callable[[], T]) -> T:
        """Return the result of a function that runs on the port's loop."""
        return asyncio.run_coroutine_threadsafe(self._call(function), self.loop).result(30)

    def _make(self) -> Port:
        return Port(self.members, self.mailbox)

    def look(self) -> None:
        """Look at the registry and at the open calls, as the daemon does once a second."""
        self.do(self.members.refresh)
        self.do(self.port.close_unadmitted)

    def send(self, id: str, device: str = "a", data: bytes = b"model") -> None:
        def push() -> None:
            digest = self.mailbox.store(Content(data))
            self.mailbox.send(
                RUN, [Envelope(id, device, 1, "group", "train", digest, 600.0, kept=True)]
            )

        self.do(push)

    def collect(self, id: str) -> Any:
        """Return a reply's code and reason, and its content as `data`; None without a reply."""
        (found, _), contents = self.do(lambda: self.mailbox.collect([id]))
        if not found:
            return None
        data = None if found[0].code else bytes(contents[0].map())
        return SimpleNamespace(code=found[0].code, reason=found[0].reason, data=data)

    def credentials(
        self, bundle: str, key: str = "key", certificate: str = "certificate"
    ) -> grpc.ChannelCredentials:
        folder = self.place / "bundles" / bundle
        parts = (self.place / "ca.crt", folder / key, folder / certificate)
        return grpc.ssl_channel_credentials(*(each.read_bytes() for each in parts))

    def calls(self, name: str = "a", start: Start = FIRST_START) -> Calls:
        """Return the calls of a device, which `stop` closes."""
        made = Calls(
            self.address, self.credentials(name), start, Outage(), lambda: None, self.place
        )
        return self.opened.enter_context(contextlib.closing(made))

    def stop(self) -> None:
        self.opened.close()
        asyncio.run_coroutine_threadsafe(self.port.stop(), self.loop).result(30)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


def make_place(place: Path) -> Path:
    federation = Federation.init(place, ["server.example"], 9092)
    for name in "ab":
        enroll(federation, name)
    return place


def next_later(calls: Calls) -> "Future[Any]":
    """Return the future of a held call for the next message."""
    return ThreadPoolExecutor(1).submit(calls.next, "")


def give_reply(calls: Calls, head: Head, data: bytes) -> Taken:
    """Send a reply as a session does, with size and digest in its head."""
    content = Content(data)
    head.size = content.size
    head.digest = content.digest()
    return calls.reply(head, content)


class Caller:
    """A caller with one connection and a client's certificate, that sends what a test wants.

    It is closed with the port that it calls.
    """

    def __init__(self, served: Served, name: str = "a") -> None:
        self._channel = grpc.secure_channel(
            served.address, served.credentials(name), [("grpc.use_local_subchannel_pool", 1)]
        )
        self._end = threading.Event()
        served.opened.callback(self.close)

    def call(self, method: str, *chunks: bytes, silent: bool = True) -> Any:
        """Begin a call that sends these chunks; a silent one then sends nothing more."""

        def send() -> Iterator[bytes]:
            yield from chunks
            if silent:
                self._end.wait(60)

        path = f"/{SERVICE}/{method}"
        if method == "Next":
            return self._channel.stream_stream(path)(send())
        return self._channel.stream_unary(path).future(send())

    def close(self) -> None:
        self._end.set()
        self._channel.close()


def code_of(call: Any, seconds: float = 10.0) -> grpc.StatusCode | None:
    """Return the code with which a call ends, None if it goes on for these seconds."""
    ended = threading.Event()
    if call.add_callback(ended.set) and not ended.wait(seconds):
        return None
    return call.code()  # type: ignore[no-any-return]
