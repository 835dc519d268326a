"""How a deployed run begins and resumes: which clients it waits for, and how many."""

import os
import time
import tomllib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from fairbloom.errors import FairbloomError, describe_online, join_names
from fairbloom.flower import SimulationError
from fairbloom.logs import log
from fairbloom.rounds.flower import FlowerClients
from fairbloom.rounds.quorum import (
    Quorum,
    QuorumError,
    Wait,
    quorum_of,
)
from fairbloom.rounds.screening import beyond_others

# A client with more than this multiple of the others' median needs a number that the operator has
# stated.
MOST_TIMES = 10

# Environment variable by which `fairbloom server` names the folder with a file for each client ever
# enrolled.
CLIENTS_FOLDER = "FAIRBLOOM_CLIENTS"


class ImplausibleSizeError(FairbloomError):
    """A client with a number of examples out of all proportion.

    The message names it, its number and the remedy.
    """


def wait_for_clients(
    clients: FlowerClients,
    quorum: Quorum,
    *,
    expected: int,
    began: Collection[str],
    min_clients: int,
    patience: float,
) -> None:
    """Wait until all clients are online, so that every run draws from the same names.

    Go on without late ones.

    `expected` is 0 where a new run does not say how many: it starts once clients are there and none
    has joined for a while. `began` names the clients of a run that is continued. `min_clients` 0
    means what `quorum_of` says. After `patience` seconds the run goes on with enough clients, or
    QuorumError ends it; in Flower's simulation, where no others come, SimulationError ends it at
    once. The quorum's `fewest` is set here.
    """
    folder = os.environ.get(CLIENTS_FOLDER)
    awaited = drop_revoked(sorted(began))
    if folder:
        enrolled = drop_revoked(sorted(file.stem for file in Path(folder).glob("*.toml")))
    else:
        enrolled = []
    wanted = len(awaited) or expected
    enough = min_clients or (
        quorum_of(len(quorum.counted(awaited))) if awaited else quorum.of(expected)
    )
    wait = Wait(patience)
    newest = time.monotonic()
    seen = 0
    while True:
        online = list(clients.online(0))
        if len(online) > seen:
            seen = len(online)
            newest = time.monotonic()
            log.info("waiting for clients: %d of %s are online", seen, wanted or "as many as come")
        late = [name for name in awaited if name not in online]
        named = late if awaited else [name for name in enrolled if name not in online]
        there = len(quorum.counted(online))
        if there >= enough and not late and len(online) >= wanted:
            if wanted:
                break
            # A run that does not know how many clients there are starts 10 s after the last one
            # came.
            if time.monotonic() - newest >= 10.0:
                log.info(
                    "starting with %d clients: set clients to wait for a certain number of them",
                    len(online),
                )
                break
        if clients.simulated and 0 < len(online) < wanted and time.monotonic() - newest >= 1.0:
            if awaited:
                instead = f"begin a run of {len(online)} clients"
            else:
                instead = f"set clients = {len(online)}"
            raise SimulationError(len(online), wanted, instead)
        words = f"{describe_online(len(online), wanted or enough)}; awaited: {join_names(named)}"
        remedy = (
            f"A shorter wait-for-clients goes on without them, if min-clients = {enough} are there"
        )
        if expected and not awaited:
            remedy += f"; clients = {max(1, len(online))} begins a run of those who are there"
        if not wait.should_continue(f"{words}. {remedy}"):
            if there < enough:
                raise QuorumError(
                    f"after {patience:g} s (wait-for-clients) {words}, and at least {enough} are"
                    " needed (min-clients): start them and run the same command again, or lower"
                    " min-clients"
                )
            log.warning(
                "after %g s (wait-for-clients) this run goes on without those who are late: %s",
                patience,
                words,
            )
            break
        time.sleep(0.5)
    quorum.fewest = min_clients or quorum_of(len(quorum.counted(awaited or online)))


def check_sizes(sizes: Mapping[str, float], enrolled: Collection[str]) -> None:
    """Raise ImplausibleSizeError for a client that reports far too many examples.

    `sizes` are the clients' own reports, `enrolled` the clients with a number that the operator has
    stated.
    """
    for name, size in sizes.items():
        if name not in enrolled and (words := beyond_others(name, size, sizes, MOST_TIMES)):
            raise ImplausibleSizeError(
                f"client {name} says that it has {size:.0f} training examples, {words}"
            )


def drop_revoked(names: Iterable[str]) -> list[str]:
    """Return those of the clients that the operator of this federation has not revoked."""
    folder = os.environ.get(CLIENTS_FOLDER)
    return [name for name in names if not folder or not is_revoked(Path(folder, f"{name}.toml"))]


def is_revoked(file: Path) -> bool:
    """Return whether a client's file says so.

    Nothing is known of a client with a damaged file, or one that is being replaced.
    """
    try:
        return bool(tomllib.loads(file.read_text()).get("revoked"))
    except (OSError, ValueError):
        return False
