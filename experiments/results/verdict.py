"""A comparison in at most 80 words: how the baseline serves the worst served, and who does better.

Sentences claim differences by two measures only, the worst-served clients and the mean over all, in
one family of tests over all methods. If nothing differs, at most 5 % of verdicts claim anything.
"""

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairbloom.protocol.scores import ACCURACY, Score
from fairbloom.server.fairness import count_of_share
from fairbloom.text import plural, text_if

from .caveats import describe_leak, describe_small_tests, join_all
from .compared_scores import ComparedScores
from .differences import CLAIMED, FEWEST_SEEDS, MEAN, WORST, half_width, half_widths

if TYPE_CHECKING:
    import pandas

# The most words of the headline and the sentences together.
MOST_WORDS = 80

# The most methods that a sentence names.
MOST_LISTED = 5

# The scores that may contradict the first one: predicting the larger class more often raises
# neither.
AGAINST = ("auc", "balanced-accuracy")

# Measures and signs of differences, in the order of their sentences.
EFFECTS = ((WORST, 1), (MEAN, 1), (MEAN, -1), (WORST, -1))

# How sentences call the measures, and the signs of differences.
OBJECTS = {WORST: "the worst served", MEAN: "the mean"}
VERBS = {1: "improves", -1: "worsens"}


@dataclass(frozen=True)
class Claim:
    """A significant difference of a method to the baseline."""

    method: str
    measure: str  # one of CLAIMED
    gain: float  # positive is better


@dataclass(frozen=True)
class Verdict:
    """The findings of a comparison: headline and sentences have at most 80 words together.

    `improving` are the methods that significantly improve the worst-served clients and do not
    significantly worsen the mean, best mean first.
    """

    headline: str
    sentences: tuple[str, ...] = ()
    further: tuple[str, ...] = ()  # the sentences beyond 80 words
    claims: tuple[Claim, ...] = ()  # the significant differences
    improving: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the sentences."""
        return " ".join((self.headline, *self.sentences, *self.further))


def verdict_of(compared: ComparedScores) -> Verdict:
    """Return the findings of a comparison."""
    means = {method: compared.spread(method, MEAN)[0] for method in compared.others}
    best_first = sorted(means, key=lambda method: -compared.score.better(means[method], 0.0))
    gaining = _methods_with(compared, WORST, 1)
    losing = _methods_with(compared, MEAN, -1)
    improving = [method for method in best_first if method in gaining and method not in losing]
    claims = tuple(
        Claim(*key, difference.mean)
        for key, difference in compared.claims.items()
        if difference.significant
    )
    sentences = [
        *_leak(compared),
        *_too_little(compared),
        *_claims(compared),
        *_suggestions(compared),
        *_precision(compared),
        *_equals(compared),
        *find_contradictions(compared)[:3],
        *_limits(compared),
    ]
    headline = _headline(compared)
    room = MOST_WORDS - len(headline.split())
    shown: list[str] = []
    while sentences and (room := room - len(sentences[0].split())) >= 0:
        shown.append(sentences.pop(0))
    return Verdict(headline, tuple(shown), tuple(sentences), claims, tuple(improving))


# The baseline -------------------------------------------------------------------------------------


def _headline(compared: ComparedScores) -> str:
    """Return how the baseline serves the worst-served clients, and all on average."""
    score = compared.score
    lower = text_if(not score.higher_is_better, " (lower is better)")
    client, seeds = _worst_client(compared)
    if client:
        own = [values[client] for values in compared.values[compared.baseline] if client in values]
        value = statistics.fmean(own)
        in_seeds = f" (in {seeds} of {len(compared.seeds)} seeds)"
        served = (
            f"{compared.baseline} serves {compared.shown_name(client)} worst"
            f"{text_if(len(compared.seeds) > 1, in_seeds)}: its test {score.words} is"
            f" {score.written(value)}{lower}{_compare_with_guessing(compared, client, value)}"
        )
    else:
        clients_have = (
            "the worst-served client has"
            if count_of_share(10, len(compared.tested)) == 1
            else "the worst-served 10 % of clients have"
        )
        worst = score.written(compared.spread(compared.baseline, WORST)[0])
        served = f"Under {compared.baseline} {clients_have} a test {score.words} of {worst}{lower}"
    mean = score.written(compared.spread(compared.baseline, MEAN)[0])
    return " ".join(
        [f"{served}; the mean is {mean}.", *describe_small_tests(compared.tested, score)]
    )


def _worst_client(compared: ComparedScores) -> tuple[str, int]:
    """Return the client that the baseline serves worst in most seeds, and the number of these.

    The name is "" where seeds have other clients, where the worst tenth are several clients, and
    where no client is worst in most seeds.
    """
    score = compared.score
    by_seed = compared.values[compared.baseline]
    differ = compared.shared.clients_differ and len(by_seed) > 1
    if differ or count_of_share(10, len(compared.tested)) > 1:
        return "", 0
    worst = Counter(
        min(values, key=lambda name: (score.better(values[name], 0.0), name)) for values in by_seed
    )
    client, seeds = worst.most_common(1)[0]
    return (client, seeds) if 2 * seeds > len(by_seed) else ("", 0)


def _compare_with_guessing(compared: ComparedScores, client: str, accuracy: float) -> str:
    """Return that a client's accuracy is below that of always guessing its larger class, or ""."""
    share = compared.larger_classes.get(client, 0.0)
    if compared.score.name != ACCURACY.name or not accuracy < share:
        return ""
    return f", below always guessing its larger class ({share:.0f} %)"


