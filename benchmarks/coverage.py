"""Do intervals hold what they promise? Coverage on made data with a known truth, and claims where nothing differs.

Prints how often the 95 % interval of a mean difference holds the true one, by the t test and by bootstraps, for several
shapes of differences and numbers of seeds; the same for seeds that split the examples of the same clients, with and
without the correction for it, and for seeds that deal a data set to clients; in how many of so many trials the same
method, run twice under other seeds, is told from itself; and how often the verdict on five methods claims something
where nothing differs, and finds a difference where there is one.
"""

import argparse
import warnings
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy import stats

from fairbloom.experiments.results.comparison import Comparison
from fairbloom.experiments.results.differences import CONFIDENCE, difference_of
from fairbloom.experiments.results.verdict import WORST

Floats = NDArray[np.float64]

Draw = Callable[[np.random.Generator, tuple[int, int]], Floats]
"""Draws differences of the shape (trials, seeds)."""

SEEDS = (3, 5, 10, 20)
BOOTSTRAPS = ("percentile", "BCa")
RESAMPLES = 999
CLIENTS, TESTED = 20, 50
"""Number of clients of a made federation, and of test examples of each."""

# Shapes of differences ------------------------------------------------------------------------------------------------


def made_federation(measure: Callable[[Floats], Floats]) -> Draw:
    """Return what draws the difference of a measure over made clients between a method and the baseline.

    The method raises the chance of a right answer by up to 8 points, the more the worse a client is served. Clients
    vary by the seed, alike under both methods; the answers to each of the test examples are drawn.
    """

    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
        chance = np.linspace(0.55, 0.95, CLIENTS) + rng.normal(0.0, 0.05, (*shape, CLIENTS))
        gained = np.linspace(0.08, 0.0, CLIENTS)
        base, fair = (
            100.0 * rng.binomial(TESTED, np.clip(each, 0.02, 0.98)) / TESTED for each in (chance, chance + gained)
        )
        return measure(fair) - measure(base)

    return draw


