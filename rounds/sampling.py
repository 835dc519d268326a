"""Sampling schemes: who trains in a round where clients are not drawn uniformly; a user's function, or its name."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from fairbloom.errors import FairbloomError
from fairbloom.imports import imported, is_import_string
from fairbloom.protocol.names import LOSS_BEFORE
from fairbloom.protocol.streams import generator

UNIFORM = "uniform"
"""Without replacement, all clients with the same probability: how clients are drawn by default."""

Draw = Callable[..., Iterable[str]]
"""(round, names of the clients that can be asked, how many are wanted, random) → the names of those that train.

Where it has a parameter called `history`, it gets a History, too.
"""


@dataclass(frozen=True)
class History:
    """What a run knows of its clients before a round, for schemes that draw by it.

    Each client's last reported loss of a received model, and the number of rounds that used its update, by name.
    """

    losses: Mapping[str, float] = field(default_factory=dict)
    participations: Mapping[str, int] = field(default_factory=dict)

    def plus(self, reports: Mapping[str, Mapping[str, float]]) -> "History":
        """Return the history after a round with these reports of used replies."""
        losses = {name: float(report[LOSS_BEFORE]) for name, report in reports.items() if LOSS_BEFORE in report}
        counts = {name: self.participations.get(name, 0) + 1 for name in reports}
        return History({**self.losses, **losses}, {**self.participations, **counts})

    def state_dict(self) -> dict[str, Any]:
        """Return it as a checkpoint holds it; `of_state` reads it."""
        return {"losses": dict(self.losses), "participations": dict(self.participations)}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> "History":
        """Return what `state_dict` returned."""
        return cls(dict(state["losses"]), dict(state["participations"]))


class SamplingError(FairbloomError):
    """A sampling scheme that fails, or draws what cannot be participants; the message names it and the round."""


@dataclass(frozen=True, repr=False)
class Scheme:
    """A user's sampling scheme: what errors call it, its function, and whether that reads the clients' history."""

    name: str
    draw: Draw
    by_history: bool = False

    def __repr__(self) -> str:
        """Return what errors call it, as a strategy's summary shows it."""
        return repr(self.name)

    @classmethod
    def named(cls, name: str, draw: Draw) -> "Scheme":
        """Return the scheme of a function."""
        return cls(name, draw, "history" in inspect.signature(draw).parameters)

    @classmethod
    def of(cls, sampling: str | Draw) -> "Scheme | None":
        """Return the scheme of the option `sampling`; None for uniform draws."""
        if sampling == UNIFORM:
            return None
        if callable(sampling):
            return cls.named(getattr(sampling, "__name__", type(sampling).__name__), sampling)
        if not is_import_string(sampling):
            raise ValueError(f"sampling must be {UNIFORM!r} or a function as 'my_module:draw', got {sampling!r}")
        found = imported("sampling", sampling)
        if not callable(found):
            raise ValueError(
                f"sampling = {sampling!r} must be a function of number, names, count and random, got "
                f"{type(found).__name__}"
            )
        return cls.named(sampling, found)

    def choose(self, names: Sequence[str], wanted: int, seed: int, number: int, history: History) -> list[str]:
        """Return the clients that train in a round, in ascending order; SamplingError says that the scheme fails."""
        random = generator(seed, "sampling", number)
        losses, participations = MappingProxyType(history.losses), MappingProxyType(history.participations)
        known = {"history": History(losses, participations)} if self.by_history else {}
        try:
            drawn = sorted(map(str, self.draw(number, tuple(names), wanted, random, **known)))
        except Exception as error:
            said = " ".join(str(error).split())
            raise SamplingError(
                f"sampling = {self.name!r}: in round {number} it failed with {type(error).__name__}: {said}"
            ) from error
        if not drawn:
            raise SamplingError(f"sampling = {self.name!r}: in round {number} it drew none of {len(names)} clients")
        if strange := set(drawn).difference(names):
            raise SamplingError(
                f"sampling = {self.name!r}: in round {number} it drew {min(strange)!r}, which is none of the "
                f"{len(names)} clients that it was given"
            )
        if twice := next((name for name, following in pairwise(drawn) if name == following), None):
            raise SamplingError(f"sampling = {self.name!r}: in round {number} it drew {twice!r} twice")
        return drawn
