"""The scores of several methods with several seeds, and their differences to a baseline."""

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from fairbloom.errors import FairbloomError
from fairbloom.protocol.scores import ACCURACY, GroupScore, Score
from fairbloom.server.fairness import against_baseline
from fairbloom.server.run_folder.files import HELD_OUT
from fairbloom.strategies import Local, name_of
from fairbloom.text import decimals_showing

from ..arms import Named, find_label
from .caveats import SharedData
from .differences import (
    CLAIMED,
    FEWEST_SEEDS,
    MEAN,
    NEW_MEAN,
    WORST,
    Difference,
    difference_of,
    differences_of,
    mean_by_client,
)
from .group_scores import GroupReport
from .measures import CLIENT, GAP, REGISTRY, ClientScores, find_measure
from .noise import REACH, Estimate, Values, estimates
from .run import Run, frame
from .subject import Subject
from .tables import is_shown

if TYPE_CHECKING:
    import pandas

# The measures in tables.
SHOWN = ("mean", "std", "worst_10", "best_10")

# The columns of `ComparedScores.finals`.
COLUMNS = ("method", "model", "seed", "client", "tested", "score", "value")


def tabulate(rows: Sequence[Sequence[object]]) -> "pandas.DataFrame":
    """Return rows as the data frame `ComparedScores.finals`."""
    import pandas  # imported late: it takes a second

    return pandas.DataFrame(rows, columns=[*COLUMNS])


def personal_label(label: str) -> str:
    """Return the label of a method's personal models: `Ditto (lam=0.1, personal)`."""
    return f"{label[:-1]}, personal)" if label.endswith(")") else f"{label} (personal)"


