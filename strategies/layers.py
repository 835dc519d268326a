"""Which arrays of a model are one layer."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairbloom.errors import FairbloomError


def layers_of(names: Sequence[str], groups: Mapping[str, Any] | None) -> list[NDArray[np.intp]]:
    """Return the places of each layer's arrays, the layers in the order of their first array.

    `groups` names each array's layer. Without it, arrays whose names agree up to the last dot, as
    those of fc.weight and fc.bias do, or that have none, are one layer.
    """
    if not groups:
        layer_of = [name.rpartition(".")[0] for name in names]
    else:
        unknown, missing = (
            [n for n in a if n not in b] for a, b in ((groups, names), (names, groups))
        )
        if unknown:
            raise FairbloomError(
                f"groups names {unknown[0]!r}, which is no array that is trained: leave it out;"
                f" there are {', '.join(names)}"
            )
        if missing:
            raise FairbloomError(
                f"groups has no group for {missing[0]!r}: name one for each array that is trained"
            )
        layer_of = [groups[name] for name in names]
    return [
        np.flatnonzero([each == layer for each in layer_of]) for layer in dict.fromkeys(layer_of)
    ]
