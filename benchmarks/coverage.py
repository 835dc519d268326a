"""Coverage of intervals on generated data with a known truth, and false claims of verdicts.

Prints how often the 95 % interval of a mean difference contains the true one, for several
distributions of differences and numbers of seeds; the same for seeds that split the examples of the
same clients, with and without the correction for it, and for seeds that split a data set among
clients; and how often the verdict on five methods claims a difference where no difference exists,
and where one exists.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fairbloom.experiments.results.compared_scores import tabulate
from fairbloom.experiments.results.comparison import Comparison
from fairbloom.experiments.results.differences import WORST, difference_of

from .tables import Row, parser_of, print_table

Floats = NDArray[np.float64]

Draw = Callable[[np.random.Generator, tuple[int, int]], Floats]
"""Draws differences of the shape (trials, seeds)."""

SEEDS = (3, 5, 10, 20)
CLIENTS = 20
TESTED = 50
"""Number of clients of a generated federation, and of test examples of each."""

# Distributions of differences ---------------------------------------------------------------------


def draw_scores(rng: np.random.Generator, chance: Floats) -> Floats:
    """Return accuracies in percent on TESTED examples, by the chance of a right answer."""
    return 100.0 * rng.binomial(TESTED, np.clip(chance, 0.02, 0.98)) / TESTED


def made_federation(measure: Callable[[Floats], Floats]) -> Draw:
    """Return a function that draws differences in `measure` between a method and the baseline.

    The method raises a client's chance of a right answer by up to 8 points, most for the
    worst-served clients. Clients vary with the seed, alike under both methods; the answers to the
    test examples are drawn.
    """

    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
        chance = np.linspace(0.55, 0.95, CLIENTS) + rng.normal(0.0, 0.05, (*shape, CLIENTS))
        base = draw_scores(rng, chance)
        fair = draw_scores(rng, chance + np.linspace(0.08, 0.0, CLIENTS))
        return measure(fair) - measure(base)

    return draw


def rare_rescue(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """Draw differences that are large for one seed in five, and almost 0 for the others."""
    return np.where(rng.random(shape) < 0.2, 20.0, 0.0) + rng.normal(0.0, 1.0, shape)


SHAPES: Mapping[str, Draw] = {
    "normal": lambda rng, shape: rng.normal(1.0, 1.0, shape),
    "mean of 20 clients": made_federation(lambda values: values.mean(axis=-1)),
    "worst of 20 clients": made_federation(lambda values: values.min(axis=-1)),
    "worst 10 % of 20 clients": made_federation(
        lambda values: np.sort(values, axis=-1)[..., :2].mean(axis=-1)
    ),
    "lower quartile of 20 clients": made_federation(
        lambda values: np.quantile(values, 0.25, axis=-1)
    ),
    "heavy tails (t, 3 degrees)": lambda rng, shape: rng.standard_t(3.0, shape),
    "skewed (exponential)": lambda rng, shape: rng.exponential(1.0, shape),
    "large with one seed in five": rare_rescue,
    "very skewed (log-normal)": lambda rng, shape: rng.lognormal(0.0, 1.0, shape),
}


def truth_of(draw: Draw, rng: np.random.Generator) -> float:
    """Return the mean difference over 100,000 seeds."""
    return float(np.mean([draw(rng, (1_000, 10)).mean() for _ in range(10)]))


def coverage_of_t(differences: Floats, truth: float, test_share: float = 0.0) -> float:
    """Return the share of trials (rows) in which the interval of `difference_of` has the truth.

    Trials with equal differences have no interval, and are not counted.
    """
    found = (difference_of(row.tolist(), test_share=test_share) for row in differences)
    return float(
        np.mean([each.low <= truth <= each.high for each in found if not np.isnan(each.low)])
    )


def rows_of_shapes(trials: int) -> Iterator[Row]:
    """Yield the coverage of intervals by shape and number of seeds, in percent."""
    rng = np.random.default_rng(0)
    for name, draw in SHAPES.items():
        truth = truth_of(draw, rng)
        for count in SEEDS:
            share = coverage_of_t(draw(rng, (trials, count)), truth)
            yield {"differences": name, "seeds": count, **in_percent({"t": share})}


def in_percent(shares: Mapping[str, float]) -> Row:
    """Return shares as cells."""
    return {name: f"{100.0 * share:.1f}" for name, share in shares.items()}


# Seeds that share data ----------------------------------------------------------------------------

INPUTS = 5
CLASSES = 4
TEST_SHARE = 0.2
SHARE = TEST_SHARE / (1.0 - TEST_SHARE)
SIZES = (100, 80, 30, 50)
"""Sizes of the clients that all seeds share."""

Client = tuple[Floats, NDArray[np.int64]]
"""Inputs and classes of one client's examples."""

