"""A device's session: it fetches messages, lets the worker answer, and keeps the last reply."""

import contextlib
import hashlib
import re
import secrets
import shutil
import threading
import time
from functools import partial
from io import FileIO
from pathlib import Path

from fairbloom.client.guard.log_files import AuditLog
from fairbloom.logs import log
from fairbloom.protocol.error_codes import ErrorCode
from fairbloom.protocol.names import WORK_OF_ROUND
from fairbloom.protocol.version import PROTOCOL
from fairbloom.system.files import write_private
from fairbloom.system.retry import deadline, retry_write, retrying_writes
from fairbloom.system.versions import FIRST, Point, Versions, read_sealed, write_sealed

from .calls import Calls, Received
from .content import Content
from .lineage import PROCESS_BYTES
from .messages import BEAT_SECONDS, Start, node_id_of, seconds_left
from .passing import ANSWER_FILE, Answer, PassedTask
from .wire_pb2 import Head, Taken
from .worker import CrashedError, DroppedError, OwnersLimitError, Worker

# A client logs this with its name once the server has admitted it.
CONNECTED = "connected as client"

# Random bytes of a session's id, and bytes of the number of the client's last start.
SESSION_BYTES = 16
START_BYTES = 8

# Seconds after which an idle worker is ended.
IDLE_SECONDS = 60.0

# The states of an app are kept for this number of runs, the latest ones.
KEPT_RUNS = 5

# The group of a message of a run folder: the folder's id, and the round.
GROUP = re.compile(r"([0-9a-f]{16})/([0-9]{1,9})")


LOST = "the last reply is lost"

# The key of the versions of an app's state.
STATE = "context"


class Contexts:
    """Flower's `Context.state` of each run's app, in files that survive a restart.

    It belongs to a run folder, if the run has one, and to the round and the work that made it. So a
    continued run finds it, and work that is repeated begins with the same state as the first time.
    """

    def __init__(self, state_dir: str) -> None:
        self.folder = Path(state_dir, "contexts")
        self._run = 0

    def load(self, head: Head) -> bytes:
        """Return the state with which the work on a message begins, or b""."""
        key, step = find_step(head)
        versions = Versions(self.folder / key)
        found = versions.last(STATE) if step is None else versions.rewind(STATE, step)
        if found is None:
            return b""
        made, state = found
        if step is not None and self._run != head.run:
            log.info("the app's state is that after round %d of run folder %s", made.round, key)
        self._run = head.run
        return state

    def save(self, head: Head, state: bytes) -> None:
        """Write the state after the work on a message, and delete those of the oldest runs."""
        key, step = find_step(head)
        versions = Versions(self.folder / key)
        if step is None:
            last = versions.last(STATE)
            step = FIRST if last is None else last[0]
        versions.save(STATE, step, state)
        folders = filter(Path.is_dir, self.folder.iterdir())
        for folder in sorted(folders, key=lambda each: each.stat().st_mtime)[:-KEPT_RUNS]:
            shutil.rmtree(folder)


def find_step(head: Head) -> tuple[str, Point | None]:
    """Return the name by which an app's states are kept, and the step of a message's work.

    It is the id of the run folder. Without one it is the number of the run, and there are no steps.
    """
    group = GROUP.fullmatch(head.round)
    if group is None:
        return str(head.run), None
    kind = head.type.partition(".")[0]
    step: Point | None = (
        Point(int(group[2]), WORK_OF_ROUND.index(kind)) if kind in WORK_OF_ROUND else None
    )
    return group[1], step


def name_round(head: Head) -> str:
    """Return the run, and the round if the server says it, of a message in words."""
    group = GROUP.fullmatch(head.round)
    if group is None:
        return f"run {head.run}"
    return f"run {head.run}, round {group[2]}"


class KeptReply:
    """The last reply, head and content, which a restart of this device finds again.

    The head is in a file of the state folder, with small content. Large content is in another one,
    which the worker has written there and which only gets its name here. A reply of another
    protocol is dropped: the server would ask for it by another id, or read it in another way.
    """

    def __init__(self, state_dir: str) -> None:
        self._file = Path(state_dir, "reply")
        self._large = Path(state_dir, "reply-content")
        self._answer = Path(state_dir, ANSWER_FILE)
        head, small = read_sealed(self._file, LOST)
        self.head = Head.FromString(head)
        self.content = Content(small)
        is_large = self.content.size < self.head.size
        if is_large:
            with contextlib.suppress(OSError):
                self.content = Content(file=FileIO(self._large))
        if self.head.protocol != PROTOCOL:
            self.head = Head()
        elif self.content.digest() != self.head.digest:
            log.error("%s is damaged: %s", self._large if is_large else self._file, LOST)
            self.head = Head()

    def save(self, head: Head, content: Content) -> None:
        """Keep a reply in place of the last one; if the disk refuses it, only in memory."""
        self.head = head
        self.content = content
        head.size = content.size
        head.digest = content.digest()
        head.protocol = PROTOCOL
        try:
            if content.file is not None:
                # in two steps: ext4 begins at once to write what replaces a file to the disk
                self._large.unlink(missing_ok=True)
                self._answer.rename(self._large)
            # not synced: the disk may take longer than all else, and after a power cut this
            # device computes the reply again
            write_sealed(self._file, head.SerializeToString(), content.data, durable=False)
        except OSError as error:
            log.warning(
                "%s cannot be written (%s): a restart would lose the last reply",
                self._file,
                error.strerror,
            )


