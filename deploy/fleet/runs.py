"""The runs of a federation: orders in state/runs/ID/run.toml, carried out one after the other."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import tomllib
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from time import monotonic, time_ns
from typing import Any

import tomli_w

from fairbloom.logs import log
from fairbloom.system.files import make_folder, write_whole
from fairbloom.system.supervise import exit_reason

from ..errors import DeployError
from .mailbox import Mailbox
from .members import Members
from .port import Port

# A killed run process is restarted at most MAX_RESTARTS times within RESTARTS_SECONDS.
MAX_RESTARTS = 5
RESTARTS_SECONDS = 600.0

# Seconds that a stopped run's process may take to end before it is killed.
END_SECONDS = 15.0

# Pause in seconds between two looks at orders.
LOOK_SECONDS = 0.5

# Environment variables that tell a run the folders of the registry and of its files. The names are
# repeated in server/waiting.py and server/progress.py, which load libraries that this module must
# not load.
CLIENTS_FOLDER = "FAIRBLOOM_CLIENTS"
RUN_FOLDER = "FAIRBLOOM_RUN"

# Exit status of a run that was stopped by its operator.
STOPPED = 130


@dataclass(frozen=True)
class Order:
    """A submitted run: the ServerApp's import string, the app's distribution, and the settings.

    `folder` is the folder of an app that is not installed, "" for an installed one.
    """

    app: str
    distribution: str
    version: str
    settings: Mapping[str, Any]
    folder: str = ""

    @classmethod
    def read(cls, file: Path) -> Order:
        """Read a run.toml; raise OSError, ValueError or KeyError if it is invalid."""
        try:
            values = tomllib.loads(file.read_text())
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error
        if unknown := values.keys() - {field.name for field in fields(cls)}:
            raise ValueError(f"it has the key {sorted(unknown)[0]}, which an order does not have")
        texts = [values[key] for key in ("app", "distribution", "version", "folder")]
        settings = values["settings"]
        if not all(isinstance(text, str) for text in texts) or not isinstance(settings, dict):
            raise ValueError(
                "app, distribution, version and folder are texts, and settings is a table"
            )
        for key, value in settings.items():
            if not isinstance(value, bool | int | float | str):
                raise ValueError(f"the setting {key} is neither a number, a text nor true or false")
        return cls(**values)


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
    def is_stopped(self) -> bool:
        """Whether the operator has asked to stop the run."""
        return self._stop.exists()

    def stop(self) -> None:
        """Ask the server to stop the run."""
        self._stop.touch(mode=0o600)

    @property
    def last_line(self) -> str:
        """The last line of the log, or ""."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return lines[-1] if lines else ""

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

    Numbers grow with time, so the oldest run is first.
    """
    if not folder.is_dir():
        return []
    numbers = {int(each.name) for each in folder.iterdir() if each.name.isdecimal()}
    runs = [RunFiles(folder / str(number)) for number in sorted(numbers.difference(but))]
    return [run for run in runs if run.order.exists()]


def submit(folder: Path, order: Order) -> RunFiles:
    """Write a run's order below a folder; raise DeployError if the disk refuses it.

    The run's number is the time in milliseconds: devices also know runs of other servers, so
    counting from 1 would not be unique.
    """
    try:
        make_folder(folder)
        while True:
            place = folder / str(time_ns() // 1_000_000)
            with contextlib.suppress(FileExistsError):
                place.mkdir(mode=0o700)
                write_whole(place / "run.toml", tomli_w.dumps(asdict(order)).encode(), 0o600)
                return RunFiles(place)
    except OSError as error:
        raise DeployError(f"submit: {error.filename}: {error.strerror}") from error


class Runs:
    """Carries out the runs in a folder and answers the requests of their processes."""

    def __init__(self, folder: Path, members: Members, mailbox: Mailbox, port: Port) -> None:
        self._folder = folder
        self._members = members
        self._mailbox = mailbox
        self._port = port
        self._ended: set[int] = set()
        self._awaited: set[str] = set()
        self._missing = 0
        self._arrived = asyncio.Event()
        mailbox.on_reply = self._note_reply

    def waiting(self) -> list[RunFiles]:
        """Return the runs that have not ended, in order: the first one is in progress."""
        runs = list_runs(self._folder, but=self._ended)
        self._ended |= {run.number for run in runs if run.status is not None}
        return [run for run in runs if run.number not in self._ended]

    async def carry_out(self) -> None:
        """Carry out runs, one after the other, for ever; cancelling kills the current run."""
        while True:
            for run in self.waiting():
                try:
                    if run.is_stopped:
                        status = STOPPED
                    else:
                        status = await self._carry_out(run)
                    run.end(status)
                except OSError as error:
                    # for example a full disk: the run stays the first one, and is tried again
                    log.error("run %d cannot go on, and is tried again: %s", run.number, error)
                    break
                self._mailbox.end(run.number)
                self._port.settings.pop(run.number, None)
                ends = {STOPPED: "stopped", 0: "completed"}
                log.info("run %d %s", run.number, ends.get(status, f"failed: {run.last_line}"))
            await asyncio.sleep(LOOK_SECONDS)

    async def _carry_out(self, run: RunFiles) -> int:
        """Carry out a run, restarting a killed process; return its exit status."""
        try:
            order = Order.read(run.order)
        except (OSError, ValueError, KeyError) as error:
            run.say(f"{run.order} cannot be used: {error}")
            return 2
        description = {
            "distribution": order.distribution,
            "version": order.version,
            "settings": dict(order.settings),
        }
        text = json.dumps(description, sort_keys=True)
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
        places = {
            CLIENTS_FOLDER: str(self._members.folder.absolute()),
            RUN_FOLDER: str(run.folder.absolute()),
        }
        with run.log.open("ab") as file:
            process = subprocess.Popen(  # noqa: S603 (this Python)
                [sys.executable, "-P", "-c", program, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={**os.environ, **places},
                start_new_session=True,
            )
        theirs.close()
        description = {
            "run": run.number,
            "app": order.app,
            "folder": order.folder,
            "settings": dict(order.settings),
        }
        Thread(
            target=self._serve, args=(ours, description, asyncio.get_running_loop()), daemon=True
        ).start()
        until = math.inf
        try:
            while (code := process.poll()) is None:
                if until == math.inf and run.is_stopped:
                    process.send_signal(signal.SIGINT)
                    until = monotonic() + END_SECONDS
                if monotonic() > until:
                    process.kill()
                await asyncio.sleep(LOOK_SECONDS / 5)
            return code
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # also ends processes that it left behind
            process.wait()

    # Requests of a run's process ------------------------------------------------------------------

    def _serve(
        self, pipe: Connection, description: Mapping[str, Any], loop: asyncio.AbstractEventLoop
    ) -> None:
        """Send a process its run, and answer it until it ends; runs in a thread."""
        # the errors of a killed process, and of a loop that has ended
        with pipe, contextlib.suppress(EOFError, OSError, RuntimeError):
            pipe.send(description)
            while True:
                name, arguments = pipe.recv()
                answer = asyncio.run_coroutine_threadsafe(
                    self._answer(description["run"], name, arguments), loop
                ).result()
                pipe.send(answer)

    async def _answer(self, run: int, name: str, arguments: tuple[Any, ...]) -> Any:
        """Answer a request of a run's process, which `RunGrid` sends.

        `wait` returns once the given number of messages is answered, or after the given seconds.
        """
        match name:
            case "nodes":
                return self._port.online()
            case "names":
                return {
                    node_id: self._members.names[node_id]
                    for node_id in arguments[0]
                    if node_id in self._members.names
                }
            case "store":
                try:
                    self._mailbox.store(arguments[0])
                except OSError as error:
                    return error.strerror or str(error)
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
            case "save":
                self._mailbox.save(run, arguments[0])
            case _:
                raise ValueError(f"a run sends the unknown request {name!r}")
        return None

    def _note_reply(self, id: str) -> None:
        if id in self._awaited:
            self._awaited.discard(id)
            self._missing -= 1
            if self._missing <= 0:
                self._arrived.set()
