"""Arguments of each method, cohorts of rows, and the steps of methods on them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from fairbloom.protocol.parameters import parameters_of
from fairbloom.rounds.aggregation import CohortRows, decide, remember
from fairbloom.rounds.arrays import FloatArray
from fairbloom.rounds.cohort import Cohort, Kept, Past, Probed
from fairbloom.rounds.method import Method
from fairbloom.rounds.vectors import Vectors
from fairbloom.strategies import METHODS, FairStrategy

Arrays = dict[str, NDArray[Any]]

# Constructor arguments for each method: its defaults if it has them, then other corners.
CORNERS: dict[str, list[dict[str, Any]]] = {
    "fedavg": [{}, {"weighting": "uniform"}],
    "fedprox": [{"mu": 0.1}],
    "scaffold": [{}, {"server_lr": 0.5, "weighting": "uniform"}],
    "feddyn": [{}, {"alpha": 0.5}],
    "fedavgn": [{}, {"server_lr": 0.5, "decay": 0.1, "weighting": "examples"}],
    "qfedavg": [
        {"q": 1.0, "lipschitz": 10.0},
        {"q": 0.0, "lipschitz": 2.0},
        {"q": 5.0, "lipschitz": 1.0},
    ],
    "qfedsgd": [
        {"q": 1.0, "lipschitz": 10.0},
        {"q": 0.0, "lipschitz": 2.0},
        {"q": 5.0, "lipschitz": 1.0},
    ],
    "term": [{"tilt": 0.05}, {"tilt": 0.0, "weighting": "uniform"}, {"tilt": -0.2}],
    "afl": [{"gamma": 0.001}, {"gamma": 0.02, "weighting": "uniform"}, {"gamma": 0.0}],
    "drfa": [{"gamma": 0.0002}, {"gamma": 0.01, "local_steps": 3}],
    "deltafl": [{"theta": 0.5}, {"theta": 1.0, "weighting": "uniform"}, {"theta": 1e-6}],
    "propfair": [{"baseline": 5.0}, {"baseline": 50.0, "epsilon": 1.0, "weighting": "uniform"}],
    "gifair": [{"strength": 0.5}, {"strength": 1.0, "weighting": "uniform"}],
    "vred": [{"beta": 0.005}, {"beta": 0.03, "weighting": "uniform"}],
    "semivred": [{"beta": 0.005}, {"beta": 0.03, "weighting": "uniform"}],
    "eagle": [{"lam": 0.005}, {"lam": 0.03, "weighting": "examples"}],
    "aaggff": [{}, {"rule": "ftrl"}, {"cdf": "normal"}, {"rule": "ftrl", "cdf": "frechet"}],
    "fedfa": [
        {},
        {"alpha": 1.0, "beta": 0.0, "server_momentum": 0.0},
        {"alpha": 0.0, "beta": 2.0, "server_momentum": 0.9, "client_momentum": 0.0},
    ],
    "fedpw": [{}, {"beta": 1.0}],
    "fairfed": [{}, {"beta": 0.0}, {"beta": 0.05}],
    "fedmgda": [{}, {"epsilon": 0.1, "server_lr": 0.7, "weighting": "examples"}],
    "fedmgdaplus": [{}, {"epsilon": 0.2, "server_lr": 0.5, "decay": 0.1, "weighting": "examples"}],
    "mgdaprox": [
        {"mu": 0.1},
        {"mu": 0.0, "epsilon": 0.2, "server_lr": 0.5, "decay": 0.1, "weighting": "examples"},
    ],
    "fedfv": [
        {},
        {"alpha": 0.0, "tau": 3},
        {"alpha": 0.5, "tau": 0, "order": "reverse"},
        {"order": "random"},
        {"alpha": 0.0, "tau": 2, "rescale": False},
    ],
    "adafed": [{}, {"gamma": 0.0, "server_lr": 0.5}, {"gamma": 0.5}],
    "fedlf": [{}, {"guidance": "gradient", "server_lr": 0.5}, {"history": False}],
    "fedmdfg": [
        {},
        {"angle": 1.0, "guidance": "gradient", "server_lr": 0.5},
        {"angle": 89.0, "history": False},
    ],
    "fairmoo": [
        {},
        {"tolerance": 1e3, "server_lr": 0.5},
        {"tolerance": 1e3, "length": 0.3},
    ],
    "fcfl": [
        {"delta": 5.0},
        {"budget": 1.0, "delta_decay": 0.5, "delta_factor": 0.01},
        {
            "stage1_rounds": 2,
            "budgets": {"site-1": 0.5},
            "delta": 20.0,
            "disparity": "equal-opportunity",
        },
    ],
    "ditto": [{"lam": 0.1}, {"lam": 0.0, "personal_epochs": 3, "weighting": "uniform"}],
    "local": [{}],
}


def needed(name: str) -> dict[str, Any]:
    """Return a value for each parameter of a method without a default."""
    return {
        parameter.argument: parameter.example
        for parameter in parameters_of(name, METHODS[name])
        if parameter.default is None
    }


# The same for every method: a method without corners is tried with its declared parameters.
ARGUMENTS = {name: CORNERS.get(name) or [needed(name)] for name in METHODS}

CASES = [(name, arguments) for name, several in ARGUMENTS.items() for arguments in several]


def make(name: str, arguments: Mapping[str, Any], **options: Any) -> FairStrategy:
    return METHODS[name](**arguments, **options)


def work_config(method: Method, server_round: int) -> dict[str, Any]:
    """Return the config of the clients' work, without the round and the metrics to measure."""
    config = method.terms(server_round).to_config()
    return {key: value for key, value in config.items() if key not in ("server-round", "measure")}


