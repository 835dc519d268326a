"""Measures of fairness: how a quantity of one split and one model is spread over clients."""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

# The shares of clients, in percent, over which the mean of the worst and of the best is taken.
SHARES = (5, 10, 20, 30)


def summarize(values: Mapping[str, float], *, lower_is_better: bool = False) -> dict[str, float]:
    """Return the measures of `values`, one of each client.

    Parameters
    ----------
    values
        By client name, such as accuracies; at least one, all finite.
    lower_is_better
        Whether the client with the highest value is the worst served, as with an error.

    Returns
    -------
    dict
        In the unit of `values`: `mean`, `std` (population), `worst`, `best`, `worst_N` and `best_N`
        (mean of the worst and of the best N % of clients, ⌈N·clients/100⌉ of them, counted
        exactly), `gap` (|best − worst|). In its square: `var`. Without unit: `jain` (Σx)²/(NΣx²),
        `gini` Σ_ij|x_i − x_j|/(2N²·mean), `entropy` of x/Σx in nats and `cosine` to the all-ones
        vector. If all values are zero, jain and cosine are 1, gini 0 and entropy ln N. If a value
        is negative, entropy and gini have no meaning and are NaN.

    Raises
    ------
    ValueError
        If there are no values, or one is not finite.
    """
    if not values:
        raise ValueError("there are no clients to measure")
    x = np.sort(np.array(list(values.values()), np.float64))
    if not np.isfinite(x).all():
        name, value = next(item for item in values.items() if not math.isfinite(item[1]))
        raise ValueError(f"the value of client {name} is {value}; it must be finite")
    # Measures of huge numbers may not be finite.
    with np.errstate(over="ignore", invalid="ignore"):
        return _measure(x, x[::-1] if lower_is_better else x)


def _measure(x: NDArray[np.float64], worst_first: NDArray[np.float64]) -> dict[str, float]:
    """Return the measures of values in ascending order; see `summarize`."""
    mean = _mean_of(x)
    away = x - mean
    var = _mean_of(away * away)
    cosine = _cosine(x)
    counts = [count_of_share(share, x.size) for share in SHARES]
    return {
        "mean": mean,
        "std": math.sqrt(var),
        "var": var,
        "worst": float(worst_first[0]),
        "best": float(worst_first[-1]),
        **{
            f"worst_{share}": _mean_of(worst_first[:count])
            for share, count in zip(SHARES, counts, strict=True)
        },
        **{
            f"best_{share}": _mean_of(worst_first[-count:])
            for share, count in zip(SHARES, counts, strict=True)
        },
        "gap": float(x[-1] - x[0]),
        "jain": cosine**2,
        "gini": _gini(x),
        "entropy": _entropy(x),
        "cosine": cosine,
    }


def percent_improved(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """Return the percentage of clients with a loss that did not rise: F_k(w_{t+1}) ≤ F_k(w_t).

    Source: Hu et al. 2022 (FedMGDA+), section 6. The clients are those of `after`, at least one;
    `before` has all of them.
    """
    return 100.0 * sum(after[name] <= before[name] for name in after) / len(after)


def against_baseline(
    values: Mapping[str, float], baseline: Mapping[str, float], *, lower_is_better: bool = False
) -> dict[str, float]:
    """Return how the clients that a baseline serves badly and well fare under another model.

    Source: Malekmohammadi and Yu (Semi-VRed), section 5.3 and Table 2. Suffering clients are worse
    than the mean over clients under the baseline, well-performing clients are all others.

    Returns
    -------
    dict
        `suffering_share`: the percentage of suffering clients that improve; `suffering_change`:
        their mean change, positive if they improve. `well_performing_share`: the percentage of
        well-performing clients that degrade; `well_performing_change`: their mean change.
        `mean_change`: the change of the mean over all clients. NaN without such clients.
    """
    names = sorted(values.keys() & baseline.keys())
    sign = -1.0 if lower_is_better else 1.0
    base = sign * np.array([baseline[name] for name in names], np.float64)
    gains = sign * np.array([values[name] for name in names], np.float64) - base
    # Rounding must not put equally served clients below their mean.
    suffers = base < (base.mean() - 1e-12 * np.abs(base).max() if names else 0.0)
    return {
        "suffering_share": 100.0 * _mean_or_nan(gains[suffers] > 0.0),
        "suffering_change": _mean_or_nan(gains[suffers]),
        "well_performing_share": 100.0 * _mean_or_nan(gains[~suffers] < 0.0),
        "well_performing_change": _mean_or_nan(gains[~suffers]),
        "mean_change": _mean_or_nan(gains),
    }


def _mean_or_nan(x: NDArray[np.float64] | NDArray[np.bool_]) -> float:
    return _mean_of(x) if x.size else math.nan


def count_of_share(percent: int, clients: int) -> int:
    """Return ⌈percent · clients / 100⌉ in integers: 20 % of 35 clients are 7."""
    return -(-percent * clients // 100)


def _mean_of(x: NDArray[np.float64] | NDArray[np.bool_]) -> float:
    """Return the mean as `x.mean()` does, which takes four times as long."""
    return float(np.add.reduce(x) / x.size)


def _cosine(ascending: NDArray[np.float64]) -> float:
    largest = max(abs(ascending[0]), abs(ascending[-1]))
    if largest == 0.0:
        return 1.0
    scaled = ascending / largest  # squares of tiny values would vanish
    return float(np.add.reduce(scaled) / math.sqrt(ascending.size * (scaled @ scaled)))


def _gini(ascending: NDArray[np.float64]) -> float:
    n = ascending.size
    total = np.add.reduce(ascending)
    if ascending[0] < 0.0:
        return math.nan
    ranks = 2.0 * np.arange(1, n + 1) - n - 1.0
    return 0.0 if ascending[-1] == 0.0 else float(ranks @ ascending / (n * total))


def _entropy(ascending: NDArray[np.float64]) -> float:
    if ascending[0] < 0.0:
        return math.nan
    if ascending[-1] == 0.0:
        return math.log(ascending.size)
    shares = ascending / np.add.reduce(ascending)
    shares = shares[shares > 0.0]
    return float(-np.add.reduce(shares * np.log(shares)))
