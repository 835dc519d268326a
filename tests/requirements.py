"""What packages need, by what those that are installed here say of themselves."""

from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import requires

from packaging.requirements import Requirement


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
        for line in requires(requirement.name) or []:
            further = Requirement(line)
            marker = further.marker
            if marker is None or any(
                marker.evaluate({**there, "extra": extra}) for extra in {"", *requirement.extras}
            ):
                further.marker = None
                waiting.append(further)