@dataclass(frozen=True, eq=False, repr=False)
class ComparedScores:
    """The scores of every method and seed; `Comparison` describes the attributes."""

    finals: "pandas.DataFrame"
    baseline: str
    scores: tuple[Score, ...] = (ACCURACY,)
    folder: Path = field(default_factory=Path)
    caveats: tuple[str, ...] = ()
    shared: SharedData = field(default_factory=SharedData)
    by_group: Mapping[str, Sequence[GroupReport]] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    runs: Mapping[str, Sequence[Run]] = field(default_factory=dict)
    extended_from: int = 0
    deployed: bool = False

    @property
    def score(self) -> Score:
        """The score that fairness is measured in."""
        return self.scores[0]

    @cached_property
    def trained_alone(self) -> tuple[str, ...]:
        """The methods, by label, with which each client trains a model of its own."""
        return tuple(
            label
            for label, runs in self.runs.items()
            if label in self.methods
            and runs
            and runs[0].settings.get("method") in ("local", Local.__name__)
        )

    @cached_property
    def methods(self) -> tuple[str, ...]:
        """The methods, by their labels in tables."""
        return tuple(self.finals["method"].unique())

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """The seeds."""
        return tuple(self.finals["seed"].unique().tolist())

    @cached_property
    def personal(self) -> tuple[str, ...]:
        """The entries of `methods` that are personal models."""
        return tuple(self.finals["method"][self.finals["model"] == "personal"].unique())

    @cached_property
    def shown(self) -> tuple[str, ...]:
        """The methods in tables and sentences, the baseline first.

        A method with personal models has no row for a common model with the same scores as
        another's: it is the same model by construction.
        """
        first = sorted(self.methods, key=lambda method: method != self.baseline)
        is_copy = self.score_by_client[first].T.duplicated()
        return tuple(
            method
            for method in first
            if personal_label(method) not in self.personal or not is_copy[method]
        )

    @cached_property
    def decimals(self) -> int:
        """The decimals of the score's measures, in tables and sentences."""
        measured = itertools.product(self.shown, SHOWN)
        spreads = [self.estimate(method, key).value for method, key in measured]
        return self.score.decimals_of(filter(is_shown, spreads))

    @cached_property
    def gain_decimals(self) -> int:
        """The decimals of gains: those of the score, or more for the gains that sentences name."""
        gains = self.claims.values()
        largest = max((abs(gain.mean) for gain in gains), default=0.0)
        named = [gain.mean for gain in gains if gain.significant or gain.excludes_zero]
        return max(
            self.decimals,
            *(decimals_showing(1, size) for size in named),
            *(min(0, decimals_showing(3, size)) for size in [*named, largest]),
        )

    @cached_property
    def score_by_client(self) -> "pandas.DataFrame":
        """The score that fairness is measured in: a row a seed and client, a column a method."""
        return self.finals[self.finals["score"] == self.score.name].pivot(
            index=["seed", "client"], columns="method", values="value"
        )[[*self.methods]]

    @cached_property
    def values(self) -> Mapping[str, Sequence[Values]]:
        """The score of each client that has it under every method, by method and seed."""
        shared = self.score_by_client.dropna()
        return {
            method: [shared[method].loc[seed].to_dict() for seed in self.seeds]
            for method in self.methods
        }

    @cached_property
    def noise(self) -> Mapping[str, Sequence[Values]]:
        """The noise in each client's score, by method and seed; see `Run.noise`."""
        found = dict[str, Sequence[Values]]()
        for method in self.methods:
            of_runs = [run.noise(self.score) for run in self.runs.get(method, ())]
            found[method] = of_runs or [{} for _ in self.seeds]
        return found

    @property
    def has_noise(self) -> bool:
        """Whether some client's score has noise."""
        return any(itertools.chain(*self.noise.values()))

    def noise_of_means(self, method: str) -> Values:
        """Return the deviation of the noise in each client's mean over the seeds that have it."""
        noise = self.noise[method]
        noisy = set(itertools.chain(*noise))
        counts = Counter(itertools.chain(*self.values[method]))
        found = {}
        for client, count in counts.items():
            if client in noisy:
                deviations = [of_seed.get(client, 0.0) for of_seed in noise]
                found[client] = math.hypot(*deviations) / count
        return found

    @cached_property
    def held_out(self) -> Mapping[str, Sequence[dict[str, float]]]:
        """The measures of the clients that are not in training, by method, seed and name.

        The names are `held_out_measures`. Clients that lack the score under some method are left
        out, and a seed without any other has no measures. The models are common ones; a row of
        personal models has their measures if the row of the common model is not `shown`.
        """
        every = {
            name: runs
            for label, runs in self.runs.items()
            for name in (label, personal_label(label))
            if name == label or label not in self.shown
        }
        kinds = set[str]()
        for run in every.get(self.baseline, ()):
            kinds.update(HELD_OUT.read(run.folder))
        found = {method: [dict[str, float]() for _ in self.seeds] for method in self.methods}
        for kind, place in itertools.product(sorted(kinds), range(len(self.seeds))):
            scores = frame([runs[place].held_out(kind) for runs in every.values()])
            shared = scores.dropna(axis="columns").to_dict("records")
            for name, values in zip(every, shared, strict=True):
                if values:
                    measured = estimates(values, self.score)
                    for key in (MEAN, WORST):
                        found[name][place][f"{kind}: {key}"] = measured[key].value
        return found

    @property
    def held_out_measures(self) -> list[str]:
        """The measures of the clients that are not in training; [] without `held-out-clients`."""
        return [*{name: 0 for of_seed in self.held_out.get(self.baseline, ()) for name in of_seed}]

    @property
    def left_out(self) -> Mapping[int, Sequence[str]]:
        """By seed, the clients that no measure includes: they lack the score under some method.

        An AUC over a single class is undefined, for example.
        """
        lacking = self.score_by_client[self.score_by_client.isna().any(axis=1)].index
        return {seed: [client for of, client in lacking if of == seed] for seed in self.seeds}

    @property
    def client_count(self) -> int:
        """The number of clients that have a score, the largest of all seeds."""
        return max(map(len, self.values[self.baseline]))

    @property
    def tested(self) -> Mapping[str, float]:
        """Each client's number of test examples under the baseline, from its first seed."""
        scored = self.finals[
            (self.finals["method"] == self.baseline) & (self.finals["score"] == self.score.name)
        ]
        tested = dict(zip(scored["client"][::-1], scored["tested"][::-1], strict=True))
        return {client: tested[client] for client in max(self.values[self.baseline], key=len)}

    @property
    def clients_compared(self) -> list[str]:
        """The clients that are compared one by one.

        They are the same in every seed, and have a score in at least three seeds, or in all if
        there are fewer.
        """
        if self.shared.clients_differ:
            return []
        seeds = self.score_by_client.dropna().groupby("client").size()
        return [*seeds.index[seeds >= min(FEWEST_SEEDS, len(self.seeds))]]

    def shown_name(self, client: str) -> str:
        """Return a client's display name; see `Run.shown_name`."""
        runs = next(iter(self.runs.values()), ())
        return runs[0].shown_name(client) if runs else client

    @cached_property
    def references(self) -> Values:
        """What a model without inputs would score at each client, the mean over seeds."""
        return mean_by_client(
            Subject.of(run).references(self.score) for run in self.runs.get(self.baseline, ())
        )

    # Measures

    @cached_property
    def estimates(self) -> Mapping[str, Sequence[Mapping[str, Estimate]]]:
        """The measures of fairness, with those in `held_out`, by method and seed."""
        return {method: self._estimates_by_seed(method) for method in self.values}

    def _estimates_by_seed(self, method: str) -> list[Mapping[str, Estimate]]:
        found = list[Mapping[str, Estimate]]()
        for values, noise, new in zip(
            self.values[method], self.noise[method], self.held_out[method], strict=True
        ):
            of_new = {name: Estimate(value) for name, value in new.items()}
            found.append(estimates(values, self.score, noise) | of_new)
        return found

    def estimate(self, method: str, measure: str) -> Estimate:
        """Return the mean of a measure over the seeds that have it, and of its interval, or NaN."""
        found = [of_seed[measure] for of_seed in self.estimates[method] if measure in of_seed]
        if not found:
            return Estimate(math.nan)
        return Estimate(*map(statistics.fmean, zip(*found, strict=True)))

    @cached_property
    def gaps_compared(self) -> dict[str, GroupScore]:
        """The score behind each gap between groups over all clients, by `group-gap:SCORE`.

        Left out are gaps for which some method and the baseline have no seed in common. Empty
        without groups.
        """
        scores = itertools.chain.from_iterable(
            reports[0].scores for reports in self.by_group.values()
        )
        gaps = {f"{GAP}{score.name}": score for score in scores}
        return {name: score for name, score in gaps.items() if self._has(name)}

    @property
    def grouping_compared(self) -> str:
        """The first grouping: its gaps are compared; "" without groups."""
        for by_seed in self.by_group.values():
            for grouping in by_seed[0].grouped.groupings:
                return grouping
        return ""

    def _pairs(self, method: str, measure: str, than: str = "") -> list[tuple[float, float]]:
        """Return a measure under a method and under `than`, for each seed that has both."""
        of_method = self._by_seed(measure, method)
        of_other = self._by_seed(measure, than or self.baseline)
        pairs = zip(of_method, of_other, strict=True)
        return [pair for pair in pairs if all(map(math.isfinite, pair))]

    def _by_seed(self, measure: str, method: str) -> list[float]:
        """Return a measure for each seed; NaN for a seed without it."""
        compute = find_measure(measure).of
        by_group = self.by_group.get(method, [None] * len(self.seeds))
        found = list[float]()
        for place in range(len(self.seeds)):
            measured = self.estimates[method][place]
            # scores with noise have no other measures than those that `estimates` corrects
            if self.noise[method][place] and measure in REGISTRY and measure not in measured:
                found.append(math.nan)
                continue
            scores = ClientScores(
                self.values[method][place],
                self.score,
                groups=by_group[place],
                held_out=self.held_out[method][place],
            )
            found.append(compute(scores))
        return found

    def _has(self, measure: str) -> bool:
        """Return whether every method has a measure with a seed with which the baseline has it."""
        return all(self._pairs(method, measure) for method in self.methods)

    @cached_property
    def improved(self) -> dict[str, list[float]]:
        """`improved` of `Run.training`, by method and seed; only methods with it for each seed.

        Empty if a client has a privacy account: the noise in its losses would count. A method that
        trains no common model is left out: a loss that never changes does not rise.
        """
        if any(run.privacy for run in itertools.chain(*self.runs.values())):
            return {}
        found = dict[str, list[float]]()
        for label, runs in self.runs.items():
            values = [run.training.get("improved", math.nan) for run in runs]
            if runs[0].serves == "global" and all(map(math.isfinite, values)):
                found[label] = values
        return found

    def against_baseline(self, method: str, measure: str) -> list[float]:
        """Return a measure of `against_baseline` for each seed in which it is defined."""
        if self.has_noise:
            return []
        found = list[float]()
        for pair in zip(self.values[method], self.values[self.baseline], strict=True):
            measured = against_baseline(*pair, lower_is_better=not self.score.higher_is_better)
            found.append(measured[measure])
        return [value for value in found if math.isfinite(value)]

    # Differences

    def gains(self, method: str, measure: str, than: str = "") -> list[float]:
        """Return the gain over another method by a measure, for each seed in which both have it.

        Parameters
        ----------
        method
            One of `methods`.
        measure
            One of `fairbloom.server.fairness.summarize`; "client:NAME", the score of one client;
            "group-gap:SCORE", the gap between groups over all clients, and "group-gap:SCORE:NAME",
            the gap within one client; or one of `held_out_measures`.
        than
            The other method; by default the baseline.

        Raises
        ------
        FairbloomError
            When the method or measure is unknown, or no seed has the measure.
        """
        for name in (method, than or self.baseline):
            if name not in self.methods:
                raise FairbloomError(
                    f"method = {name!r}: this comparison has {', '.join(self.methods)}"
                )
        pairs = self._pairs(method, measure, than)
        found = find_measure(measure)
        if not pairs:
            raise FairbloomError(f"measure = {measure!r}: no seed has this measure")
        gains = list[float]()
        for value, base in pairs:
            is_same = math.isclose(value, base, rel_tol=1e-9, abs_tol=1e-12)
            gains.append(0.0 if is_same else found.better(value, base, self.score))
        return gains

    def difference(self, method: Named, measure: str) -> Difference:
        """Return a method's mean gain over the baseline by a measure of `gains`, and its error.

        The mean and the worst-served tenth are tested, and the mean of the clients that are not in
        training; see `claims`. Other measures have an interval and no p-value. `method` is as
        tables print it or as `compare` takes it.
        """
        found = self.differences(measure)
        label = find_label(method, list(found))
        if label is None:
            raise FairbloomError(
                f"method = {name_of(method)!r}: the methods that are compared with"
                f" {self.baseline} by {measure} are {', '.join(found) or 'none'}"
            )
        return found[label]

    def differences(self, measure: str) -> dict[str, Difference]:
        """Return the `difference` of each method except the baseline.

        Personal models may have no measures of `held_out`: they are left out of these.
        """
        if measure in CLAIMED:
            return {method: found for (method, of), found in self.claims.items() if of == measure}
        compared: Iterable[str] = self.others
        if self.has_noise or measure in self.held_out_measures:
            compared = [method for method in self.others if self._pairs(method, measure)]
        found = dict[str, Difference]()
        for method in compared:
            found[method] = difference_of(
                self.gains(method, measure),
                test_share=self.shared.test_share,
                shift=self._shift(method, measure),
            ).untested
        return found

    @cached_property
    def claims(self) -> Mapping[tuple[str, str], Difference]:
        """All differences that a sentence may claim, by method and measure.

        They are one family: the p-values have Holm's correction over all of them. If nothing
        differs, at most 5 % of comparisons claim anything. Methods that equal the baseline with
        every seed are not tested, and neither are those that are not `shown`.
        """
        gains = {
            (method, measure): self.gains(method, measure)
            for measure in CLAIMED
            for method in self.others
            if measure != NEW_MEAN or self._pairs(method, measure)
        }
        return differences_of(
            gains, {key: self._shift(*key) for key in gains}, test_share=self.shared.test_share
        )

    def _shift(self, method: str, measure: str) -> float:
        """Return by how much noise may shift the mean gain by a measure.

        With many seeds, between which the noise varies, it is its bias; with few its 95 % interval.
        """
        names = (method, self.baseline)
        pair = [self.estimate(name, measure) for name in names]
        if len(self.seeds) >= FEWEST_SEEDS:
            return max(each.bias for each in pair)
        client = measure.removeprefix(CLIENT)
        noise = [self.noise_of_means(name).get(client, 0.0) for name in names]
        return sum(max(each.below, each.above) for each in pair) + REACH * math.hypot(*noise)

    @property
    def others(self) -> list[str]:
        """The methods that are compared with the baseline: `shown` without it."""
        return [*self.shown[1:]]
