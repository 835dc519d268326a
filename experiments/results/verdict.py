"""A comparison in at most 60 words: how the baseline serves the worst served, and who does better.

Sentences claim differences by two measures only, the worst-served clients and the mean over all, in
one family of tests over all methods. If nothing differs, at most 5 % of verdicts claim anything.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairbloom.protocol.scores import Score
from fairbloom.server.fairness import count_of_share
from fairbloom.tasks.tables.targets import join_names
from fairbloom.text import plural, text_if

from .caveats import FEW_CLIENTS, FEWEST_EXAMPLES, join_all
from .compared_scores import ComparedScores
from .differences import CLAIMED, FEWEST_SEEDS, MEAN, WORST

if TYPE_CHECKING:
    import pandas

# The most words of the headline and the sentences together.
MOST_WORDS = 60

# The most methods that a sentence names.
MOST_LISTED = 3

# The scores that may contradict the first one: predicting the larger class more often raises
# neither.
AGAINST = ("auc", "balanced-accuracy")

# Signs of significant effects on the worst served and the mean, in the order of sentences.
EFFECTS = ((1, 1), (1, 0), (1, -1), (0, 1), (0, -1), (-1, 1), (-1, 0), (-1, -1))


@dataclass(frozen=True)
class Claim:
    """A significant difference of a method to the baseline."""

    method: str
    measure: str  # one of CLAIMED
    gain: float  # positive is better


@dataclass(frozen=True)
class Verdict:
    """The findings of a comparison: headline and sentences have at most 60 words together.

    `improving` are the methods that significantly improve the worst-served clients and do not
    significantly worsen the mean, best mean first.
    """

    headline: str
    sentences: tuple[str, ...] = ()
    further: tuple[str, ...] = ()  # the sentences beyond 60 words
    claims: tuple[Claim, ...] = ()  # the significant differences
    improving: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the sentences."""
        return " ".join((self.headline, *self.sentences, *self.further))


def verdict_of(compared: ComparedScores) -> Verdict:
    """Return the findings of a comparison."""
    methods = [method for method in compared.methods if method != compared.baseline]
    means = {method: compared.spread(method, MEAN)[0] for method in methods}
    best_first = sorted(methods, key=lambda method: -compared.score.better(means[method], 0.0))
    improving = [
        method
        for method in best_first
        if _sign(compared, method, WORST) > 0 and _sign(compared, method, MEAN) >= 0
    ]
    claims = tuple(
        Claim(*key, difference.mean)
        for key, difference in compared.claims.items()
        if difference.significant
    )
    sentences = [
        *_answer(compared, improving),
        *_effects(compared, [method for method in best_first if method not in improving[:1]]),
        *_equals(compared, methods),
        *find_contradictions(compared)[:3],
        *_limits(compared),
    ]
    headline = _headline(compared)
    room = MOST_WORDS - len(headline.split())
    shown: list[str] = []
    while sentences and (room := room - len(sentences[0].split())) >= 0:
        shown.append(sentences.pop(0))
    return Verdict(headline, tuple(shown), tuple(sentences), claims, tuple(improving))


def _headline(compared: ComparedScores) -> str:
    """Return how the baseline serves the worst-served clients, and all on average."""
    score = compared.score
    clients_have = "the worst-served 10 % of clients have"
    if count_of_share(10, len(compared.tested)) == 1:
        clients_have = "the worst-served client has"
    lower = text_if(not score.higher_is_better, " (lower is better)")
    worst = score.written(compared.spread(compared.baseline, WORST)[0])
    mean = score.written(compared.spread(compared.baseline, MEAN)[0])
    return (
        f"Under {compared.baseline} {clients_have} a test {score.words} of {worst}{lower}; the mean"
        f" is {mean}."
    )


def _limits(compared: ComparedScores) -> Iterator[str]:
    """Yield how many clients and examples the scores are of, and which methods failed."""
    tested = compared.tested
    if len(tested) == 1:
        yield "There is only one client."
    elif len(tested) < FEW_CLIENTS:
        yield f"There are only {len(tested)} clients."
    if few := sum(count < FEWEST_EXAMPLES for count in tested.values()):
        verb = plural(few, "is", "are")
        yield (
            f"{few} of {len(tested)} clients {verb} tested on fewer than {FEWEST_EXAMPLES}"
            " examples."
        )
    for method, reason in compared.failed.items():
        left_out = method in compared.methods
        so = "these seeds are left out" if left_out else "it is not compared"
        yield f"{method} {reason}, so {so}."


def _sign(compared: ComparedScores, method: str, measure: str) -> int:
    """Return 1 if a method is significantly better than the baseline, -1 if worse, else 0."""
    difference = compared.claims[method, measure]
    if not difference.significant:
        return 0
    return 1 if difference.mean > 0.0 else -1


