"""The layers of a model, as groups of its arrays."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairbloom.errors import FairbloomError


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