_FIXED = np.random.default_rng(5)
CENTRES = _FIXED.normal(0.0, 1.0, (CLASSES, INPUTS))
SHIFTS = [_FIXED.normal(0.0, 0.6, (CLASSES, INPUTS)) for _ in SIZES]
"""The classes' centres, and each client's shifts of them."""


def draw_clients(rng: np.random.Generator) -> list[Client]:
    """Return clients that differ as sites do, with their own examples."""
    return [draw_examples(rng, size, shift) for size, shift in zip(SIZES, SHIFTS, strict=True)]


def draw_examples(rng: np.random.Generator, size: int = 300, shift: Floats | float = 0.0) -> Client:
    """Return the examples of one client, or a data set to split among clients."""
    labels = rng.integers(0, CLASSES, size)
    return (CENTRES + shift)[labels] + rng.normal(0.0, 1.2, (size, INPUTS)), labels


def deal_shards(rng: np.random.Generator, pool: Client, clients: int = 6) -> list[Client]:
    """Return clients of unequal size that have few classes each."""
    inputs, labels = pool
    order = rng.permutation(len(labels))
    shards = np.array_split(order[np.argsort(labels[order], kind="stable")], 2 * clients)
    dealt = rng.permutation(2 * clients).reshape(clients, 2)
    rows = [np.concatenate([shards[place] for place in mine]) for mine in dealt]
    kept = [
        mine[: max(10, int(len(mine) * rng.uniform(0.3, 1.0)))]
        for mine in map(rng.permutation, rows)
    ]
    return [(inputs[mine], labels[mine]) for mine in kept]


def deal_alike(rng: np.random.Generator, pool: Client) -> list[Client]:
    """Return clients of unequal size that are alike."""
    inputs, labels = pool
    rows = np.split(rng.permutation(len(labels)), np.cumsum([10, 20, 40, 60, 80]))
    return [(inputs[mine], labels[mine]) for mine in rows]


SHARED: Mapping[str, Callable[[np.random.Generator], Callable[[], list[Client]]]] = {
    "the clients, and split their examples": lambda rng: partial(list, draw_clients(rng)),
    "a data set, dealt in shards": lambda rng: partial(deal_shards, rng, draw_examples(rng)),
    "a data set, dealt at random": lambda rng: partial(deal_alike, rng, draw_examples(rng)),
}
"""The clients or data that the seeds of a trial share, drawn once per trial; the result returns the
clients of one seed."""


def gains(rng: np.random.Generator, clients: list[Client]) -> tuple[float, float]:
    """Return the gains of uniform weights over weights by examples, for the mean and worst client.

    The rows of each client are split at random. Each client fits a linear model to its training
    rows, and the weighted mean of these models is tested on each client's test rows.
    """
    models = []
    examples = []
    tests = []
    for inputs, labels in clients:
        order = rng.permutation(len(labels))
        tested = max(1, int(TEST_SHARE * len(labels)))
        x = np.c_[inputs, np.ones(len(inputs))]
        y = np.eye(CLASSES)[labels]
        train = order[tested:]
        test = order[:tested]
        models.append(
            np.linalg.solve(x[train].T @ x[train] + np.eye(INPUTS + 1), x[train].T @ y[train])
        )
        examples.append(len(train))
        tests.append((x[test], labels[test]))
    found = []
    for weights in (np.array(examples) / sum(examples), np.full(len(models), 1.0 / len(models))):
        model = np.tensordot(weights, models, axes=1)
        found.append(
            np.array([100.0 * ((x @ model).argmax(axis=1) == labels).mean() for x, labels in tests])
        )
    base, fair = found
    return float(fair.mean() - base.mean()), float(fair.min() - base.min())


