"""Fair averaging without conflicts between clients."""

from typing import Annotated, ClassVar, Unpack

import numpy as np
from numpy.typing import NDArray

from fairbloom.protocol.streams import generator
from fairbloom.rounds.method import Cohort, Decision, FloatArray, Kept, Options
from fairbloom.rounds.ranges import Choices, Range

from .descent import CommonDescent
from .strategy import Tries

# If the squared norm of the projected average is below this share of the mean squared norm, it is
# rounding: no step is taken.
NOTHING_COMMON = 1e-6


class FedFV(CommonDescent):
    r"""FedFV: conflicting updates are projected off each other, then off absent clients' updates.

    In ascending order of loss F, with S^α the top-loss clients, which keep their update:

    .. math:: u'_k \leftarrow u'_k - \frac{\langle u'_k, u_j \rangle}{\lVert u_j \rVert^2} u_j
        \text{ for each } j \ne k \text{ with } \langle u'_k, u_j \rangle < 0, \qquad
        g = \tfrac1m \sum_k u'_k

    then, for i = τ … 1, with con the sum of the updates kept from round t − i that conflict with g:

    .. math:: g \leftarrow g - \frac{\langle g, con \rangle}{\lVert con \rVert^2} con
        \text{ if } \langle g, con \rangle < 0, \qquad
        w \leftarrow w - g \frac{\lVert \tfrac1m \sum_k u_k \rVert}{\lVert g \rVert}

    Without rescaling, w ← w − g.

    Source: Wang et al., Federated Learning with Fair Averaging, IJCAI 2021, Algorithms 1–3,
    doi:10.24963/ijcai.2021/223.

    Parameters
    ----------
    alpha
        Share of the clients, those with the highest loss, that keep their update unchanged.
    tau
        Number of earlier rounds with updates of absent clients that are respected.
    order
        The order of projection; "random" and "reverse" are the paper's ablations (Table 4).
    rescale
        Whether the step is as long as the mean update, as Algorithm 1, line 10 has it.

    Reductions: `alpha=1, tau=0` is FedAvg with uniform weights.

    Departures: Algorithm 2, line 3 prints k ∈ S^α; the paper's text and code mean k ∉ S^α, as here.
    With α > 0, 1 + ⌊α (m − 1)⌋ clients keep their update: α m where that is whole, at least one.
    Rounds count from 1, and if ‖g‖² ≤ 1e-6 · mean ‖u_k‖², no step is taken. Updates older than τ
    rounds, which the algorithm keeps and never uses, are dropped: there are at most τ m. Theorem 3
    holds for `rescale=False` only: its proof has no line 10, which can lengthen the step beyond
    1/L.

    Objective: the mean loss, without conflicts
    Good for: conflicting clients, few of which take part in a round; absent ones are respected for
    tau rounds.
    Hurts when: updates are noisy: half of all pairs then conflict by chance, and projections cost
    signal. Or one client reverses its update, even half of it: the nearly parallel updates of iid
    clients all conflict with it, the projections remove the direction that they share, and the step
    is noise at full length. With two clients that nearly oppose each other, rescaling makes a step
    in the little that they share many times longer; `rescale=False` does not.
    Memory: tau rounds of updates
    Cost: a Gram matrix and projections
    """

    # Table 1 of the paper.
    tries: ClassVar[Tries] = {
        "alpha": (0.0, 0.1, 0.2, 1 / 3, 0.5, 2 / 3),
        "tau": (0, 1, 3, 10),
    }
    lost_to_server_optimizers = (
        "its step is as long as the mean update, in the direction that the projections leave"
    )
    drawn_by_examples = True

    def __init__(
        self,
        *,
        alpha: Annotated[float, Range("[0, 1]")] = 0.1,
        tau: Annotated[int, Range("[0, inf)")] = 1,
        order: Annotated[str, Choices("loss", "random", "reverse")] = "loss",
        rescale: bool = True,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        self.alpha = alpha
        self.tau = tau
        self.order = order
        self.rescale = rescale

    def weigh(self, cohort: Cohort) -> Decision:
        """Return c over the updates and the kept ones; a client's latest is kept for τ rounds."""
        rows = np.eye(cohort.size + len(cohort.memory))
        latest = {
            **dict(zip(cohort.memory, rows[cohort.size :], strict=True)),
            **{Kept(name, cohort.round): rows[i] for i, name in enumerate(cohort.names)},
        }
        return Decision(
            self._coefficients(cohort),
            keep={
                kept: row for kept, row in latest.items() if kept.round > cohort.round - self.tau
            },
        )

    def _coefficients(self, cohort: Cohort) -> FloatArray:
        """Return c over the updates and the kept ones.

        Vectors are rows of coefficients; inner products go through G.
        """
        G = cohort.gram
        m = cohort.size
        draws = cohort.draws  # a client that was drawn twice is two of the mean's terms
        mean = np.zeros(len(G))
        mean[:m] = draws / draws.sum()
        g = np.zeros(len(G))
        g[:m] = (draws[:, None] * self._projected(cohort)).sum(axis=0) / draws.sum()
        if cohort.round > self.tau:
            g = self._off_absent(cohort, g)
        squared_norm = g @ G @ g
        if squared_norm <= NOTHING_COMMON * np.diag(G)[:m].mean():
            return np.zeros(len(G))
        if not self.rescale:
            return g
        return np.asarray(g * np.sqrt((mean @ G @ mean).clip(0.0) / squared_norm))

    def _projected(self, cohort: Cohort) -> FloatArray:
        """Return u'_k as coefficients of u_1 … u_m, one row per client, shape (m, m)."""
        m = cohort.size
        G = cohort.gram[:m, :m]
        # equal losses go by the norms of updates: names must not decide
        ascending = np.lexsort((np.diag(G), cohort.losses))
        free = np.ones(m, dtype=bool)
        if self.alpha > 0.0:
            # 1e-9 less, because rounding must not add to the number of free clients
            count = max(int(np.ceil((m - 1) * (1.0 - self.alpha) - 1e-9)), 0)
            free[ascending[count:]] = False
        A = np.eye(m)
        products = G.copy()  # products[k, j] = ⟨u'_k, u_j⟩
        for j in self._in_order(cohort, ascending):
            conflicts = free & (products[:, j] < 0.0)
            conflicts[j] = False
            share = products[conflicts, j] / G[j, j]
            A[conflicts, j] -= share
            products[conflicts] -= share[:, None] * G[j]
        return A

    def _in_order(self, cohort: Cohort, ascending: NDArray[np.intp]) -> NDArray[np.intp]:
        if self.order == "random":
            return generator(self.seed, "order", cohort.round).permutation(cohort.size)
        return ascending[::-1] if self.order == "reverse" else ascending

    def _off_absent(self, cohort: Cohort, g: FloatArray) -> FloatArray:
        """Return g, projected off the kept updates of absent clients, the oldest round first."""
        G = cohort.gram
        rounds = np.array([0] * cohort.size + [kept.round for kept in cohort.memory])
        for age in range(self.tau, 0, -1):
            products = G @ g
            con = np.where((rounds == cohort.round - age) & (products < 0.0), 1.0, 0.0)
            squared_norm = con @ G @ con
            if con @ products < 0.0 and squared_norm > 0.0:
                g = g - (con @ products) / squared_norm * con
        return g
