"""What a comparison shows, in sentences: who gains, what becomes of the mean, and how sure that is.

Sentences claim by two measures alone, the worst-served clients and the mean over all, for all methods in one family of
tests: where nothing differs, a verdict claims something in 5 % of comparisons at most. All other numbers describe.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING

from fairbloom.protocol.scores import Score
from fairbloom.server.fairness import count_of_share
from fairbloom.tasks.files.targets import join_names

from .caveats import join_all
from .differences import FEWEST_SEEDS, Difference
from .measures import measure_title

if TYPE_CHECKING:
    from .comparison import Comparison

WORST, MEAN = "worst_10", "mean"
CLAIMED = (WORST, MEAN)
"""The measures that sentences may claim by: the worst-served tenth under each method, and the mean over all clients."""


@dataclass(frozen=True)
class Verdict:
    """What a comparison shows: the most important sentence, and the others."""

    headline: str
    sentences: tuple[str, ...]

    def __str__(self) -> str:
        """Return all sentences."""
        return " ".join((self.headline, *self.sentences))


def verdict_of(comparison: "Comparison") -> Verdict:
    """Return what a comparison shows."""
    verdict = _verdict_on_finished(comparison)
    left_out = {True: "these seeds are left out", False: "it is not compared"}
    failed = [
        f"{method} {words}, so {left_out[method in comparison.methods]}." for method, words in comparison.failed.items()
    ]
    return Verdict(verdict.headline, (*verdict.sentences, *failed))


def _verdict_on_finished(comparison: "Comparison") -> Verdict:
    """Return what the methods show whose runs have finished."""
    words = _Words(comparison)
    if len(comparison.methods) == 1:
        why = "no other method has finished" if comparison.failed else "no other method was run"
        return Verdict(f"There is nothing to compare {comparison.baseline} with: {why}.", words.level)
    worst, mean = comparison.differences(WORST), comparison.differences(MEAN)
    if len(comparison.seeds) < FEWEST_SEEDS:
        return Verdict(words.too_few_seeds, (*words.level, *words.best_seen(worst)))
    gained = sorted((m for m, each in worst.items() if each.clear and each.mean > 0.0), key=lambda m: -worst[m].mean)
    lost = sorted((m for m, each in worst.items() if each.clear and each.mean < 0.0), key=lambda m: worst[m].mean)
    undecided = [method for method in worst if method not in (*gained, *lost)]
    if gained:
        headline, rest = words.lifts(gained[0], worst[gained[0]]), gained[1:]
    else:
        headline, rest = words.none_lifts(list(worst), lost), []
    sentences = (
        words.by_mean(mean),
        *words.level,
        *words.listed("better for", rest, worst),
        *words.listed("worse for", lost, worst),
        *words.undecided(undecided, worst, everyone=not gained and not lost),
        *words.gaps(),
    )
    return Verdict(headline, sentences)


class _Words:
    """The sentences on one comparison."""

    def __init__(self, comparison: "Comparison") -> None:
        self._comparison, self._base, self._score = comparison, comparison.baseline, comparison.score
        self._single = count_of_share(10, comparison.client_count) == 1
        self._whom = "the worst-served client" if self._single else "the worst-served 10 % of the clients"
        self._what = "" if self._score.name == "accuracy" else f"the {self._score.name} of "

    @property
    def level(self) -> tuple[str]:
        """How the baseline serves the clients."""
        worst, mean = (self._score.written(self._comparison.spread(self._base, each)[0]) for each in CLAIMED)
        served = f"{self._whom} has" if self._single else f"{self._whom} have"
        lower = "" if self._score.higher_is_better else " (lower is better)"
        return (f"Under {self._base} {served} a test {self._score.name} of {worst}, and the mean is {mean}{lower}.",)

    @property
    def too_few_seeds(self) -> str:
        """That nothing is claimed with so few seeds."""
        seeds = "A single seed does" if len(self._comparison.seeds) == 1 else "Two seeds do"
        return f"{seeds} not show which method is better: compare with 5 seeds or more."

    def best_seen(self, worst: Mapping[str, Difference]) -> list[str]:
        """Return the largest gain that was seen with too few seeds to claim anything."""
        best = max(worst, key=lambda method: worst[method].mean)
        seeds = "this seed" if len(self._comparison.seeds) == 1 else "these seeds"
        if worst[best].mean <= 0.0:
            return [f"With {seeds} no method does better than {self._base} for {self._whom}."]
        return [f"With {seeds} {best} does best for {self._whom}: {_points(worst[best].mean, self._score)} better."]

    def lifts(self, method: str, found: Difference) -> str:
        """Return by how much a method significantly helps the worst served."""
        verb = "lifts" if self._score.higher_is_better else "lowers"
        return f"{method} {verb} {self._what}{self._whom} by {_sized(found, self._score)}."

    def by_mean(self, mean: Mapping[str, Difference]) -> str:
        """Return how the mean over all clients changes under each method, with its interval."""

        def change(method: str, found: Difference) -> str:
            if found.zero:
                return f"{method} is equal"
            if found.clear:
                how = "better" if found.mean > 0.0 else "worse"
                return f"{method} is significantly {how}, by {_sized(found, self._score)}"
            return f"{method} differs by {_sized(found, self._score)}, not significantly"

        said = "; ".join(_shorten([change(method, found) for method, found in mean.items()]))
        lower = "" if self._score.higher_is_better else " (positive is better)"
        return f"By the mean over all clients, against {self._base}{lower}: {said}."

    def none_lifts(self, methods: Sequence[str], lost: Sequence[str]) -> str:
        """Return that no method significantly helps the worst served."""
        if lost:
            return f"No method is significantly better than {self._base} for {self._what}{self._whom}."
        if len(methods) == 1:
            return f"{methods[0]} and {self._base} do not differ significantly for {self._what}{self._whom}."
        return f"No method differs significantly from {self._base} for {self._what}{self._whom}."

    def listed(self, how: str, methods: Sequence[str], worst: Mapping[str, Difference]) -> list[str]:
        """Return the methods that are significantly better, or worse, for the worst served."""
        if not methods:
            return []
        sizes = [f"{method} by {_sized(worst[method], self._score)}" for method in methods]
        also = " as well" if how.startswith("better") else ""
        return [f"Significantly {how} {self._whom}{also}: {_listed(sizes)}."]

    def undecided(self, methods: Sequence[str], worst: Mapping[str, Difference], *, everyone: bool) -> list[str]:
        """Return which methods do not differ significantly, and the largest gain of these."""
        same = [method for method in methods if worst[method].zero]
        others = [method for method in methods if method not in same]
        sentences = self._equal(same)
        if not others:
            return sentences
        if not everyone:
            do = "does" if len(others) == 1 else "do"
            sentences.append(f"{_listed(others)} {do} not differ significantly from {self._base} for {self._whom}.")
        largest = max(others, key=lambda method: (worst[method].mean, method))
        found = worst[largest]
        if found.mean <= 0.0:
            none = f"{others[0]} is not" if len(others) == 1 else "None of the others is"
            return [*sentences, f"{none} better for {self._whom} on average."] if everyone else sentences
        seen = f"The difference of {largest} is {_sized(found, self._score)}"
        if len(others) > 1:
            seen = f"The largest gain of these is that of {largest}, {_sized(found, self._score)}"
        if isnan(found.low):
            seen += "; it is the same with every seed, which does not say how it would vary with others"
        elif found.low > 0.0:
            seen += "; its interval excludes zero, but not after Holm's correction"
        return [*sentences, f"{seen}."]

    def _equal(self, methods: Sequence[str]) -> list[str]:
        """Return which methods are equal to the baseline with every seed, and where their personal models are."""
        if not methods:
            return []
        under = join_all([*methods, self._base])
        found = [f"With every seed {self._whom} has the same score under {under}, so nothing is tested there."]
        rows = [row for method in methods if (row := self._comparison.personal_row(method))]
        return [*found, f"Look at the personal models instead: {join_all(rows)}."] if rows else found

    def gaps(self) -> list[str]:
        """Return how much better methods are by each gap between groups over all clients."""
        return [
            self._untested(f"{measure_title(gap, 0)} between groups", self._comparison.differences(gap), score)
            for gap, score in self._comparison.gaps_compared.items()
        ]

    def _untested(self, measure: str, found: Mapping[str, Difference], score: Score) -> str:
        """Return how much better methods are on average by a measure that is not tested, in the unit of a score."""
        sizes = [
            f"{method} is {_points(abs(each.mean), score)} {'better' if each.mean > 0.0 else 'worse'}"
            if each.mean
            else f"{method} is equal"
            for method, each in found.items()
        ]
        return f"Not tested: by the {measure}, {_listed(sizes)}."


def _sized(found: Difference, score: Score) -> str:
    """Return the size of a difference with its interval, both without their sign where the difference is clear."""
    sign = -1.0 if found.clear and found.mean < 0.0 else 1.0
    size = _points(sign * found.mean, score, "" if found.clear else "+")
    if isnan(found.low):
        return size
    low, high = sorted((sign * found.low, sign * found.high))
    return f"{size} ({_plain(low, score)} to {_plain(high, score)})"


def _points(value: float, score: Score, sign: str = "") -> str:
    return f"{_plain(value, score, sign)} points" if score.percent else _plain(value, score, sign)


def _plain(value: float, score: Score, sign: str = "") -> str:
    """Return a number, of which one that rounds to zero has no minus."""
    return f"{round(value, 1) + 0.0:{sign}.1f}" if score.percent else f"{value + 0.0:{sign}.3g}"


MOST_LISTED = 6
"""Of more methods, sentences count the others."""


def _listed(names: Sequence[str]) -> str:
    """Return names as a list, of which the last are counted where they are many."""
    return join_all(names) if len(names) <= MOST_LISTED else join_names(names, MOST_LISTED)


def _shorten(parts: Sequence[str]) -> list[str]:
    """Return parts of a sentence, of which the last are counted where they are many."""
    left = len(parts) - MOST_LISTED
    return [*parts] if left <= 0 else [*parts[:MOST_LISTED], f"{left} more are in the table"]
