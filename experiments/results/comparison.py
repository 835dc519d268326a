"""What several methods make of the same clients over several seeds: who gains, who loses."""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairbloom.errors import FairbloomError
from fairbloom.protocol.scores import ACCURACY, GroupScore, Score, accuracy_first
from fairbloom.server.run_folder.errors import RunFolderError
from fairbloom.server.run_folder.files import ROUNDS
from fairbloom.server.run_folder.rows import MEASURES

from ..study import Study
from .caveats import caveats_of_comparison
from .differences import FEWEST_SEEDS, Difference, difference_of, differences_of
from .groups import GroupReport
from .measures import CLIENT, GAP, Served, find_measure
from .other_scores import find_contradictions
from .presentation import Shown
from .run import Run, final_of, frame, load, measures
from .shared_data import SharedData
from .verdict import CLAIMED, MEAN, WORST, Findings, Verdict, verdict_of

if TYPE_CHECKING:
    import pandas

Values = Mapping[str, float]
"""A score by client."""


def read_comparison(folder: Path, study: Study) -> "Comparison":
    """Return the comparison of a study's runs; raise RunFolderError where some are not finished.

    A method whose runs lack a score that others have is left out, and so is one of which a run failed.
    """
    if unfinished := study.unfinished(folder):
        whole = len(study.arms) * len(study.seeds)
        raise RunFolderError(f"{folder} has {whole - len(unfinished)} of {whole} runs: the same command continues")
    plan = study.finished
    runs = {arm.label: [load(folder / plan.folder(arm, seed)) for seed in plan.seeds] for arm in plan.arms}
    failed = {arm.label: found for arm in study.arms if (found := study.failures(arm))}
    scores = runs[plan.baseline][0].scores
    lacking = _find_lacking(runs, plan.baseline, plan.seeds)
    runs = {label: by_seed for label, by_seed in runs.items() if label not in lacking}
    finals: dict[str, list[Mapping[str, Values]]] = {}
    personal: dict[str, str] = {}
    for label, by_seed in runs.items():
        finals[label] = [_finals(run, scores) for run in by_seed]
        if by_seed[0].serves == "personal":  # which is what `final` returns then
            personal[label] = label
            continue
        of_personal = [_finals(run, scores, "personal") for run in by_seed]
        if all(each[scores[0].name] for each in of_personal):
            name = personal_label(label)
            finals[name] = of_personal
            personal[name] = label
    values = {label: [each[scores[0].name] for each in by_seed] for label, by_seed in finals.items()}
    left_out = _left_out(plan.seeds, runs, values)
    reasons = [
        f"{label} with seed {seed}: {reason}." for label, of in failed.items() for seed, reason in list(of.items())[:1]
    ]
    caveats = (*caveats_of_comparison(runs), *reasons)
    return Comparison(
        finals,
        plan.baseline,
        scores,
        tuple(plan.seeds),
        tuple(personal),
        left_out,
        folder,
        caveats,
        SharedData.of(runs[plan.baseline]),
        _by_group(runs, personal),
        {label: f"failed with {len(of)} of {len(study.seeds)} seeds" for label, of in failed.items()} | lacking,
        {label: tuple(by_seed) for label, by_seed in runs.items()},
        runs[plan.baseline][0].test_examples(),
    )


def personal_label(label: str) -> str:
    """Return what a comparison calls the personal models of a method: `Ditto (lam=0.1, personal)`."""
    return f"{label[:-1]}, personal)" if label.endswith(")") else f"{label} (personal)"


def _by_group(runs: Mapping[str, Sequence[Run]], personal: Mapping[str, str]) -> Mapping[str, Sequence[GroupReport]]:
    """Return what clients report of groups under each method's final models; `personal` has labels by other names."""
    found = {label: [run.by_group() for run in by_seed] for label, by_seed in runs.items()}
    found |= {name: [run.by_group("personal") for run in runs[label]] for name, label in personal.items()}
    return {label: [each for each in reports if each] for label, reports in found.items() if all(reports)}


