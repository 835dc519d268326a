"""A device's session: it fetches messages, lets the worker answer, and keeps the last reply."""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from pathlib import Path

from fairbloom.logs import log
from fairbloom.protocol.error_codes import ErrorCode
from fairbloom.protocol.version import PROTOCOL
from fairbloom.system.files import make_folder, whole_file, write_private

from .app_process import Answer, Task
from .calls import Calls, Received
from .messages import BEAT_SECONDS, node_id_of
from .wire_pb2 import Head, Taken
from .worker import CrashedError, DroppedError, Worker

# A client logs this with its name once the server has admitted it.
CONNECTED = "connected as client"

# Random bytes of a session's id.
SESSION_BYTES = 16

# Seconds after which an idle worker is ended.
IDLE_SECONDS = 60.0

# The app's state is kept for this number of runs, the latest ones.
KEPT_RUNS = 5


class Contexts:
    """Flower's `Context.state` of each run's app, in files that survive a restart."""

    def __init__(self, state_dir: str) -> None:
        self._folder = Path(state_dir, "contexts")

    def load(self, run: int) -> bytes:
        """Return the state of a run, or b""."""
        return _read_sealed(self._folder / str(run), "the app begins without the state in it")

    def save(self, run: int, state: bytes) -> None:
        """Write the state of a run, and delete the oldest states beyond KEPT_RUNS."""
        make_folder(self._folder)
        _write_sealed(self._folder / str(run), state)
        files = sorted(self._folder.glob("[0-9]*"), key=lambda file: file.stat().st_mtime)
        for file in files[:-KEPT_RUNS]:
            file.unlink()


class KeptReply:
    """The last reply, head and content, in memory and in a file of the state folder."""

    def __init__(self, state_dir: str) -> None:
        self._file = Path(state_dir, "reply")
        content = _read_sealed(self._file, "the last reply is lost")
        size = int.from_bytes(content[:4], "big")
        self.head = Head.FromString(content[4 : 4 + size])
        self.data = content[4 + size :]

    def save(self, head: Head, data: bytes) -> None:
        """Keep a reply in place of the last one; if the disk refuses it, only in memory."""
        self.head = head
        self.data = data
        written = head.SerializeToString()
        try:
            _write_sealed(self._file, len(written).to_bytes(4, "big") + written + data)
        except OSError as error:
            log.warning(
                "%s cannot be written (%s): a restart would lose the last reply",
                self._file,
                error.strerror,
            )


def _write_sealed(file: Path, content: bytes) -> None:
    """Write content after its SHA-256."""
    with whole_file(file, 0o600) as opened:
        # written in two pieces, because joining them would copy a reply that may be large
        opened.writelines([hashlib.sha256(content).digest(), content])


def _read_sealed(file: Path, loss: str) -> bytes:
    """Return the content of a sealed file, b"" if it is missing or damaged.

    Damage is logged, with the `loss` that it means.
    """
    if not file.exists():
        return b""
    content = file.read_bytes()
    if content and hashlib.sha256(content[32:]).digest() != content[:32]:
        log.error("%s is damaged: %s", file, loss)
        return b""
    return content[32:]


class Session:
    """Answers messages for one client. The worker outlives the session."""

    def __init__(
        self, name: str, calls: Calls, worker: Worker, contexts: Contexts, kept: KeptReply
    ) -> None:
        self._name = name
        self._node = node_id_of(name)
        self._calls = calls
        self._worker = worker
        self._contexts = contexts
        self._kept = kept
        self._settings = ""
        self._asked = time.monotonic()

    def serve(self) -> None:
        """Answer messages until the server refuses this client; raise RefusedError then."""
        self._calls.connect()
        log.info("%s %s", CONNECTED, self._name)
        while True:
            message = self._calls.next(hashlib.sha256(self._settings.encode()).hexdigest())
            if message is None:
                if self._worker.runs and time.monotonic() - self._asked > IDLE_SECONDS:
                    self._worker.end()
                continue
            head = message.head
            name = f"message {head.id[:8]} of run {head.run}"
            if not message.refused:
                name = f"{head.type} {name}"
                self._settings = head.settings or self._settings
            if self._kept.head.id == head.id:
                log.info("received %s again", name)
            else:
                log.info("received %s", name)
                self._answer(message)
            self._asked = time.monotonic()
            taken = self._calls.reply(self._kept.head, self._kept.data)
            if taken.answer == Taken.TAKEN and not taken.reason:
                log.info("answered %s", name)
            else:
                log.warning("the reply to %s is not used: %s", name, taken.reason)

    def _answer(self, message: Received) -> None:
        """Have the worker answer a message while signs of life are sent, and keep the reply."""
        done = threading.Event()
        beats = threading.Thread(target=self._beat, args=(message.head, done), daemon=True)
        beats.start()
        try:
            answer = self._work(message)
        finally:
            done.set()
        beats.join()
        head = Head(
            id=message.head.id, run=message.head.run, code=answer.code, reason=answer.reason
        )
        self._kept.save(head, answer.data)

    def _work(self, message: Received) -> Answer:
        head = message.head
        if message.refused:
            return Answer.failed(ErrorCode.INVALID_FAB, message.refused)
        if head.protocol != PROTOCOL:
            older = "this client" if head.protocol > PROTOCOL else "the server"
            words = (
                f"the server speaks protocol {head.protocol} and this client {PROTOCOL}: upgrade"
                f" {older}"
            )
            return Answer.failed(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, words)
        state = self._contexts.load(head.run)
        task = Task(self._node, head.SerializeToString(), self._settings, message.data, state)
        try:
            answer: Answer = self._worker.answer(task, head.id)
        except DroppedError as error:
            return Answer.failed(
                ErrorCode.CLIENT_APP_RAISED_EXCEPTION, f"the client dropped this work: {error}"
            )
        except CrashedError as error:
            return Answer.failed(ErrorCode.CLIENT_APP_CRASHED, str(error))
        if answer.state is not None:
            self._contexts.save(head.run, answer.state)
        return answer

    def _beat(self, head: Head, done: threading.Event) -> None:
        while not done.wait(BEAT_SECONDS):
            if reason := self._calls.beat(head.id, head.run):
                self._worker.drop(head.id, reason)


def load_session(state_dir: str) -> bytes:
    """Return this device's session id, which restarts keep.

    Another device that has a copy of the key has another id, so that the server can refuse it.
    """
    file = Path(state_dir, "session")
    if file.exists():
        session = file.read_bytes()
        if len(session) == SESSION_BYTES:
            return session
    session = secrets.token_bytes(SESSION_BYTES)
    write_private(file, session)
    return session
