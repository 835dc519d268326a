"""What a comparison shows, in at most 60 words: how the baseline serves the worst served, and who does better.

Sentences claim by two measures alone, the worst-served clients and the mean over all, for all
methods in one family of tests: where nothing differs, a verdict claims something in 5 % of
comparisons at most.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairbloom.protocol.scores import Score
from fairbloom.server.fairness import count_of_share
from fairbloom.tasks.tables.targets import join_names

from .caveats import FEW_CLIENTS, FEWEST_EXAMPLES, join_all
from .differences import FEWEST_SEEDS

if TYPE_CHECKING:
    import pandas

    from .comparison import Comparison

WORST = "worst_10"
MEAN = "mean"
CLAIMED = (WORST, MEAN)
"""The measures that sentences may claim by: the worst-served tenth under each method, and the mean
over all clients."""

MOST_WORDS = 60
MOST_LISTED = 3
"""Of a verdict, and of a list of methods in a sentence."""


AGAINST = ("auc", "balanced-accuracy")
"""The scores that may say the opposite: neither rises where a model takes more examples for the
larger class."""


@dataclass(frozen=True)
class Claim:
    """A significant difference of a method to the baseline."""

    method: str
    measure: str  # one of CLAIMED
    gain: float  # positive is better


@dataclass(frozen=True)
class Verdict:
    """What a comparison shows: headline and sentences have 60 words together.

    `improving` are the methods that significantly improve the worst-served clients and do not
    significantly worsen the mean, first the one with the best mean.
    """

    headline: str
    sentences: tuple[str, ...] = ()
    further: tuple[str, ...] = ()  # the sentences for which there is no room
    claims: tuple[Claim, ...] = ()  # what differs significantly
    improving: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the sentences."""
        return " ".join((self.headline, *self.sentences, *self.further))


def verdict_of(found: "Comparison") -> Verdict:
    """Return what a comparison shows."""
    means = {method: found.spread(method, MEAN)[0] for method in found.methods}
    methods = [method for method in means if method != found.baseline]
    best_first = sorted(methods, key=lambda method: -found.score.better(means[method], 0.0))
    improving = [m for m in best_first if _sign(found, m, WORST) > 0 and _sign(found, m, MEAN) >= 0]
    claims = tuple(Claim(*key, each.mean) for key, each in found.claims.items() if each.significant)
    tested = found.tested
    sentences = [
        *_answer(found, improving),
        *_effects(found, [method for method in best_first if method not in improving[:1]], methods),
        *found.contradictions[:3],
    ]
    if len(tested) < FEW_CLIENTS:
        sentences.append(
            f"There are only {len(tested)} clients."
            if len(tested) > 1
            else "There is only one client."
        )
    if few := sum(count < FEWEST_EXAMPLES for count in tested.values()):
        verb = "is" if few == 1 else "are"
        sentences.append(
            f"{few} of {len(tested)} clients {verb} tested on fewer than {FEWEST_EXAMPLES}"
            " examples."
        )
    for method, words in found.failed.items():
        so = "these seeds are left out" if method in found.methods else "it is not compared"
        sentences.append(f"{method} {words}, so {so}.")
    single = count_of_share(10, len(tested)) == 1
    whom = "the worst-served client has" if single else "the worst-served 10 % of clients have"
    lower = "" if found.score.higher_is_better else " (lower is better)"
    worst, mean = (found.score.written(found.spread(found.baseline, each)[0]) for each in CLAIMED)
    headline = (
        f"Under {found.baseline} {whom} a test {found.score.words} of {worst}{lower}; the mean is"
        f" {mean}."
    )
    room = MOST_WORDS - len(headline.split())
    shown: list[str] = []
    while sentences and (room := room - len(sentences[0].split())) >= 0:
        shown.append(sentences.pop(0))
    return Verdict(headline, tuple(shown), tuple(sentences), claims, tuple(improving))


def _sign(found: "Comparison", method: str, measure: str) -> int:
    """Return 1 where a method is significantly better than the baseline by a measure, -1 if worse, else 0."""
    difference = found.claims[method, measure]
    return 0 if not difference.significant else 1 if difference.mean > 0.0 else -1