def _finals(run: Run, scores: Sequence[Score], model: str = "") -> Mapping[str, Values]:
    """Return each score's name, and by it the score of each client under a run's final model."""
    return {score.name: run.final(score, model) for score in scores}


def _find_lacking(runs: Mapping[str, Sequence[Run]], baseline: str, seeds: Sequence[int]) -> dict[str, str]:
    """Return in words what methods lack whose clients have no score that others have; the baseline must have all."""
    found: dict[str, str] = {}
    for place, seed in enumerate(seeds):
        scored = set().union(*(by_seed[place].final() for by_seed in runs.values()))
        for label, by_seed in runs.items():
            run = by_seed[place]
            if label == baseline:
                final_of(run)  # at the latest here it is noticed that nobody evaluated
            if missing := sorted(scored - {*run.test_examples()}):
                found.setdefault(label, f"has no test {run.score.words} of {', '.join(missing)} with seed {seed}")
    if baseline in found:
        rounds = ROUNDS.path_in(runs[baseline][0].folder)
        raise RunFolderError(
            f"{baseline} {found[baseline]}, as other methods have: see what was refused or missing in {rounds}, or "
            "choose another --baseline"
        )
    return found


def _left_out(
    seeds: Sequence[int], runs: Mapping[str, Sequence[Run]], values: Mapping[str, Sequence[Values]]
) -> tuple[Sequence[str], ...]:
    """Return, by seed, the clients that lack the score under some method, so that measures are of the same clients."""
    found = []
    for place, seed in enumerate(seeds):
        scored = set().union(*(by_seed[place] for by_seed in values.values()))
        shared = scored.intersection(*(by_seed[place] for by_seed in values.values()))
        if not shared:
            raise RunFolderError(
                f"with seed {seed} no client has a test {next(iter(runs.values()))[place].score.words} under every "
                "method: compare by another score (--score), in another folder (--out)"
            )
        known = scored.union(*(by_seed[place].without_score for by_seed in runs.values()))
        found.append(sorted(known - shared))
    return tuple(found)


