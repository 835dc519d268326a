"""The version gate: what is deployed starts with a Flower that it was tested with and that has what it relies on.

Server and operator need Flower 1.39, the last whose SuperLink talks to its nodes by gRPC. A client has its own part of
these calls: it runs with every later Flower that has the names, and warns of one that it was never tested with.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Literal

from fairbloom.system.supervise import CANNOT_RUN

from ..errors import DeployError
from .relied_on import RELIED_ON, User, missing

Deployed = Literal["client", "app", "server", "operator"]

COMMANDS: dict[Deployed, str] = {
    "client": "fairbloom client",
    "app": 'fairbloom client with bundles = "any"',
    "server": "fairbloom server",
    "operator": "fairbloom deploy",
}

ON_DEVICES: tuple[Deployed, ...] = ("client", "app")

LOWEST, SERVER_HIGHEST, CLIENT_HIGHEST = (1, 39), (1, 39), (1, 42)
"""Major and minor number of the oldest Flower that may be, and of the newest with which each side was tested."""


class FlowerVersionError(DeployError):
    """Flower's version is not one that the deployed runtime runs with, or lacks what it relies on."""


def needed_versions(user: Deployed) -> str:
    """Return the versions of Flower that `user` needs, as pip takes them."""
    newest = "" if user in ON_DEVICES else f",<{SERVER_HIGHEST[0]}.{SERVER_HIGHEST[1] + 1}"
    return f"flwr>={LOWEST[0]}.{LOWEST[1]}{newest}"


def check_version(user: Deployed) -> None:
    """Raise FlowerVersionError unless Flower is of a version that is needed; of such a one, nothing is imported."""
    if not fits(user):
        check_flower(user)


def check_flower(user: Deployed) -> None:
    """Raise FlowerVersionError unless Flower is of a version that is needed and has all names that are relied on."""
    users: tuple[User, ...] = ("library", user)
    lacking = missing(need for need in RELIED_ON if need.user in users)
    if fits(user) and not lacking:
        return
    lines = [f"  - {without}: {', '.join(names)}" for without, names in lacking.items()]
    affected = "\n".join(["This one lacks names for:", *lines, ""]) if lacking else ""
    needed = needed_versions(user)
    raise FlowerVersionError(
        f"Flower {version('flwr')} is installed, and {COMMANDS[user]} needs {needed}, whose clients and servers talk "
        f'by gRPC. {affected}Remedy: pip install "{needed}"'
    )


def warn_if_untested() -> None:
    """Say where a client's Flower is newer than those with which it was tested."""
    if _installed() > CLIENT_HIGHEST:
        newest = ".".join(map(str, CLIENT_HIGHEST))
        words = f"Flower {version('flwr')} is installed, and this client was tested with 1.39 to {newest}"
        print(f"fairbloom client: {words}: it starts, and may fail", file=sys.stderr, flush=True)


def end_unless_fit(user: Deployed, check: Callable[[Deployed], None] = check_flower) -> None:
    """End this process, by CANNOT_RUN and with the error on stderr, where `check` raises: who restarts it ends too."""
    try:
        check(user)
    except FlowerVersionError as error:
        print(error, file=sys.stderr, flush=True)
        sys.exit(CANNOT_RUN)


def start(user: Deployed, program: str, parent: int) -> None:
    """Run a program of this room, server.superlink say, as a child of the process `parent`, if Flower fits it.

    It is imported only then: it imports names that another Flower may lack.
    """
    end_unless_fit(user)
    importlib.import_module(f"{__package__}.{program}").main(parent)


def fits(user: Deployed) -> bool:
    """Return whether the installed Flower is of a version that `user` needs."""
    return _installed() >= LOWEST and (user in ON_DEVICES or _installed() <= SERVER_HIGHEST)


def _installed() -> tuple[int, int]:
    major, minor = version("flwr").split(".")[:2]
    return int(major), int(minor)