def gains_of(rng: np.random.Generator, trials: int, seeds: int, shared: str) -> Floats:
    """Return gains of seeds that share the entry `shared` of SHARED, shape (trials, seeds, 2)."""
    drawn = (SHARED[shared](rng) for _ in range(trials))
    return np.array([[gains(rng, clients()) for _ in range(seeds)] for clients in drawn])


def rows_of_shared(trials: int) -> Iterator[Row]:
    """Yield the coverage with and without the correction for shared data."""
    rng = np.random.default_rng(0)
    for name in SHARED:
        drawn = gains_of(rng, trials, max(SEEDS), name)
        for place, measure in enumerate(("mean", "worst client")):
            every = drawn[:, :, place]
            for count in SEEDS:
                shares = {
                    heading: coverage_of_t(every[:, :count], float(every.mean()), share)
                    for heading, share in (("t", 0.0), ("t, corrected", SHARE))
                }
                yield {
                    "seeds share": name,
                    "measure": measure,
                    "seeds": count,
                    **in_percent(shares),
                }


# The verdict --------------------------------------------------------------------------------------

METHODS = ("FedAvg", "FedFV", "TERM", "DRFA", "AFL")


def made_comparison(
    rng: np.random.Generator, seeds: int, *, gain: float = 0.0, equal: int = 0
) -> Comparison:
    """Return a comparison of five methods over four clients with fifty test examples each.

    Clients vary with the seed, alike under all methods; the answers to the test examples are drawn.
    FedFV is better than FedAvg by `gain` points for every client, and `equal` of the others have
    FedAvg's scores, as Ditto's global model does.
    """
    chance = np.linspace(0.6, 0.9, 4) + rng.normal(0.0, 0.05, (seeds, 4))
    drawn = {method: draw_scores(rng, chance) for method in METHODS}
    drawn["FedFV"] = drawn["FedFV"] + gain
    drawn |= dict.fromkeys(METHODS[2 : 2 + equal], drawn["FedAvg"])
    rows = [
        (method, "global", seed, f"client-{client}", TESTED, "accuracy", float(value))
        for method, scores in drawn.items()
        for (seed, client), value in np.ndenumerate(scores)
    ]
    return Comparison(tabulate(rows), "FedAvg")


def two_deviations(rng: np.random.Generator) -> float:
    """Return twice the standard deviation, over seeds, of the worst client's null difference."""
    return 2.0 * float(np.std(made_comparison(rng, 2_000).gains("FedFV", WORST)))


def finds(comparison: Comparison) -> bool:
    """Return whether the verdict claims that FedFV serves the worst client better than FedAvg."""
    claims = comparison.verdict.claims
    return any(
        (each.method, each.measure) == ("FedFV", WORST) and each.gain > 0.0 for each in claims
    )


def rows_of_verdicts(trials: int) -> Iterator[Row]:
    """Yield how often the verdict makes a false claim, and finds a gain of two deviations, in %.

    The last two columns are its power if none, or two, of the four other methods have exactly
    FedAvg's scores.
    """
    rng = np.random.default_rng(0)
    gain = two_deviations(rng)
    for count in (5, 10):
        null = [bool(made_comparison(rng, count).verdict.claims) for _ in range(trials)]
        found = [
            [finds(made_comparison(rng, count, gain=gain, equal=equal)) for _ in range(trials)]
            for equal in (0, 2)
        ]
        names = ("claims where nothing differs", "finds the gain", "…, two others equal to FedAvg")
        shares = {
            name: float(np.mean(each)) for name, each in zip(names, (null, *found), strict=True)
        }
        yield {"seeds": count, "trials": trials, **in_percent(shares)}


def main() -> None:
    """Print the tables."""
    parser = parser_of(__doc__)
    parser.add_argument(
        "--trials", type=int, default=2000, help="trials of each distribution of differences"
    )
    parser.add_argument("--shared", type=int, default=600, help="trials of seeds that share data")
    parser.add_argument(
        "--verdicts", type=int, default=2000, help="trials of comparisons of five methods"
    )
    chosen = parser.parse_args()
    for title, rows in {
        "Coverage of 95 % intervals, %": rows_of_shapes(chosen.trials),
        "Coverage of 95 % intervals where seeds share data, %": rows_of_shared(chosen.shared),
        "The verdict on five methods, %": rows_of_verdicts(chosen.verdicts),
    }.items():
        print_table(title, rows, as_csv=chosen.csv)


if __name__ == "__main__":
    main()