def _leak(compared: ComparedScores) -> Iterator[str]:
    """Yield that a column gives away the target, if the baseline is perfect with every seed."""
    leaks = [describe_leak(run) for run in compared.runs.get(compared.baseline, ())]
    if leaks and all(leaks):
        yield from leaks[0]


def _limits(compared: ComparedScores) -> Iterator[str]:
    """Yield that there is one client only, and which methods failed."""
    if len(compared.tested) == 1:
        yield "There is only one client, so the worst served and the mean are the same."
    for method, reason in compared.failed.items():
        so = "these seeds are left out" if method in compared.methods else "it is not compared"
        yield f"{method} {reason}, so {so}."


# The other methods --------------------------------------------------------------------------------


def _too_little(compared: ComparedScores) -> Iterator[str]:
    """Yield why nothing can be claimed: there is one method, or too few seeds."""
    seeds = len(compared.seeds)
    if len(compared.methods) == 1:
        has_run = "has finished" if compared.failed else "was run"
        yield f"No other method {has_run}, so there is nothing to compare."
    elif seeds < FEWEST_SEEDS:
        seeds_do = plural(seeds, "A single seed does", "Two seeds do")
        yield f"{seeds_do} not show which method is better: use 5."


def _claims(compared: ComparedScores) -> Iterator[str]:
    """Yield all significant differences with their sizes, or that there is none."""
    if len(compared.methods) == 1 or len(compared.seeds) < FEWEST_SEEDS:
        return
    others = compared.others
    subject = f"{others[0]} does not" if len(others) == 1 else "No method"
    if not any(difference.significant for difference in compared.claims.values()):
        differs = "differ" if len(others) == 1 else "differs"
        yield (
            f"{subject} {differs} significantly from {compared.baseline}, for the worst served or"
            " in the mean."
        )
        return
    if not _methods_with(compared, WORST, 1):
        improves = "improve" if len(others) == 1 else "improves"
        yield f"{subject} significantly {improves} the worst served."
    for measure, sign in EFFECTS:
        methods = _methods_with(compared, measure, sign)
        end = ""
        if (measure, sign) == (WORST, 1):
            losing = _methods_with(compared, MEAN, -1)
            cost = f", {text_if(len(methods) > 1, 'all ')}without a significant loss in the mean"
            end = text_if(not {*losing} & {*methods}, cost)
        yield from _list_effects(compared, measure, sign, methods, "significantly ", end)


def _suggestions(compared: ComparedScores) -> Iterator[str]:
    """Yield the differences that only the correction makes insignificant, and where to look."""
    before = "Before the correction for several comparisons, "
    for measure, sign in EFFECTS:
        methods = _methods_with(compared, measure, sign, corrected=False)
        for sentence in _list_effects(compared, measure, sign, methods):
            yield f"{before}{sentence}"
            before = "Before it, "
        if methods and (measure, sign) == (WORST, 1):
            gain = compared.claims[methods[0], WORST].mean
            claimed = _methods_with(compared, WORST, 1)
            if not claimed or gain > compared.claims[claimed[0], WORST].mean:
                yield f"Look first at {methods[0]} ({_points(gain, compared.score)})."


def _methods_with(
    compared: ComparedScores, measure: str, sign: int, *, corrected: bool = True
) -> list[str]:
    """Return the methods with a significant difference of a sign, the largest difference first.

    Without `corrected`, they are those that only Holm's correction keeps from being significant.
    """
    found = {
        method: sign * difference.mean
        for (method, of), difference in compared.claims.items()
        if of == measure
        and sign * difference.mean > 0.0
        and difference.excludes_zero
        and difference.significant == corrected
    }
    return sorted(found, key=lambda method: -found[method])


