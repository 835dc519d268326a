"""How models and updates travel in messages, by the setting `wire-dtype`; arrays are NumPy's.

The digest of frozen parameters, which server and client compare.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .bfloat16 import narrow, widen

Arrays = Mapping[str, NDArray[Any]]

# How the name of an array of bits ends in a message.
ENDING = ":bfloat16"


@dataclass(frozen=True)
class Codec:
    """Whether models and updates are rounded to bfloat16 for messages.

    A rounded array travels as its bits, with another name.
    """

    rounds_model: bool
    rounds_updates: bool

    def send_model(self, model: Arrays, rounded: Collection[str]) -> dict[str, NDArray[Any]]:
        """Return the arrays of a model for a message; `rounded` names those that may be rounded."""
        if not self.rounds_model:
            return {**model}
        sent: dict[str, NDArray[Any]] = {}
        for name, array in model.items():
            if name in rounded:
                sent[name + ENDING] = narrow(array)
            else:
                sent[name] = array
        return sent

    def receive_model(
        self, sent: Arrays, dtypes: Mapping[str, DTypeLike]
    ) -> dict[str, NDArray[Any]]:
        """Return the arrays of a message by their names in the model, in the model's dtypes."""
        received: dict[str, NDArray[Any]] = {}
        for name, array in sent.items():
            own = name_of(name)
            if name.endswith(ENDING):
                array = widen(array).astype(dtypes[own], copy=False)
            received[own] = array
        return received

    def send_update(
        self, received: Arrays, trained: Arrays, carried: Arrays
    ) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
        """Return the bits of a client's update by array, and those of what rounding left of it.

        v = w − w_k + e is rounded, and the next e is v minus the rounded v, itself in bfloat16.
        `carried` has the bits of e, without those that are 0.

        Source: Seide et al., Interspeech 2014 (1-bit stochastic gradient descent), section 2.
        """
        sent: dict[str, NDArray[Any]] = {}
        left: dict[str, NDArray[Any]] = {}
        with np.errstate(over="ignore", invalid="ignore"):
            for name, array in trained.items():
                wide = array.astype(np.result_type(np.float32, array), copy=False)
                update = (received[name] - wide).astype(np.float32, copy=False)
                if name in carried:
                    update += widen(carried[name])
                sent[name] = narrow(update)
                error = update - widen(sent[name])
                # The server refuses an update that is not finite; its error must not come back.
                left[name] = narrow(np.where(np.isfinite(error), error, 0.0))
        return sent, left

    def read_update(self, reply: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arrays of a reply by their names in the model."""
        if not self.rounds_updates:
            return {**reply}
        return {name_of(name): array for name, array in reply.items()}


# The codecs by the value of `wire-dtype`.
CODECS: Mapping[str, Codec] = {
    "float32": Codec(rounds_model=False, rounds_updates=False),
    "bfloat16-updates": Codec(rounds_model=False, rounds_updates=True),
    "bfloat16": Codec(rounds_model=True, rounds_updates=True),
}


def name_of(name: str) -> str:
    """Return the name in the model of an array in a message."""
    return name.removesuffix(ENDING)


def digest_arrays(arrays: Arrays) -> str:
    """Return a checksum of arrays with their names, dtypes and shapes, in any order."""
    total = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        total.update(json.dumps([name, array.dtype.str, array.shape]).encode())
        total.update(array.tobytes())
    return total.hexdigest()
