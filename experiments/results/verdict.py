"""What a comparison shows, in sentences: who gains, what it costs the others, and how sure that is."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairbloom.errors import FairbloomError
from fairbloom.protocol.scores import Score
from fairbloom.server.fairness import count_of_share

from .differences import Difference
from .measured import measure_title

if TYPE_CHECKING:
    from .comparison import Comparison

WORST, OTHERS, MEAN = "worst_10", "others", "mean"
"""The measures that a verdict is about: the worst-served tenth under each method, the mean over the clients that are
not in the baseline's worst-served tenth, and the mean over all."""

FEW_CLIENTS = 10
"""Among so many clients the worst served are named."""

MOST_NAMED = 3
"""So many clients are named as the worst served at most; where more take turns, none is."""

MOST_LISTED = 6
"""So many methods are listed in a sentence at most."""

USUAL_SEEDS = 5
"""The number of seeds to try where there is a single one."""

NUMBERS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty"),
)


@dataclass(frozen=True)
class Verdict:
    """What a comparison shows.

    Attributes
    ----------
    headline
        The first thing to know, in a sentence.
    sentences
        What else there is to know: how the baseline serves the clients, the other methods, what remains open.
    """

    headline: str
    sentences: tuple[str, ...]

    def __str__(self) -> str:
        """Return all sentences."""
        return " ".join((self.headline, *self.sentences))


def verdict_of(comparison: "Comparison") -> Verdict:
    """Return what a comparison shows."""
    words = _Words(comparison)
    worst = comparison.differences(WORST)
    if not worst:
        return Verdict(f"There is nothing to compare {comparison.baseline} with: no other method was run.", words.level)
    if len(comparison.seeds) == 1:
        return Verdict(
            f"A single seed does not tell one method from another: compare with {USUAL_SEEDS} seeds or more.",
            (*words.level, *words.with_one_seed(worst)),
        )
    gained = sorted((m for m, each in worst.items() if each.clear and each.mean > 0.0), key=lambda m: -worst[m].mean)
    lost = sorted((m for m, each in worst.items() if each.clear and each.mean < 0.0), key=lambda m: worst[m].mean)
    open_still = [method for method in worst if method not in (*gained, *lost)]
    if gained:
        headline, rest = words.lifts(gained[0], worst[gained[0]]), gained[1:]
    else:
        headline, rest = words.none_lifts(list(worst), lost), []
    sentences = (
        *words.level,
        *words.listed("better for", rest, worst),
        *words.listed("worse for", lost, worst),
        *words.not_told(open_still, worst, everyone=not gained and not lost),
        words.by("the mean over clients", comparison.differences(MEAN), comparison.score),
        *words.gaps(),
    )
    return Verdict(headline, sentences)