# Cohorts ------------------------------------------------------------------------------------------


def client_names(m: int) -> tuple[str, ...]:
    return tuple(f"client-{k:03}" for k in range(m))


def cohort_of(
    U: FloatArray,
    *,
    losses: Iterable[float] | None = None,
    counts: Iterable[float] | None = None,
    weighting: str = "uniform",
    round: int = 1,
    num_rounds: int | None = 10,
    names: Sequence[str] | None = None,
    memory: Mapping[Kept, FloatArray] | None = None,
    accuracies: Iterable[float] | None = None,
    rates: Iterable[float] | None = None,
    draws: Iterable[float] | None = None,
    groups: Mapping[str, Iterable[float]] | None = None,
    baselines: Iterable[float] | None = None,
    steps: Iterable[float] | None = None,
    roster: Mapping[str, float] | None = None,
    arrays: Mapping[str, int] | None = None,
    seconds: FloatArray | None = None,
    disparities: Iterable[float] | None = None,
    online: Sequence[str] = (),
    sent: Mapping[str, float] | None = None,
    past: Past | None = None,
) -> Cohort:
    """Return the cohort of updates U, and of second ones, shape (m, d).

    A method sees only their inner products. `arrays` has the number of entries of each array of the
    model, d in all; by default there is one array.
    """
    U = np.asarray(U, np.float64)
    memory = memory or {}
    m = len(U)
    n = given(counts, np.ones(m))
    F = given(losses, 1.0 + np.arange(m))
    rows = stacked(U, seconds, memory)
    sizes = {"w": U.shape[1]} if arrays is None else arrays
    fragments = np.split(rows, np.cumsum(list(sizes.values()))[:-1], axis=1)[: len(sizes)]
    names = tuple(names or client_names(m))
    if roster is None:
        roster = dict(zip(names, n.tolist(), strict=True))
    return Cohort(
        round=round,
        num_rounds=num_rounds,
        names=names,
        counts=n,
        prior=n / n.sum() if weighting == "examples" else np.full(m, 1.0 / m),
        draws=given(draws, np.ones(m)),
        arrays=tuple(sizes),
        online=tuple(online),
        gram_of=lambda: rows @ rows.T,
        grams_of=lambda: np.reshape(
            [part @ part.T for part in fragments], (len(sizes), len(rows), len(rows))
        ),
        squared_norms_of=lambda: np.einsum("kj,kj->k", U, U),
        metrics={
            "loss-before": F,
            "accuracy-after": given(accuracies, accuracies_of(F)),
            "learning-rate": given(rates, rates_of(n)),
            "accuracy-before": given(accuracies, accuracies_of(F)),
            **{
                name: np.asarray(list(values), np.float64)
                for name, values in (groups or group_counts_of(F, n)).items()
            },
            "loss-baseline": given(baselines, baselines_of(F)),
            "disparity": given(disparities, disparities_of(n)),
            "step-sum": given(steps, rates_of(n)),
        },
        memory=tuple(memory),
        past=replace(past or Past(kept=tuple(memory)), declared_roster=roster),
        second=seconds is not None,
        sent=sent or {},
    )


def given(values: Iterable[float] | None, default: FloatArray) -> FloatArray:
    """Return the values of a test, or the default."""
    return default if values is None else np.asarray(list(values), np.float64)


def stacked(
    U: FloatArray, seconds: FloatArray | None, memory: Mapping[Kept, FloatArray]
) -> FloatArray:
    """Return updates, second updates and kept rows as one matrix."""
    return np.vstack([U, *([] if seconds is None else [seconds]), *memory.values()])


