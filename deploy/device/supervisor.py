"""`fairbloom client`: the loop that connects a client again whenever its connection ends.

This process loads Flower's messages and no PyTorch: that is in the worker's process, while there is a run.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path

from fairbloom.errors import FairbloomError
from fairbloom.system.interrupts import release_signals
from fairbloom.system.supervise import HELD_SECONDS, STOPPING, become

from ..flower.device.worker import Worker
from ..flower.gate import end_unless_fit, warn_if_untested
from .client import ClientSettings
from .connectivity import connection_fault
from .contexts import Contexts
from .instance import Instance
from .outage import Outage, say

SHORTEST_PAUSE, LONGEST_PAUSE = 2.0, 15.0
"""Shortest and longest pause, in seconds, before a client connects again."""


class _StoppedError(BaseException):
    """SIGTERM or SIGINT came; no `except Exception` on the way catches it."""


def replace_process(client: ClientSettings) -> None:
    """Go on as this client in a small process, without the libraries that the command line has loaded."""
    become("fairbloom.deploy.device", json.dumps(asdict(client)))


def run(client: ClientSettings) -> None:
    """Keep a client connected until SIGTERM or SIGINT, and take leave in order then."""
    instance, worker, contexts, outage = Instance(client.key), Worker(client), Contexts(client.state_dir), Outage()
    pause = SHORTEST_PAUSE
    try:
        for number in STOPPING:
            signal.signal(number, _stop)
        release_signals(*STOPPING)
        while True:
            began = time.monotonic()
            fault = state_folder_fault(client) or connection_fault(client)
            outage.fault(fault or _serve(client, instance, worker, contexts, outage))
            if time.monotonic() - began > HELD_SECONDS:
                pause = SHORTEST_PAUSE
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
    except _StoppedError:
        pass
    finally:
        worker.end()


def _serve(client: ClientSettings, instance: Instance, worker: Worker, contexts: Contexts, outage: Outage) -> str:
    """Be connected as long as it goes well; return why it does not."""
    from ..flower.device.session import serve  # only after the gate has let this Flower pass

    try:
        return serve(client, instance, worker, contexts, outage)
    except Exception as error:  # a bug: another connection may go well
        traceback.print_exc()
        return f"the connection ended by {type(error).__name__}"


def _stop(number: int, frame: object) -> None:
    for each in STOPPING:  # once more, it would end what is on its way to the end
        signal.signal(each, signal.SIG_IGN)
    raise _StoppedError


def state_folder_fault(client: ClientSettings) -> str | None:
    """Make the state folder; return, in words, why that cannot be."""
    folder = client.state_dir
    try:
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK | os.X_OK):
                return f"state-dir = {folder}: the account that runs this client may not write there"
    except OSError as error:
        return f"state-dir = {folder} cannot be made: {error.strerror}"
    return None


def main() -> int:
    """Run the client of the settings that are given as JSON; what it writes is for its own account alone."""
    end_unless_fit("client")
    warn_if_untested()
    os.umask(0o077)
    settings = json.loads(sys.argv[1])
    try:
        client = ClientSettings(**settings | {"allow": tuple(settings["allow"])})
    except FairbloomError as error:  # a file that was there when `fairbloom client` looked
        say(str(error))
        return 2
    run(client)
    return 0
