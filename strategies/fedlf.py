"""A fair descent direction for each layer of the model."""

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from fairbloom.errors import FairbloomError
from fairbloom.rounds.method import Cohort, Decision, FloatArray, Kept, Options
from fairbloom.rounds.ranges import Choices, Pairs, Positive, pairs_in

from .descent import CommonDescent
from .guidance import NOTHING_COMMON, guidance
from .simplex import shortest_combination

# A guidance row below this share of the norm of the rows that it combines is rounding, and is
# skipped.
NO_GUIDANCE = 1e-6


class FedLF(CommonDescent):
    r"""FedLF: in each layer, the shortest combination of the updates and the way to equal losses.

    With u_(kl) the part of u_k in group l of the model's arrays, μ_l the mean norm of the nonzero
    parts, and h the direction from the losses F to equal ones:

    .. math:: d_l = \text{the shortest vector in the hull of }
        \mu_l \frac{u_{kl}}{\lVert u_{kl} \rVert} \text{ and }
        \mu_l \frac{q_l}{\lVert q_l \rVert}, \qquad
        q_l = \sum_k h_k \frac{u_{kl}}{\lVert u_{kl} \rVert}

    .. math:: h \propto \cos\varphi \, \frac{F}{\lVert F \rVert} - \frac{\mathbf 1}{\sqrt m}, \qquad
        w \leftarrow w - \eta \, d \, \frac{\lVert \tfrac1m \sum_k u_k \rVert}{\lVert d \rVert}

    The hull also has the last updates of absent clients that replied in the last ⌊M/m⌋ rounds, each
    part scaled to μ_l; M is the number of clients seen before. A group with ‖d_l‖ ≤ 1e-3 · μ_l has
    no common direction: it is merged with the next group (the last one with the group before it),
    and solved again. If a single such group remains, no step is taken. So ⟨d_l, u_(kl)⟩ ≥ 0 for
    every client in every merged group: to first order, no participant's loss rises.

    Source: Pan et al., FedLF: Layer-Wise Fair Federated Learning, AAAI 2024, Algorithm 1, equations
    5–8 and section 3.3, doi:10.1609/aaai.v38i13.29368; the authors' code, zibinpan/FedLF.

    Parameters
    ----------
    history
        Whether absent clients' last updates are respected.
    guidance
        The updates that the guidance row combines: scaled to one norm, or plain ("gradient"), as in
        equation 5.
    server_lr
        Step size η: the norm of the step over the norm of the mean update.
    groups
        The group of each trained array, by the array's name; none: arrays with the same name up to
        the last dot, such as a layer's weight and bias, are one group.

    Reductions: with one group, equal losses and no absent clients, the direction is that of
    FedMGDAPlus with `epsilon=1`. If all groups have the same updates, each steps as it would as the
    only one.

    Departures: groups are merged as in Algorithm 1, and a layer's weight and bias are one group as
    in Table 2; the authors' code has a group for each array and never merges. The guidance row
    combines scaled updates as in that code; guidance="gradient" is equation 5. The code fails in
    three cases: here, a client without an update in a group is left out of it, equal losses give no
    guidance, and a single client's update is the direction. Absent clients are respected from round
    2 on; the code waits until more clients were seen than take part in a round. Updates are those
    of the clients' local work, as in Algorithm 1; the authors' experiments use one full-batch
    gradient.

    Objective: a Pareto-stationary point near equal losses, layer by layer
    Good for: clients that conflict, more in some layers than in others, few of which take part in a
    round.
    Hurts when: groups are many and small: the shortest combination of each is short, and directions
    are mostly noise. It also guides towards a client with a loss that cannot fall.
    Memory: the last update of every client, if not older, in rounds, than the number of clients
    Cost: a Gram matrix by array over the rows of the hulls, and a QP per group
    """

    requires = frozenset({"gram", "gram by array"})

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

    def weigh(self, cohort: Cohort) -> Decision:
        """Return c for each array, over the updates and the kept ones.

        The names of the clients seen are remembered, and the last updates that a later round may
        need are kept.
        """
        c = self._coefficients(cohort)
        if not self.history:
            return Decision(c)
        seen = cohort.past.memory.get("seen", {}) | dict.fromkeys(cohort.names, cohort.round)
        # ⌊M/m⌋ is at most the number of known clients.
        oldest = cohort.round + 1 - len({*seen, *cohort.online})
        keep: dict[Kept, FloatArray | None] = {
            kept: None
            for kept in cohort.past.kept
            if kept.key not in cohort.names and kept.round >= oldest
        }
        rows = np.eye(cohort.rows)
        latest = {Kept(name, cohort.round): rows[k] for k, name in enumerate(cohort.names)}
        return Decision(c, {"seen": seen}, keep | latest)

    def _coefficients(self, cohort: Cohort) -> FloatArray:
        """Return c for each array; vectors are rows of coefficients."""
        grams = cohort.grams
        m = cohort.size
        groups = []
        for arrays in layers_of(cohort.arrays, self.groups):
            G = grams[arrays].sum(axis=0)
            if np.diag(G)[:m].any():
                groups.append((arrays, G))
        guide = guidance(cohort.losses)
        h = np.zeros(m) if guide is None else guide.direction
        layers = solve_layers(groups, h, scaled=self.guidance == "scaled")
        C = np.zeros(grams.shape[:2])
        if not layers or layers[0].is_stationary:  # a stationary layer is only left as a single one
            return C
        for layer in layers:
            C[layer.arrays] = layer.direction
        mean_norm = np.sqrt(cohort.gram[:m, :m].sum().clip(0.0)) / m
        C *= self.server_lr * mean_norm / np.sqrt(sum(layer.squared_norm for layer in layers))
        return C

    def recalls(
        self, kept: Collection[Kept], names: Collection[str], server_round: int
    ) -> Collection[Kept]:
        """Return the rows of the last ⌊M/m⌋ rounds, of absent clients."""
        oldest = server_round - len(self.past.memory.get("seen", {})) // len(names)
        return [each for each in super().recalls(kept, names, server_round) if each.round >= oldest]


