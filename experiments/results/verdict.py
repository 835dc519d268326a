"""What a comparison shows, in sentences: who gains, what it costs the others, and how sure that is.

The verdict claims by one measure alone, the score of the worst-served clients that are tested on enough examples, so
that where nothing differs it claims something in 5 % of comparisons at most. All other numbers are descriptive.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairbloom.errors import FairbloomError
from fairbloom.protocol.scores import Score
from fairbloom.server.fairness import count_of_share
from fairbloom.tasks.files.targets import join_names

from .caveats import FEWEST_EXAMPLES, join_all
from .differences import FEWEST_SEEDS, Difference
from .measured import measure_title

if TYPE_CHECKING:
    from .comparison import Comparison

WORST, OTHERS, MEAN = "worst_10", "others", "mean"
"""The measures that a verdict is about: the worst-served tenth under each method, the only one that it claims by; the
mean over the clients that are not in the baseline's worst-served tenth; and the mean over all."""

FEW_CLIENTS = 10
"""Among so many clients the worst served are named."""

NUMBERS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty"),
)


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
    if len(comparison.methods) == 1:
        words = _Words(comparison, comparison)
        why = "no other method has finished" if comparison.failed else "no other method was run"
        return Verdict(f"There is nothing to compare {comparison.baseline} with: {why}.", words.level)
    among = comparison.decisive
    if among is None:
        return Verdict(
            "Which method serves the worst-served client best cannot be decided: fewer than two clients are tested on "
            f"{FEWEST_EXAMPLES} examples or more. Collect more rows, or raise test-share.",
            (),
        )
    words, worst = _Words(comparison, among), among.differences(WORST)
    if len(among.seeds) < FEWEST_SEEDS:
        return Verdict(words.too_few_seeds, (*words.level, *words.best_seen(worst), *words.left_out))
    gained = sorted((m for m, each in worst.items() if each.clear and each.mean > 0.0), key=lambda m: -worst[m].mean)
    lost = sorted((m for m, each in worst.items() if each.clear and each.mean < 0.0), key=lambda m: worst[m].mean)
    undecided = [method for method in worst if method not in (*gained, *lost)]
    if gained:
        headline, rest = words.lifts(gained[0], worst[gained[0]]), gained[1:]
    else:
        headline, rest = words.none_lifts(list(worst), lost), []
    sentences = (
        *words.level,
        *words.fewer_seeds(worst[gained[0]] if gained else None),
        *words.listed("better for", rest, worst),
        *words.listed("worse for", lost, worst),
        *words.undecided(undecided, worst, everyone=not gained and not lost),
        *words.left_out,
        words.untested("mean over clients", comparison.differences(MEAN), comparison.score),
        *words.gaps(),
    )
    return Verdict(headline, sentences)


