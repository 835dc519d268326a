"""The layers of a model, as groups of its arrays, and a common descent direction in each."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairbloom.errors import FairbloomError
from fairbloom.rounds.method import FloatArray

from .guidance import NOTHING_COMMON
from .simplex import shortest_combination

# A guidance row below this share of the norm of the rows that it combines is rounding, and is
# skipped.
NO_GUIDANCE = 1e-6


def layers_of(names: Sequence[str], groups: Mapping[str, Any] | None) -> list[NDArray[np.intp]]:
    """Return the places of each layer's arrays, the layers in the order of their first array.

    `groups` names each array's layer. Without it, arrays with the same name up to the last dot, as
    fc.weight and fc.bias, are one layer; so are all arrays without a dot in their name.
    """
    if groups:
        check_groups(names, groups)
        layer_names = [groups[name] for name in names]
    else:
        layer_names = [name.rpartition(".")[0] for name in names]
    return [
        np.flatnonzero([other == layer for other in layer_names])
        for layer in dict.fromkeys(layer_names)
    ]


def check_groups(names: Sequence[str], groups: Mapping[str, Any]) -> None:
    """Raise FairbloomError unless `groups` has exactly these names."""
    for name in groups:
        if name not in names:
            raise FairbloomError(
                f"groups names {name!r}, which is no array that is trained: leave it out;"
                f" there are {', '.join(names)}"
            )
    for name in names:
        if name not in groups:
            raise FairbloomError(
                f"groups has no group for {name!r}: name one for each array that is trained"
            )


class Layer(NamedTuple):
    """A layer: one or several groups of arrays, and their common direction.

    Attributes
    ----------
    arrays
        The places of its arrays.
    gram
        The inner products of updates and kept rows within it.
    direction
        The shortest vector in the hull of its rows, as coefficients of updates and kept rows.
    squared_norm
        The squared norm of the direction.
    is_stationary
        Whether it has no common direction.
    """

    arrays: NDArray[np.intp]
    gram: FloatArray
    direction: FloatArray
    squared_norm: float
    is_stationary: bool


def solve_layers(
    groups: Sequence[tuple[NDArray[np.intp], FloatArray]], h: FloatArray, *, scaled: bool
) -> list[Layer]:
    """Return the layers of groups, each with its arrays and its Gram matrix.

    A stationary layer is merged with the next one, the last with the one before it, until none is
    stationary or a single one remains. `h` is the guidance of the m updates, which combines them
    `scaled` to one norm, or plain.
    """
    layers = [_solve(arrays, G, h, scaled) for arrays, G in groups]
    while len(layers) > 1 and any(layer.is_stationary for layer in layers):
        first = min([layer.is_stationary for layer in layers].index(True), len(layers) - 2)
        one, other = layers[first : first + 2]
        arrays = np.concatenate([one.arrays, other.arrays])
        layers[first : first + 2] = [_solve(arrays, one.gram + other.gram, h, scaled)]
    return layers


def _solve(arrays: NDArray[np.intp], G: FloatArray, h: FloatArray, scaled: bool) -> Layer:
    m = len(h)
    norms = np.sqrt(np.diag(G))
    moving = norms > 0.0
    inverse = np.divide(1.0, norms, out=np.zeros_like(norms), where=moving)
    mu = norms[:m][moving[:m]].mean()
    rows = np.diag(mu * inverse)[moving]
    q = np.zeros(len(G))
    q[:m] = h * inverse[:m] if scaled else h
    norm = np.sqrt((q @ G @ q).clip(0.0))
    if norm > NO_GUIDANCE * (1.0 if scaled else mu):
        rows = np.vstack([rows, mu / norm * q])
    direction = shortest_combination(rows, G)
    square = float((direction @ G @ direction).clip(0.0))
    return Layer(arrays, G, direction, square, square <= (NOTHING_COMMON * mu) ** 2)
