"""Whether joining pays: models that clients train together, against training alone."""

import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairbloom.errors import MAX_LISTED
from fairbloom.text import join_first, plural, round_to, text_if

from .compared_scores import ComparedScores
from .differences import FEWEST_SEEDS, MEAN, Difference, difference_of
from .measures import CLIENT
from .verdict import find_losses

# What joining does to a client, in words.
GAINS = "gains"
LOSES = "loses"
UNCLEAR = "cannot be told"
OPPOSITE = {GAINS: LOSES, LOSES: GAINS, UNCLEAR: ""}
KNOWN = {GAINS: "is better", LOSES: "is worse", UNCLEAR: "is not shown to be better"}


@dataclass(frozen=True)
class Joined:
    """A common model against training alone.

    The 95 % intervals of `mean` hold together for all methods that are shown.
    """

    method: str
    alone: str  # the label of training alone
    mean: Difference  # over clients
    clients: Mapping[str, Difference]  # {} if each seed has other clients
    # by outcome and client, the sizes of clear changes of other scores the other way
    against: Mapping[str, Mapping[str, Sequence[str]]]


def outcome_of(found: Difference) -> str:
    """Return what a difference shows, by its interval."""
    if found.low > 0.0:
        return GAINS
    if found.high < 0.0:
        return LOSES
    return UNCLEAR


def joining_of(compared: ComparedScores) -> list[Joined]:
    """Return the common models against training alone; [] if that is not among the methods.

    With validation scores, they are the baseline's and the one with the best mean of these, else
    all of them: the test scores choose none.
    """
    alone = compared.trained_alone
    methods = _chosen(compared)
    if not alone:
        return []
    test_share = compared.shared.test_share
    found = []
    for method in methods:
        gains = compared.gains(method, MEAN, alone[0])
        mean = difference_of(gains, test_share=test_share, family=len(methods))
        clients = dict[str, Difference]()
        for client in compared.clients_compared:
            gains = compared.gains(method, f"{CLIENT}{client}", alone[0])
            clients[client] = difference_of(gains, test_share=test_share)
        outcomes = {
            GAINS: find_losses(compared, method, alone[0]),
            LOSES: find_losses(compared, alone[0], method),
        }
        found.append(Joined(method, alone[0], mean, clients, outcomes))
    return found


def _chosen(compared: ComparedScores) -> list[str]:
    """Return the baseline and the common model that validation scores choose, else all of them."""
    apart = {*compared.personal, *compared.trained_alone}
    common = [method for method in compared.shown if method not in apart]
    means = dict[str, float]()
    for method in common:
        runs = compared.runs.get(method, ())
        validated = [run.final(model="global", split="validation") for run in runs]
        if not validated or not all(validated):
            return common
        by_seed = [statistics.fmean(values.values()) for values in validated]
        means[method] = statistics.fmean(by_seed)
    if not means:
        return common
    best = max(means, key=lambda method: compared.score.better(means[method], 0.0))
    return [method for method in common if method in (compared.baseline, best)]


def describe_mean(joined: Joined, compared: ComparedScores) -> str:
    """Return in a sentence whether joining is better than training alone, in the mean."""
    found = joined.mean
    digits = compared.gain_decimals
    size = f"{round_to(found.mean, digits, '+')}{text_if(compared.score.percent, ' points')}"
    of = f" of test {compared.score.words}, mean over clients"
    if found.seeds < FEWEST_SEEDS:
        return (
            f"{plural(found.seeds, 'One seed does', 'Two seeds do')} not show whether joining"
            f" ({joined.method}) is better than training alone ({joined.alone}): {size}{of}; use 5"
            " seeds or more."
        )
    known = KNOWN[outcome_of(found)]
    interval = f" ({round_to(found.low, digits)} to {round_to(found.high, digits)})"
    return (
        f"Joining ({joined.method}) {known} than training alone ({joined.alone}): {size}"
        f"{text_if(found.low == found.low, interval)}{of}."
    )


def describe_clients(joinings: Sequence[Joined], compared: ComparedScores) -> list[str]:
    """Return which clients gain by joining, which lose, and of which it cannot be told.

    Methods that do the same to all clients share a sentence.
    """
    methods: dict[str, list[str]] = {}
    for joined in joinings:
        named: dict[str, list[str]] = {GAINS: [], LOSES: [], UNCLEAR: []}
        for client, found in joined.clients.items():
            outcome = outcome_of(found)
            other = joined.against.get(outcome, {}).get(client, [])
            so = text_if(other, f" (but {OPPOSITE[outcome]} {' and '.join(other)})")
            named[outcome].append(f"{compared.shown_name(client)}{so}")
        said = "; ".join(f"{kind}: {join_first(names)}" for kind, names in named.items() if names)
        others = [name for name, found in joined.clients.items() if outcome_of(found) != LOSES]
        advised = named[LOSES] and 0 < len(others) <= MAX_LISTED
        setting = shlex.quote(f"training-clients={','.join(others)}")
        advice = f" Who loses may train alone, and the others together: --set {setting}."
        if said:
            methods.setdefault(f"{said}.{text_if(advised, advice)}", []).append(joined.method)
    return [f"By client under {', '.join(names)}: {said}" for said, names in methods.items()]