def _answer(compared: ComparedScores, improving: Sequence[str]) -> Iterator[str]:
    """Yield whether a method improves the worst served without worsening the mean."""
    seeds = len(compared.seeds)
    baseline = compared.baseline
    if len(compared.methods) == 1:
        has_run = "has finished" if compared.failed else "was run"
        yield f"No other method {has_run}, so there is nothing to compare."
    elif seeds < FEWEST_SEEDS:
        seeds_do = plural(seeds, "A single seed does", "Two seeds do")
        yield f"{seeds_do} not show which method is better: use 5."
    elif improving:
        yield _improvement(compared, improving[0])
    elif any(difference.significant for difference in compared.claims.values()):
        yield "No method significantly improves the worst served without worsening the mean."
    elif len(compared.methods) == 2:
        (other,) = (method for method in compared.methods if method != baseline)
        yield (
            f"{other} does not differ significantly from {baseline}, for the worst served or in the"
            " mean."
        )
    else:
        yield (
            f"No method differs significantly from {baseline}, for the worst served or in the mean."
        )


def _improvement(compared: ComparedScores, method: str) -> str:
    """Return by how much a method improves the worst served, with its interval, and the mean."""
    score = compared.score
    worst = compared.claims[method, WORST]
    mean = compared.claims[method, MEAN]
    also = "without a significant loss in the mean"
    if mean.significant:
        also = f"and the mean, by {_points(mean.mean, score)}"
    size = _points(worst.mean, score)
    interval = f"{_number(worst.low, score)} to {_number(worst.high, score)}"
    return f"{method} significantly improves the worst served, by {size} ({interval}), {also}."


def _effects(compared: ComparedScores, methods: Sequence[str]) -> Iterator[str]:
    """Yield the significant effects of methods, one sentence for methods with the same effects."""
    verbs = {1: "improve", -1: "worsen"}
    for effects in EFFECTS:
        alike = [
            method
            for method in methods
            if (_sign(compared, method, WORST), _sign(compared, method, MEAN)) == effects
        ]
        worst, mean = effects
        s = plural(len(alike), "s", "")
        parts = []
        if worst:
            parts.append(f"{verbs[worst]}{s} the worst served")
        if mean:
            parts.append(f"{verbs[mean]}{s} the mean")
        predicate = f"{verbs[mean]}{s} both" if worst == mean else " but ".join(parts)
        yield from _list(alike, predicate)


def _equals(compared: ComparedScores, methods: Sequence[str]) -> Iterator[str]:
    """Yield the methods that equal the baseline with every seed, and their personal models."""
    same = [
        method
        for method in methods
        if all(compared.claims[method, measure].is_zero for measure in CLAIMED)
    ]
    verb = plural(len(same), "equals", "equal")
    yield from _list(same, f"{verb} {compared.baseline} with every seed")
    if rows := [row for method in same if (row := compared.personal_row(method))]:
        yield f"Look at {join_all(rows)}."


def _list(methods: Sequence[str], predicate: str) -> Iterator[str]:
    """Yield a sentence on methods, if there are any; of many, the last are only counted."""
    if not methods:
        return
    many = len(methods) > MOST_LISTED
    subject = join_names(methods, MOST_LISTED) if many else join_all(methods)
    yield f"{subject} {predicate}."


def _points(value: float, score: Score) -> str:
    number = _number(value, score)
    return f"{number} points" if score.percent else number


def _number(value: float, score: Score) -> str:
    """Return a number as text, without a minus if it rounds to zero."""
    return f"{round(value, 1) + 0.0:.1f}" if score.percent else f"{value + 0.0:.3g}"


# Other scores -------------------------------------------------------------------------------------


def find_contradictions(compared: ComparedScores) -> list[str]:
    """Return sentences on clients that gain by the first score and lose by others.

    The largest gains come first. For each score, the client has it under both methods in at least
    three seeds, and moves that way in most of them.
    """
    found = list[tuple[float, str]]()
    finals = compared.finals
    first, *rest = compared.scores
    others = [score for score in rest if score.name in AGAINST]
    for method in compared.methods:
        if method == compared.baseline:
            continue
        gains = _gains(finals, method, compared.baseline, first)
        other_gains = [_gains(finals, method, compared.baseline, score) for score in others]
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


def _gains(
    finals: "pandas.DataFrame", method: str, baseline: str, score: Score
) -> "pandas.Series[float]":
    """Return the mean gain of clients by a score.

    It is 0 with too few seeds, and if at most half of the seeds agree with its sign.
    """
    of_score = finals[finals["score"] == score.name]
    values = of_score.set_index(["seed", "client"])["value"]
    mine = values[(of_score["method"] == method).to_numpy()]
    base = values[(of_score["method"] == baseline).to_numpy()]
    by_client = (score.better(1.0, 0.0) * (mine - base)).dropna().groupby("client")
    mean = by_client.mean()
    agree = by_client.agg(lambda gains: (gains * gains.mean() > 0.0).mean())
    return mean.where((by_client.size() >= FEWEST_SEEDS) & (agree > 0.5), 0.0)


def _size(gain: float, score: Score) -> str:
    """Return a gain without its sign as text: "10.1 points of balanced accuracy"."""
    number = f"{abs(gain):.1f} points" if score.percent else f"{abs(gain):.3g}"
    return f"{number} of {score.words}"
