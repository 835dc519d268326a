"""A device's work: it asks for messages, lets its worker answer them, and keeps its last reply until the next one."""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from fairbloom.logs import log
from fairbloom.protocol.version import PROTOCOL
from fairbloom.system.files import write_private

from ..device.contexts import Contexts
from .app_process import Answer, Task
from .calls import Calls, Received
from .messages import APP_CRASHED, APP_RAISED, BEAT_SECONDS, node_id_of
from .wire_pb2 import Head, Taken
from .worker import CrashedError, DroppedError, Worker

SESSION_BYTES = 16
CONNECTED = "connected as client"
"""What a client logs once the server lets it in, before its name."""

IDLE_SECONDS = 60.0
"""A worker that has had nothing to do for so long is ended."""


@dataclass(frozen=True)
class Kept:
    """The last reply: its head (serialized), and its content."""

    id: str = ""
    head: bytes = b""
    data: bytes = b""


class KeptReply:
    """The last reply, in memory and in a file of the state folder."""

    def __init__(self, state_dir: str) -> None:
        self._file = Path(state_dir, "reply")
        self.last = self._load() if self._file.exists() else Kept()

    def save(self, reply: Kept) -> None:
        """Keep a reply in place of the last one; where the disk refuses, until this process ends."""
        self.last = reply
        sealed = len(reply.head).to_bytes(4, "big") + reply.head + reply.data
        try:
            write_private(self._file, hashlib.sha256(sealed).digest() + sealed)
        except OSError as error:
            log.warning("%s cannot be written (%s): a restart would lose the last reply", self._file, error.strerror)

    def _load(self) -> Kept:
        content = self._file.read_bytes()
        digest, sealed = content[:32], content[32:]
        if hashlib.sha256(sealed).digest() != digest:
            log.warning("%s is damaged: the last reply is lost", self._file)
            return Kept()
        size = int.from_bytes(sealed[:4], "big")
        head, data = sealed[4 : 4 + size], sealed[4 + size :]
        return Kept(Head.FromString(head).id, head, data)


class Session:
    """Answers messages for one client; the worker outlives it."""

    def __init__(self, name: str, calls: Calls, worker: Worker, contexts: Contexts, kept: KeptReply) -> None:
        self._name, self._node = name, node_id_of(name)
        self._calls, self._worker, self._contexts, self._kept = calls, worker, contexts, kept
        self._settings = ""
        self._asked = time.monotonic()

    def serve(self) -> None:
        """Answer messages until the server refuses this client, which is raised."""
        self._calls.connect()
        log.info("%s %s", CONNECTED, self._name)
        while True:
            message = self._calls.next(hashlib.sha256(self._settings.encode()).hexdigest())
            if message is None:
                self._end_idle_worker()
                continue
            head = message.head
            self._settings = head.settings or self._settings
            name = f"{head.type} message {head.id[:8]} of run {head.run}"
            if self._kept.last.id == head.id:
                log.info("received %s again", name)
            else:
                log.info("received %s", name)
                self._answer(message)
            self._asked = time.monotonic()
            taken = self._calls.reply(Head.FromString(self._kept.last.head), self._kept.last.data)
            if taken.answer == Taken.TAKEN and not taken.reason:
                log.info("answered %s", name)
            else:
                log.warning("the reply to %s is not used: %s", name, taken.reason)

    def _answer(self, message: Received) -> None:
        """Let the worker answer a message, with signs of life meanwhile, and keep the reply."""
        done = threading.Event()
        beats = threading.Thread(target=self._beat, args=(message.head, done), daemon=True)
        beats.start()
        try:
            answer = self._work(message)
        finally:
            done.set()
        beats.join()
        head = Head(id=message.head.id, run=message.head.run, code=answer.code, reason=answer.reason)
        self._kept.save(Kept(head.id, head.SerializeToString(), answer.data))

    def _work(self, message: Received) -> Answer:
        head = message.head
        if head.protocol != PROTOCOL:
            side = "this client" if head.protocol > PROTOCOL else "the server"
            words = f"the server speaks protocol {head.protocol} and this client {PROTOCOL}: upgrade {side}"
            return Answer.failed(APP_RAISED, words)
        state = self._contexts.load(head.run)
        task = Task(self._node, head.SerializeToString(), self._settings, message.data, state)
        try:
            answer: Answer = self._worker.answer(task, head.id)
        except DroppedError as error:
            return Answer.failed(APP_RAISED, f"the client dropped this work: {error}")
        except CrashedError as error:
            return Answer.failed(APP_CRASHED, str(error))
        if answer.state is not None:
            self._contexts.save(head.run, answer.state)
        return answer

    def _beat(self, head: Head, done: threading.Event) -> None:
        while not done.wait(BEAT_SECONDS):
            if reason := self._calls.beat(head.id, head.run):
                self._worker.drop(head.id, reason)

    def _end_idle_worker(self) -> None:
        if self._worker.runs and time.monotonic() - self._asked > IDLE_SECONDS:
            self._worker.end()


def load_session(state_dir: str) -> bytes:
    """Return what tells this device from another one with a copy of its key: the same after each restart."""
    file = Path(state_dir, "session")
    if file.exists() and len(known := file.read_bytes()) == SESSION_BYTES:
        return known
    write_private(file, made := secrets.token_bytes(SESSION_BYTES))
    return made
