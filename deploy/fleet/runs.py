"""The runs of a federation: orders in state/runs/ID/run.toml, carried out one after the other."""

import asyncio
import contextlib
import errno
import hashlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from time import monotonic, time, time_ns
from typing import Any, Self

import tomli_w

from fairbloom.logs import log
from fairbloom.protocol.names import CLIENTS_FOLDER, ORDER_FOLDER, PLACE_FOLDER
from fairbloom.protocol.parameters import Value
from fairbloom.system.files import make_folder, read_small, write_whole
from fairbloom.system.supervise import exit_reason
from fairbloom.system.values import decode_as
from fairbloom.text import text_if

from ..errors import DeployError
from .content import Content
from .faults import Faults
from .mailbox import Mailbox, describe_fault
from .members import Members
from .passing import receive, send
from .port import Port

# A killed run process is restarted at most MAX_RESTARTS times within RESTARTS_SECONDS.
MAX_RESTARTS = 5
RESTARTS_SECONDS = 600.0

# Seconds that a stopped run's process may take to end before it is killed.
END_SECONDS = 15.0

# Pause in seconds between two looks at orders.
ORDERS_POLL_SECONDS = 0.5

# Exit status of a run that was stopped by its operator.
STOPPED = 130

# Most bytes of a run's log that are read for its last line.
LAST_BYTES = 64 << 10

# The name of a run's folder: its number, which the protocol sends in 64 bits.
RUN_NUMBER = re.compile("[1-9][0-9]{0,17}")

# File next to the runs, with the highest number so far. Removing old runs does not remove it.
LAST_NUMBER = "last-run"

# File next to the runs, by which an operator asks that no further run begins.
DRAIN = "drain"

# Errors of a run's own files. Others, such as a full disk, would stop the next run too.
OWN_ERRORS = (
    errno.EACCES,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EPERM,
)


class RunEnd(StrEnum):
    """How a run ended."""

    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"

    @classmethod
    def of(cls, status: int) -> Self:
        """Return how a run ended by the exit status of its process."""
        if status == 0:
            return cls.COMPLETED
        return cls.STOPPED if status == STOPPED else cls.FAILED


@dataclass(frozen=True)
class Order:
    """A submitted run: the ServerApp's import string, the app's distribution, and the settings.

    `folder` is the folder of an app that is not installed, "" for an installed one. `place` is the
    folder that held the federation's folder when the run was submitted, "" before that.
    """

    app: str
    distribution: str
    version: str
    settings: Mapping[str, Value]
    folder: str = ""
    place: str = field(default="", compare=False)

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read a run.toml; raise OSError, ValueError or KeyError if it is invalid.

        If the federation was moved since, paths below its place are below its new place.
        """
        try:
            order = decode_as(cls, tomllib.loads(read_small(file)), finite=False)
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error
        except TypeError as error:  # JSON has no dates
            raise ValueError(f"it is neither numbers, texts, true nor false: {error}") from error
        return order.moved_to(place_of(file.parent))

    def moved_to(self, place: Path) -> Self:
        """Return the order for a federation that now lies in `place`."""
        if self.place in ("", str(place)):
            return self

        def move(path: Value) -> Value:
            if not isinstance(path, str) or not Path(path).is_relative_to(self.place):
                return path
            below = Path(path).relative_to(self.place)
            return str(place / below)

        out = {"out": move(self.settings["out"])} if "out" in self.settings else {}
        settings = {**self.settings, **out}
        return replace(self, settings=settings, folder=str(move(self.folder)))


def place_of(folder: Path) -> Path:
    """Return the folder that holds the federation of a run's folder, DIR/state/runs/NUMBER.

    Runs are written below it.
    """
    return Path(os.path.normpath(folder.absolute() / "../../../.."))


class RunFiles:
    """The files of one run: order, log, exit status, and the request to stop it.

    The folder's name is the run's number.
    """

    def __init__(self, folder: Path) -> None:
        self.number = int(folder.name)
        self.folder = folder
        self.order = folder / "run.toml"
        self.log = folder / "log"
        self._status = folder / "status"
        self._stop = folder / "stop"

    @property
    def status(self) -> int | None:
        """The exit status of an ended run, or None."""
        with contextlib.suppress(OSError, ValueError):
            return int(self._status.read_text())
        return None

    @property
    def ended_at(self) -> float | None:
        """When the run ended, in seconds since 1970, or None."""
        with contextlib.suppress(OSError):
            return self._status.stat().st_mtime
        return None

    @property
    def is_ordered(self) -> bool:
        """Whether there is an order, even if it cannot be read now."""
        try:
            self.order.lstat()
        except OSError as error:
            return not isinstance(error, FileNotFoundError | NotADirectoryError)
        return True

    @property
    def is_stopped(self) -> bool:
        """Whether the operator has asked to stop the run."""
        try:
            return self._stop.exists()
        except OSError:  # an unreadable folder holds no request
            return False

    def stop(self) -> None:
        """Ask the server to stop the run."""
        self._stop.touch(mode=0o600)

    @property
    def last_line(self) -> str:
        """The last line of the log, or ""."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - LAST_BYTES))
                lines = file.read(LAST_BYTES).decode(errors="replace").splitlines()
        except OSError:
            return ""
        return next(reversed(lines), "")

    def end(self, status: int) -> None:
        """Write the run's exit status."""
        write_whole(self._status, f"{status}\n".encode())

    def say(self, words: str) -> None:
        """Add a line to the run's log and to the server's."""
        log.warning("run %d: %s", self.number, words)
        with contextlib.suppress(OSError), self.log.open("a") as file:  # the disk may be full
            file.write(f"fairbloom server: {words}\n")


