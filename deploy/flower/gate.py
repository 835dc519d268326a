"""The version gate: what is deployed starts with the Flower that it was built for, and with no other.

Flower 1.39 is the last whose SuperNodes and SuperLink talk by gRPC, on which the deployed runtime is built.
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

MAJOR, MINOR = 1, 39
NEEDED = f"flwr>={MAJOR}.{MINOR},<{MAJOR}.{MINOR + 1}"
REMEDY = f'pip install "{NEEDED}"'

Deployed = Literal["client", "server", "operator"]

COMMANDS: dict[Deployed, str] = {
    "client": "fairbloom client",
    "server": "fairbloom server",
    "operator": "fairbloom deploy",
}


class FlowerVersionError(DeployError):
    """Flower's version is not the one that the deployed runtime needs, or lacks what it relies on."""


def check_version(user: Deployed) -> None:
    """Raise FlowerVersionError unless Flower is of the version that is needed; of such a one, nothing is imported."""
    if not _fits():
        check_flower(user)


def check_flower(user: Deployed) -> None:
    """Raise FlowerVersionError unless Flower is of the version that is needed and has all names that are relied on."""
    users: tuple[User, ...] = ("library", user)
    lacking = missing(need for need in RELIED_ON if need.user in users)
    if _fits() and not lacking:
        return
    lines = [f"  - {without}: {', '.join(names)}" for without, names in lacking.items()]
    affected = "\n".join(["This one lacks names for:", *lines, ""]) if lacking else ""
    raise FlowerVersionError(
        f"Flower {version('flwr')} is installed, and {COMMANDS[user]} needs {NEEDED}, whose clients and servers talk "
        f"by gRPC. {affected}Remedy: {REMEDY}"
    )


def end_unless_fit(user: Deployed, check: Callable[[Deployed], None] = check_flower) -> None:
    """End this process, by CANNOT_RUN and with the error on stderr, where `check` raises: who restarts it ends too."""
    try:
        check(user)
    except FlowerVersionError as error:
        print(error, file=sys.stderr, flush=True)
        sys.exit(CANNOT_RUN)


def start(user: Deployed, program: str, parent: int) -> None:
    """Run a program of this room, such as device.supernode, as a child of process `parent`, if Flower fits it.

    It is imported only then: it imports names that another Flower may lack.
    """
    end_unless_fit(user)
    importlib.import_module(f"{__package__}.{program}").main(parent)


def _fits() -> bool:
    return version("flwr").split(".")[:2] == [str(MAJOR), str(MINOR)]
