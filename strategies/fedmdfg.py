"""Common descent with guidance towards equal losses, which respects absent clients."""

from typing import Annotated, Unpack

import numpy as np
from numpy.typing import NDArray

from fairbloom.rounds.method import Cohort, Decision, FloatArray, Kept, Options
from fairbloom.rounds.ranges import Choices, Positive, Range

from .descent import CommonDescent
from .guidance import NOTHING_COMMON, guidance
from .simplex import shortest_combination


class FedMDFG(CommonDescent):
    r"""FedMDFG: a step that lowers every client's loss, and reduces large gaps between losses.

    .. math:: v_k = s \frac{u_k}{\lVert u_k \rVert}, \quad
        s = \tfrac1m \sum_k \lVert u_k \rVert, \qquad
        d_0 = \arg\min \Big\lVert \sum_i \lambda_i q_i \Big\rVert, \qquad
        w \leftarrow w - \eta \, d_0 \frac{\lVert \tfrac1m \sum_k v_k \rVert}{\lVert d_0 \rVert}

    with λ in the simplex. The rows q are the scaled updates v_k, the last round's updates of
    clients that are absent now, and with guidance Σ h_k v_k. Here h is orthogonal to the losses F,
    and positive for the high ones. Guidance applies if the angle between F and equal losses is
    above `angle`, or if some clients, but not all, have a higher loss than expected. The expected
    loss is the mean of the client's earlier losses, each counted at most as the loss expected then.
    The step d satisfies ⟨d, q_i⟩ ≥ ‖d‖ ‖d₀‖ for every row: to first order, no loss of a present or
    absent client rises.

    Source: Pan et al., FedMDFG: Federated Learning with Multi-Gradient Descent and Fair Guidance,
    AAAI 2023, appendix A.1–A.3, doi:10.1609/aaai.v37i8.26122; Algorithm 1 was read in the authors'
    public code.

    Parameters
    ----------
    angle
        Angle in degrees between the losses and equal ones up to which guidance is off; the
        paper has 11.25 and 5.625.
    history
        Whether updates of the last round are respected if their clients are absent.
    guidance
        The updates that h combines: scaled ones, as in the authors' code and the published tables,
        or plain ones ("gradient"), as in the proofs.
    server_lr
        Step size η.

    Reductions: without guidance and absent clients, the direction of FedMGDAPlus with `epsilon=1`.
    A single client's update is the step.

    Departures: the step's length is not searched, which would need further exchanges
    in every round; the test of sufficient decrease in the authors' code has the wrong sign. Updates
    come from the clients' local work; that code uses one full-batch gradient. Equal losses give
    no guidance; the code divides 0 by 0. Only an update of exactly zero is left out, and if ‖d₀‖ ≤
    1e-3 s, no step is taken.

    Objective: a Pareto-stationary point, near equal losses
    Good for: conflicting clients, few of which take part in a round; an inflated update only
    changes the norm of the step.
    Hurts when: there are many clients compared with the dimensions that their data span, because
    the shortest combination is then near zero. It also guides towards a client with a loss that
    cannot fall, such as one with noisy labels.
    Memory: one round of updates, and two numbers per client
    Cost: a Gram matrix and a QP
    """

    def __init__(
        self,
        *,
        angle: Annotated[float, Range("(0, 90)")] = 11.25,
        history: bool = True,
        guidance: Annotated[str, Choices("scaled", "gradient")] = "scaled",
        server_lr: Positive = 1.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        self.angle = angle
        self.history = history
        self.guidance = guidance
        self.server_lr = server_lr

    def weigh(self, cohort: Cohort) -> Decision:
        """Return c over the updates and the kept ones.

        The updates that are not zero are kept; if all are zero, the kept rows stay.
        """
        memory = {**cohort.past.memory, **self._expectations(cohort)}
        live = self._live(cohort)
        if not live.size:
            return Decision(np.zeros(len(cohort.gram)), memory, dict.fromkeys(cohort.past.kept))
        kept: dict[Kept, FloatArray] = {}
        if self.history:
            rows = np.eye(len(cohort.gram))
            kept = {Kept(cohort.names[k], cohort.round): rows[k] for k in live}
        return Decision(
            self._coefficients(cohort, live),
            {**memory, "length": self._mean_norm(cohort)},
            kept,
        )

    def _coefficients(self, cohort: Cohort, live: NDArray[np.intp]) -> FloatArray:
        """Return c; vectors are rows of coefficients, and inner products go through G."""
        G = cohort.gram
        v = self._scaled(cohort)
        shortest = shortest_combination(
            np.vstack([v[live], self._guidance_row(cohort, v), v[cohort.size :]]), G
        )
        mean = v[live].mean(axis=0)
        squared_norm = shortest @ G @ shortest
        if squared_norm <= (NOTHING_COMMON * self._mean_norm(cohort)) ** 2:
            return np.zeros(len(G))
        return np.asarray(
            self.server_lr * np.sqrt((mean @ G @ mean).clip(0.0) / squared_norm) * shortest
        )

    def _live(self, cohort: Cohort) -> NDArray[np.intp]:
        """Return the places of the updates that are not zero."""
        return np.flatnonzero(np.diag(cohort.gram)[: cohort.size])

    def _mean_norm(self, cohort: Cohort) -> float:
        """Return s, the mean norm of the updates that are not zero."""
        return float(np.sqrt(np.diag(cohort.gram)[self._live(cohort)]).mean())

    def _scaled(self, cohort: Cohort) -> FloatArray:
        """Return v of every update and kept row; a kept row gets the s of its round."""
        norms = np.sqrt(np.diag(cohort.gram))
        wanted = np.full(len(norms), self._mean_norm(cohort))
        wanted[cohort.size :] = cohort.past.memory.get("length", 0.0)
        return np.diag(np.divide(wanted, norms, out=np.zeros_like(norms), where=norms > 0.0))

    def _guidance_row(self, cohort: Cohort, v: FloatArray) -> FloatArray:
        """Return the row that guides towards equal losses, shape (1, m + r).

        Without guidance, the shape is (0, m + r).
        """
        live = self._live(cohort)
        guide = guidance(cohort.losses[live])
        if guide is None or not (guide.angle > self.angle or self._is_forced(cohort)):
            return np.zeros((0, len(v)))
        updates = v if self.guidance == "scaled" else np.eye(len(v))
        return guide.direction[None, :] @ updates[live]

    def _is_forced(self, cohort: Cohort) -> bool:
        """Return whether the losses of some clients, but not of all, are higher than expected."""
        expected = cohort.past.memory.get("expected", {})
        rose = [
            loss > expected.get(name, loss)
            for name, loss in zip(cohort.names, cohort.losses, strict=True)
        ]
        return any(rose) and not all(rose)

    def _expectations(self, cohort: Cohort) -> dict[str, dict[str, float]]:
        """Return the expected losses after the round, and each client's number of rounds."""
        expected = dict(cohort.past.memory.get("expected", {}))
        joined = dict(cohort.past.memory.get("joined", {}))
        for name, loss in zip(cohort.names, cohort.losses.tolist(), strict=True):
            mean = expected.get(name, loss)
            rounds = joined.get(name, 0)
            expected[name] = mean + (min(loss, mean) - mean) / (rounds + 1)
            joined[name] = rounds + 1
        return {"expected": expected, "joined": joined}
