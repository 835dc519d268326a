"""A comparison in at most 80 words: how the baseline serves the worst served, and who does better.

Sentences claim differences by few measures only, the worst-served clients, the mean over all, and
the mean over clients that are not in training, in one family of tests over all methods. If nothing
differs, at most 5 % of verdicts claim anything.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairbloom.protocol.scores import Score
from fairbloom.server.fairness import count_of_share
from fairbloom.text import join_first, plural, round_to, text_if, three_digits

from .caveats import (
    describe_leak,
    describe_same_splits,
    describe_small_tests,
    describe_unscored,
    describe_worst_class,
    join_all,
)
from .compared_scores import ComparedScores
from .differences import (
    FEWEST_SEEDS,
    MEAN,
    NEW_MEAN,
    WORST,
    half_widths,
    mean_by_client,
)
from .noise import REACH, Estimate, is_apart
from .run import frame
from .subject import REFERENCES

if TYPE_CHECKING:
    import pandas

# The most words of the headline and the sentences together.
MOST_WORDS = 80

# The most methods that a sentence names.
MOST_LISTED = 5

# The most clients that a claim names for a loss by another score, or a gain below guessing.
MOST_CLIENTS = 2

# Measures and signs of differences, in the order of their sentences.
EFFECTS = ((WORST, 1), (MEAN, 1), (MEAN, -1), (WORST, -1), (NEW_MEAN, 1), (NEW_MEAN, -1))

# How sentences call the measures, and the signs of differences.
OBJECTS = {
    WORST: "the worst served",
    MEAN: "the mean",
    NEW_MEAN: "the mean of clients not in training",
}
VERBS = {1: "improves", -1: "worsens"}


@dataclass(frozen=True)
class Claim:
    """A significant difference of a method to the baseline."""

    method: str
    measure: str  # one of `differences.CLAIMED`
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
    means = {method: compared.estimate(method, MEAN).value for method in compared.others}
    best_first = sorted(means, key=lambda method: -compared.score.better(means[method], 0.0))
    gaining = _methods_with(compared, WORST, 1)
    losing = _methods_with(compared, MEAN, -1)
    improving = [method for method in best_first if method in gaining and method not in losing]
    claims = tuple(
        Claim(*key, difference.mean)
        for key, difference in compared.claims.items()
        if difference.significant
    )
    unclaimed = {*means} - {
        claim.method for claim in claims if claim.gain > 0.0 and claim.measure != NEW_MEAN
    }
    sentences = [
        *_leak(compared),
        *_claims(compared),
        *describe_worst_class(compared.by_group.get(compared.baseline, ())),
        *_equals(compared),
        *find_contradictions(compared, unclaimed)[:3],
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
    client, in_seeds = _worst_client(compared)
    if client:
        reach = REACH * compared.noise_of_means(compared.baseline).get(client, 0.0)
        value = mean_by_client(compared.values[compared.baseline])[client]
        served = (
            f"{compared.baseline} serves {compared.shown_name(client)} worst{in_seeds}: its test"
            f" {score.words} is"
            f" {Estimate(value, reach, reach).written(score, compared.decimals)}{lower}"
            f"{_below(compared, compared.baseline, client)}"
        )
    else:
        clients_have = plural(
            count_of_share(10, len(compared.tested)),
            "the worst-served client has",
            "the worst-served 10 % of clients have",
        )
        worst = compared.estimate(compared.baseline, WORST).written(score, compared.decimals)
        served = f"Under {compared.baseline} {clients_have} a test {score.words} of {worst}{lower}"
    mean = compared.estimate(compared.baseline, MEAN).written(score, compared.decimals)
    unscored = {client for clients in compared.left_out.values() for client in clients}
    sentences = [f"{served}; the mean is {mean}.", *describe_unscored(unscored, score)]
    of_baseline = compared.runs.get(compared.baseline, ())
    if of_baseline:
        sentences += describe_same_splits(of_baseline[0])
    sentences += describe_small_tests(compared.tested, score)
    return " ".join(sentences)


def _worst_client(compared: ComparedScores) -> tuple[str, str]:
    """Return the client with the worst mean under the baseline, and " (in N of M seeds)".

    The seeds in which it is the worst are counted if no other client is the worst in more, and
    scores have no noise. The name is "" where seeds have other clients, where the worst tenth are
    several, and for means that are equal or that noise does not tell apart.
    """
    if not compared.clients_compared or count_of_share(10, len(compared.tested)) > 1:
        return "", ""
    by_seed = frame(compared.values[compared.baseline])
    served = compared.score.better(1.0, 0.0) * by_seed[compared.clients_compared]
    means = served.mean()
    client = str(means.idxmin())
    noise = compared.noise_of_means(compared.baseline)
    if (means == means.min()).sum() > 1 or not is_apart(client, dict(means), noise):
        return "", ""
    counts = served.idxmin(axis="columns").value_counts()
    return client, text_if(
        len(served) > 1 and counts.get(client) == counts.max() and not noise,
        f" (in {counts.max()} of {len(served)} seeds)",
    )


def _below(compared: ComparedScores, method: str, client: str) -> str:
    """Return that a client's mean is worse than that of a model without inputs, else ""."""
    reference = compared.references.get(client)
    value = mean_by_client(compared.values[method])[client]
    if reference is None or compared.score.better(value, reference) >= 0.0:
        return ""
    _, words = REFERENCES[compared.score.name]
    if not is_apart(client, {client: value, words: reference}, compared.noise_of_means(method)):
        return ""
    worse = "below" if compared.score.higher_is_better else "worse than"
    return f", {worse} {words} ({_written(reference, compared)})"


