"""A study: arms that are each run with several seeds, recorded in study.json in its folder."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal, Self

from fairbloom.errors import FairbloomError
from fairbloom.protocol.settings import Value
from fairbloom.server.run_folder.errors import (
    explain_access_errors,
    explain_read_errors,
    explain_write_errors,
)
from fairbloom.server.run_folder.files import CONFIG, STUDY as STUDY, is_finished
from fairbloom.server.settings import Settings
from fairbloom.strategies import METHODS
from fairbloom.strategies.named import owner_of
from fairbloom.system.files import write_whole
from fairbloom.system.values import decode_as

from .apps import App, AppRun
from .arms import Arm

Kind = Literal["compare", "search", "reproduce"]

# The noun for a study of each kind, in sentences.
NOUNS: Mapping[str, str] = {
    "compare": "comparison",
    "search": "search",
    "reproduce": "reproduction",
}

# Runs by their folders within the study's folder: of a task, or of a user's app.
Runs = Mapping[str, Settings | AppRun]


@dataclass(frozen=True)
class SearchOutcome:
    """The choices of a search on validation examples."""

    # the labels of the best arm of each method, the best of all first, with the baseline's
    best: Sequence[str] = ()
    fresh: Sequence[int] = ()  # the seeds with which the best arms are tested


@dataclass(frozen=True)
class Study:
    """Arms that are each run with several seeds."""

    kind: Kind  # the command that runs it
    arms: Sequence[Arm]
    seeds: Sequence[int]
    # the label of the arm that the others are compared with; in a search, the name of its method
    baseline: str = ""
    # of all runs, without the seed and the folder
    settings: Mapping[str, Value] = field(default_factory=dict)
    # the reasons of failed runs, by their folders within the study's
    failed: Mapping[str, str] = field(default_factory=dict)

    # Of a user's Flower app: the app, which decides on data and score.
    app: App | None = None

    # Of a comparison: the number of seeds that it had when it was first finished, if seeds were
    # added since; else 0.
    extended_from: int = 0

    # Of a comparison: whether devices of a federation carry out its runs.
    deployed: bool = False

    # Of a comparison of runs that exist: their folders by those that they would have within the
    # study's, and sentences on what is left out.
    places: Mapping[str, str] = field(default_factory=dict)
    left_out: Sequence[str] = ()

    # Of a search: the measure that judges arms, by how much a mean over the clients may be worse
    # than the best one, the number of fresh seeds (0: as many as `seeds`), and the outcome, empty
    # until the search ends.
    criterion: str = ""
    mean_within: float | None = None
    tests: int = 0
    found: SearchOutcome = field(default_factory=SearchOutcome)

    # Of a reproduction: the name or file of the recipe, whether its runs are cut short, and the
    # user's settings.
    recipe: str = ""
    quick: bool = False
    overrides: Mapping[str, Value] = field(default_factory=dict)

    @property
    def noun(self) -> str:
        """Its name in sentences."""
        noun = NOUNS[self.kind]
        if self.app:
            noun += " of an app's runs"
        if self.places:
            noun += " of given runs"
        return noun

    @property
    def groups(self) -> Mapping[str, Sequence[Arm]]:
        """The arms among which one is chosen, by method, or by row in a reproduction."""
        found: dict[str, list[Arm]] = {}
        for arm in self.arms:
            found.setdefault(arm.row or arm.method, []).append(arm)
        return found

    def write(self, folder: Path) -> None:
        """Write it into its folder, which is created if necessary."""
        file = folder / STUDY
        content = json.dumps(asdict(self), indent=2, ensure_ascii=False).encode()
        with explain_write_errors(f"the {self.noun}", folder):
            folder.mkdir(parents=True, exist_ok=True)
            if not file.exists() or file.read_bytes() != content:
                write_whole(file, content)

    def of(self, labels: Iterable[str], seeds: Sequence[int]) -> Self:
        """Return the study with only some arms and seeds, the arms in the order of `labels`."""
        by_label = {arm.label: arm for arm in self.arms}
        return replace(self, arms=[by_label[label] for label in labels], seeds=list(seeds))

    def config(self, arm: Arm) -> dict[str, Value]:
        """Return the settings of an arm's runs, without other methods' parameters."""
        mine = owner_of(arm.method)
        others = {*METHODS, *(owner_of(other.method) for other in self.arms)} - {mine}
        return {
            k: v for k, v in self.settings.items() if k.partition(".")[0] not in others
        } | arm.config

    def folder(self, arm: Arm, seed: int) -> str:
        """Return the folder of a run within the study's folder, or an absolute one elsewhere."""
        name = f"runs/{arm.folder}-seed{seed}"
        return self.places.get(name, name)

    def run(self, arm: Arm, seed: int, out: Path) -> Settings:
        """Return the settings of a run of the study in folder `out`."""
        return Settings.of(self._config_of_run(arm, seed, out))

    def planned(self, arm: Arm, seed: int, out: Path) -> Settings | AppRun:
        """Return a run of the study in folder `out`: of its task, or of its app."""
        if self.app is None:
            return self.run(arm, seed, out)
        return self.app.run(self._config_of_run(arm, seed, out))

    def _config_of_run(self, arm: Arm, seed: int, out: Path) -> dict[str, Value]:
        return {**self.config(arm), "seed": seed, "out": str(out / self.folder(arm, seed))}

    def is_done(self, arm: Arm, seed: int, out: Path) -> bool:
        """Return whether a run is finished with all its rounds; nothing is imported for this."""
        rounds = arm.settings.get(
            "num-rounds",
            self.settings.get("num-rounds", Settings.model_fields["num_rounds"].default),
        )
        return _has_rounds(out / self.folder(arm, seed), rounds)

    def runs(self, out: Path, keys: Iterable[tuple[Arm, int]] | None = None) -> Runs:
        """Return runs of arms with seeds, by default all.

        They are ordered seed by seed, so that every arm has a result early.
        """
        if keys is None:
            keys = [(arm, seed) for seed in self.seeds for arm in self.arms]
        return {self.folder(arm, seed): self.planned(arm, seed, out) for arm, seed in keys}

    def failures(self, arm: Arm) -> dict[int, str]:
        """Return the reasons of an arm's failed runs, by their seeds."""
        folders = {seed: self.folder(arm, seed) for seed in self.seeds}
        return {
            seed: self.failed[folder] for seed, folder in folders.items() if folder in self.failed
        }

    def explain_unfinished(self, folder: Path) -> str:
        """Return how many of its runs are there, and what continues it; "" if all are."""
        missing = len(self.unfinished(folder))
        whole = len(self.arms) * len(self.seeds)
        if not missing:
            return ""
        return (
            f"{folder} has {whole - missing} of {whole} runs: the command that began it continues"
            " it"
        )

    def unfinished(self, out: Path) -> list[Path]:
        """Return the folders of runs that are neither finished nor failed."""
        names = dict.fromkeys(self.folder(arm, seed) for seed in self.seeds for arm in self.arms)
        unfailed = [out / name for name in names if name not in self.failed]
        return [folder for folder in unfailed if not is_finished(folder)]

    @property
    def finished(self) -> Self:
        """The study without seeds with which the baseline failed, and without other failed arms.

        A method is not compared over only the seeds that it survived: that would flatter it.
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


def is_done(run: Settings | AppRun) -> bool:
    """Return whether a run is finished with all its rounds."""
    return _has_rounds(Path(run.out), run.num_rounds)


def _has_rounds(folder: Path, rounds: Value) -> bool:
    return is_finished(folder) and CONFIG.read(folder).num_rounds == rounds


def find_study(folder: Path) -> Study | None:
    """Return the study of a folder, None if it has none; raise RunFolderError if it is damaged."""
    with explain_access_errors(folder):
        exists = (folder / STUDY).exists()
    if not exists:
        return None
    with explain_read_errors(folder / STUDY, "Run the same command again, which writes it again"):
        return decode_as(Study, json.loads((folder / STUDY).read_bytes()), finite=False)