class Session:
    """Answers messages for one client. The worker outlives the session."""

    def __init__(
        self,
        name: str,
        calls: Calls,
        worker: Worker,
        contexts: Contexts,
        kept: KeptReply,
        audit_log: AuditLog,
    ) -> None:
        self._name = name
        self._node = node_id_of(name)
        self._calls = calls
        self._worker = worker
        self._contexts = contexts
        self._kept = kept
        self._audit_log = audit_log
        self._settings = ""
        self._asked = time.monotonic()

    def serve(self) -> None:
        """Answer messages until the server refuses this client; raise RefusedError then."""
        self._calls.connect()
        log.info("%s %s", CONNECTED, self._name)
        while True:
            known = hashlib.sha256(self._settings.encode())
            message = self._calls.next(known.hexdigest())
            if message is None:
                if self._worker.runs and time.monotonic() - self._asked > IDLE_SECONDS:
                    self._worker.end()
                continue
            head = message.head
            name = f"message {head.id[:8]} of {name_round(head)}"
            if not message.refused:
                name = f"{head.type} {name}"
                self._settings = head.settings or self._settings
            if self._kept.head.id == head.id:
                log.info("received %s again", name)
            else:
                log.info("received %s", name)
                self._answer(message)
            self._asked = time.monotonic()
            taken = self._calls.reply(self._kept.head, self._kept.content)
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
            with retrying_writes(deadline(seconds_left(message.head))):
                answer = self._work(message)
        except OSError as error:
            answer = Answer.failed(
                ErrorCode.CLIENT_APP_RAISED_EXCEPTION,
                f"the state-dir of this client cannot be written ({error.strerror}): free space on"
                " its disk",
            )
        finally:
            done.set()
        beats.join()
        self._kept.save(
            Head(id=message.head.id, run=message.head.run, code=answer.code, reason=answer.reason),
            answer.content,
        )

    def _work(self, message: Received) -> Answer:
        """Return the worker's answer; raise OSError if the disk refuses a write."""
        head = message.head
        if message.refused:
            self._audit_log.note(
                {"run": head.run, "asked": "message", "refused": message.refused}, {}
            )
            return Answer.failed(ErrorCode.INVALID_FAB, message.refused)
        if head.protocol != PROTOCOL:
            older = "this client" if head.protocol > PROTOCOL else "the server"
            return Answer.failed(
                ErrorCode.CLIENT_APP_RAISED_EXCEPTION,
                f"the server speaks protocol {head.protocol} and this client {PROTOCOL}: upgrade"
                f" {older}",
            )
        task = PassedTask(
            self._node,
            head.SerializeToString(),
            self._settings,
            message.content,
            self._contexts.load(head),
        )
        try:
            answer = self._worker.answer(task, head.id)
        except DroppedError as error:
            code = ErrorCode.MESSAGE_UNAVAILABLE  # no answer in time, which is no refusal
            if isinstance(error, OwnersLimitError):
                code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
            return Answer.failed(code, f"the client dropped this work: {error}")
        except CrashedError as error:
            return Answer.failed(ErrorCode.CLIENT_APP_CRASHED, str(error))
        if answer.state is not None:
            save = partial(self._contexts.save, head, answer.state)
            retry_write(save, self._contexts.folder)
        return answer

    def _beat(self, head: Head, done: threading.Event) -> None:
        while not done.wait(BEAT_SECONDS):
            reason = self._calls.beat(head.id, head.run)
            if reason:
                self._worker.drop(head.id, DroppedError(reason))


def count_start(state_dir: str) -> Start:
    """Count a start of this client in its state folder, and return it.

    The id of the session, which restarts keep, is in the same file: another device that has a copy
    of the key has another id, so that the server can refuse it. A copy of the folder, too, has a
    number that repeats, or another process.
    """
    file = Path(state_dir, "session")
    kept = file.read_bytes() if file.exists() else b""
    is_known = len(kept) in (SESSION_BYTES, SESSION_BYTES + START_BYTES)
    session = kept[:SESSION_BYTES] if is_known else secrets.token_bytes(SESSION_BYTES)
    number = int.from_bytes(kept[SESSION_BYTES:]) + 1 if is_known else 1
    try:
        write_private(file, session + number.to_bytes(START_BYTES))
    except OSError as error:
        if not is_known:
            raise
        log.warning(
            "%s cannot be written (%s): up to its next start the server would not notice a copy of"
            " this client",
            file,
            error.strerror,
        )
        return Start(session)
    return Start(session, secrets.token_bytes(PROCESS_BYTES), number)
