"""What several methods make of the same clients over several seeds: who gains, who loses."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairbloom.errors import FairbloomError
from fairbloom.protocol.scores import ACCURACY, GroupScore, Score, accuracy_first
from fairbloom.server.run_folder.csv_rows import MEASURES, SHARE_OF_LARGER_CLASS
from fairbloom.server.run_folder.errors import RunFolderError
from fairbloom.server.run_folder.files import ROUNDS

from ..study import Study
from .caveats import SharedData, caveats_of_comparison
from .differences import FEWEST_SEEDS, Difference, difference_of, differences_of
from .group_scores import GroupReport
from .measures import CLIENT, GAP, ClientScores, find_measure
from .presentation import Shown
from .run import Run, final_of, frame, load, measures
from .verdict import CLAIMED, Verdict, find_contradictions, verdict_of

if TYPE_CHECKING:
    import pandas

Values = Mapping[str, float]
"""A score by client."""

COLUMNS = ("method", "model", "seed", "client", "tested", "score", "value")
"""The columns of `Comparison.finals`."""


def read_comparison(folder: Path, study: Study) -> "Comparison":
    """Return the comparison of a study's runs; raise RunFolderError where some are not finished.

    A method whose runs lack a score that others have is left out, and so is one of which a run
    failed.
    """
    if unfinished := study.unfinished(folder):
        whole = len(study.arms) * len(study.seeds)
        raise RunFolderError(
            f"{folder} has {whole - len(unfinished)} of {whole} runs: the same command continues"
        )
    plan = study.finished
    runs = {
        arm.label: [load(folder / plan.folder(arm, seed)) for seed in plan.seeds]
        for arm in plan.arms
    }
    failures = {arm.label: found for arm in study.arms if (found := study.failures(arm))}
    failed = {
        label: f"failed with {len(of)} of {len(study.seeds)} seeds"
        for label, of in failures.items()
    }
    lacking = _find_lacking(runs, plan.baseline, plan.seeds)
    runs = {label: by_seed for label, by_seed in runs.items() if label not in lacking}
    reasons = [
        f"{label} with seed {seed}: {of[seed]}."
        for label, of in failures.items()
        for seed in [*of][:1]
    ]
    rows = list[tuple[object, ...]]()
    by_group = dict[str, Sequence[GroupReport]]()
    known = [
        set[str]().union(*(run.known for run in of_seed))
        for of_seed in zip(*runs.values(), strict=True)
    ]
    for label, by_seed in runs.items():
        models = {label: by_seed[0].serves}
        if models[label] != "personal" and all(run.final(model="personal") for run in by_seed):
            models[personal_label(label)] = "personal"
        for method, model in models.items():
            for run, seed, clients in zip(by_seed, plan.seeds, known, strict=True):
                tested = run.test_examples()
                for score in run.scores:
                    values = run.final(score, model)
                    rows += [
                        (
                            method,
                            model,
                            seed,
                            each,
                            tested.get(each, math.nan),
                            score.name,
                            values.get(each, math.nan),
                        )
                        for each in sorted(clients.union(values))
                    ]
            reports = [run.by_group(model) for run in by_seed]
            if all(reports):
                by_group[method] = [each for each in reports if each]
    scores = runs[plan.baseline][0].scores
    caveats = (*caveats_of_comparison(runs), *reasons)
    shared = SharedData.of(runs[plan.baseline])
    compared = Comparison(
        tabulate(rows),
        plan.baseline,
        scores,
        folder,
        caveats,
        shared,
        by_group,
        failed | lacking,
        runs,
    )
    for seed in compared.seeds:
        if compared.score_by_client.loc[seed].dropna().empty:
            raise RunFolderError(
                f"with seed {seed} no client has a test {scores[0].words} under every method:"
                " compare by another score (--score), in another folder (--out)"
            )
    return compared


def personal_label(label: str) -> str:
    """Return what a comparison calls the personal models of a method: `Ditto (lam=0.1, personal)`."""
    return f"{label[:-1]}, personal)" if label.endswith(")") else f"{label} (personal)"


def tabulate(rows: Sequence[Sequence[object]]) -> "pandas.DataFrame":
    """Return rows as `Comparison.finals` has them."""
    import pandas  # imported late: it takes a second

    return pandas.DataFrame(rows, columns=[*COLUMNS])


def _find_lacking(
    runs: Mapping[str, Sequence[Run]], baseline: str, seeds: Sequence[int]
) -> dict[str, str]:
    """Return in words what methods lack whose clients have no score that others have.

    The baseline must have all.
    """
    found: dict[str, str] = {}
    for place, seed in enumerate(seeds):
        scored = set().union(*(by_seed[place].final() for by_seed in runs.values()))
        for label, by_seed in runs.items():
            run = by_seed[place]
            if label == baseline:
                final_of(run)  # at the latest here it is noticed that nobody evaluated
            if missing := sorted(scored - {*run.test_examples()}):
                found.setdefault(
                    label, f"has no test {run.score.words} of {', '.join(missing)} with seed {seed}"
                )
    if baseline in found:
        rounds = ROUNDS.path_in(runs[baseline][0].folder)
        raise RunFolderError(
            f"{baseline} {found[baseline]}, as other methods have: see what was refused or missing"
            f" in {rounds}, or choose another --baseline"
        )
    return found


@dataclass(frozen=True, eq=False)
class Comparison(Shown):
    """The outcome of every method and seed.

    Attributes
    ----------
    finals
        A row a `method`, `seed`, `client` and `score`: its `value` under the final model, NaN where
        the client has none, and on how many examples the client was `tested`. The personal models
        of a method count as another method, `Ditto (personal)`: `model` is "personal" there, else
        "global".
    baseline
        The method that the others are compared with.
    scores
        What was measured; fairness is measured in the first.
    folder
        Where tables, figure and runs lie.
    caveats
        What limits the numbers, in sentences: single participants, equal models, small test sets.
    shared
        What the seeds have in common: the clients, and the examples that these are tested on.
    by_group
        By method, one entry a seed: what clients report of groups; empty where they have none.
    failed
        In words what methods lack that are not compared: runs that failed, or clients' scores.
    runs
        The runs of each method, one a seed.
    """

    finals: "pandas.DataFrame"
    baseline: str
    scores: tuple[Score, ...] = (ACCURACY,)
    folder: Path = field(default_factory=Path)
    caveats: tuple[str, ...] = ()
    shared: SharedData = field(default_factory=SharedData)
    by_group: Mapping[str, Sequence[GroupReport]] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    runs: Mapping[str, Sequence[Run]] = field(default_factory=dict)

    @property
    def score(self) -> Score:
        """The score that fairness is measured in."""
        return self.scores[0]

    def shown_name(self, client: str) -> str:
        """Return a client's name as it is shown; see Run."""
        runs = next(iter(self.runs.values()), ())
        return runs[0].shown_name(client) if runs else client

    @cached_property
    def methods(self) -> tuple[str, ...]:
        """The methods as tables call them."""
        return tuple(self.finals["method"].unique())

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """The seeds."""
        return tuple(self.finals["seed"].unique().tolist())

    @cached_property
    def personal(self) -> tuple[str, ...]:
        """Those of the methods that stand for personal models."""
        return tuple(self.finals["method"][self.finals["model"] == "personal"].unique())

    @cached_property
    def score_by_client(self) -> "pandas.DataFrame":
        """The score that fairness is measured in: a row a seed and client, a column a method."""
        rows = self.finals[self.finals["score"] == self.score.name]
        return rows.pivot(index=["seed", "client"], columns="method", values="value")[
            [*self.methods]
        ]

    @cached_property
    def values(self) -> Mapping[str, Sequence[Values]]:
        """The score of each client that has it under every method, by method and seed."""
        shared = self.score_by_client.dropna()
        return {
            method: [shared[method].loc[seed].to_dict() for seed in self.seeds]
            for method in self.methods
        }

    @property
    def left_out(self) -> Mapping[int, Sequence[str]]:
        """By seed, the clients that are in no measure, as they lack the score under some method.

        An AUC over a single class is none.
        """
        lacking = self.score_by_client[self.score_by_client.isna().any(axis=1)].index
        return {seed: [client for of, client in lacking if of == seed] for seed in self.seeds}

    def measures(self, method: str) -> list[dict[str, float]]:
        """Return the measures of fairness of each seed."""
        return [measures(values, self.score) for values in self.values[method]]

    def spread(self, method: str, measure: str) -> tuple[float, float]:
        """Return mean and standard deviation over the seeds of one measure."""
        return mean_and_deviation([measured[measure] for measured in self.measures(method)])

    def gains(self, method: str, measure: str) -> list[float]:
        """Return by how much a measure is better than the baseline's, a number for each seed that has both.

        Parameters
        ----------
        method
            One of `methods`.
        measure
            One of `fairbloom.server.fairness.summarize`; "client:NAME", the score of one client; or
            "group-gap:SCORE", the gap between groups over all clients, and "group-gap:SCORE:NAME",
            that of one client.

        Raises
        ------
        FairbloomError
            When there is no such method or measure, or no seed has it.
        """
        for name in (method, self.baseline):
            if name not in self.methods:
                raise FairbloomError(
                    f"method = {name!r}: this comparison has {', '.join(self.methods)}"
                )
        pairs = self._pairs(method, measure)
        found = find_measure(measure)
        if not pairs:
            raise FairbloomError(
                f"measure = {measure!r}: it is not there, or has no meaning, with any seed"
            )
        return [
            (
                0.0
                if math.isclose(value, base, rel_tol=1e-9, abs_tol=1e-12)
                else found.better(value, base, self.score)
            )
            for value, base in pairs
        ]

    def difference(self, method: str, measure: str) -> Difference:
        """Return how much better a method is than the baseline by a measure of `gains`, and how sure that is.

        The mean and the worst-served tenth are tested; see `claims`. Other measures have an
        interval and no p-value.
        """
        found = self.differences(measure)
        if method not in found:
            raise FairbloomError(
                f"method = {method!r}: the methods that are compared with {self.baseline} are"
                f" {', '.join(found)}"
            )
        return found[method]

    def differences(self, measure: str) -> dict[str, Difference]:
        """Return the difference of each method but the baseline by a measure of `gains`.

        See `difference`.
        """
        if measure in CLAIMED:
            return {method: self.claims[method, measure] for method in self._others}
        share = self.shared.test_share
        gains = {method: self.gains(method, measure) for method in self._others}
        return {
            method: difference_of(each, test_share=share).untested for method, each in gains.items()
        }

    @cached_property
    def claims(self) -> Mapping[tuple[str, str], Difference]:
        """All differences that a sentence may claim, by method and measure.

        They are one family: the p-values have Holm's correction over all of them, so that where
        nothing differs, anything is claimed in 5 % of comparisons at most. Those that are equal
        with every seed are not tested.
        """
        gains = {
            (method, measure): self.gains(method, measure)
            for measure in CLAIMED
            for method in self._others
        }
        return differences_of(gains, test_share=self.shared.test_share)

    @property
    def _others(self) -> list[str]:
        return [method for method in self.methods if method != self.baseline]

    def personal_row(self, method: str) -> str:
        """Return what the row of a method's personal models is called.

        "" where it has none beside its global model.
        """
        return name if (name := personal_label(method)) in self.personal else ""

    @cached_property
    def gaps_compared(self) -> dict[str, GroupScore]:
        """What each gap between groups over all clients is in, by its measure `group-gap:SCORE`.

        Empty without groups.

        A gap that some method has with no seed with which the baseline has it is not there.
        """
        scores = [score for reports in self.by_group.values() for score in reports[0].scores]
        return {f"{GAP}{score.name}": score for score in scores if self._has(f"{GAP}{score.name}")}

    @cached_property
    def contradictions(self) -> list[str]:
        """In sentences the clients of which another score says the opposite, those that gain most first."""
        return find_contradictions(self)

    @property
    def tested(self) -> Mapping[str, float]:
        """On how many examples each client was tested under the baseline, with the first seed that has it."""
        scored = self.finals[
            (self.finals["method"] == self.baseline) & (self.finals["score"] == self.score.name)
        ]
        tested = dict(zip(scored["client"][::-1], scored["tested"][::-1], strict=True))
        return {client: tested[client] for client in max(self.values[self.baseline], key=len)}

    @cached_property
    def verdict(self) -> Verdict:
        """What the comparison shows, in sentences."""
        return verdict_of(self)

    def _pairs(self, method: str, measure: str) -> list[tuple[float, float]]:
        """Return a measure under a method and under the baseline, for each seed that has both."""
        pairs = zip(
            self._by_seed(measure, method), self._by_seed(measure, self.baseline), strict=True
        )
        return [pair for pair in pairs if all(map(math.isfinite, pair))]

    def _by_seed(self, measure: str, method: str) -> list[float]:
        """Return a measure of each seed; NaN where there is none."""
        of = find_measure(measure).of
        reports = self.by_group.get(method, [None] * len(self.seeds))
        pairs = zip(self.values[method], reports, strict=True)
        return [of(ClientScores(values, self.score, groups=groups)) for values, groups in pairs]

    def _has(self, measure: str) -> bool:
        """Return whether every method has a measure with a seed with which the baseline has it."""
        return all(self._pairs(method, measure) for method in self.methods)

    @cached_property
    def table(self) -> "pandas.DataFrame":
        """A row a method: the mean over the seeds of each measure of fairness."""
        by_seed = frame(self.rows()).drop(columns=["seed", "score"])
        return by_seed.groupby("method", sort=False).mean()

    @cached_property
    def clients(self) -> "pandas.DataFrame":
        """A row a method, seed and client, with each score: the table clients.csv."""
        wide = self.finals.pivot(
            index=["method", "seed", "client"], columns="score", values="value"
        )
        wide = wide.reindex([*self.methods], level="method")
        return wide[[score.name for score in accuracy_first(self.scores)]].reset_index()

    def group_rows(self) -> list[dict[str, Any]]:
        """Return a row a method, seed, client and group: over all clients together, and client by client."""
        return self._of_groups(GroupReport.rows)

    def gap_rows(self) -> list[dict[str, Any]]:
        """Return a row a method, seed, client, grouping and score: over all clients together, and client by client."""
        return self._of_groups(GroupReport.gap_rows)

    def _of_groups(
        self, rows: Callable[[GroupReport], list[dict[str, Any]]]
    ) -> list[dict[str, Any]]:
        return [
            {"method": method, "seed": seed, **row}
            for method, reports in self.by_group.items()
            for seed, report in zip(self.seeds, reports, strict=True)
            for row in rows(report)
        ]

    def client_rows(self) -> list[dict[str, Any]]:
        """Return the rows of clients.csv: those of `clients`, with None where there is no score."""
        rows: list[dict[str, Any]] = (
            self.clients.astype(object).where(self.clients.notna(), None).to_dict("records")
        )
        return rows

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of comparison.csv: one a method and seed."""
        return [
            {"method": method, "seed": seed, "score": self.score.title, **measured}
            for method in self.methods
            for seed, measured in zip(self.seeds, self.measures(method), strict=True)
        ]

    def difference_rows(self) -> list[dict[str, Any]]:
        """Return the rows of differences.csv: one a method and measure.

        None for numbers that there are not.

        The measures are those of fairness, and gaps between groups over all clients; and, of
        `clients_compared`, each client's score and its gaps.
        """
        measured = [m for m in MEASURES if any(map(math.isfinite, self._by_seed(m, self.baseline)))]
        of_clients = [f"{CLIENT}{client}" for client in self.clients_compared]
        gaps = [f"{gap}:{client}" for gap in self.gaps_compared for client in self.clients_compared]
        return [
            {
                "method": method,
                "measure": measure,
                **{k: None if v != v else v for k, v in asdict(found).items()},
            }
            for measure in (*measured, *of_clients, *self.gaps_compared, *filter(self._has, gaps))
            for method, found in self.differences(measure).items()
        ]

    @property
    def clients_compared(self) -> list[str]:
        """The clients of which something is said: the same with all seeds, with a score with three of these or all."""
        if self.shared.clients_differ:
            return []
        seeds = self.score_by_client.dropna().groupby("client").size()
        return [*seeds.index[seeds >= min(FEWEST_SEEDS, len(self.seeds))]]

    @cached_property
    def larger_classes(self) -> Values:
        """The share of each client's test examples in the larger of two classes, in percent, mean over seeds."""
        by_seed = [run.column(SHARE_OF_LARGER_CLASS) for run in self.runs.get(self.baseline, ())]
        clients = dict.fromkeys(client for shares in by_seed for client in shares)
        return {
            name: statistics.fmean(each[name] for each in by_seed if name in each)
            for name in clients
        }

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
            "differences": self.difference_rows(),
            "methods": self.rows(),
            "clients": self.client_rows(),
            "left_out": {str(seed): [*clients] for seed, clients in self.left_out.items()},
            **({"groups": self.group_rows(), "gaps": self.gap_rows()} if self.by_group else {}),
        }

    def __repr__(self) -> str:
        """Return the comparison in a line."""
        seeds = f"{len(self.seeds)} seed{'s' if len(self.seeds) > 1 else ''}"
        return (
            f"Comparison({str(self.folder)!r}: {', '.join(self.methods)}; {seeds},"
            f" {self.score.title})"
        )


def mean_and_deviation(numbers: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the sample standard deviation, 0 of a single number."""
    return statistics.fmean(numbers), statistics.stdev(numbers) if len(numbers) > 1 else 0.0
