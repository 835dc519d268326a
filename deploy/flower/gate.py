"""The version gate: what is deployed starts with a Flower that was tested and has what is relied on.

Too old a Flower is refused. A newer one than was tested has to have all names that are relied on; a server starts with
it on request alone, and a client warns.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import version
from typing import Literal

from fairbloom.system.supervise import CANNOT_RUN

from ..errors import DeployError
from .relied_on import RELIED_ON, User, missing

Deployed = Literal["client", "server", "operator"]

COMMANDS: Mapping[Deployed, str] = {
    "client": "fairbloom client",
    "server": "fairbloom server",
    "operator": "fairbloom deploy",
}

OLDEST: Mapping[Deployed, tuple[int, int]] = {"client": (1, 39), "server": (1, 41), "operator": (1, 39)}
NEWEST_TESTED = (1, 42)
"""Major and minor number of the oldest Flower that each side runs with, and of the newest that was tested."""

UNTESTED = "--untested-flower"
"""Option by which a server starts with a newer Flower."""


class FlowerVersionError(DeployError):
    """Flower's version is not one that the deployed runtime runs with, or lacks what it relies on."""


def needed(user: Deployed) -> str:
    """Return the versions of Flower that `user` needs, as pip takes them."""
    below = f",<{NEWEST_TESTED[0]}.{NEWEST_TESTED[1] + 1}" if user == "server" else ""
    return "flwr>={}.{}".format(*OLDEST[user]) + below


def fits(user: Deployed) -> bool:
    """Return whether the installed Flower is of a version that `user` needs."""
    return OLDEST[user] <= _installed() and (user != "server" or _installed() <= NEWEST_TESTED)


def check_version(user: Deployed, untested: bool = False) -> None:
    """Raise FlowerVersionError unless Flower's version fits, or may be newer than tested; nothing of it is imported."""
    newer = _installed() > NEWEST_TESTED
    if not fits(user) and not (newer and untested):
        raise _error(user, f"{remedy(user)}, or give {UNTESTED}" if newer else remedy(user))


def check_flower(user: Deployed, untested: bool = False) -> None:
    """Raise FlowerVersionError unless Flower's version fits, and it has all names that are relied on."""
    check_version(user, untested)
    users: tuple[User, ...] = ("library", user)
    if lacking := missing(need for need in RELIED_ON if need.user in users):
        lines = [f"  - {without}: {', '.join(names)}" for without, names in lacking.items()]
        raise _error(user, "\n".join(["This one lacks names for:", *lines, remedy(user)]))


def remedy(user: Deployed) -> str:
    """Return how a Flower that fits is installed."""
    return f'Remedy: pip install "{needed(user)}"'


def warn_if_untested() -> None:
    """Say where a client's Flower is newer than those that were tested."""
    if _installed() > NEWEST_TESTED:
        newest = ".".join(map(str, NEWEST_TESTED))
        words = f"Flower {version('flwr')} is installed, and {newest} is the newest that was tested"
        print(f"fairbloom client: {words}: it starts, and may fail", file=sys.stderr, flush=True)


def end_unless_fit(user: Deployed, check: Callable[[Deployed], None] = check_flower) -> None:
    """End this process, by CANNOT_RUN and with the error on stderr, where `check` raises: who restarts it ends too."""
    try:
        check(user)
    except FlowerVersionError as error:
        print(error, file=sys.stderr, flush=True)
        sys.exit(CANNOT_RUN)


def start(user: Deployed, program: str, parent: int, untested: bool = False) -> None:
    """Run a program of this room, such as server.superlink, as a child of process `parent`, if Flower fits it.

    It is imported only then: it imports names that another Flower may lack.
    """
    end_unless_fit(user, partial(check_flower, untested=untested))
    importlib.import_module(f"{__package__}.{program}").main(parent)


def _installed() -> tuple[int, int]:
    major, minor = version("flwr").split(".")[:2]
    return int(major), int(minor)


def _error(user: Deployed, words: str) -> FlowerVersionError:
    return FlowerVersionError(
        f"Flower {version('flwr')} is installed, and {COMMANDS[user]} needs {needed(user)}. {words}"
    )