def _leak(compared: ComparedScores) -> Iterator[str]:
    """Yield that a column gives away the target, if the baseline is perfect with every seed."""
    leaks = [describe_leak(run) for run in compared.runs.get(compared.baseline, ())]
    if leaks and all(leaks):
        yield from leaks[0]


def _limits(compared: ComparedScores) -> Iterator[str]:
    """Yield that there is one client only, and which methods failed."""
    if len(compared.tested) == 1:
        yield "Only one client has a score, so the worst served and the mean are the same."
    for method, reason in compared.failed.items():
        so = "these seeds are left out" if method in compared.methods else "it is not compared"
        yield f"{method} {reason}, so {so}."


# The other methods --------------------------------------------------------------------------------


def _claims(compared: ComparedScores) -> Iterator[str]:
    """Yield all significant differences, that there is none, or why nothing can be claimed."""
    seeds = len(compared.seeds)
    if len(compared.methods) == 1:
        has_run = "has finished" if compared.failed else "was run"
        yield f"No other method {has_run}, so there is nothing to compare."
        return
    if seeds < FEWEST_SEEDS:
        seeds_do = plural(seeds, "A single seed does", "Two seeds do")
        yield f"{seeds_do} not show which method is better: use 5."
        return
    if not any(difference.significant for difference in compared.claims.values()):
        yield (
            f"No method differs significantly from {compared.baseline}, for the worst served or in"
            f" the mean{text_if(compared.held_out_measures, ', also of clients not in training')}."
        )
        return
    if not _methods_with(compared, WORST, 1):
        yield "No method significantly improves the worst served."
    losing = {*_methods_with(compared, MEAN, -1)}
    for measure, sign in EFFECTS:
        methods = _methods_with(compared, measure, sign)
        if methods:
            end = ""
            if (measure, sign) == (WORST, 1) and not losing.intersection(methods):
                end = f", {text_if(len(methods) > 1, 'all ')}without a significant loss in the mean"
            if sign > 0 and measure != NEW_MEAN:
                end += _costs(compared, methods[:MOST_LISTED])
            yield f"{_list_effects(compared, measure, sign, methods)}{end}."


def _costs(compared: ComparedScores, methods: Sequence[str]) -> str:
    """Return which other scores fall under methods and which gains remain below guessing, or ""."""
    clauses = list[str]()
    base = mean_by_client(compared.values[compared.baseline])
    for method in methods:
        mine = mean_by_client(compared.values[method])
        falls = [
            f"{compared.shown_name(name)} loses {' and '.join(lost)}"
            for name, lost in find_losses(compared, method, compared.baseline).items()
        ]
        below = [
            f"{compared.shown_name(name)} remains at {_written(mine[name], compared)}{worse}"
            for name in compared.clients_compared
            if compared.score.better(mine[name], base[name]) > 0.0
            and (worse := _below(compared, method, name))
        ]
        found = [join_first(clients, MOST_CLIENTS) for clients in (falls, below) if clients]
        clauses += [f"under {method} {', and '.join(found)}"] if found else []
    return text_if(clauses, f", but {'; '.join(clauses)}")


def _methods_with(compared: ComparedScores, measure: str, sign: int) -> list[str]:
    """Return the methods with a significant difference of a sign, the largest difference first."""
    found = {
        method: sign * difference.mean
        for (method, of), difference in compared.claims.items()
        if of == measure and sign * difference.mean > 0.0 and difference.significant
    }
    return sorted(found, key=lambda method: -found[method])


