"""A study: arms that are each run with several seeds, as study.json in its folder has them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal, Self

from fairbloom.errors import FairbloomError
from fairbloom.protocol.settings import Value
from fairbloom.server.run_folder.errors import (
    RunFolderError,
    explain_access_errors,
    explain_read_errors,
    explain_write_errors,
)
from fairbloom.server.run_folder.files import CONFIG, is_finished
from fairbloom.server.settings import Settings
from fairbloom.strategies import METHODS
from fairbloom.system.files import write_whole
from fairbloom.system.values import decode_as

from .arms import Arm, owner_of

STUDY = "study.json"
"""The file that makes a folder that of a study."""

Kind = Literal["compare", "search", "reproduce"]

NOUNS: Mapping[str, str] = {
    "compare": "comparison",
    "search": "search",
    "reproduce": "reproduction",
}
"""What sentences call a study of each kind."""

Runs = Mapping[str, Settings]
"""The settings of runs by their folders in the study's."""


@dataclass(frozen=True)
class SearchOutcome:
    """What a search has found on validation examples."""

    judged: Sequence[int] = ()  # the seeds that all arms have finished, by which they were judged
    # the labels of the best arm of each method, the best of all first, with the baseline's
    best: Sequence[str] = ()
    fresh: Sequence[int] = ()  # the seeds with which these are tested


