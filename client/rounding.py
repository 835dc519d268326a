"""Updates rounded to bfloat16, with the rounding error carried to the client's next round."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fairbloom.protocol.bfloat16 import Bits, narrow, widen
from fairbloom.tasks.models import arrays_of

from .states import ROUNDING, ClientStates, Version

Arrays = Mapping[str, NDArray[Any]]


def round_updates(
    states: ClientStates, number: int, received: Arrays, trained: Arrays
) -> dict[str, Bits]:
    """Return the updates of round `number` for the wire; store what rounding left of them.

    v = w − w_k + e is rounded, and the next e is v minus the rounded v, itself in bfloat16. A
    client begins with e = 0, and does so again if it has lost e.

    Source: Seide et al., Interspeech 2014 (1-bit stochastic gradient descent), section 2.
    """
    last = states.find(ROUNDING, before=number) or Version(0, {})
    carried = arrays_of(last.state)
    sent: dict[str, Bits] = {}
    left: dict[str, torch.Tensor] = {}
    with np.errstate(over="ignore", invalid="ignore"):
        for name, array in trained.items():
            wide = array.astype(np.result_type(np.float32, array), copy=False)
            update = (received[name] - wide).astype(np.float32, copy=False)
            if name in carried:
                update += widen(carried[name])
            sent[name] = narrow(update)
            error = update - widen(sent[name])
            # The server refuses an update that is not finite; its error must not come back.
            left[name] = torch.from_numpy(narrow(np.where(np.isfinite(error), error, 0.0)))
    states.keep(ROUNDING, number, left, last.made)
    return sent
