"""SCAFFOLD's client half: control variates."""

from collections.abc import Mapping
from typing import NamedTuple

from fairbloom.protocol.names import CONTROL
from fairbloom.protocol.terms import CONTROL_VARIATES

from ..device import in_double
from ..work import StepsTaken
from .arrays import check_arrays, like, update_of
from .base import Arrays, GradientOffset


class ControlVariates(GradientOffset):
    """SCAFFOLD's local work: y ← y − η (g(y) − c_k + c), then c_k ← c_k − c + u_k / H with H = Σ η.

    c is the server's control variate, sent as the record `control` (zero if there is no record),
    and c_k the client's.

    Source: Karimireddy et al., ICML 2020, Algorithm 1, option II.
    """

    reads = CONTROL_VARIATES

    def start(self, received: Arrays, kept: Arrays, sent: Mapping[str, Arrays]) -> "Control":
        """Return c_k, c and their difference."""
        own = {name: like(kept.get(name), array) for name, array in received.items()}
        control = sent.get(CONTROL, {})
        if control:
            check_arrays(control, received, f"the record {CONTROL!r}")
        of_server = {name: like(control.get(name), array) for name, array in received.items()}
        return Control(own, of_server, {name: of_server[name] - own[name] for name in received})

    def shift(self, state: "Control") -> Arrays:
        """Return c − c_k."""
        return state.shift

    def finish(
        self, received: Arrays, trained: Arrays, state: "Control", steps: StepsTaken
    ) -> tuple[Arrays, Arrays]:
        """Return the trained parameters and the new c_k, the old one if no step moved the model."""
        if not steps.rate_sum:
            return trained, state.own
        updates = update_of(received, trained)
        after = {}
        for name, own in state.own.items():
            of_server = in_double(state.of_server[name])
            exact = in_double(own) - of_server + updates[name] / steps.rate_sum
            after[name] = exact.to(own)
        return trained, after


class Control(NamedTuple):
    """The control variates of a round: c_k (client), c (server), and the shift c − c_k."""

    own: Arrays
    of_server: Arrays
    shift: Arrays
