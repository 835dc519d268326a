"""Faults during a federation's training; only what systemd would restart is restarted."""

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from benchmarks.deployment import Deployment
from tests.attacks.strangers import PREFACE, Stranger
from tests.deploy.federation import Cable

from .hostile import ATTACKS, ORDER

# Seconds until systemd restarts a service.
RESTART_SECONDS = 3.0


class Site:
    """A federation with cables to the server that can be cut; the last client is hostile."""

    def __init__(self, there: Deployment, clients: Sequence[str]) -> None:
        self.there = there
        self.clients = clients
        self.order = there.home / "attack"
        there.environment[ORDER] = str(self.order)
        self.cables = {name: Cable(there.fleet) for name in clients}
        for name in clients:
            self.start_client(name)
        there.wait_for_clients(*clients)

    def start_client(self, name: str) -> None:
        self.there.start_client(name, "--server", f"localhost:{self.cables[name].port}")

    def close(self) -> None:
        for cable in self.cables.values():
            cable.close()

    def processes(self) -> dict[str, int]:
        """Return the ids of the processes that live as long as the federation unless killed."""
        return {"server": self.there.server.pid} | {
            name: self.there.clients[name].pid for name in self.clients
        }


# Faults: each returns a description once it is over ----------------------------------------------


def kill_server(site: Site, chance: random.Random) -> str:
    site.there.kill(site.there.server)
    time.sleep(RESTART_SECONDS)
    site.there.start_server()
    return "the server, with all its processes"


def kill_run(site: Site, chance: random.Random) -> str:
    for pid in site.there.run_processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return "the run's process"


def kill_client(site: Site, chance: random.Random) -> str:
    name = chance.choice(site.clients)
    site.there.kill(site.there.clients[name])
    time.sleep(RESTART_SECONDS)
    site.start_client(name)
    return name


def kill_worker(site: Site, chance: random.Random) -> str:
    name = chance.choice(site.clients)
    for pid in site.there.offspring(site.there.clients[name]):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return f"the worker of {name}"


def cut_link(site: Site, chance: random.Random) -> str:
    name = chance.choice(site.clients)
    seconds = chance.uniform(1.0, 45.0)
    site.cables[name].cut()
    time.sleep(seconds)
    site.cables[name].mend()
    return f"{name} for {seconds:.0f} s"


def freeze(site: Site, chance: random.Random) -> str:
    """Stop the processes of a client or of the server for a while."""
    name = chance.choice([*site.clients, "server"])
    seconds = chance.uniform(1.0, 30.0)
    process = site.there.server if name == "server" else site.there.clients[name]
    frozen = [process.pid] if name == "server" else [process.pid, *site.there.offspring(process)]
    with _each(frozen, signal.SIGSTOP, signal.SIGCONT):
        time.sleep(seconds)
    return f"{name} for {seconds:.0f} s"


def attack(site: Site, chance: random.Random) -> str:
    name = chance.choice(sorted(ATTACKS))
    site.order.write_text(name)
    return name


def flood(site: Site, chance: random.Random) -> str:
    """Open connections that stall, and make calls without a certificate, for some seconds."""
    seconds = chance.uniform(3.0, 10.0)
    over = threading.Event()
    stranger = Stranger(site.there.fleet, site.there.folder / "ca.crt")
    calls = [0]

    def call() -> None:
        while not over.is_set():
            stranger.say(PREFACE + bytes(60_000))
            calls[0] += 1

    threads = [threading.Thread(target=call) for _ in range(4)]
    for _ in range(20):
        stranger.half_open()
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    over.set()
    for thread in threads:
        thread.join()
    stranger.close()
    return f"{calls[0]} calls in {seconds:.0f} s, with 20 stalled connections"


FAULTS: Mapping[str, Callable[[Site, random.Random], str]] = {
    "kill server": kill_server,
    "kill run": kill_run,
    "kill client": kill_client,
    "kill worker": kill_worker,
    "cut link": cut_link,
    "freeze": freeze,
    "hostile reply": attack,
    "flood": flood,
}


@contextlib.contextmanager
def _each(pids: Sequence[int], before: signal.Signals, after: signal.Signals) -> Iterator[None]:
    """Send one signal to processes before the block and another one after it, if they exist."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, before)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, after)