def step_of(method: FairStrategy, U: FloatArray, **cohort: Any) -> FloatArray:
    """Return the step of a method that weighs all arrays the same, shape (d,)."""
    rows = stacked(U, cohort.get("seconds"), cohort.get("memory") or {})
    return np.asarray(coefficients(method, cohort_of(U, **cohort)).ravel() @ rows)


def coefficients(method: FairStrategy, cohort: Cohort) -> FloatArray:
    """Return c of a cohort, by the code that asks for it in a run."""
    return decide(method, cohort).coefficients


def advance(
    method: FairStrategy,
    cohort: Cohort,
    rows: FloatArray | None = None,
    probed: Probed | None = None,
) -> FloatArray:
    """Return c of a cohort, made with `past=method.past`; the method remembers the round."""
    decision = decide(method, cohort)
    c = decision.coefficients
    vectors = Vectors((np.zeros((cohort.rows, 1)) if rows is None else rows,))
    memory, kept = remember(method, decision, CohortRows(cohort, vectors), probed or {})
    state = method.run_state
    method.enter(state.stepped(cohort.round, memory, kept, None, state.norms))
    return c


def recall(method: FairStrategy, **memory: Any) -> None:
    """Let a method have this memory."""
    method.enter(replace(method.run_state, memory=memory))


@st.composite
def edgy_updates(draw: st.DrawFn, min_size: int = 1) -> FloatArray:
    """Draw rows, some of them zero, equal, opposite or of another scale."""
    m = draw(st.integers(min_size, 5))
    d = draw(st.integers(1, 6))
    U = np.random.default_rng(draw(st.integers(0, 2**32 - 1))).normal(size=(m, d))
    for k in range(m):
        kind = draw(st.sampled_from(("as it is", "zero", "equal", "opposite", "large", "small")))
        factor = {"zero": 0.0, "opposite": -1.0, "large": 1e3, "small": 1e-3}.get(kind, 1.0)
        U[k] = factor * U[0 if kind in ("equal", "opposite") else k]
    return U


@st.composite
def generic_updates(draw: st.DrawFn, min_size: int = 1) -> FloatArray:
    """Draw rows in general position, more or less alike: no inner product is zero."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    m = draw(st.integers(min_size, 5))
    d = draw(st.integers(5, 8))
    alike = draw(st.sampled_from((-1.0, 0.0, 1.0)))
    return rng.normal(size=(m, d)) * rng.uniform(0.2, 5.0, size=(m, 1)) + alike * rng.normal(size=d)


def losses_and_counts(m: int) -> tuple[FloatArray, FloatArray]:
    rng = np.random.default_rng(m)
    return rng.uniform(0.1, 3.0, m), rng.integers(1, 50, m).astype(np.float64)


def accuracies_of(losses: FloatArray) -> FloatArray:
    """Return the default accuracy of each client: the higher the loss, the lower the accuracy."""
    return 1.0 / (1.0 + np.maximum(losses, 0.0))


def rates_of(counts: FloatArray) -> FloatArray:
    """Return the default learning rate of each client, 0.1 to 0.5."""
    return 0.1 * (1.0 + counts % 5)


def group_counts_of(losses: FloatArray, counts: FloatArray) -> dict[str, FloatArray]:
    """Return the default counts of positive examples in two groups, and of those that are found.

    Some counts are 0.
    """
    accuracies = accuracies_of(losses)
    positives = [np.floor(0.2 * counts), np.floor(0.3 * counts)]
    hits = [np.floor(accuracies * positives[0]), np.floor((1.0 - accuracies) * positives[1])]
    return dict(
        zip(("positives-0", "positives-1", "hits-0", "hits-1"), (*positives, *hits), strict=True)
    )


def baselines_of(losses: FloatArray) -> FloatArray:
    """Return the default loss that each client reaches alone: no fixed share of its loss."""
    return 0.1 * np.sqrt(np.abs(losses))


def draws_of(counts: FloatArray) -> FloatArray:
    """Return how often each client was drawn, by default in tests of DRFA: 1 to 3 times."""
    return 1.0 + counts % 3


def disparities_of(counts: FloatArray) -> FloatArray:
    """Return the default disparity of each client, from −0.12 to 0.12."""
    return 0.06 * (counts % 5 - 2.0)


def seconds_of(U: FloatArray) -> FloatArray:
    """Return default second updates: half as long as the first ones, in other directions."""
    return 0.5 * np.roll(U, 1, axis=1)
