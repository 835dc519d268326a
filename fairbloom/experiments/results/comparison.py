"""A comparison: the scores of several methods, with the verdict, the tables and the JSON."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairbloom.protocol.scores import accuracy_first
from fairbloom.server.run_folder.csv_rows import MEASURES
from fairbloom.server.run_folder.errors import RunFolderError
from fairbloom.server.run_folder.files import ROUNDS

from ..study import Study
from .caveats import SharedData, caveats_of_comparison
from .compared_scores import ComparedScores, personal_label, tabulate
from .differences import difference_of
from .group_scores import GroupReport
from .joining import Joined, joining_of
from .measures import AGAINST_BASELINE, CLIENT
from .presentation import Shown
from .run import Run, final_of, frame, load
from .verdict import Verdict, verdict_of

if TYPE_CHECKING:
    import pandas


def read_comparison(folder: Path, study: Study, score: str = "") -> "Comparison":
    """Return the comparison of a study's runs; raise RunFolderError if some are not finished.

    They are compared by `score`, by default by the study's own.
    Methods with a failed run are left out, and so are methods that miss a score which others have.
    """
    if reason := study.explain_unfinished(folder):
        raise RunFolderError(reason)
    plan = study.finished
    runs = {
        arm.label: [load(folder / plan.folder(arm, seed), score) for seed in plan.seeds]
        for arm in plan.arms
    }
    failures = {arm.label: of for arm in study.arms if (of := study.failures(arm))}
    failed = {
        label: f"failed with {len(of)} of {len(study.seeds)} seeds"
        for label, of in failures.items()
    }
    reasons = []
    for label, of in failures.items():
        first = next(iter(of))
        reasons.append(f"{label} with seed {first}: {of[first]}.")
    lacking = _find_lacking(runs, plan.baseline, plan.seeds)
    compared = {label: by_seed for label, by_seed in runs.items() if label not in lacking}
    known = [
        set[str]().union(*(run.known for run in of_seed))
        for of_seed in zip(*compared.values(), strict=True)
    ]
    rows = list[tuple[object, ...]]()
    by_group = dict[str, Sequence[GroupReport]]()
    for label, of_label in compared.items():
        for method, model in _find_models(label, of_label, plan.baseline).items():
            for run, seed, clients in zip(of_label, plan.seeds, known, strict=True):
                rows += _rows_of_run(run, method, model, seed, clients)
            reports = [run.by_group(model) for run in of_label]
            if all(reports):
                by_group[method] = [report for report in reports if report]
    of_baseline = compared[plan.baseline]
    comparison = Comparison(
        tabulate(rows),
        plan.baseline,
        of_baseline[0].scores,
        folder,
        caveats=(*caveats_of_comparison(compared), *reasons, *study.left_out),
        shared=SharedData.of(of_baseline),
        by_group=by_group,
        failed=failed | lacking,
        runs=compared,
        extended_from=study.extended_from,
        deployed=study.deployed,
    )
    for seed in comparison.seeds:
        if comparison.score_by_client.loc[seed].dropna().empty:
            raise RunFolderError(
                f"with seed {seed} no client has a test {comparison.score.words} under every"
                " method: compare by another score (--score), in another folder (--out)"
            )
    return comparison


def _find_models(label: str, by_seed: Sequence[Run], baseline: str) -> dict[str, str]:
    """Return the kinds of models that are compared of a method, by their labels."""
    models = {label: by_seed[0].serves}
    if by_seed[0].settings.get("personal-parameters") and label != baseline:
        return {personal_label(label): "personal"}
    if models[label] != "personal" and all(run.final(model="personal") for run in by_seed):
        models[personal_label(label)] = "personal"
    return models


def _rows_of_run(
    run: Run, method: str, model: str, seed: int, clients: set[str]
) -> list[tuple[object, ...]]:
    """Return the rows of `Comparison.finals` for a run, one for each of `clients` and scores."""
    tested = run.test_examples()
    finals = {score.name: run.final(score, model) for score in run.scores}
    return [
        (
            method,
            model,
            seed,
            client,
            tested.get(client, math.nan),
            name,
            values.get(client, math.nan),
        )
        for name, values in finals.items()
        for client in sorted(clients)
    ]


def _find_lacking(
    runs: Mapping[str, Sequence[Run]],
    baseline: str,
    seeds: Sequence[int],
) -> dict[str, str]:
    """Return as text the clients without a score that other methods have, by method.

    Raise RunFolderError if the baseline is among these methods.
    """
    found: dict[str, str] = {}
    for place, seed in enumerate(seeds):
        scored = set().union(*(by_seed[place].final() for by_seed in runs.values()))
        for label, by_seed in runs.items():
            run = by_seed[place]
            if label == baseline:
                final_of(run)  # raises if no client was evaluated
            if missing := sorted(scored - run.tested):
                found.setdefault(
                    label, f"has no test {run.score.words} of {', '.join(missing)} with seed {seed}"
                )
    if baseline in found:
        raise RunFolderError(
            f"{baseline} {found[baseline]}, as other methods have: see what was refused or missing"
            f" in {ROUNDS.path_in(runs[baseline][0].folder)}, or choose another --baseline"
        )
    return found


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(ComparedScores, Shown):
    """The outcome of every method and seed.

    Attributes
    ----------
    finals
        A row a `method`, `seed`, `client` and `score`: its `value` under the final model, NaN if
        the client has none, and on how many examples the client was `tested`. The personal models
        of a method count as another method, `Ditto (personal)`, with `model` "personal"; for all
        others `model` is "global".
    baseline
        The method that the others are compared with.
    scores
        The scores that were measured; fairness is measured in the first.
    folder
        The folder of tables, figure and runs.
    caveats
        Sentences on the limits of the numbers: single participants, equal models, small test sets.
    shared
        The clients and test examples that the seeds have in common.
    by_group
        The group reports of clients by method, one a seed; empty without groups.
    failed
        Why a method is not compared, by method: failed runs, or missing scores of clients.
    runs
        The runs of each method, one a seed.
    extended_from
        The number of seeds that the comparison had when it was first finished, if seeds were added
        since; else 0.
    deployed
        Whether devices of a federation carried out its runs.
    """

    @cached_property
    def verdict(self) -> Verdict:
        """The findings in sentences."""
        return verdict_of(self)

    @cached_property
    def joining(self) -> list[Joined]:
        """The common models against training alone, [] if that is not among the methods."""
        return joining_of(self)

    @cached_property
    def table(self) -> "pandas.DataFrame":
        """A row a method: the mean over the seeds of each measure of fairness."""
        return (
            frame(self.rows()).drop(columns=["seed", "score"]).groupby("method", sort=False).mean()
        )

    @cached_property
    def clients(self) -> "pandas.DataFrame":
        """A row a method, seed and client, with each score: the table clients.csv."""
        wide = self.finals.pivot(
            index=["method", "seed", "client"], columns="score", values="value"
        ).reindex([*self.methods], level="method")
        return wide[[score.name for score in accuracy_first(self.scores)]].reset_index()

    def group_rows(self) -> list[dict[str, Any]]:
        """Return a row a method, seed, client and group, also over all clients."""
        return self._of_groups(GroupReport.rows)

    def gap_rows(self) -> list[dict[str, Any]]:
        """Return a row a method, seed, client, grouping and score, also over all clients."""
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
        """Return the rows of clients.csv: `clients`, with None for a missing score."""
        rows: list[dict[str, Any]] = (
            self.clients.astype(object).where(self.clients.notna(), None).to_dict("records")
        )
        return rows

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of comparison.csv: one a method and seed."""
        unknown = [None] * len(self.seeds)
        rows = list[dict[str, Any]]()
        for method in self.methods:
            by_seed = self.improved.get(method, unknown)
            for place, seed in enumerate(self.seeds):
                measured = self.estimates[method][place]
                row: dict[str, Any] = {"method": method, "seed": seed, "score": self.score.title}
                row |= {name: each.value for name, each in measured.items()}
                row |= {name: None for name in self.held_out_measures if name not in measured}
                if self.improved:
                    row["improved"] = by_seed[place]
                rows.append(row)
        return rows

    def difference_rows(self) -> list[dict[str, Any]]:
        """Return the rows of differences.csv: one a method and measure; None for missing numbers.

        The measures are measures of fairness, also of clients that are not in training, gaps
        between groups over all clients, and the score and gaps of each client in
        `clients_compared`. Last come the measures of `fairbloom.server.fairness.against_baseline`,
        which are not differences themselves.
        """
        measured = [m for m in MEASURES if any(map(math.isfinite, self._by_seed(m, self.baseline)))]
        of_clients = [f"{CLIENT}{client}" for client in self.clients_compared]
        gaps = [f"{gap}:{client}" for gap in self.gaps_compared for client in self.clients_compared]
        rows = [
            {"method": method, "measure": measure, **difference.numbers}
            for measure in (
                *measured,
                *self.held_out_measures,
                *of_clients,
                *self.gaps_compared,
                *filter(self._has, gaps),
            )
            for method, difference in self.differences(measure).items()
        ]
        for measure, method in itertools.product(AGAINST_BASELINE, self.others):
            if measure != "mean_change" and (found := self.against_baseline(method, measure)):
                numbers = difference_of(found, test_share=self.shared.test_share).untested.numbers
                if measure.endswith("_share"):  # a share is neither gain nor loss
                    numbers |= {"better": None, "worse": None}
                rows.append({"method": method, "measure": measure, **numbers})
        return rows

    @property
    def as_json(self) -> dict[str, Any]:
        """The output of --json."""
        described: dict[str, Any] = {
            "baseline": self.baseline,
            "seeds": list(self.seeds),
            "score": asdict(self.score),
            "verdict": asdict(self.verdict),
            "failed": dict(self.failed),
            "extended_from": self.extended_from,
            "caveats": list(self.caveats),
            "differences": self.difference_rows(),
            "methods": self.rows(),
            "clients": self.client_rows(),
            "left_out": {str(seed): [*clients] for seed, clients in self.left_out.items()},
        }
        if self.by_group:
            described |= {"groups": self.group_rows(), "gaps": self.gap_rows()}
        return described
