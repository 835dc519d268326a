"""What packages need, by what those that are installed here say of themselves."""

from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from functools import cache
from importlib.metadata import requires

from packaging.requirements import Requirement


@cache
def needs_of(name: str) -> list[Requirement]:
    """Return what an installed package says that it needs."""
    return [Requirement(line) for line in requires(name) or []]


def needed(
    asked: Iterable[Requirement], system: Mapping[str, str], *, cuda: bool
) -> Iterator[Requirement]:
    """Return what is asked for, and all that it needs on a system by what the installed packages
    say of themselves.

    What PyTorch needs depends on its build: the CPU build's needs are those that its other builds
    have on all systems.
    """
    waiting = list(asked)
    seen = set[str]()
    while waiting:
        requirement = waiting.pop()
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        yield requirement
        there = (
            system if cuda or requirement.name != "torch" else {**system, "platform_system": "none"}
        )
        for further in map(copy, needs_of(requirement.name)):
            marker = further.marker
            if marker is None or any(
                marker.evaluate({**there, "extra": extra}) for extra in {"", *requirement.extras}
            ):
                further.marker = None
                waiting.append(further)