def list_runs(folder: Path, but: Collection[int] = ()) -> list[RunFiles]:
    """Return the runs with an order in a folder, in order of their numbers, except those in `but`.

    Numbers grow with time, so the oldest run is first. Raise DeployError if the folder cannot be
    read.
    """
    numbers = set(list_numbers(folder)).difference(but)
    runs = [RunFiles(folder / str(number)) for number in sorted(numbers)]
    return [run for run in runs if run.is_ordered]


def list_numbers(folder: Path) -> list[int]:
    """Return the numbers that folders in a folder have as names; [] for a missing folder.

    Raise DeployError if it cannot be read.
    """
    try:
        return [int(each.name) for each in folder.iterdir() if RUN_NUMBER.fullmatch(each.name)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise DeployError(f"{folder} cannot be read ({error.strerror})") from error


def submit(folder: Path, order: Order) -> RunFiles:
    """Write a run's order below a folder; raise DeployError if the disk refuses it.

    The run's number is the time in milliseconds: devices also know runs of other servers, so
    counting from 1 would not be unique. It is larger than all before, whatever the clock says:
    runs are carried out in the order of their numbers.
    """
    last = folder.parent / LAST_NUMBER
    try:
        make_folder(folder)
        while True:
            number = max(time_ns() // 1_000_000, highest_number(last, folder) + 1)
            place = folder / str(number)
            with contextlib.suppress(FileExistsError):
                place.mkdir(mode=0o700)
                write_whole(last, f"{number}\n".encode(), 0o600)
                placed = replace(order, place=str(place_of(place)))
                written = tomli_w.dumps(asdict(placed))
                write_whole(place / "run.toml", written.encode(), 0o600)
                return RunFiles(place)
    except OSError as error:
        raise DeployError(f"submit: {error.filename}: {error.strerror}") from error


def highest_number(last: Path, folder: Path) -> int:
    """Return the highest number of the runs so far, 0 without any."""
    numbers = [0, *list_numbers(folder)]
    with contextlib.suppress(OSError, ValueError):
        text = read_small(last).strip()
        if RUN_NUMBER.fullmatch(text):
            numbers.append(int(text))
    return max(numbers)


class Runs:
    """Carries out the runs in a folder and answers the requests of their processes.

    The files of the last `keep` ended runs are kept, with 0 all.
    """

    def __init__(
        self, folder: Path, members: Members, mailbox: Mailbox, port: Port, keep: int = 0
    ) -> None:
        self._folder = folder
        self._keep = keep
        self._members = members
        self._mailbox = mailbox
        self._port = port
        self._faults = Faults()
        self._ended: set[int] = set()
        # The number of the run that is carried out, or 0.
        self.current = 0
        # For which clients the current run waits, and how long already; "" if it does not wait.
        self.waiting_for = ""
        # The last round that was saved, 0 before the first one, and when.
        self.last_round: tuple[int, float] = (0, time())
        # The run that ended last.
        self._last: RunFiles | None = None
        self._awaited: set[str] = set()
        self._missing = 0
        self._arrived = asyncio.Event()
        mailbox.on_reply = self._note_reply

    def waiting(self) -> list[RunFiles]:
        """Return the runs that have not ended, in order; none while the folder cannot be read."""
        try:
            runs = list_runs(self._folder, but=self._ended)
        except DeployError as error:
            self._faults.say("orders", f"no run is begun: {error}")
            return []
        self._faults.clear("orders")
        for run in runs:
            if run.status is not None:
                self._ended.add(run.number)
                self._last = run
        return [run for run in runs if run.number not in self._ended]

    @property
    def failure(self) -> str:
        """What the run that ended last has failed with, "" if it did not."""
        if self._last is None or self._last.status in (None, 0, STOPPED):
            return ""
        return f"run {self._last.number} failed: {self._last.last_line}"

    async def carry_out(self) -> None:
        """Carry out runs, one after the other, for ever; cancelling kills the current run."""
        while True:
            for run in self.waiting():
                if (self._folder.parent / DRAIN).exists():
                    break
                self.current = run.number
                try:
                    status = STOPPED if run.is_stopped else await self._carry_out(run)
                    run.end(status)
                except (OSError, MemoryError, RuntimeError) as error:
                    # Python raises a RuntimeError if no thread can be started
                    self._faults.say(
                        run.folder.name,
                        f"run {run.number} cannot continue, and is tried again: {error}",
                    )
                    if isinstance(error, OSError) and error.errno in OWN_ERRORS:
                        continue
                    break  # for example a full disk: the run stays the first one
                self._faults.clear(run.folder.name)
                self._mailbox.end(run.number)
                self._port.settings.pop(run.number, None)
                end = RunEnd.of(status)
                why = text_if(end is RunEnd.FAILED, f": {run.last_line}")
                log.info("run %d %s%s", run.number, end, why)
                self._delete_old()
            self.current = 0
            await asyncio.sleep(ORDERS_POLL_SECONDS)

    def _delete_old(self) -> None:
        """Delete the files of ended runs except the last ones; users' run folders are not there."""
        try:
            ended = [run for run in list_runs(self._folder) if run.status is not None]
            for run in ended[: -self._keep]:  # with 0, of none
                run.order.unlink()  # first: a run with an order and no status would begin again
                shutil.rmtree(run.folder)
        except (OSError, DeployError) as error:
            self._faults.say("old runs", f"files of ended runs are not deleted: {error}")

    async def _carry_out(self, run: RunFiles) -> int:
        """Carry out a run, restarting a killed process; return its exit status."""
        try:
            order = Order.read(run.order)
        except (ValueError, KeyError) as error:
            run.say(f"{run.order} cannot be used: {error}")
            return 2
        if order.place not in ("", str(place_of(run.folder))):
            run.say(
                f"the federation was moved since this run was submitted: paths below {order.place}"
                f" are below {place_of(run.folder)} now"
            )
        text = json.dumps(
            {
                "distribution": order.distribution,
                "version": order.version,
                "settings": dict(order.settings),
            },
            sort_keys=True,
        )
        self._port.settings[run.number] = hashlib.sha256(text.encode()).hexdigest(), text
        starts = deque[float]()
        while True:
            code = await self._start(run, order)
            if run.is_stopped:
                return STOPPED
            if code >= 0:
                return code
            starts.append(monotonic())
            if len(starts) > MAX_RESTARTS and starts[-1] - starts.popleft() < RESTARTS_SECONDS:
                run.say(
                    f"the run's process was killed {len(starts) + 1} times ({exit_reason(code)}):"
                    " it is given up"
                )
                return 128 - code
            run.say(f"the run's process was {exit_reason(code)}: it is started again")

    async def _start(self, run: RunFiles, order: Order) -> int:
        """Start a run's process, answer it until it ends or is stopped; return its exit code."""
        self._mailbox.begin(run.number)
        ours, theirs = Pipe()
        program = f"from fairbloom.deploy.fleet.run_process import main; main({os.getpid()})"
        with run.log.open("ab") as file:
            process = subprocess.Popen(  # noqa: S603 (this Python)
                [sys.executable, "-P", "-c", program, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={
                    **os.environ,
                    CLIENTS_FOLDER: str(self._members.folder.absolute()),
                    ORDER_FOLDER: str(run.folder.absolute()),
                    PLACE_FOLDER: str(place_of(run.folder)),
                },
                start_new_session=True,
            )
        theirs.close()
        description = {
            "run": run.number,
            "app": order.app,
            "folder": order.folder,
            "place": str(run.folder),
            "settings": dict(order.settings),
        }
        loop = asyncio.get_running_loop()
        until = math.inf
        try:
            Thread(target=self._serve, args=(ours, description, loop), daemon=True).start()
            while (code := process.poll()) is None:
                if until == math.inf and run.is_stopped:
                    process.send_signal(signal.SIGINT)
                    until = monotonic() + END_SECONDS
                if monotonic() > until:
                    process.kill()
                await asyncio.sleep(ORDERS_POLL_SECONDS / 5)
            return code
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # also ends processes that it left behind
            process.wait()
            self.waiting_for = ""

    # Requests of a run's process ------------------------------------------------------------------

    def _serve(
        self, pipe: Connection, description: Mapping[str, Any], loop: asyncio.AbstractEventLoop
    ) -> None:
        """Send a process its run, and answer it until it ends; runs in a thread."""
        # the errors of a killed process, and of a loop that has ended
        with pipe, contextlib.suppress(EOFError, OSError, RuntimeError):
            pipe.send(description)
            while True:
                (name, arguments), contents = receive(pipe)
                answered = asyncio.run_coroutine_threadsafe(
                    self._answer(description["run"], name, arguments, contents), loop
                )
                send(pipe, *answered.result())

    async def _answer(
        self, run: int, name: str, arguments: tuple[Any, ...], contents: Sequence[Content]
    ) -> tuple[Any, Sequence[Content]]:
        """Answer a request of a run's process, which `RunGrid` sends, with contents.

        `store` takes the request's content and returns its digest, or "" and why it is not taken.
        `wait` returns once the given number of messages is answered, or after the given seconds.
        """
        match name:
            case "nodes":
                return self._port.online(), ()
            case "names":
                return {
                    node_id: self._members.names[node_id]
                    for node_id in arguments[0]
                    if node_id in self._members.names
                }, ()
            case "store":
                try:
                    return (self._mailbox.store(contents[0]), ""), ()
                except (OSError, MemoryError) as error:
                    return ("", describe_fault(error)), ()
            case "send":
                self._mailbox.send(run, arguments[0])
            case "collect":
                return self._mailbox.collect(arguments[0])
            case "wait":
                ids, number, seconds = arguments
                self._awaited = {id for id in ids if not self._mailbox.is_answered(id)}
                self._missing = number - (len(ids) - len(self._awaited))
                if self._missing > 0:
                    self._arrived.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(seconds):
                            await self._arrived.wait()
            case "owed":
                return self._mailbox.owed(arguments[0]), ()
            case "save":
                self._mailbox.save(run, arguments[0])
                self.last_round = arguments[0], time()
            case "note_wait":
                self.waiting_for = arguments[0]
            case _:
                raise ValueError(f"a run sends the unknown request {name!r}")
        return None, ()

    def _note_reply(self, id: str) -> None:
        if id in self._awaited:
            self._awaited.discard(id)
            self._missing -= 1
            if self._missing <= 0:
                self._arrived.set()
