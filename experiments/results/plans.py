"""What a study runs, as a JSON file in its folder."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self, cast

from fairbloom.server.run_folder.errors import (
    RunFolderError,
    explain_access_errors,
    explain_read_errors,
    explain_write_errors,
)
from fairbloom.system.files import write_whole
from fairbloom.system.values import decode_as

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


COMPARISON, SWEEP, REPRODUCTION = "comparison.json", "sweep.json", "reproduction.json"
RECOMMENDATION = "recommendation.json"
"""The files that make a folder that of a study, and say of which kind."""

KINDS = {
    RECOMMENDATION: "recommendation",  # first, as the finalists of a search are compared in its folder
    COMPARISON: "comparison",
    SWEEP: "sweep",
    REPRODUCTION: "reproduction",
}


def kind_of(folder: Path) -> str:
    """Return the kind of study that a folder holds, "" for none."""
    with explain_access_errors(folder):
        return next((kind for file, kind in KINDS.items() if (folder / file).exists()), "")


class PlanFile:
    """A dataclass that is kept in the folder of a study, which `command` runs."""

    file: ClassVar[str]
    kind: ClassVar[str]
    command: ClassVar[str]

    def write(self, folder: Path) -> None:
        """Write it into the study's folder."""
        content = json.dumps(asdict(cast("DataclassInstance", self)), indent=2, ensure_ascii=False)
        with explain_write_errors(f"the {self.kind}", folder):
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / self.file, content.encode())

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return what was written; raise RunFolderError when the folder has no such file or it is damaged."""
        file = folder / cls.file
        with explain_access_errors(folder):
            there = file.exists()
        if not there:
            raise RunFolderError(f"{folder} holds no {cls.kind}: it has no {cls.file}")
        with explain_read_errors(file, f"Run the same {cls.command} again, which writes it again"):
            return decode_as(cls, json.loads(file.read_bytes()), finite=False)
