"""Whether a fair model is fairer to clients that were not there when it was trained.

`benchmarks.federations.held_out` writes the rows: a fifth of the clients of each federation with
more than 20 is left out of training, and tested with the final common model. The arms were chosen
before, with all clients.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from statistics import fmean, median

from .outcomes import bound_of, hodges_lehmann, p_different

BASELINE = "fedavg"

WORST = {"those in training": "worst_10", "those not in training": "held_out_worst_10"}
"""The column with the score of the worst tenth, by the clients that it is of."""

Row = Mapping[str, str]


@dataclass(frozen=True)
class HeldOut:
    """Scores of the worst tenth of the clients in training and of those that were not.

    Attributes
    ----------
    rows
        A row for each federation, method and seed.
    fair
        The fair methods.
    errors
        The federations whose scores are errors: lower is better.
    """

    rows: Sequence[Row]
    fair: Set[str]
    errors: Set[str]

    @property
    def names(self) -> list[str]:
        """The federations."""
        return [*dict.fromkeys(row["workload"] for row in self.rows)]

    @cached_property
    def methods(self) -> list[str]:
        """The fair methods that ran on all federations: their median is of the same ones."""
        ran = {(row["workload"], row["method"]) for row in self.rows}
        return sorted(m for m in self.fair if all((name, m) in ran for name in self.names))

    def worst(self, name: str, method: str, column: str) -> float:
        """Return the mean over seeds of the score of a worst tenth."""
        return fmean(
            float(row[column])
            for row in self.rows
            if (row["workload"], row["method"]) == (name, method)
        )

    def gain(self, name: str, method: str, column: str) -> float:
        """Return a method's gain over FedAvg in units of what would matter; see `outcomes`."""
        base = self.worst(name, BASELINE, column)
        gained = self.worst(name, method, column) - base
        is_error = name in self.errors
        return (-gained if is_error else gained) / bound_of(base, is_error=is_error)

    @cached_property
    def gains(self) -> dict[str, list[float]]:
        """The gain of the median fair method on each federation, by the clients of WORST."""
        return {
            clients: [
                median(self.gain(name, method, column) for method in self.methods)
                for name in self.names
            ]
            for clients, column in WORST.items()
        }

    @property
    def table(self) -> list[list[str]]:
        """A row a federation: FedAvg's worst tenths, and the gains of the median fair method."""
        found = [["", *(f"{what}, {clients}" for clients in WORST for what in ("FedAvg", "gain"))]]
        for place, name in enumerate(self.names):
            form = "{:.2f}" if name in self.errors else "{:.1f} %"
            cells = [
                (form.format(self.worst(name, BASELINE, column)), f"{gains[place]:+.2f}")
                for column, gains in zip(WORST.values(), self.gains.values(), strict=True)
            ]
            found.append([f"`{name}`", *chain.from_iterable(cells)])
        return found

    @property
    def sentences(self) -> list[str]:
        """What the page says of it, [] without rows."""
        if not self.rows:
            return []
        parts = []
        for clients, gains in self.gains.items():
            estimate, low, high = hodges_lehmann(gains)
            parts.append(
                f"the worst 10 % of {clients} gain {estimate:+.2f} times what would matter"
                f" ({low:+.2f} to {high:+.2f}; p = {p_different(gains):.2g})"
            )
        return [
            f"**Clients that were not there:** on {len(self.names)} federations a fifth of the"
            f" clients was left out of training. Under the median of {len(self.methods)} fair"
            " methods"
            f" {', and '.join(parts)}. That says nothing of clients from elsewhere: these are of"
            " the same kind, and arms were chosen with all clients."
        ]
