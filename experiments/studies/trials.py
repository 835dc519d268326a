"""The runs of a recommendation: those of the search, and those with fresh seeds."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fairbloom.errors import FairbloomError
from fairbloom.protocol.scores import Score
from fairbloom.protocol.settings import SettingsError, Value
from fairbloom.server.run_folder.files import is_run_folder
from fairbloom.server.settings import Settings

from ..recipes.variants import Variant
from ..results.run import Run, load
from .candidates import EQUAL_WEIGHTS
from .driver import raise_failure
from .objective import ClientScores, Objective, Rating, judge, serve
from .pool import Workers, is_done
from .space import VALIDATION_SHARE
from .study import folder_name


@dataclass(frozen=True)
class Contender:
    """A candidate of a recommendation: the method with its parameters, and the settings of its runs."""

    variant: Variant
    config: Mapping[str, Value]

    @property
    def label(self) -> str:
        """What tables call it."""
        return self.variant.label

    @cached_property
    def evaluated(self) -> str:
        """Which model it is judged by: "personal" where its clients have personal models, else "global"."""
        terms = Settings.of(self.config).strategy().terms(1)
        return "global" if terms.personal_lambda is None else "personal"


class Trials:
    """The runs of a recommendation; the first of the contenders is the baseline."""

    def __init__(
        self, work: Workers, out: Path, contenders: Sequence[Contender], wish: Objective, score: Score, judged: Score
    ) -> None:
        self.contenders = {each.label: each for each in contenders}
        self.wish, self.score, self.judged, self.out = wish, score, judged, out
        self.baseline = contenders[0].label
        uniform = [each.label for each in contenders if each.variant.config == {"method": "fedavg", **EQUAL_WEIGHTS}]
        self.equal = uniform[0] if uniform else self.baseline
        self.references = [
            self.baseline
            if constraint.method is None
            else next(each.label for each in contenders if each.variant.is_same(constraint.method))
            for constraint in wish.constraints
        ]
        self.always: Sequence[str] = list(dict.fromkeys([self.baseline, self.equal, *self.references]))
        self.rounds = Settings.of(contenders[0].config).num_rounds
        self.failed = self._refused()
        self._work = work
        self._seen: dict[tuple[str, int, int], ClientScores] = {}

    def _refused(self) -> dict[str, str]:
        """Return why candidates refuse the settings that all runs share, as FedFa does a server with momentum."""
        refused = {}
        for label, contender in self.contenders.items():
            try:
                Settings.of(contender.config)
            except SettingsError as error:
                if label in (self.baseline, *self.references):
                    raise
                refused[label] = str(error)
        return refused

    def search_settings(self, label: str, seed: int, rounds: int) -> Settings:
        """Return the settings of a run of the search, which is judged after so many rounds."""
        apart = {"validation-share": VALIDATION_SHARE, "evaluate-every": 0}
        return self._settings("search", {**apart, **self.contenders[label].config}, seed, rounds)

    def fresh_settings(self, label: str, seed: int) -> Settings:
        """Return the settings of a run with a fresh seed, whose clients are tested."""
        return self._settings("fresh", {"evaluate-every": 0, **self.contenders[label].config}, seed, self.rounds)

    def _settings(self, kind: str, config: Mapping[str, Value], seed: int, rounds: int) -> Settings:
        whole = {**config, "num-rounds": self.rounds}  # names the folder, so that each length has runs of its own
        folder = self.out / "runs" / f"{kind}-{folder_name(whole)}-seed{seed}"
        return Settings.of({**config, "num-rounds": rounds, "seed": seed, "out": str(folder)})

    def search(self, labels: Iterable[str], seeds: Iterable[int], rounds: int, until: float) -> float:
        """Run candidates with seeds of the search, as far as they have not come so far, and return the seconds.

        Raises TimeoutError when the time is over.
        """
        runs = [(label, seed) for seed in seeds for label in labels if label not in self.failed]
        missing = [key for key in runs if self.judged_run(*key, rounds) is None]
        return self._run({key: self.search_settings(*key, rounds) for key in missing}, until)

    def fresh(self, labels: Iterable[str], seeds: Iterable[int], until: float) -> float:
        """Run candidates with fresh seeds and return the seconds; raises as `search` does."""
        runs = {(label, seed): self.fresh_settings(label, seed) for seed in seeds for label in labels}
        return self._run({key: run for key, run in runs.items() if not is_done(run)}, until)

    def _run(self, runs: Mapping[tuple[str, int], Settings], until: float) -> float:
        if not runs:
            return 0.0
        begun = time.monotonic()
        try:
            self._work.run(runs, until)
        finally:
            for key, error in self._work.failed.items():
                if key[0] in (self.baseline, *self.references):
                    raise_failure(key, error)
                self.failed.setdefault(key[0], str(error))
        return time.monotonic() - begun

    def judged_run(self, label: str, seed: int, rounds: int) -> Run | None:
        """Return a run of the search that was evaluated after so many rounds, or stopped before them; else None."""
        folder = Path(self.search_settings(label, seed, rounds).out)
        run = load(folder) if is_run_folder(folder) else None
        if run is None:
            return None
        stopped = bool(run.stopped) and run.num_rounds >= rounds
        return run if stopped or rounds in run.evaluated_rounds else None

    def reports_gaps(self, seed: int) -> bool:
        """Return whether the baseline has all gaps that the wish names with a fresh seed, whose run is finished."""
        report = load(self.fresh_settings(self.baseline, seed).out).by_group()
        return self.wish.is_reported(ClientScores({}, report))

    def finished_fresh(self, labels: Iterable[str], seeds: Iterable[int]) -> list[int]:
        """Return the fresh seeds with which all these candidates are finished."""
        return [seed for seed in seeds if all(is_done(self.fresh_settings(label, seed)) for label in labels)]

    def rate(self, labels: Iterable[str], seeds: Sequence[int], rounds: int) -> dict[str, Rating]:
        """Return the ratings of the candidates whose runs with all these seeds have come so far.

        It is empty while a reference has not. A candidate that lacks clients or gaps of the baseline has failed. Seeds
        for which the baseline lacks a gap are left out, unless all lack it, which is an error.
        """
        served: dict[str, list[ClientScores]] = {}
        for label in labels:
            by_seed = [] if label in self.failed else self._served(label, seeds, rounds)
            if isinstance(by_seed, str):
                self._fail(label, by_seed)
            elif by_seed:
                served[label] = by_seed
        if not {self.baseline, *self.references} <= {*served}:
            return {}
        if counting := [i for i, each in enumerate(served[self.baseline]) if self.wish.is_reported(each)]:
            served = {label: [by_seed[i] for i in counting] for label, by_seed in served.items()}
        everyone = [each.scores.keys() for each in served[self.baseline]]
        references = [served[label] for label in self.references]
        found = judge(self.wish, served, self.score, references, everyone)
        for label, rating in found.items():
            if rating.fault:
                self._fail(label, rating.fault)
        return {label: rating for label, rating in found.items() if rating.values}

    def _fail(self, label: str, fault: str) -> None:
        if label in (self.baseline, *self.references):
            raise FairbloomError(fault)
        self.failed[label] = fault

    def _served(self, label: str, seeds: Sequence[int], rounds: int) -> list[ClientScores] | str:
        """Return how a candidate serves the validation examples, seed by seed; nothing where a run is missing."""
        found: list[ClientScores] = []
        for seed in seeds:
            if (label, seed, rounds) not in self._seen:
                run = self.judged_run(label, seed, rounds)
                gaps = bool(self.wish.gap_scores)
                by_run = serve([run], self.contenders[label].evaluated, rounds, with_groups=gaps)
                if isinstance(by_run, str) or not by_run:
                    return by_run
                self._seen[label, seed, rounds] = by_run[0]
            found.append(self._seen[label, seed, rounds])
        return found

    def cost_of_a_round(self, label: str, seeds: Iterable[int]) -> tuple[float, float]:
        """Return the bytes that a round sends, both ways, and its seconds, in the mean over fresh seeds."""
        import pandas  # imported late: it takes a second

        rounds = pandas.concat([load(self.fresh_settings(label, seed).out).rounds for seed in seeds])
        sent = rounds["bytes_sent"] + rounds["bytes_received"]
        return float(sent.mean()), float(rounds["seconds"].mean())
