"""Sealed files, and versions of a state in a folder: one file for each step that changed it.

The process of a device imports this module, which therefore loads no library.
"""

import hashlib
from pathlib import Path
from typing import NamedTuple

from fairbloom.logs import log

from .files import make_folder, whole_file


class Step(NamedTuple):
    """A step of a run that may change a state: a round, and the work in it, in order from 0."""

    round: int
    work: int


# The step of a state without rounds.
FIRST = Step(0, 0)


class Versions:
    """The versions of one state, by the step that made each, in files named ROUND-WORK.

    A step that is repeated begins with the same version as the first time. The run may have to
    repeat the round before the last, so the versions since then are kept, and one before them.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def rewind(self, step: Step) -> tuple[Step, bytes] | None:
        """Delete the versions from a step on; return the last one before it, None without one."""
        for made in [made for made in self._steps() if made >= step]:
            self._path(made).unlink()
        return self.last()

    def last(self) -> tuple[Step, bytes] | None:
        """Return the last undamaged version and its step, or None."""
        for made in reversed(self._steps()):
            content = read_sealed(self._path(made), "an earlier state is taken, if there is one")
            if content is not None:
                return made, content
        return None

    def save(self, step: Step, content: bytes) -> None:
        """Write the version of a step, and delete those that no repeated round needs."""
        make_folder(self._folder)
        write_sealed(self._path(step), content)
        earlier = [made for made in self._steps() if made.round < step.round - 1]
        for made in earlier[:-1]:
            self._path(made).unlink()

    def _steps(self) -> list[Step]:
        """Return the steps that have made a version, in order."""
        names = [path.name.split("-") for path in self._folder.glob("[0-9]*-[0-9]*")]
        return sorted(Step(int(number), int(work)) for number, work in names)

    def _path(self, step: Step) -> Path:
        return self._folder / f"{step.round}-{step.work}"


def write_sealed(file: Path, content: bytes, *, durable: bool = True) -> None:
    """Write content after its SHA-256, for this account only; see `whole_file`."""
    with whole_file(file, 0o600, durable=durable) as opened:
        opened.writelines([hashlib.sha256(content).digest(), content])


def read_sealed(file: Path, loss: str) -> bytes | None:
    """Return the content of a sealed file, None if it is missing or damaged.

    Damage is logged, with the `loss` that it means.
    """
    if not file.exists():
        return None
    content = file.read_bytes()
    if hashlib.sha256(content[32:]).digest() != content[:32]:
        log.error("%s is damaged: %s", file, loss)
        return None
    return content[32:]
