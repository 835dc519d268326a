"""The rounding of updates, which a client's messages carry out after all other rules."""

from fairbloom.protocol.terms import ROUNDED_UPDATE

from .base import Rule


class RoundedUpdate(Rule):
    """Declares that the client replies updates in bfloat16; `client.rounding` rounds them."""

    reads = ROUNDED_UPDATE
