"""`fairbloom client`: the loop that starts a client's SuperNode again whenever it ends.

This process stays small: it loads neither Flower nor PyTorch.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import IO, NoReturn

from fairbloom.errors import FairbloomError
from fairbloom.system.supervise import CannotStartError, StopSignal, Supervised, become, supervise

from ..flower.gate import check_version, end_unless_fit
from ..processes import duration
from .client import ClientSettings
from .connectivity import connection_fault
from .instance import INSTANCE, Instance

SHORTEST_PAUSE, LONGEST_PAUSE = 2.0, 15.0
"""Shortest and longest pause, in seconds, before a SuperNode that ended is started again."""

CONNECTED = b"SuperNode ID:"
"""What Flower logs once a node is connected."""

NUMBERS = re.compile(rb"[0-9]+")
"""What differs in the output of two starts that fail in the same way: times and process ids."""


class Outage:
    """Says each fault once while the client is cut off, and then that it is connected again."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._said: set[object] = set()

    @property
    def goes_on(self) -> bool:
        """Whether a fault was said and the client has not been connected since."""
        return self._since is not None

    def is_new(self, words: object) -> bool:
        """Return whether these words were not said in this outage; from now on they were."""
        new = words not in self._said
        self._said.add(words)
        return new

    def fault(self, words: str) -> None:
        """Say what is wrong, where that is new."""
        if self._since is None:
            self._since = time.monotonic()
        if self.is_new(words):
            say(f"{words}; retrying until it works")

    def end(self) -> None:
        """Say that the client is connected again, where a fault was said before."""
        if self._since is not None:
            say(f"back: connected again after {duration(time.monotonic() - self._since)}")
        self._since = None
        self._said.clear()


class Node(Supervised):
    """A client's SuperNode, which is started again whenever it ends."""

    def __init__(self, client: ClientSettings) -> None:
        super().__init__("SuperNode", SHORTEST_PAUSE, LONGEST_PAUSE)
        self._client = client
        self._instance = Instance(client.key)
        self._outage = Outage()
        self._listener: threading.Thread | None = None

    def start(self) -> subprocess.Popen[bytes]:
        """Start the SuperNode, and print what it says."""
        fault = self._state_folder_fault() or connection_fault(self._client)
        if fault:
            raise CannotStartError(fault)
        # A new session: Ctrl-C reaches this process alone, which ends the node in order.
        node = subprocess.Popen(  # noqa: S603 (this Python)
            self._client.command(),
            env=self._client.environment() | {INSTANCE: self._instance.name},
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._listener = threading.Thread(target=self._pass_on, args=(node.stdout,), daemon=True)
        self._listener.start()
        return node

    def report(self, fault: str, pause: float) -> None:
        """Print a fault, once in an outage."""
        self._hear_out()
        self._outage.fault(fault)

    def give_up(self) -> NoReturn:
        """End this process too, when what the node said is printed."""
        self._hear_out()
        super().give_up()

    def _hear_out(self) -> None:
        if self._listener is not None:
            self._listener.join(timeout=2.0)  # what the app has started may hold the pipe open

    def _state_folder_fault(self) -> str | None:
        """Make the state folder; return, in words, why that cannot be."""
        folder = self._client.state_dir
        try:
            if folder:
                Path(folder).mkdir(parents=True, exist_ok=True)
                if not os.access(folder, os.W_OK | os.X_OK):
                    return f"state-dir = {folder}: the account that runs this client may not write there"
        except OSError as error:
            return f"state-dir = {folder} cannot be made: {error.strerror}"
        return None

    def _pass_on(self, output: IO[bytes]) -> None:
        """Print what a node says. While the client is cut off, a start that fails as one before it is not printed."""
        heard, holds, connected = deque[bytes](maxlen=200), self._outage.goes_on, False
        with output:  # closed whatever happens: a node that waits for a reader would stand still
            for line in iter(lambda: output.readline(2**16), b""):
                if not connected:
                    heard.append(line)
                if CONNECTED in line:
                    connected = True
                    self._outage.end()
                if not holds:
                    _print([line])
                elif connected:
                    holds = False
                    _print(heard)
        if not connected and self._outage.is_new(NUMBERS.sub(b"", b"".join(heard))) and holds:
            _print(heard)


def say(words: str) -> None:
    """Print a line about this client on stderr."""
    print(f"fairbloom client: {words}", file=sys.stderr, flush=True)


def _print(lines: Iterable[bytes]) -> None:
    sys.stderr.buffer.writelines(lines)
    sys.stderr.buffer.flush()


def replace_process(client: ClientSettings) -> None:
    """Go on as this client in a small process, without the libraries that the command line has loaded."""
    become("fairbloom.deploy.device", json.dumps(asdict(client)))


def run(client: ClientSettings) -> None:
    """Keep a client's SuperNode running until SIGTERM or SIGINT, and end it in order then."""
    stopped, node = StopSignal(), Node(client)
    try:
        supervise([node], stopped)
    finally:
        node.stop()


def main() -> int:
    """Run the client of the settings that are given as JSON; what it writes is for its own account alone."""
    end_unless_fit("client", check_version)
    os.umask(0o077)
    settings = json.loads(sys.argv[1])
    try:
        client = ClientSettings(**settings | {"allow": tuple(settings["allow"])})
    except FairbloomError as error:  # a file that was there when `fairbloom client` looked
        say(str(error))
        return 2
    run(client)
    return 0
