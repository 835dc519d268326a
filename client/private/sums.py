"""A client's part of a sum: the noise in it is shared with other clients.

The server sees only the sum of all parts. What a row moves it by is bounded as in a step of an
account that stands for itself; the noise is that of the h clients that follow the protocol,
together (`Lattice.honest`).

Why their noise counts as one: h discrete Gaussians of deviation t add up to the discrete Gaussian
of deviation t√h within a factor e^±η a number, η ≤ 5 (h − 1) exp(−π² t²), by Poisson summation
(Kairouz, Liu, Steinke, ICML 2021, arXiv 2102.06387), which is nothing at t = 2^24. The lemma of
`noise` then applies once, to the sum.
"""

from fairbloom.protocol.accounts import LOSS_UNITS, STEP_UNITS, largest_loss
from fairbloom.protocol.sums import SharedNoise, check_asked
from fairbloom.protocol.terms import Terms

from ..local import LocalClient
from ..states import StateDict
from .budget import Budget, Price
from .mechanism import load_received
from .noise import Draw, Integers, Lattice, release
from .rows import CLIP, Rows


class Partner:
    """A client that shares noise, with a received model; and its rows of training.

    Raises
    ------
    ReportableError
        For what no account does, and for what a sum cannot have. No row is read for it.
    """

    def __init__(
        self, client: LocalClient, received: StateDict, terms: Terms, asked: SharedNoise
    ) -> None:
        check_asked(terms)
        self._classes = load_received(client, received, terms, frozenset(terms.measure))
        self._client = client
        self._asked = asked
        self._share = asked.share_of(client.name)
        width = sum(parameter.numel() for _, parameter in client.trainable())
        self.count = len(client.splits.train)
        self.lattice = Lattice(asked.sigma, CLIP, width, asked.honest)
        self.lattice.check(self.count)

    def add(self, draw: Draw) -> Integers:
        """Return q = rint(ρ Σ g_i min(1, C/‖g_i‖) / γ) + Y, at the received model."""
        total = self._share * self._rows().clipped_sum().numpy()
        return self.lattice.places(total) + draw(len(total))

    def loss_lattice(self, budget: Budget, units: int) -> Lattice:
        """Return the lattice of a loss report at this price; raise ReportableError as `check`."""
        lattice = Lattice(budget.sigma_of(units), largest_loss(self._classes), 1)
        lattice.check(self.count)
        return lattice

    def report_loss(self, lattice: Lattice, draw: Draw) -> float:
        """Return the client's mean loss with noise of its own: (1/n) [Σ clip(loss, 0, B) + noise].

        It is not part of a sum.
        """
        losses = self._rows().losses()
        total = losses.sum().numpy()
        noisy = release(lattice.places(total.reshape(1)), lattice.spacing, draw)
        return float(noisy[0]) / self.count

    def _rows(self) -> Rows:
        return Rows(self._client.model, self._client.splits.train, self._classes)


def price_of(budget: Budget, sigma: float) -> Price:
    """Return the units of a client's part of a sum of noise σ, and of a loss report.

    A part costs what the sum's noise asks of this owner; a loss a quarter, and 1 at least.
    """
    step = budget.units_for(sigma)
    return Price(step, max(LOSS_UNITS, step // STEP_UNITS))