def _answer(found: "Comparison", improving: Sequence[str]) -> Iterator[str]:
    """Yield which methods do better there without doing worse on the mean, or that none does."""
    seeds = len(found.seeds)
    methods = len(found.methods)
    if methods == 1:
        yield (
            f"No other method {'has finished' if found.failed else 'was run'}, so there is nothing"
            " to compare."
        )
    elif seeds < FEWEST_SEEDS:
        yield (
            f"{'A single seed does' if seeds == 1 else 'Two seeds do'} not show which method is"
            " better: use 5."
        )
    elif improving:
        first = improving[0]
        also = "without a significant loss in the mean"
        if (mean := found.claims[first, MEAN]).significant:
            also = f"and the mean, by {_points(mean.mean, found.score)}"
        gain = found.claims[first, WORST]
        size, low, high = (
            _points(gain.mean, found.score),
            *(_number(end, found.score) for end in (gain.low, gain.high)),
        )
        yield (
            f"{first} significantly improves the worst served, by {size} ({low} to {high}), {also}."
        )
    elif any(each.significant for each in found.claims.values()):
        yield "No method significantly improves the worst served without worsening the mean."
    elif methods == 2:
        (other,) = (method for method in found.methods if method != found.baseline)
        yield (
            f"{other} does not differ significantly from {found.baseline}, for the worst served or"
            " in the mean."
        )
    else:
        yield (
            f"No method differs significantly from {found.baseline}, for the worst served or in the"
            " mean."
        )


def _effects(found: "Comparison", methods: Sequence[str], others: Sequence[str]) -> Iterator[str]:
    """Yield what methods significantly improve and worsen, those with the same effects together.

    Last are those of the `others` that equal the baseline with every seed, and where their personal
    models are.
    """
    verbs = {1: "improve", -1: "worsen"}
    for worst, mean in ((1, 1), (1, 0), (1, -1), (0, 1), (0, -1), (-1, 1), (-1, 0), (-1, -1)):
        alike = [
            m for m in methods if (_sign(found, m, WORST), _sign(found, m, MEAN)) == (worst, mean)
        ]
        s = "s" if len(alike) == 1 else ""
        effects = [f"{verbs[worst]}{s} the worst served"] if worst else []
        effects += [f"{verbs[mean]}{s} the mean"] if mean else []
        yield from _list(
            alike, f"{verbs[mean]}{s} both" if worst == mean else " but ".join(effects)
        )
    same = [
        method
        for method in others
        if all(found.claims[method, measure].is_zero for measure in CLAIMED)
    ]
    yield from _list(
        same, f"{'equals' if len(same) == 1 else 'equal'} {found.baseline} with every seed"
    )
    if rows := [row for method in same if (row := found.personal_row(method))]:
        yield f"Look at {join_all(rows)}."


def _list(methods: Sequence[str], said: str) -> Iterator[str]:
    """Yield a sentence on methods, of which the last are counted where they are many.

    Nothing without any.
    """
    if methods:
        yield (
            f"{join_all(methods) if len(methods) <= MOST_LISTED else join_names(methods, MOST_LISTED)}"
            f" {said}."
        )


def _points(value: float, score: Score) -> str:
    return f"{_number(value, score)} points" if score.percent else _number(value, score)


def _number(value: float, score: Score) -> str:
    """Return a number, of which one that rounds to zero has no minus."""
    return f"{round(value, 1) + 0.0:.1f}" if score.percent else f"{value + 0.0:.3g}"


# Other scores -------------------------------------------------------------------------------------


def find_contradictions(compared: "Comparison") -> list[str]:
    """Return in sentences which clients gain by the first score while others fall, those that gain most first.

    Each score needs three seeds in which the client has it under both methods, and moves so in most
    of these.
    """
    found = list[tuple[float, str]]()
    finals = compared.finals
    first, *others = compared.scores
    scores = [first, *(score for score in others if score.name in AGAINST)]
    for method in compared.methods:
        gains = [
            _gains(finals[finals["score"] == score.name], method, compared.baseline, score)
            for score in scores
        ]
        for client in compared.clients_compared if method != compared.baseline else ():
            gain, *fallen = (each.get(client, 0.0) for each in gains)
            lost = [
                _size(each, score)
                for each, score in zip(fallen, scores[1:], strict=True)
                if each < 0.0
            ]
            if gain > 0.0 and lost:
                said = (
                    f"{client} gains {_size(gain, first)} under {method}, but loses"
                    f" {' and '.join(lost)}."
                )
                found.append((gain, said))
    return [said for _, said in sorted(found, key=lambda each: -each[0])]


def _gains(
    finals: "pandas.DataFrame", method: str, baseline: str, score: Score
) -> "pandas.Series[float]":
    """Return the mean gain of clients by a score.

    0 with too few seeds, or where most of them do not go that way.
    """
    values = finals.set_index(["seed", "client"])["value"]
    mine, base = (values[(finals["method"] == each).to_numpy()] for each in (method, baseline))
    by_client = (score.better(1.0, 0.0) * (mine - base)).dropna().groupby("client")
    mean = by_client.mean()
    agree = by_client.agg(lambda gains: (gains * gains.mean() > 0.0).mean())
    return mean.where((by_client.size() >= FEWEST_SEEDS) & (agree > 0.5), 0.0)


def _size(gain: float, score: Score) -> str:
    """Return a gain without its sign, in words: "10.1 points of balanced accuracy"."""
    return f"{f'{abs(gain):.1f} points' if score.percent else f'{abs(gain):.3g}'} of {score.words}"