# The layers of a model, as groups of its arrays, and a common descent direction in each -----------


def layers_of(names: Sequence[str], groups: Mapping[str, Any] | None) -> list[NDArray[np.intp]]:
    """Return the places of each layer's arrays, the layers in the order of their first array.

    `groups` names each array's layer. Without it, arrays with the same name up to the last dot, as
    fc.weight and fc.bias, are one layer; so are all arrays without a dot in their name.
    """
    if groups:
        check_groups(names, groups)
        layer_names = [groups[name] for name in names]
    else:
        layer_names = [name.rpartition(".")[0] for name in names]
    layers = dict[Any, list[int]]()
    for place, layer in enumerate(layer_names):
        layers.setdefault(layer, []).append(place)
    return [np.array(places) for places in layers.values()]


def check_groups(names: Sequence[str], groups: Mapping[str, Any]) -> None:
    """Raise FairbloomError unless `groups` has exactly these names."""
    unknown = [name for name in groups if name not in names]
    if unknown:
        raise FairbloomError(
            f"groups names {unknown[0]!r}, which is not a trained array: leave it out;"
            f" there are {', '.join(names)}"
        )
    lacking = [name for name in names if name not in groups]
    if lacking:
        raise FairbloomError(
            f"groups has no group for {lacking[0]!r}: name one for each array that is trained"
        )


class Layer(NamedTuple):
    """A layer: one or several groups of arrays, and their common direction.

    Attributes
    ----------
    arrays
        The places of its arrays.
    gram
        The inner products of updates and kept rows within it.
    direction
        The shortest vector in the hull of its rows, as coefficients of updates and kept rows.
    squared_norm
        The squared norm of the direction.
    is_stationary
        Whether it has no common direction.
    """

    arrays: NDArray[np.intp]
    gram: FloatArray
    direction: FloatArray
    squared_norm: float
    is_stationary: bool


def solve_layers(
    groups: Sequence[tuple[NDArray[np.intp], FloatArray]], h: FloatArray, *, scaled: bool
) -> list[Layer]:
    """Return the layers of groups, each with its arrays and its Gram matrix.

    A stationary layer is merged with the next one, the last with the one before it, until no
    layer is stationary or a single one remains. `h` is the guidance of the m updates, which
    combines them `scaled` to one norm, or plain.
    """
    layers = [_solve(arrays, G, h, scaled) for arrays, G in groups]
    while len(layers) > 1 and any(layer.is_stationary for layer in layers):
        first = min([layer.is_stationary for layer in layers].index(True), len(layers) - 2)
        one, other = layers[first : first + 2]
        arrays = np.concatenate([one.arrays, other.arrays])
        layers[first : first + 2] = [_solve(arrays, one.gram + other.gram, h, scaled)]
    return layers


def _solve(arrays: NDArray[np.intp], G: FloatArray, h: FloatArray, scaled: bool) -> Layer:
    m = len(h)
    norms = np.sqrt(np.diag(G))
    moving = norms > 0.0
    inverse = np.divide(1.0, norms, out=np.zeros_like(norms), where=moving)
    mu = norms[:m][moving[:m]].mean()
    rows = np.diag(mu * inverse)[moving]
    q = np.zeros(len(G))
    q[:m] = h * inverse[:m] if scaled else h
    norm = np.sqrt((q @ G @ q).clip(0.0))
    if norm > NO_GUIDANCE * (1.0 if scaled else mu):
        rows = np.vstack([rows, mu / norm * q])
    direction = shortest_combination(rows, G)
    square = float((direction @ G @ direction).clip(0.0))
    return Layer(arrays, G, direction, square, square <= (NOTHING_COMMON * mu) ** 2)