@dataclass(frozen=True)
class Study:
    """Arms that are each run with several seeds."""

    kind: Kind  # the command that runs it
    arms: Sequence[Arm]
    seeds: Sequence[int]
    # the label of the arm that the others are compared with; in a search, the name of its method
    baseline: str = ""
    # of all runs, but for the seed and the folder
    settings: Mapping[str, Value] = field(default_factory=dict)
    # why runs failed, by their folders in the study's
    failed: Mapping[str, str] = field(default_factory=dict)

    # Of a search: the name of the measure by which arms are judged, how many points their mean may
    # be below the baseline's, after how many minutes no further seed is begun, and what was found;
    # None before it has ended.
    criterion: str = ""
    mean_within: float | None = None
    minutes: float | None = None
    found: SearchOutcome | None = None

    # Of a reproduction: the name or file of the recipe, whether its runs are cut short, and what
    # the user has set.
    recipe: str = ""
    quick: bool = False
    overrides: Mapping[str, Value] = field(default_factory=dict)

    @property
    def reference(self) -> Arm | None:
        """In a search within one method: its first arm, with which the best is compared.

        None where there are several.

        With several, the best arm of each method is compared with the best of the baseline's.
        """
        return self.arms[0] if len({arm.method for arm in self.arms}) == 1 else None

    @property
    def groups(self) -> Mapping[str, Sequence[Arm]]:
        """The arms of which one is chosen: in a reproduction those of a row, by its name, else those of a method."""
        found: dict[str, list[Arm]] = {}
        for arm in self.arms:
            found.setdefault(arm.row or arm.method, []).append(arm)
        return found

    def write(self, folder: Path) -> None:
        """Write it into its folder, which is made if it is not there."""
        file = folder / STUDY
        content = json.dumps(asdict(self), indent=2, ensure_ascii=False).encode()
        with explain_write_errors(f"the {NOUNS[self.kind]}", folder):
            folder.mkdir(parents=True, exist_ok=True)
            if not file.exists() or file.read_bytes() != content:
                write_whole(file, content)

    @staticmethod
    def read(folder: Path) -> "Study":
        """Return what was written.

        Raise RunFolderError when the folder holds no study or its file is damaged.
        """
        study = find_study(folder)
        if study is None:
            raise RunFolderError(f"{folder} holds no study: it has no {STUDY}")
        return study

    def of(self, labels: Iterable[str], seeds: Sequence[int]) -> Self:
        """Return the study of some of its arms with these seeds, the arms in the order of their labels."""
        by_label = {arm.label: arm for arm in self.arms}
        return replace(self, arms=[by_label[label] for label in labels], seeds=list(seeds))

    def config(self, arm: Arm) -> dict[str, Value]:
        """Return the settings of an arm's runs, without those of other methods."""
        mine = owner_of(arm.method)
        others = {*METHODS, *(owner_of(each.method) for each in self.arms)} - {mine}
        return {
            key: v for key, v in self.settings.items() if key.partition(".")[0] not in others
        } | arm.config

    def folder(self, arm: Arm, seed: int) -> str:
        """Return the folder of a run in the study's."""
        return f"runs/{arm.folder}-seed{seed}"

    def run(self, arm: Arm, seed: int, out: Path) -> Settings:
        """Return the settings of a run, where the study lies in `out`."""
        return Settings.of(
            {**self.config(arm), "seed": seed, "out": str(out / self.folder(arm, seed))}
        )

    def is_done(self, arm: Arm, seed: int, out: Path) -> bool:
        """Return whether a run is finished, with as many rounds as it is to have.

        Nothing is imported for this.
        """
        default = Settings.model_fields["num_rounds"].default
        rounds = arm.settings.get("num-rounds", self.settings.get("num-rounds", default))
        return _has_rounds(out / self.folder(arm, seed), rounds)

    def runs(self, out: Path, keys: Iterable[tuple[Arm, int]] | None = None) -> dict[str, Settings]:
        """Return runs of arms with seeds: by default all, seed by seed, so that every arm has a number early on."""
        wanted = ((arm, seed) for seed in self.seeds for arm in self.arms) if keys is None else keys
        once = {self.folder(arm, seed): (arm, seed) for arm, seed in wanted}
        return {name: self.run(*key, out) for name, key in once.items()}

    def failures(self, arm: Arm) -> dict[int, str]:
        """Return why runs of an arm failed, by their seeds."""
        folders = {seed: self.folder(arm, seed) for seed in self.seeds}
        return {
            seed: self.failed[folder] for seed, folder in folders.items() if folder in self.failed
        }

    def unfinished(self, out: Path) -> list[Path]:
        """Return the run folders that hold no finished run, but for those of runs that failed."""
        folders = dict.fromkeys(self.folder(arm, seed) for seed in self.seeds for arm in self.arms)
        return [
            out / each
            for each in folders
            if each not in self.failed and not is_finished(out / each)
        ]

    @property
    def finished(self) -> Self:
        """The study without the seeds that the baseline failed with, and without arms that failed with others.

        A method is not compared over the seeds that it happens to have survived, which would
        flatter it.
        """
        base = next(arm for arm in self.arms if arm.label == self.baseline)
        lost = self.failures(base)
        seeds = [seed for seed in self.seeds if seed not in lost]
        if not seeds:
            seed, reason = next(iter(lost.items()))
            raise FairbloomError(
                f"{base.label} with seed {seed}: {reason}. All runs of the baseline failed, so"
                " nothing can be compared with it: choose another one by --baseline"
            )
        return replace(
            self,
            seeds=seeds,
            arms=[arm for arm in self.arms if not {*self.failures(arm)} & {*seeds}],
        )


def is_done(run: Settings) -> bool:
    """Return whether a run is finished, with as many rounds as it is to have."""
    return _has_rounds(Path(run.out), run.num_rounds)


def _has_rounds(folder: Path, rounds: Value) -> bool:
    return is_finished(folder) and CONFIG.read(folder).num_rounds == rounds


def find_study(folder: Path) -> Study | None:
    """Return the study that a folder holds, None where it holds none.

    Raise RunFolderError when it is damaged.
    """
    with explain_access_errors(folder):
        there = (folder / STUDY).exists()
    if not there:
        return None
    with explain_read_errors(folder / STUDY, "Run the same command again, which writes it again"):
        return decode_as(Study, json.loads((folder / STUDY).read_bytes()), finite=False)