class _Words:
    """The sentences on one comparison."""

    def __init__(self, comparison: "Comparison") -> None:
        self._comparison, self._base, self._score = comparison, comparison.baseline, comparison.score
        self._seeds = len(comparison.seeds)
        clients = comparison.client_count
        self._single = count_of_share(10, clients) == 1
        served = "the worst-served client" if self._single else "the worst-served 10 % of the clients"
        names = self._names_of_worst() if clients <= FEW_CLIENTS else []
        self._who = f"{served} ({' or '.join(names)})" if names else served
        self._whom = served
        self._what = "" if self._score.name == "accuracy" else f"the {self._score.name} of "

    @property
    def level(self) -> tuple[str]:
        """How the baseline serves the clients."""
        worst, mean = (
            self._score.written(self._comparison.spread(self._base, measure)[0]) for measure in (WORST, MEAN)
        )
        served = f"{self._whom} has" if self._single else f"{self._whom} have"
        lower = "" if self._score.higher_is_better else " (lower is better)"
        return (f"Under {self._base} {served} a test {self._score.name} of {worst}, and the mean is {mean}{lower}.",)

    def with_one_seed(self, worst: Mapping[str, Difference]) -> list[str]:
        """Return the largest gain that was seen with a single seed."""
        best = max(worst, key=lambda method: worst[method].mean)
        if worst[best].mean <= 0.0:
            return [f"With this seed no method does better than {self._base} for {self._who}."]
        return [f"With this seed {best} does best for {self._who}: {_points(worst[best].mean, self._score)} better."]

    def lifts(self, method: str, found: Difference) -> str:
        """Return by how much a method clearly helps the worst served, and what becomes of the others."""
        verb = "lifts" if self._score.higher_is_better else "lowers"
        text = f"{method} {verb} {self._what}{self._who} by {_sized(found, self._score)}{self._of_others(method)}"
        if found.enough is not None and found.enough < found.seeds:
            text += f"; {_number(found.enough)} seeds of {_number(found.seeds)} would do"
        return f"{text}."

    def none_lifts(self, methods: Sequence[str], lost: Sequence[str]) -> str:
        """Return that no method clearly helps the worst served."""
        if len(methods) == 1 and not lost:
            return f"{methods[0]} cannot be told from {self._base} by {self._what}{self._who}."
        if lost:
            return f"No method is clearly better than {self._base} for {self._who}."
        return f"No method can be told from {self._base} by {self._what}{self._who}."

    def listed(self, how: str, methods: Sequence[str], worst: Mapping[str, Difference]) -> list[str]:
        """Return the methods that are clearly better, or worse, for the worst served."""
        if not methods:
            return []
        sizes = [f"{method} by {_sized(worst[method], self._score)}" for method in methods]
        return [f"Clearly {how} {self._whom}{' as well' if how.startswith('better') else ''}: {_shortened(sizes)}."]

    def not_told(self, methods: Sequence[str], worst: Mapping[str, Difference], *, everyone: bool) -> list[str]:
        """Return which methods cannot be told from the baseline, and how many seeds the largest gain would take."""
        same = [method for method in methods if not worst[method].better and not worst[method].worse]
        others = [method for method in methods if method not in same]
        sentences = []
        if same:
            sentences.append(f"With every seed {self._whom} has the same score under {_listed([*same, self._base])}.")
        if not others:
            return sentences
        if not everyone:
            sentences.append(f"{_shortened(others)} cannot be told from {self._base} by {self._whom}.")
        largest = max(others, key=lambda method: (worst[method].mean, method))
        found = worst[largest]
        if found.mean <= 0.0:
            none = f"{others[0]} is not" if len(others) == 1 else "None of the others is"
            return [*sentences, f"{none} better for {self._whom} on average."] if everyone else sentences
        seen = f"The difference of {largest} is {_sized(found, self._score)}"
        if len(others) > 1:
            seen = f"The largest gain of these is that of {largest}, {_sized(found, self._score)}"
        chance = ""
        if found.low > 0.0 and len(worst) > 1:
            chance = (
                f" Its interval is above zero, but with {_number(len(worst))} methods one is so more often by chance."
            )
        return [*sentences, f"{seen}: {self._seeds_for(found)}.{chance}"]

    def gaps(self) -> list[str]:
        """Return which methods have clearly narrower, or wider, gaps between groups over all clients."""
        scores = self._comparison.gaps_compared
        found = {gap: self._comparison.differences(gap) for gap in scores}
        open_still = [gap for gap in scores if not any(each.clear for each in found[gap].values())]
        told = [[gap] for gap in scores if gap not in open_still]
        return [
            self.by(
                f"the {_listed([measure_title(gap, 0) for gap in gaps])} between groups",
                found[gaps[0]],
                scores[gaps[0]],
            )
            for gaps in (*told, open_still)
            if gaps
        ]

    def by(self, measure: str, found: Mapping[str, Difference], score: Score) -> str:
        """Return which methods are clearly better, or worse, by a measure that is in the unit of a score."""
        clear = {method: each for method, each in found.items() if each.clear}
        if not clear:
            who = next(iter(found)) if len(found) == 1 else "no method"
            cannot = "cannot" if len(found) == 1 else "can"
            return f"By {measure} {who} {cannot} be told from {self._base}."
        sizes = [
            f"{method} is {'better' if each.mean > 0.0 else 'worse'} by {_sized(each, score)}"
            for method, each in clear.items()
        ]
        rest = f"; no other method can be told from {self._base}" if len(clear) < len(found) else ""
        return f"By {measure} {_shortened(sizes)}{rest}."

    def _of_others(self, method: str) -> str:
        try:
            found = self._comparison.difference(method, OTHERS)
        except FairbloomError:  # there is but one client
            return ""
        if found.clear and found.mean < 0.0:
            return f" and costs the others {_sized(found, self._score)} on average"
        if found.clear:
            return f", and the others gain {_sized(found, self._score)} on average"
        return f"; whether the others gain or lose is open ({_signed(found.mean, self._score)} on average)"

    def _seeds_for(self, found: Difference) -> str:
        """Return how many seeds would tell a difference of a size."""
        if math.isnan(found.low):
            return "it is the same with every seed, which does not say how it would vary with others"
        if found.enough is not None:
            return f"about {_number(found.enough)} seeds would tell a difference of this size"
        return "no number of seeds would tell a difference of this size, because all of them split the same data"

    def _names_of_worst(self) -> list[str]:
        """Return the clients that the baseline serves worst with some seed, the most frequent first; [] of many."""
        if self._comparison.shared.dealt:
            return []
        served = (self._comparison.served_worst(place) for place in range(self._seeds))
        names = [name for name, _ in Counter(name for each in served for name in sorted(each)).most_common()]
        return names if len(names) <= MOST_NAMED else []


def _sized(found: Difference, score: Score) -> str:
    """Return the size of a difference with its interval, both without their sign where the difference is clear."""
    sign = -1.0 if found.clear and found.mean < 0.0 else 1.0
    if math.isnan(found.low):
        return _points(sign * found.mean, score)
    low, high = sorted((sign * found.low, sign * found.high))
    return f"{_points(sign * found.mean, score)} ({_plain(low, score)} to {_plain(high, score)})"


def _signed(value: float, score: Score) -> str:
    return f"+{_points(value, score)}" if value > 0.0 else _points(value, score)


def _points(value: float, score: Score) -> str:
    return f"{_plain(value, score)} points" if score.percent else _plain(value, score)


def _plain(value: float, score: Score) -> str:
    return f"{value:.1f}" if score.percent else f"{value:.3g}"


def _number(count: int) -> str:
    return NUMBERS[count] if count < len(NUMBERS) else f"{count:,}"


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


def _shortened(names: Sequence[str]) -> str:
    """Return names as a list, of which the last are counted where they are many."""
    if len(names) <= MOST_LISTED:
        return _listed(names)
    return f"{', '.join(names[:MOST_LISTED])} and {len(names) - MOST_LISTED} more"