def _list_effects(compared: ComparedScores, measure: str, sign: int, methods: Sequence[str]) -> str:
    """Return the sizes of methods' differences by a measure in words; there must be methods.

    The first has its interval. Of many, the last are only counted.
    """
    sizes = [abs(compared.claims[method, measure].mean) for method in methods]
    first = compared.claims[methods[0], measure]
    low, high = sorted((sign * first.low, sign * first.high))
    parts = [
        f"{methods[0]} significantly {VERBS[sign]} {OBJECTS[measure]} by"
        f" {_points(sizes[0], compared)} ({_number(low, compared)} to {_number(high, compared)})"
    ]
    pairs = list(zip(methods, sizes, strict=True))[1:]
    parts += [f"{method} by {_number(size, compared)}" for method, size in pairs[: MOST_LISTED - 1]]
    if more := pairs[MOST_LISTED - 1 :]:
        parts.append(f"{len(more)} more by at least {_number(more[-1][1], compared)}")
    return join_all(parts)


def _equals(compared: ComparedScores) -> Iterator[str]:
    """Yield the methods that equal the baseline with every seed."""
    same = []
    for method in compared.others:
        claims = [compared.claims[method, measure] for measure in (WORST, MEAN)]
        if not any(claim.better or claim.worse for claim in claims):
            same.append(method)
    if same:
        yield (
            f"{join_first(same, MOST_LISTED)} {plural(len(same), 'equals', 'equal')}"
            f" {compared.baseline} with every seed."
        )


def _written(value: float, compared: ComparedScores) -> str:
    return compared.score.written(value, compared.decimals)


def _points(value: float, compared: ComparedScores) -> str:
    unit = "points" if compared.score.percent else compared.score.measured_in
    return f"{_number(value, compared)}{text_if(unit, f' {unit}')}"


def _number(value: float, compared: ComparedScores) -> str:
    return round_to(value, compared.gain_decimals)


# Other scores -------------------------------------------------------------------------------------


def find_contradictions(compared: ComparedScores, methods: Iterable[str]) -> list[str]:
    """Return sentences on clients that gain by the first score under methods and lose by others.

    The largest gains come first. The 95 % interval of each gain and loss over the seeds
    excludes zero, so the client has the scores under both methods in at least three seeds.
    """
    found = list[tuple[float, str]]()
    for method in methods:
        gains = _gains(compared, method, compared.baseline, compared.score)
        for client, lost in find_losses(compared, method, compared.baseline).items():
            gain = gains.get(client, 0.0)
            if gain > 0.0:
                name = compared.shown_name(client)
                size = _size(gain, compared.score)
                but = f"but loses {' and '.join(lost)}"
                found.append((gain, f"{name} gains {size} under {method}, {but}."))
    return [sentence for _, sentence in sorted(found, key=lambda weighted: -weighted[0])]


def find_losses(compared: ComparedScores, method: str, than: str) -> dict[str, list[str]]:
    """Return by client how much less of other scores it has under a method than under another.

    The 95 % intervals of the losses exclude zero.
    """
    found: dict[str, list[str]] = {}
    for score in compared.scores[1:]:
        gains = _gains(compared, method, than, score)
        for client in gains.index[gains < 0.0].intersection(compared.clients_compared):
            found.setdefault(client, []).append(_size(gains[client], score))
    return found


def _gains(
    compared: ComparedScores, method: str, than: str, score: Score
) -> "pandas.Series[float]":
    """Return the clients' mean gain over a method, 0 unless its 95 % interval excludes zero."""
    finals = compared.finals[compared.finals["score"] == score.name]
    values = finals.set_index(["seed", "client"])["value"]
    mine = values[(finals["method"] == method).to_numpy()]
    base = values[(finals["method"] == than).to_numpy()]
    by_client = (score.better(1.0, 0.0) * (mine - base)).dropna().groupby("client")
    mean = by_client.mean()
    reach = half_widths(by_client.std(), by_client.size(), compared.shared.test_share)
    return mean.where(mean.abs() > reach, 0.0)


def _size(gain: float, score: Score) -> str:
    """Return a gain without its sign as text: "10.1 points of balanced accuracy"."""
    number = f"{abs(gain):.1f} points" if score.percent else three_digits(abs(gain))
    return f"{number} of {score.words}"