@dataclass(frozen=True)
class Comparison(Shown):
    """The outcome of every method and seed.

    Attributes
    ----------
    finals
        By method, one entry a seed: each score's name, and by it the score of each client under the final model. The
        personal models of a method count as another method, `Ditto (personal)`.
    baseline
        The method that the others are compared with.
    scores
        What was measured; fairness is measured in the first.
    seeds
        The seeds.
    personal
        Those of the methods that stand for personal models.
    left_out
        By seed, the clients that are in no measure, as they lack the score under some method: an AUC over a single
        class is none.
    folder
        Where tables, figure and runs lie.
    caveats
        What limits the numbers, in sentences: single participants, equal models, small test sets.
    shared
        What the seeds have in common: the clients, and the examples that these are tested on.
    by_group
        By method, one entry a seed: what clients report of groups; empty where they have none.
    failed
        In words with how many seeds a method failed, by its label. It is among the methods only where the seeds that
        the comparison is over have finished.
    runs
        The runs of each method, one a seed.
    examples
        The number of each client's test examples with the first seed.
    """

    finals: Mapping[str, Sequence[Mapping[str, Values]]]
    baseline: str
    scores: tuple[Score, ...] = (ACCURACY,)
    seeds: tuple[int, ...] = (0,)
    personal: tuple[str, ...] = ()
    left_out: tuple[Sequence[str], ...] = ()
    folder: Path = field(default_factory=Path)
    caveats: tuple[str, ...] = ()
    shared: SharedData = field(default_factory=SharedData)
    by_group: Mapping[str, Sequence[GroupReport]] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    runs: Mapping[str, Sequence[Run]] = field(default_factory=dict)
    examples: Mapping[str, int] = field(default_factory=dict)

    @property
    def score(self) -> Score:
        """The score that fairness is measured in."""
        return self.scores[0]

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods as tables call them."""
        return tuple(self.finals)

    @cached_property
    def values(self) -> Mapping[str, Sequence[Values]]:
        """The score of each client that has it under every method, by method and seed."""
        name = self.score.name
        shared = [
            set.intersection(*({*final[name]} for final in of_seed))
            for of_seed in zip(*self.finals.values(), strict=True)
        ]
        return {
            label: [
                {client: value for client, value in final[name].items() if client in among}
                for final, among in zip(by_seed, shared, strict=True)
            ]
            for label, by_seed in self.finals.items()
        }

    def measures(self, method: str) -> list[dict[str, float]]:
        """Return the measures of fairness of each seed."""
        return [measures(values, self.score) for values in self.values[method]]

    def spread(self, method: str, measure: str) -> tuple[float, float]:
        """Return mean and standard deviation over the seeds of one measure."""
        return mean_and_deviation([measured[measure] for measured in self.measures(method)])

    def gain(self, method: str, measure: str) -> tuple[float, float]:
        """Return mean and deviation over the seeds of how much better a measure is than the baseline's."""
        return mean_and_deviation(self.gains(method, measure))

    def gains(self, method: str, measure: str) -> list[float]:
        """Return by how much a measure is better than the baseline's, a number for each seed that has both.

        Parameters
        ----------
        method
            One of `methods`.
        measure
            One of `fairbloom.server.fairness.summarize`; "client:NAME", the score of one client; or "group-gap:SCORE",
            the gap between groups over all clients, and "group-gap:SCORE:NAME", that of one client.

        Raises
        ------
        FairbloomError
            When there is no such method or measure, or no seed has it.
        """
        for name in (method, self.baseline):
            if name not in self.finals:
                raise FairbloomError(f"method = {name!r}: this comparison has {', '.join(self.methods)}")
        pairs, sign = self._pairs(method, measure), self._sign_of(measure)
        if not pairs:
            raise FairbloomError(f"measure = {measure!r}: it is not there, or has no meaning, with any seed")
        return [
            0.0 if math.isclose(value, base, rel_tol=1e-9, abs_tol=1e-12) else sign * (value - base)
            for value, base in pairs
        ]

    def difference(self, method: str, measure: str) -> Difference:
        """Return how much better a method is than the baseline by a measure of `gains`, and how sure that is.

        The mean and the worst-served tenth are tested; see `claims`. Other measures have an interval and no p-value.
        """
        found = self.differences(measure)
        if method not in found:
            raise FairbloomError(
                f"method = {method!r}: the methods that are compared with {self.baseline} are {', '.join(found)}"
            )
        return found[method]

    def differences(self, measure: str) -> dict[str, Difference]:
        """Return the difference of each method but the baseline by a measure of `gains`; see `difference`."""
        if measure in CLAIMED:
            return {method: self.claims[method, measure] for method in self._others}
        share = self.shared.test_share
        gains = {method: self.gains(method, measure) for method in self._others}
        return {method: difference_of(each, test_share=share).untested for method, each in gains.items()}

    @cached_property
    def claims(self) -> Mapping[tuple[str, str], Difference]:
        """All differences that a sentence may claim, by method and measure.

        They are one family: the p-values have Holm's correction over all of them, so that where nothing differs,
        anything is claimed in 5 % of comparisons at most. Those that are equal with every seed are not tested.
        """
        gains = {(method, measure): self.gains(method, measure) for measure in CLAIMED for method in self._others}
        return differences_of(gains, test_share=self.shared.test_share)

    @property
    def _others(self) -> list[str]:
        return [method for method in self.methods if method != self.baseline]

    def personal_row(self, method: str) -> str:
        """Return what the row of a method's personal models is called; "" where it has none beside its global model."""
        return name if (name := personal_label(method)) in self.personal else ""

    @cached_property
    def gaps_compared(self) -> dict[str, GroupScore]:
        """What each gap between groups over all clients is in, by its measure `group-gap:SCORE`; empty without groups.

        A gap that some method has with no seed with which the baseline has it is not there.
        """
        scores = [score for reports in self.by_group.values() for score in reports[0].scores]
        return {f"{GAP}{score.name}": score for score in scores if self._has(f"{GAP}{score.name}")}

    @cached_property
    def contradictions(self) -> list[str]:
        """In sentences the clients of which another score says the opposite, those that gain most first."""
        return find_contradictions(self.finals, self.baseline, self.scores, self.clients_compared)

    @cached_property
    def verdict(self) -> Verdict:
        """What the comparison shows, in sentences."""
        clients = max(self.values[self.baseline], key=len)
        return verdict_of(
            Findings(
                self.baseline,
                self.score,
                len(self.seeds),
                self.claims,
                {method: self.spread(method, MEAN)[0] for method in self.methods},
                self.spread(self.baseline, WORST)[0],
                {client: self.examples.get(client, math.inf) for client in clients},
                {method: row for method in self.methods if (row := self.personal_row(method))},
                self.contradictions,
                self.failed,
            )
        )

    def _pairs(self, method: str, measure: str) -> list[tuple[float, float]]:
        """Return a measure under a method and under the baseline, for each seed that has both."""
        pairs = zip(self._by_seed(measure, method), self._by_seed(measure, self.baseline), strict=True)
        return [(value, base) for value, base in pairs if math.isfinite(value) and math.isfinite(base)]

    def _by_seed(self, measure: str, method: str) -> list[float]:
        """Return a measure of each seed; NaN where there is none."""
        of = find_measure(measure).of
        reports = self.by_group.get(method, [None] * len(self.seeds))
        pairs = zip(self.values[method], reports, strict=True)
        return [of(Served(values, self.score, groups=groups)) for values, groups in pairs]

    def _has(self, measure: str) -> bool:
        """Return whether every method has a measure with a seed with which the baseline has it."""
        by_method = [np.isfinite(self._by_seed(measure, method)) for method in (self.baseline, *self.methods)]
        return all((by_method[0] & each).any() for each in by_method)

    def _sign_of(self, measure: str) -> float:
        return 1.0 if find_measure(measure).is_good_high(self.score) else -1.0

    def percent_better(self, method: str) -> tuple[float, float]:
        """Return mean and deviation over the seeds of the percentage of clients better off than under the baseline."""
        pairs = zip(self.values[method], self.values[self.baseline], strict=True)
        return mean_and_deviation(
            [100.0 * sum(self.score.better(mine[c], base[c]) > 0.0 for c in base) / len(base) for mine, base in pairs]
        )

    @cached_property
    def table(self) -> "pandas.DataFrame":
        """A row a method: mean and deviation over the seeds of each measure, the gain, and who is better off."""
        rows = []
        for method in self.methods:
            row: dict[str, Any] = {"method": method}
            for measure in self.measures(method)[0]:
                row[measure], row[f"{measure}_std_over_seeds"] = self.spread(method, measure)
            row["gain_of_worst_10"], row["gain_of_worst_10_std_over_seeds"] = self.gain(method, "worst_10")
            row["percent_better_off"], row["percent_better_off_std_over_seeds"] = self.percent_better(method)
            rows.append(row)
        return frame(rows).set_index("method")

    @cached_property
    def clients(self) -> "pandas.DataFrame":
        """A row a method, seed and client, with each score."""
        return frame(self.client_rows())

    @cached_property
    def groups(self) -> "pandas.DataFrame":
        """A row a method, seed, client and group with counts and scores; empty where there are no groups."""
        return frame(self.group_rows())

    @cached_property
    def gaps(self) -> "pandas.DataFrame":
        """A row a method, seed, client, grouping and score with the gap between groups."""
        return frame(self.gap_rows())

    def group_rows(self) -> list[dict[str, Any]]:
        """Return a row a method, seed, client and group: over all clients together, and client by client."""
        return self._of_groups(GroupReport.rows)

    def gap_rows(self) -> list[dict[str, Any]]:
        """Return a row a method, seed, client, grouping and score: over all clients together, and client by client."""
        return self._of_groups(GroupReport.gap_rows)

    def _of_groups(self, rows: Callable[[GroupReport], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        return [
            {"method": method, "seed": seed, **row}
            for method, reports in self.by_group.items()
            for seed, report in zip(self.seeds, reports, strict=True)
            for row in rows(report)
        ]

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of comparison.csv: one a method and seed."""
        return [
            {"method": method, "seed": seed, "score": self.score.title, **measured}
            for method in self.methods
            for seed, measured in zip(self.seeds, self.measures(method), strict=True)
        ]

    def client_rows(self) -> list[dict[str, Any]]:
        """Return the rows of clients.csv: one a method, seed and client, with each score; "" where there is none."""
        rows = []
        for method, by_seed in self.finals.items():
            for seed, final, left_out in zip(self.seeds, by_seed, self.left_out or ((),) * len(by_seed), strict=True):
                for client in sorted({*final[self.score.name], *left_out}):
                    scores = {score.name: final[score.name].get(client, "") for score in accuracy_first(self.scores)}
                    rows.append({"method": method, "seed": seed, "client": client, **scores})
        return rows

    def difference_rows(self) -> list[dict[str, Any]]:
        """Return the rows of differences.csv: one a method and measure; "" for numbers that there are not.

        The measures are those of fairness, and gaps between groups over all clients; and, of `clients_compared`, each
        client's score and its gaps.
        """
        measured = [m for m in MEASURES if any(map(math.isfinite, self._by_seed(m, self.baseline)))]
        clients = self.clients_compared
        gaps = [f"{gap}:{client}" for gap in self.gaps_compared for client in clients]
        rows = []
        for measure in (
            *measured,
            *(f"{CLIENT}{client}" for client in clients),
            *self.gaps_compared,
            *(gap for gap in gaps if self._has(gap)),
        ):
            for method, found in self.differences(measure).items():
                numbers = {
                    key: "" if value is None or value != value else value for key, value in asdict(found).items()
                }
                rows.append({"method": method, "measure": measure, **numbers})
        return rows

    @property
    def clients_compared(self) -> list[str]:
        """The clients of which something is said: the same with all seeds, with a score with three of these or all."""
        if self.shared.clients_differ:
            return []
        seeds = Counter(client for by_client in self.values[self.baseline] for client in by_client)
        return sorted(client for client, count in seeds.items() if count >= min(FEWEST_SEEDS, len(self.seeds)))

    @cached_property
    def larger_classes(self) -> Values:
        """The share of each client's test examples in the larger of two classes, in percent, mean over seeds."""
        by_seed = [run.larger_classes() for run in self.runs.get(self.baseline, ())]
        clients = dict.fromkeys(client for shares in by_seed for client in shares)
        return {name: statistics.fmean(each[name] for each in by_seed if name in each) for name in clients}

    @property
    def client_count(self) -> int:
        """The number of clients that have a score, the largest of all seeds."""
        return max(map(len, self.values[self.baseline]))

    @property
    def as_json(self) -> dict[str, Any]:
        """What --json prints."""
        return {
            "baseline": self.baseline,
            "seeds": list(self.seeds),
            "score": asdict(self.score),
            "verdict": asdict(self.verdict),
            "failed": dict(self.failed),
            "caveats": list(self.caveats),
            "differences": [{k: None if v == "" else v for k, v in row.items()} for row in self.difference_rows()],
            "methods": self.rows(),
            "clients": self.client_rows(),
            "left_out": dict(zip(map(str, self.seeds), map(list, self.left_out), strict=False)),
            **({"groups": self.group_rows(), "gaps": self.gap_rows()} if self.by_group else {}),
        }

    def __repr__(self) -> str:
        """Return the comparison in a line."""
        seeds = f"{len(self.seeds)} seed{'s' if len(self.seeds) > 1 else ''}"
        return f"Comparison({str(self.folder)!r}: {', '.join(self.methods)}; {seeds}, {self.score.title})"


def mean_and_deviation(numbers: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the sample standard deviation, 0 of a single number."""
    return statistics.fmean(numbers), statistics.stdev(numbers) if len(numbers) > 1 else 0.0