class _Words:
    """The sentences on one comparison, of which the claims go by a part of its clients and seeds."""

    def __init__(self, comparison: "Comparison", among: "Comparison") -> None:
        self._comparison, self._among = comparison, among
        self._base, self._score = comparison.baseline, comparison.score
        clients = among.client_count
        self._single = count_of_share(10, clients) == 1
        served = "the worst-served client" if self._single else "the worst-served 10 % of the clients"
        names = self._names_of_worst() if clients <= FEW_CLIENTS else []
        self._who = f"{served} ({' or '.join(names)})" if names else served
        self._whom = served
        self._what = "" if self._score.name == "accuracy" else f"the {self._score.name} of "

    @property
    def level(self) -> tuple[str]:
        """How the baseline serves the clients."""
        worst = self._score.written(self._among.spread(self._base, WORST)[0])
        mean = self._score.written(self._comparison.spread(self._base, MEAN)[0])
        served = f"{self._whom} has" if self._single else f"{self._whom} have"
        lower = "" if self._score.higher_is_better else " (lower is better)"
        return (f"Under {self._base} {served} a test {self._score.name} of {worst}, and the mean is {mean}{lower}.",)

    @property
    def left_out(self) -> list[str]:
        """Which clients and seeds the claims do not go by."""
        found, every = [], len(self._comparison.seeds)
        if self._among is not self._comparison:
            found.append(
                f"Clients that are tested on fewer than {FEWEST_EXAMPLES} examples are in the tables, but do not count "
                "here, apart from the mean."
            )
        if seeds := every - len(self._among.seeds):
            found.append(
                f"Nor do {_number(seeds)} of the {_number(every)} seeds, with which fewer than two clients are left."
            )
        return found

    @property
    def too_few_seeds(self) -> str:
        """That nothing is claimed with so few seeds."""
        seeds = "A single seed does" if len(self._among.seeds) == 1 else "Two seeds do"
        return f"{seeds} not show which method is better: compare with 5 seeds or more."

    def best_seen(self, worst: Mapping[str, Difference]) -> list[str]:
        """Return the largest gain that was seen with too few seeds to claim anything."""
        best = max(worst, key=lambda method: worst[method].mean)
        seeds = "this seed" if len(self._among.seeds) == 1 else "these seeds"
        if worst[best].mean <= 0.0:
            return [f"With {seeds} no method does better than {self._base} for {self._who}."]
        return [f"With {seeds} {best} does best for {self._who}: {_points(worst[best].mean, self._score)} better."]

    def lifts(self, method: str, found: Difference) -> str:
        """Return by how much a method significantly helps the worst served, and what becomes of the others."""
        verb = "lifts" if self._score.higher_is_better else "lowers"
        return f"{method} {verb} {self._what}{self._who} by {_sized(found, self._score)}{self._of_others(method)}."

    def fewer_seeds(self, found: Difference | None) -> list[str]:
        """Return how many seeds would have been enough for what is claimed, where these are fewer."""
        if found is None or found.enough is None or found.enough >= found.seeds:
            return []
        return [f"{_number(found.enough).capitalize()} seeds would have been enough."]

    def none_lifts(self, methods: Sequence[str], lost: Sequence[str]) -> str:
        """Return that no method significantly helps the worst served."""
        if lost:
            return f"No method is significantly better than {self._base} for {self._what}{self._who}."
        if len(methods) == 1:
            return f"{methods[0]} and {self._base} do not differ significantly for {self._what}{self._who}."
        return f"No method differs significantly from {self._base} for {self._what}{self._who}."

    def listed(self, how: str, methods: Sequence[str], worst: Mapping[str, Difference]) -> list[str]:
        """Return the methods that are significantly better, or worse, for the worst served."""
        if not methods:
            return []
        sizes = [f"{method} by {_sized(worst[method], self._score)}" for method in methods]
        return [f"Clearly {how} {self._whom}{' as well' if how.startswith('better') else ''}: {_shortened(sizes)}."]

    def undecided(self, methods: Sequence[str], worst: Mapping[str, Difference], *, everyone: bool) -> list[str]:
        """Return which methods do not differ significantly, and how many seeds the largest gain would take."""
        same = [method for method in methods if worst[method].zero]
        others = [method for method in methods if method not in same]
        sentences = self._equal(same)
        if not others:
            return sentences
        if not everyone:
            do = "does" if len(others) == 1 else "do"
            sentences.append(f"{_shortened(others)} {do} not differ significantly from {self._base} for {self._whom}.")
        largest = max(others, key=lambda method: (worst[method].mean, method))
        found = worst[largest]
        if found.mean <= 0.0:
            none = f"{others[0]} is not" if len(others) == 1 else "None of the others is"
            return [*sentences, f"{none} better for {self._whom} on average."] if everyone else sentences
        seen = f"The difference of {largest} is {_sized(found, self._score)}"
        if len(others) > 1:
            seen = f"The largest gain of these is that of {largest}, {_sized(found, self._score)}"
        chance, tested = "", sum(not each.zero for each in worst.values())
        if found.low > 0.0 and tested > 1:
            chance = f" Its interval is above zero, but with {_number(tested)} methods one is so more often by chance."
        return [*sentences, f"{seen}: {self._seeds_for(found)}.{chance}"]

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
            self.untested(f"{measure_title(gap, 0)} between groups", self._comparison.differences(gap), score)
            for gap, score in self._comparison.gaps_compared.items()
        ]

    def untested(self, measure: str, found: Mapping[str, Difference], score: Score) -> str:
        """Return how much better methods are on average by a measure that is not tested, in the unit of a score."""
        sizes = [
            f"{method} is {_points(abs(each.mean), score)} {'better' if each.mean > 0.0 else 'worse'}"
            if each.mean
            else f"{method} is equal"
            for method, each in found.items()
        ]
        return f"Not tested: by the {measure}, {_shortened(sizes)}."

    def _of_others(self, method: str) -> str:
        """Return what becomes of the others on average, which is not tested."""
        try:
            mean = self._among.difference(method, OTHERS).mean
        except FairbloomError:  # there is but one client
            return ""
        size = f"{_points(abs(mean), self._score)} on average (not tested)"
        return f" and costs the others {size}" if mean < 0.0 else f", and the others gain {size}"

    def _seeds_for(self, found: Difference) -> str:
        """Return how many seeds would be enough to detect a difference of a size."""
        if math.isnan(found.low):
            return "it is the same with every seed, which does not say how it would vary with others"
        size = "seeds would be enough to detect a difference of this size"
        if found.enough is not None:
            return f"about {_number(found.enough)} {size}"
        return f"no number of {size}, because all of them split the same data"

    def _names_of_worst(self) -> list[str]:
        """Return the clients that the baseline serves worst with some seed, the most frequent first; [] of many."""
        if self._comparison.shared.dealt:
            return []
        served = (self._among.served_worst(place) for place in range(len(self._among.seeds)))
        names = [name for name, _ in Counter(name for each in served for name in sorted(each)).most_common()]
        return names if len(names) <= 3 else []


def _sized(found: Difference, score: Score) -> str:
    """Return the size of a difference with its interval, both without their sign where the difference is clear."""
    sign = -1.0 if found.clear and found.mean < 0.0 else 1.0
    if math.isnan(found.low):
        return _points(sign * found.mean, score)
    low, high = sorted((sign * found.low, sign * found.high))
    return f"{_points(sign * found.mean, score)} ({_plain(low, score)} to {_plain(high, score)})"


def _points(value: float, score: Score) -> str:
    return f"{_plain(value, score)} points" if score.percent else _plain(value, score)


def _plain(value: float, score: Score) -> str:
    return f"{value:.1f}" if score.percent else f"{value:.3g}"


def _number(count: int) -> str:
    return NUMBERS[count] if count < len(NUMBERS) else f"{count:,}"


def _shortened(names: Sequence[str]) -> str:
    """Return names as a list, of which the last are counted where they are many."""
    most = 6
    return join_all(names) if len(names) <= most else join_names(names, most)
