"""How a deployed run begins and resumes: which clients it waits for, and how many."""

import os
import tomllib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from fairbloom.errors import FairbloomError, describe_online, join_names
from fairbloom.flower import SimulationError
from fairbloom.logs import log
from fairbloom.protocol.names import CLIENTS_FOLDER
from fairbloom.rounds.flower import FlowerClients
from fairbloom.rounds.quorum import Quorum, QuorumError, Wait, quorum_of
from fairbloom.rounds.refusals import join_alike
from fairbloom.rounds.screening import beyond_others
from fairbloom.system.deadline import Deadline
from fairbloom.text import text_if

from .run_folder.files import describe_missing

# A client that reports more than this multiple of the others' median number of examples needs a
# number that the operator has stated (enrolled-sizes).
MOST_TIMES = 10

# Seconds before a client that refuses a run is asked again.
ASK_SECONDS = 5.0

# Without a number of clients to wait for, a run starts this long after the last client came.
JOIN_SECONDS = 10.0


def wait_for_clients(
    clients: FlowerClients,
    quorum: Quorum,
    *,
    expected: int,
    began: Collection[str],
    min_clients: int,
) -> None:
    """Wait until all clients are online, so that every run draws from the same names.

    After the quorum's patience the run continues without late clients, or QuorumError ends it if
    too few are online. In Flower's simulation, which starts no further clients, SimulationError
    ends it at once. Also set the quorum's `fewest`.

    Parameters
    ----------
    expected
        Number of clients of a new run; 0 if unknown: it starts once no client has joined for 10 s.
    began
        The clients with which a continued run began.
    min_clients
        The fewest clients that are enough; 0 takes the number from `quorum_of`.
    """
    folder = os.environ.get(CLIENTS_FOLDER)
    files = Path(folder).glob("*.toml") if folder else ()
    enrolled = drop_revoked(sorted(file.stem for file in files))
    awaited = drop_revoked(sorted(began))
    wanted = len(awaited) or expected
    usual = quorum_of(len(quorum.counted(awaited))) if awaited else quorum.of(expected)
    enough = min_clients or usual
    wait = Wait(quorum.wait.patience, quorum.wait.on_wait, quorum.clock)
    settled = Deadline.after(JOIN_SECONDS, quorum.clock.monotonic)
    seen = 0
    while True:
        online = list(clients.online(0))
        if len(online) > seen:
            seen = len(online)
            settled = Deadline.after(JOIN_SECONDS, quorum.clock.monotonic)
            log.info(
                "waiting for clients: %d%s are online",
                seen,
                text_if(seen <= wanted, f" of {wanted}"),
            )
        named = [name for name in awaited or enrolled if name not in online]
        there = len(quorum.counted(online))
        if there >= enough and len(online) >= wanted and not (awaited and named):
            if wanted:
                break
            if settled.is_over:
                log.info(
                    "starting with %d clients: set clients to wait for a certain number of them",
                    len(online),
                )
                break
        if clients.simulated and 0 < len(online) < wanted and settled.elapsed >= 1.0:
            new_run = f"begin a run of {len(online)} clients"
            raise SimulationError(
                len(online), wanted, new_run if awaited else f"set clients = {len(online)}"
            )
        words = f"{describe_online(len(online), wanted or enough)}; awaited: {join_names(named)}"
        remedy = (
            f"A shorter wait-for-clients goes on without them, if min-clients = {enough} are there"
        )
        if expected and not awaited:
            remedy += f"; clients = {max(1, len(online))} begins a run of those who are there"
        if not wait.should_continue(f"{words}. {remedy}"):
            if there < enough:
                raise QuorumError(
                    f"after {wait.patience:g} s (wait-for-clients) {words}, and at least {enough}"
                    " are needed (min-clients): start them and run the same command again, or"
                    " lower min-clients"
                )
            log.warning(
                "after %g s (wait-for-clients) this run goes on without those who are late: %s",
                wait.patience,
                words,
            )
            break
        quorum.clock.sleep(0.5)
    wait.on_wait("")
    quorum.fewest = min_clients or quorum_of(len(quorum.counted(awaited or online)))


def ask_sizes(clients: FlowerClients, quorum: Quorum) -> Mapping[str, float]:
    """Return the examples that clients online report before a run begins, by name.

    Wait for those that refuse the run, until their owners or the operator have mended that; after
    the quorum's patience the run begins without them. Raise QuorumError if it would begin without
    any client that trains, as all refuse it or have data that they cannot use.
    """
    wait = Wait(quorum.wait.patience, quorum.wait.on_wait, quorum.clock)
    while True:
        online = clients.online(0)
        sizes = clients.sizes(online)
        is_over = not clients.refusing or not wait.should_continue(
            f"the run waits for clients that refuse it: {describe_reasons(clients.refusing)}"
        )
        if is_over:
            break
        quorum.clock.sleep(ASK_SECONDS)
    wait.on_wait("")
    training = quorum.counted(online)
    if training and clients.unable.keys() >= {*training}:
        raise QuorumError(
            "this run does not begin, as no client can take part:"
            f" {describe_reasons(clients.unable)}. Once that is mended, the same command begins it"
        )
    if clients.refusing:
        log.warning(
            "the run begins without clients that refuse it: %s",
            describe_reasons(clients.refusing),
        )
    for name, missing in clients.missing_rows.items():
        log.warning("%s has %s", name, describe_missing(missing))
    return sizes


def describe_reasons(reasons: Mapping[str, str]) -> str:
    """Return clients' reasons as text, each with the clients that give it."""
    joined = join_alike(reasons).items()
    return "; ".join(f"{join_names(names)}: {reason}" for reason, names in joined)


def check_sizes(sizes: Mapping[str, float], enrolled: Collection[str]) -> None:
    """Raise FairbloomError for a client that reports far more examples than the others.

    `sizes` are the clients' own reports; `enrolled` are the clients with a number that the operator
    has stated, which are not checked.
    """
    for name, size in sizes.items():
        if name not in enrolled and (words := beyond_others(name, size, sizes, MOST_TIMES)):
            raise FairbloomError(
                f"client {name} says that it has {size:.0f} training examples, {words}"
            )


def drop_revoked(names: Iterable[str]) -> list[str]:
    """Return the clients without those that this federation's operator has revoked."""
    folder = os.environ.get(CLIENTS_FOLDER)
    if not folder:
        return list(names)
    return [name for name in names if not is_revoked(Path(folder, f"{name}.toml"))]


def is_revoked(file: Path) -> bool:
    """Return whether a client's file says that the client is revoked.

    A damaged file, or one that is being replaced, counts as not revoked.
    """
    try:
        return bool(tomllib.loads(file.read_text()).get("revoked"))
    except (OSError, ValueError):
        return False