def _list_effects(
    compared: ComparedScores,
    measure: str,
    sign: int,
    methods: Sequence[str],
    adverb: str = "",
    end: str = "",
) -> Iterator[str]:
    """Yield a sentence on the sizes of methods' differences by a measure, if there are methods.

    The first has its interval. Of many, the last are only counted.
    """
    if not methods:
        return
    score = compared.score
    sizes = [abs(compared.claims[method, measure].mean) for method in methods]
    first = compared.claims[methods[0], measure]
    low, high = sorted((sign * first.low, sign * first.high))
    interval = f"{_number(low, score)} to {_number(high, score)}"
    parts = [
        f"{methods[0]} {adverb}{VERBS[sign]} {OBJECTS[measure]} by {_points(sizes[0], score)}"
        f" ({interval})"
    ]
    pairs = list(zip(methods, sizes, strict=True))[1:]
    parts += [f"{method} by {_number(size, score)}" for method, size in pairs[: MOST_LISTED - 1]]
    if more := pairs[MOST_LISTED - 1 :]:
        parts.append(f"{len(more)} more by at least {_number(more[-1][1], score)}")
    yield f"{join_all(parts)}{end}."


def _precision(compared: ComparedScores) -> Iterator[str]:
    """Yield how wide intervals are, and would be with twice the seeds, if no gain is claimed."""
    seeds = len(compared.seeds)
    found = [
        difference
        for (_, measure), difference in compared.claims.items()
        if measure == WORST and difference.error > 0.0  # NaN with too few seeds
    ]
    if not found or _methods_with(compared, WORST, 1):
        return
    share = compared.shared.test_share
    now = statistics.median((each.high - each.low) / 2.0 for each in found)
    then = statistics.median(half_width(each, 2 * seeds, share) for each in found)
    yield (
        f"Intervals for the worst served are typically ±{_points(now, compared.score)}; with"
        f" {2 * seeds} seeds instead of {seeds}, about ±{_number(then, compared.score)}."
    )


def _equals(compared: ComparedScores) -> Iterator[str]:
    """Yield the methods that equal the baseline with every seed."""
    same = [
        method
        for method in compared.others
        if all(compared.claims[method, measure].is_zero for measure in CLAIMED)
    ]
    if not same:
        return
    names = [*same[:MOST_LISTED]]
    if more := len(same) - len(names):
        names.append(f"{more} more")
    verb = plural(len(same), "equals", "equal")
    yield f"{join_all(names)} {verb} {compared.baseline} with every seed."


def _points(value: float, score: Score) -> str:
    number = _number(value, score)
    return f"{number} points" if score.percent else number


def _number(value: float, score: Score) -> str:
    """Return a number as text, without a minus if it rounds to zero."""
    if not score.percent or 0.0 < abs(value) < 0.05:
        return f"{value + 0.0:.2g}" if score.percent else f"{value + 0.0:.3g}"
    return f"{round(value, 1) + 0.0:.1f}"


# Other scores -------------------------------------------------------------------------------------


def find_contradictions(compared: ComparedScores) -> list[str]:
    """Return sentences on clients that gain by the first score and lose by others.

    The largest gains come first. The 95 % interval of each gain and loss over the seeds
    excludes zero, so the client has the scores under both methods in at least three seeds.
    """
    found = list[tuple[float, str]]()
    first, *rest = compared.scores
    others = [score for score in rest if score.name in AGAINST]
    for method in compared.others:
        gains = _gains(compared, method, first)
        other_gains = [_gains(compared, method, score) for score in others]
        for client in compared.clients_compared:
            gain = gains.get(client, 0.0)
            lost = [
                _size(loss, score)
                for by_client, score in zip(other_gains, others, strict=True)
                if (loss := by_client.get(client, 0.0)) < 0.0
            ]
            if gain > 0.0 and lost:
                sentence = (
                    f"{client} gains {_size(gain, first)} under {method}, but loses"
                    f" {' and '.join(lost)}."
                )
                found.append((gain, sentence))
    return [sentence for _, sentence in sorted(found, key=lambda each: -each[0])]


def _gains(compared: ComparedScores, method: str, score: Score) -> "pandas.Series[float]":
    """Return the mean gain of clients by a score, 0 unless its 95 % interval excludes zero."""
    finals = compared.finals[compared.finals["score"] == score.name]
    values = finals.set_index(["seed", "client"])["value"]
    mine = values[(finals["method"] == method).to_numpy()]
    base = values[(finals["method"] == compared.baseline).to_numpy()]
    by_client = (score.better(1.0, 0.0) * (mine - base)).dropna().groupby("client")
    mean = by_client.mean()
    reach = half_widths(by_client.std(), by_client.size(), compared.shared.test_share)
    return mean.where(mean.abs() > reach, 0.0)


def _size(gain: float, score: Score) -> str:
    """Return a gain without its sign as text: "10.1 points of balanced accuracy"."""
    number = f"{abs(gain):.1f} points" if score.percent else f"{abs(gain):.3g}"
    return f"{number} of {score.words}"
