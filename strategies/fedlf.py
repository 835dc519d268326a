"""A fair descent direction for each layer of the model."""

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from fairbloom.rounds.method import Cohort, FloatArray, Kept, Options, Probed
from fairbloom.rounds.ranges import Choices, Pairs, Positive, pairs_in
from fairbloom.rounds.server_optimizer import COMMON_DESCENT

from .guidance import NOTHING_COMMON, guidance
from .layers import layers_of
from .simplex import shortest_combination
from .strategy import FairStrategy

NO_GUIDANCE = 1e-6
"""A guidance row that is shorter than this share of the rows that it combines is rounding, and is
left out."""


class Layer(NamedTuple):
    """A layer: the places of its arrays, the products of updates and kept rows within it, and its direction.

    The direction is the shortest vector of the hull of its rows, as coefficients of the updates and
    kept rows. A stationary layer has no common direction.
    """

    arrays: NDArray[np.intp]
    gram: FloatArray
    direction: FloatArray
    squared_length: float
    is_stationary: bool


class FedLF(FairStrategy):
    r"""FedLF: in each layer, the shortest combination of the updates and of the way to equal losses.

    With u_(kl) the part of u_k in group l of the model's arrays, μ_l the mean length of those that
    are not zero, and h the direction of the losses F to equal ones:

    .. math:: d_l = \text{the shortest vector in the hull of } \mu_l \frac{u_{kl}}{\lVert u_{kl} \rVert} \text{ and }
        \mu_l \frac{q_l}{\lVert q_l \rVert}, \qquad q_l = \sum_k h_k \frac{u_{kl}}{\lVert u_{kl} \rVert}

    .. math:: h \propto \cos\varphi \, \frac{F}{\lVert F \rVert} - \frac{\mathbf 1}{\sqrt m}, \qquad
        w \leftarrow w - \eta \, d \, \frac{\lVert \tfrac1m \sum_k u_k \rVert}{\lVert d \rVert}

    The last updates of absent clients that replied in the last ⌊M/m⌋ rounds, M being the clients
    seen before, are rows of the hull as well, each part scaled to μ_l. A group with ‖d_l‖ ≤ 1e-3 ·
    μ_l has no common direction: it is merged with the next group, the last one with that before it,
    and solved again. Where all are one such group, no step is taken. So ⟨d_l, u_(kl)⟩ ≥ 0 for every
    client in every merged group: to first order no participant's loss rises.

    Source: Pan et al., FedLF: Layer-Wise Fair Federated Learning, AAAI 2024, Algorithm 1, equations
    5–8 and section
    3.3, doi:10.1609/aaai.v38i13.29368; the authors' code, zibinpan/FedLF.

    Parameters
    ----------
    history
        Whether absent clients' last updates are respected.
    guidance
        What the guidance row combines: updates scaled to one length, or as they are ("gradient"),
        as in equation 5.
    server_lr
        Step size η: the length of the step in lengths of the mean update.
    groups
        The group of each array that is trained, by the array's name; none: arrays whose names agree
        up to the last dot, as those of a layer's weight and bias do, are one group.

    Reductions: with one group, equal losses and no absent clients the direction is that of
    FedMGDAPlus with `epsilon=1`. Where all groups have the same updates, each steps as they would
    alone.

    Departures: groups are merged as in Algorithm 1, and a layer's weight and bias are one group as
    in Table 2; the authors' code has a group for each array and never merges. The guidance row
    combines scaled updates as in that code; guidance="gradient" is equation 5. A client whose part
    of a group is zero, equal losses, and a client alone, with which the code fails, are left out,
    have no guidance, and are stepped along. Absent clients are respected from round 2 on, which the
    code does only once more clients were seen than take part in a round. Updates are those of the
    clients' local work, as in Algorithm 1; the authors' experiments take one full-batch gradient.

    Objective: a Pareto-stationary point near equal losses, layer by layer
    Good for: clients in conflict, in some layers more than in others, of which few take part in a
    round.
    Hurts when: groups are many and small: the shortest combination of each is short, and directions
    are mostly noise. A client whose loss cannot fall is guided towards all the same.
    Memory: the last update of every client, unless it is older, in rounds, than there are clients
    Cost: a Gram matrix by array over the rows of the hulls, and a QP a group
    """

    needs = frozenset({"loss-before"})
    requires = frozenset({"gram", "gram by array"})
    lost_to_server_optimizers = COMMON_DESCENT
    default_weighting = None

    def __init__(
        self,
        *,
        history: bool = True,
        guidance: Annotated[str, Choices("scaled", "gradient")] = "scaled",
        server_lr: Positive = 1.0,
        groups: Annotated[
            Mapping[str, Any] | str | None, Pairs("fc1.weight=one fc1.bias=one fc2.weight=two")
        ] = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        self.history = history
        self.guidance = guidance
        self.server_lr = server_lr
        self.groups = pairs_in(groups=groups)
        for name, group in (self.groups or {}).items():
            if not isinstance(group, str | int):
                raise ValueError(
                    f"groups[{name!r}] must be the name of a group, a text or an integer, got"
                    f" {group!r}"
                )

    def weigh(self, cohort: Cohort) -> FloatArray:
        """Return c for each array, over the updates and the kept ones.

        Vectors are rows of coefficients.
        """
        grams = cohort.grams
        m = cohort.size
        groups = [
            (arrays, grams[arrays].sum(axis=0)) for arrays in layers_of(cohort.arrays, self.groups)
        ]
        layers = self._merged(cohort, [(arrays, G) for arrays, G in groups if np.diag(G)[:m].any()])
        C = np.zeros(grams.shape[:2])
        if not layers or layers[0].is_stationary:  # no other than a single one is left so
            return C
        for layer in layers:
            C[layer.arrays] = layer.direction
        mean_length = np.sqrt(cohort.gram[:m, :m].sum().clip(0.0)) / m
        C *= self.server_lr * mean_length / np.sqrt(sum(layer.squared_length for layer in layers))
        return C

    def _merged(
        self, cohort: Cohort, groups: Sequence[tuple[NDArray[np.intp], FloatArray]]
    ) -> list[Layer]:
        found = guidance(cohort.losses)
        h = np.zeros(cohort.size) if found is None else found.direction
        layers = [self._layer(*group, h) for group in groups]
        while len(layers) > 1 and any(layer.is_stationary for layer in layers):
            first = min([layer.is_stationary for layer in layers].index(True), len(layers) - 2)
            one, other = layers[first : first + 2]
            both = np.concatenate([one.arrays, other.arrays]), one.gram + other.gram
            layers[first : first + 2] = [self._layer(*both, h)]
        return layers

    def _layer(self, arrays: NDArray[np.intp], G: FloatArray, h: FloatArray) -> Layer:
        m = len(h)
        lengths = np.sqrt(np.diag(G))
        moving = lengths > 0.0
        inverse = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=moving)
        mu = lengths[:m][moving[:m]].mean()
        rows = np.diag(mu * inverse)[moving]
        q = np.zeros(len(G))
        unit = 1.0 if self.guidance == "scaled" else mu
        q[:m] = h * (inverse[:m] if self.guidance == "scaled" else 1.0)
        length = np.sqrt((q @ G @ q).clip(0.0))
        if length > NO_GUIDANCE * unit:
            rows = np.vstack([rows, mu / length * q])
        direction = shortest_combination(rows, G)
        squared_length = float((direction @ G @ direction).clip(0.0))
        return Layer(
            arrays, G, direction, squared_length, squared_length <= (NOTHING_COMMON * mu) ** 2
        )

    def recalls(self, kept: Kept, names: Collection[str], server_round: int) -> bool:
        """Return whether a row is of the last ⌊M/m⌋ rounds, of a client whose last update is not of this round."""
        return kept.key not in names and kept.round >= server_round - len(
            self.memory.get("seen", {})
        ) // len(names)

    def remember(
        self, cohort: Cohort, coefficients: FloatArray, probed: Probed
    ) -> Mapping[Kept, FloatArray | None]:
        """Keep which clients were seen, and the last updates that a later round may need.

        ⌊M/m⌋ ≤ the known clients.
        """
        if not self.history:
            return {}
        self.memory = {
            "seen": self.memory.get("seen", {}) | dict.fromkeys(cohort.names, cohort.round)
        }
        oldest = cohort.round + 1 - len({*self.memory["seen"], *cohort.online})
        absent = (
            kept
            for kept in self.progress.kept
            if kept.key not in cohort.names and kept.round >= oldest
        )
        rows = np.eye(cohort.rows)
        latest: dict[Kept, FloatArray | None] = dict.fromkeys(absent)
        return latest | {Kept(name, cohort.round): rows[k] for k, name in enumerate(cohort.names)}
