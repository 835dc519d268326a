"""Updates rounded to bfloat16, with the rounding error carried to the client's next round."""

from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray

from fairbloom.protocol.terms import ROUNDED_UPDATE, Terms
from fairbloom.tasks.models import arrays_of

from ..states import ROUNDING_STATE, ClientStates, Version
from .base import Rule


class RoundedUpdate(Rule):
    """Declares that the client replies updates in bfloat16, which messages carry out at the end.

    `round_updates` rounds them, after all other rules.
    """

    reads = ROUNDED_UPDATE


def round_updates(
    states: ClientStates,
    terms: Terms,
    received: Mapping[str, NDArray[Any]],
    trained: Mapping[str, NDArray[Any]],
) -> dict[str, NDArray[Any]]:
    """Return the bits of the round's updates; store what rounding left of them.

    A client begins with an error of 0, and does so again if it has lost the error.
    """
    last = states.find(ROUNDING_STATE, before=terms.server_round) or Version(0, {})
    sent, left = terms.codec.send_update(received, trained, arrays_of(last.state))
    states.keep(
        ROUNDING_STATE,
        terms.server_round,
        {name: torch.from_numpy(bits) for name, bits in left.items()},
        last.made,
    )
    return sent