def rare_rescue(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """Draw differences that are large with one seed in five, and about nothing with the others."""
    return np.where(rng.random(shape) < 0.2, 20.0, 0.0) + rng.normal(0.0, 1.0, shape)


SHAPES: Mapping[str, Draw] = {
    "normal": lambda rng, shape: rng.normal(1.0, 1.0, shape),
    "mean of 20 clients": made_federation(lambda values: values.mean(axis=-1)),
    "worst of 20 clients": made_federation(lambda values: values.min(axis=-1)),
    "worst 10 % of 20 clients": made_federation(lambda values: np.sort(values, axis=-1)[..., :2].mean(axis=-1)),
    "lower quartile of 20 clients": made_federation(lambda values: np.quantile(values, 0.25, axis=-1)),
    "heavy tails (t, 3 degrees)": lambda rng, shape: rng.standard_t(3.0, shape),
    "skewed (exponential)": lambda rng, shape: rng.exponential(1.0, shape),
    "large with one seed in five": rare_rescue,
    "very skewed (log-normal)": lambda rng, shape: rng.lognormal(0.0, 1.0, shape),
}


def truth_of(draw: Draw, rng: np.random.Generator) -> float:
    """Return the mean difference over 100,000 seeds."""
    return float(np.mean([draw(rng, (1_000, 10)).mean() for _ in range(10)]))


def coverage_of_t(differences: Floats, truth: float, test_share: float = 0.0) -> float:
    """Return the share of trials, a row each, whose interval by `difference_of` holds the truth.

    Trials whose differences are all the same have no interval, and are not counted.
    """
    found = (difference_of(row.tolist(), test_share=test_share) for row in differences)
    return float(np.mean([each.low <= truth <= each.high for each in found if not np.isnan(each.low)]))


def coverage_of_bootstrap(differences: Floats, truth: float, method: str, rng: np.random.Generator) -> float:
    """Return the share of trials whose bootstrap interval holds the truth."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # of trials with hardly any different values
        found = stats.bootstrap(
            (differences,), np.mean, axis=1, n_resamples=RESAMPLES, batch=50, method=method, rng=rng,
            confidence_level=CONFIDENCE,
        ).confidence_interval  # fmt: skip
    return float(np.mean((found.low <= truth) & (truth <= found.high)))


def table_of_shapes(trials: int, seeds: Sequence[int] = SEEDS) -> Table:
    """Return the coverage of each kind of interval, by shape and number of seeds, in percent."""
    table = Table("differences", "seeds", "t", *BOOTSTRAPS, box=None, title="Coverage of 95 % intervals, %")
    rng = np.random.default_rng(0)
    for name, draw in SHAPES.items():
        truth = truth_of(draw, rng)
        for count in seeds:
            differences = draw(rng, (trials, count))
            by_bootstrap = (coverage_of_bootstrap(differences, truth, method, rng) for method in BOOTSTRAPS)
            shares = (coverage_of_t(differences, truth), *by_bootstrap)
            table.add_row(name, str(count), *(f"{100.0 * share:.1f}" for share in shares))
    return table


# Seeds that share data ------------------------------------------------------------------------------------------------

INPUTS, CLASSES, TEST_SHARE = 5, 4, 0.2
SIZES = (100, 80, 30, 50)
"""Of the clients that a seed does not deal."""

Client = tuple[Floats, NDArray[np.int64]]
"""Inputs and classes of one client's examples."""

_FIXED = np.random.default_rng(5)
CENTRES = _FIXED.normal(0.0, 1.0, (CLASSES, INPUTS))
SHIFTS = [_FIXED.normal(0.0, 0.6, (CLASSES, INPUTS)) for _ in SIZES]
"""Where the classes lie, and how much that differs from client to client."""


def draw_clients(rng: np.random.Generator) -> list[Client]:
    """Return clients as unlike as sites are, with examples of their own."""
    clients = []
    for shift, size in zip(SHIFTS, SIZES, strict=True):
        labels = rng.integers(0, CLASSES, size)
        clients.append(((CENTRES + shift)[labels] + rng.normal(0.0, 1.2, (size, INPUTS)), labels))
    return clients


def draw_pool(rng: np.random.Generator, size: int = 300) -> Client:
    """Return a data set that is dealt to clients."""
    labels = rng.integers(0, CLASSES, size)
    return CENTRES[labels] + rng.normal(0.0, 1.2, (size, INPUTS)), labels


def deal_shards(rng: np.random.Generator, pool: Client, clients: int = 6) -> list[Client]:
    """Return clients of unequal size that have few classes each."""
    inputs, labels = pool
    order = rng.permutation(len(labels))
    shards = np.array_split(order[np.argsort(labels[order], kind="stable")], 2 * clients)
    dealt = rng.permutation(2 * clients).reshape(clients, 2)
    rows = [np.concatenate([shards[place] for place in mine]) for mine in dealt]
    kept = [mine[: max(10, int(len(mine) * rng.uniform(0.3, 1.0)))] for mine in map(rng.permutation, rows)]
    return [(inputs[mine], labels[mine]) for mine in kept]


def deal_alike(rng: np.random.Generator, pool: Client) -> list[Client]:
    """Return clients of unequal size that are alike."""
    inputs, labels = pool
    rows = np.split(rng.permutation(len(labels)), np.cumsum([10, 20, 40, 60, 80]))
    return [(inputs[mine], labels[mine]) for mine in rows]


def gains(rng: np.random.Generator, clients: Sequence[Client]) -> tuple[float, float]:
    """Return by how much uniform weights serve the mean, and the worst, client better than weights by examples.

    The rows of each client are split at random, each fits a linear model to its training rows, and the weighted mean of
    these models is tested on the test rows of each.
    """
    train, test = [], []
    for inputs, labels in clients:
        order = rng.permutation(len(labels))
        tested = max(1, int(TEST_SHARE * len(labels)))
        test.append((inputs[order[:tested]], labels[order[:tested]]))
        train.append((inputs[order[tested:]], labels[order[tested:]]))
    models = [_fit(*each) for each in train]
    examples = np.array([len(labels) for _, labels in train], np.float64)
    found = []
    for weights in (examples / examples.sum(), np.full(len(train), 1.0 / len(train))):
        model = np.tensordot(weights, models, axes=1)
        found.append(np.array([_accuracy(model, *each) for each in test]))
    base, fair = found
    return float(fair.mean() - base.mean()), float(fair.min() - base.min())


def _fit(inputs: Floats, labels: NDArray[np.int64]) -> Floats:
    x = np.c_[inputs, np.ones(len(inputs))]
    solved: Floats = np.linalg.solve(x.T @ x + np.eye(INPUTS + 1), x.T @ np.eye(CLASSES)[labels])
    return solved


def _accuracy(model: Floats, inputs: Floats, labels: NDArray[np.int64]) -> float:
    return 100.0 * float(((np.c_[inputs, np.ones(len(inputs))] @ model).argmax(axis=1) == labels).mean())


def gains_of_splits(rng: np.random.Generator, trials: int, seeds: int) -> Floats:
    """Return gains of seeds that split the examples of a trial's clients, shape (trials, seeds, 2)."""
    return np.array(
        [[gains(rng, clients) for _ in range(seeds)] for clients in (draw_clients(rng) for _ in range(trials))]
    )


def gains_of_deals(
    rng: np.random.Generator, trials: int, seeds: int, deal: Callable[[np.random.Generator, Client], list[Client]]
) -> Floats:
    """Return gains of seeds that deal a trial's data set to clients, shape (trials, seeds, 2)."""
    return np.array(
        [[gains(rng, deal(rng, pool)) for _ in range(seeds)] for pool in (draw_pool(rng) for _ in range(trials))]
    )


def table_of_shared(trials: int, seeds: Sequence[int] = SEEDS) -> Table:
    """Return the coverage with and without the correction for shared data, and how seeds of a trial correlate."""
    headings = ("seeds share", "measure", "correlation", "seeds", "t", "t, corrected")
    table = Table(*headings, box=None, title="Coverage of 95 % intervals where seeds share data, %")
    rng, most = np.random.default_rng(0), max(seeds)
    drawn = {
        "the clients, and split their examples": gains_of_splits(rng, trials, most),
        "a data set, dealt in shards": gains_of_deals(rng, trials, most, deal_shards),
        "a data set, dealt at random": gains_of_deals(rng, trials, most, deal_alike),
    }
    share = TEST_SHARE / (1.0 - TEST_SHARE)
    for name, both in drawn.items():
        for place, measure in enumerate(("mean", "worst client")):
            every = both[:, :, place]
            truth, within = float(every.mean()), float(every.var(axis=1, ddof=1).mean())
            between = float(every.mean(axis=1).var(ddof=1)) - within / most
            for count in seeds:
                shares = (coverage_of_t(every[:, :count], truth, each) for each in (0.0, share))
                cells = (f"{between / (between + within):.2f}", str(count), *(f"{100.0 * each:.1f}" for each in shares))
                table.add_row(name, measure, *cells)
    return table


# No difference --------------------------------------------------------------------------------------------------------


def claims(first: Floats, second: Floats, test_share: float = 0.0) -> int:
    """Return in how many trials, a row each with a column a seed, a method is told from itself under other seeds."""
    found = (difference_of(row.tolist(), test_share=test_share) for row in second - first)
    return sum(each.significant for each in found)


def made_scores(trials: int, seeds: int, rng: np.random.Generator) -> Floats:
    """Return the accuracy of the worst of a few made clients, with each seed of each trial."""
    chance = np.clip(np.linspace(0.6, 0.9, 4) + rng.normal(0.0, 0.05, (trials, seeds, 4)), 0.02, 0.98)
    worst: Floats = (100.0 * rng.binomial(TESTED, chance) / TESTED).min(axis=-1)
    return worst


def real_scores(first_seed: int, count: int) -> Floats:
    """Return the worst and the mean accuracy of real runs on digits, shape (count, 2); each has a seed of its own."""
    from fairbloom.rounds.loop import Rounds
    from fairbloom.server.settings import Settings
    from fairbloom.simulation.loop import LoopClients
    from fairbloom.strategies.strategy import FairStrategy
    from fairbloom.tasks import load_task
    from fairbloom.tasks.models import float_buffers, shared_parameters

    found = []
    for seed in range(first_seed, first_seed + count):
        settings = Settings.of({"clients": 4, "num-rounds": 2, "seed": seed, "device": "cpu", "evaluate-every": 0})
        method: FairStrategy = settings.strategy()
        module = load_task(settings.run_config()).model()
        method.buffers, method.shared = float_buffers(module), shared_parameters(module)
        model = {name: tensor.detach().numpy().copy() for name, tensor in module.state_dict().items()}
        rounds = Rounds(method, LoopClients(method, settings.run_config()), settings.num_rounds)
        *_, last = rounds.run(model, measure=lambda number: (), measure_after=())
        accuracies = [100.0 * each["accuracy"] for each in last.evaluations.values()]
        found.append((min(accuracies), sum(accuracies) / len(accuracies)))
    return np.array(found)


def table_of_claims(trials: int, seeds: int, real: bool) -> Table:
    """Return in how many trials the same method is told from itself; a p-value below 0.05 is so in one of twenty."""
    table = Table(
        "trials", "seeds", "measure", "claims", "as many are expected", box=None, title="The same method twice"
    )
    rng = np.random.default_rng(0)
    found = claims(made_scores(trials, seeds, rng), made_scores(trials, seeds, rng))
    drawn = {"worst client, made scores": found}
    if real:
        scores = real_scores(0, 2 * trials * seeds).reshape(2, trials, seeds, 2)
        for place, measure in enumerate(("worst client, runs on digits", "mean, runs on digits")):
            drawn[measure] = claims(scores[0, ..., place], scores[1, ..., place])
    for measure, count in drawn.items():
        table.add_row(str(trials), str(seeds), measure, str(count), f"{(1.0 - CONFIDENCE) * trials:.0f}")
    return table


# The verdict ----------------------------------------------------------------------------------------------------------

METHODS = ("FedAvg", "FedFV", "TERM", "DRFA", "AFL")


def made_comparison(rng: np.random.Generator, seeds: int, *, gain: float = 0.0, equal: int = 0) -> Comparison:
    """Return a comparison of five methods over four clients, each of which is tested on fifty examples.

    Clients vary by the seed, alike under all methods; the answers to each of the test examples are drawn.

    Parameters
    ----------
    rng
        Draws the answers.
    seeds
        The number of seeds.
    gain
        By how many points FedFV is better than FedAvg for every client; 0 where nothing differs.
    equal
        How many of the other methods have FedAvg's scores, as Ditto's global model does.
    """
    chance = np.linspace(0.6, 0.9, 4) + rng.normal(0.0, 0.05, (seeds, 4))
    drawn = {method: _answers(rng, chance) for method in METHODS}
    drawn["FedFV"] = drawn["FedFV"] + gain
    drawn |= dict.fromkeys(METHODS[2 : 2 + equal], drawn["FedAvg"])
    finals = {
        method: [{"accuracy": {f"client-{k}": float(value) for k, value in enumerate(row)}} for row in scores]
        for method, scores in drawn.items()
    }
    return Comparison(finals, "FedAvg", seeds=tuple(range(seeds)))


def _answers(rng: np.random.Generator, chance: Floats) -> Floats:
    scores: Floats = 100.0 * rng.binomial(TESTED, np.clip(chance, 0.02, 0.98)) / TESTED
    return scores


def two_deviations(rng: np.random.Generator) -> float:
    """Return twice the standard deviation that the worst client's difference has over seeds where nothing differs."""
    return 2.0 * float(np.std(made_comparison(rng, 2_000).gains("FedFV", WORST)))


def is_claimed(comparison: Comparison) -> bool:
    """Return whether the verdict claims that some method differs from the baseline."""
    return bool(comparison.verdict.claims)


def table_of_verdicts(trials: int, seeds: Sequence[int] = (5, 10)) -> Table:
    """Return how often the verdict claims something in null comparisons, and finds a gain of two deviations, in %.

    The last two columns are its power with none and with two of the four other methods equal to FedAvg to the bit.
    """
    headings = ("seeds", "trials", "claims where nothing differs", "finds the gain", "…, two others equal to FedAvg")
    table = Table(*headings, box=None, title="The verdict on five methods, %")
    rng = np.random.default_rng(0)
    gain = two_deviations(rng)
    for count in seeds:
        null = sum(is_claimed(made_comparison(rng, count)) for _ in range(trials))
        found = [
            sum(finds(made_comparison(rng, count, gain=gain, equal=equal)) for _ in range(trials)) for equal in (0, 2)
        ]
        table.add_row(str(count), str(trials), *(f"{100.0 * each / trials:.1f}" for each in (null, *found)))
    return table


def finds(comparison: Comparison) -> bool:
    """Return whether the verdict claims by the worst client that FedFV is better than FedAvg."""
    claims = comparison.verdict.claims
    return any((each.method, each.measure) == ("FedFV", WORST) and each.gain > 0.0 for each in claims)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=2000, help="trials of each kind of made differences")
    parser.add_argument("--shared", type=int, default=600, help="trials of seeds that share data")
    parser.add_argument("--null", type=int, default=200, help="trials of the same method twice")
    parser.add_argument("--verdicts", type=int, default=2000, help="trials of comparisons of five methods")
    parser.add_argument("--real", action="store_true", help="the same method twice with real runs, too: minutes")
    chosen = parser.parse_args()
    console = Console(width=120)
    console.print(table_of_shapes(chosen.trials))
    console.print(table_of_shared(chosen.shared))
    console.print(table_of_claims(chosen.null, 5, chosen.real))
    console.print(table_of_verdicts(chosen.verdicts))


if __name__ == "__main__":
    main()
