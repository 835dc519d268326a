from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord
from hypothesis import assume, given, strategies as st

from fairbloom.rounds.arrays import FloatArray
from fairbloom.rounds.cohort import Cohort, Decision
from fairbloom.server.settings import Settings
from fairbloom.strategies import FedLF
from tests.federation import BUFFERS, MemoryGrid, initial_model, quadratics, record

from .helpers import client_names, coefficients, cohort_of
from .reference import Seen, fedlf, fedlf_groups

# The sizes of a model's arrays, of seven numbers in all.
LAYERS = {"conv.weight": 2, "conv.bias": 1, "fc.weight": 2, "fc.bias": 1, "out.weight": 1}

# The columns of each of its layers.
COLUMNS = ([0, 1, 2], [3, 4, 5], [6])


def step(
    strategy: FedLF, U: FloatArray, arrays: Mapping[str, int] | None = None, **cohort: Any
) -> FloatArray:
    """The step in vectors; each array has its own coefficients of the updates and of the kept
    rows."""
    made = cohort_of(U, arrays=arrays, **cohort)
    rows = np.vstack([U, *cohort.get("memory", {}).values()])
    C = coefficients(strategy, made)
    ends = np.cumsum(list((arrays or {"w": U.shape[1]}).values()))
    return np.concatenate(
        [c @ part for c, part in zip(C, np.split(rows, ends[:-1], axis=1), strict=True)]
    )


def seen_of(U: FloatArray, losses: Sequence[float]) -> Seen:
    clients = client_names(len(U))
    return Seen(
        1, 10, dict(zip(clients, U, strict=True)), dict(zip(clients, losses, strict=True)), {}
    )


@st.composite
def layered_updates(draw: st.DrawFn) -> FloatArray:
    """Updates of the model with LAYERS: some fragments are zero, equal to another client's, or
    opposite to it."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    m = draw(st.integers(1, 4))
    U = rng.normal(size=(m, 7)) * rng.uniform(0.2, 5.0, size=(m, 1)) + draw(
        st.sampled_from((0.0, 1.0))
    )
    for columns in COLUMNS:
        for k in range(m):
            kind = draw(
                st.sampled_from(("as it is", "as it is", "zero", "equal", "opposite", "large"))
            )
            factor = {"zero": 0.0, "opposite": -1.0, "large": 1e3}.get(kind, 1.0)
            U[k, columns] = factor * U[0 if kind in ("equal", "opposite") else k, columns]
    return U


LOSSES = st.sampled_from(
    ([1.0, 2.0, 4.0, 0.5], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0], [3.0, 0.0, 0.0, 3.0])
)
GUIDANCE = st.sampled_from(("scaled", "gradient"))


# Closed forms and KKT -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("U", "columns"),
    [
        ([[1.0, 1.0, 1.0], [1.0, -1.0, 1.0]], [[0], [1, 2]]),  # the second with the third
        ([[1.0, 1.0, 1.0], [1.0, 1.0, -1.0]], [[0], [1, 2]]),  # the last with the one before
        # the first with the second, then the last with both
        ([[1.0, 1.0, 1.0], [-1.0, 1.0, -1.0]], [[0, 1, 2]]),
        # the first pair has nothing common either
        ([[1.0, 1.0, 1.0], [-1.0, -1.0, 1.0]], [[0, 1, 2]]),
        # no client moves in the second layer: the third is next
        ([[1.0, 0.0, 1.0], [-1.0, 0.0, 1.0]], [[0, 2]]),
    ],
)
def test_a_layer_without_a_common_direction_is_merged_by_hand(U: Any, columns: Any) -> None:
    rows = np.array(U)
    C = coefficients(
        FedLF(), cohort_of(rows, losses=[1.0, 1.0], arrays={"a.w": 1, "b.w": 1, "c.w": 1})
    )
    for group in columns:
        assert all(np.array_equal(C[group[0]], C[one]) for one in group)
    merged = fedlf_groups([seen_of(rows, [1.0, 1.0])], True, "scaled", ([0], [1], [2]))
    assert [group.columns for group in merged] == columns
    expected = fedlf([seen_of(rows, [1.0, 1.0])], layers=([0], [1], [2]))
    got = step(FedLF(), rows, {"a.w": 1, "b.w": 1, "c.w": 1}, losses=[1.0, 1.0])
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12)


# Gram form = vectors ------------------------------------------------------------------------------


@given(U=layered_updates(), losses=LOSSES, guidance=GUIDANCE)
def test_gram_form_equals_the_papers_vectors(
    U: FloatArray, losses: list[float], guidance: str
) -> None:
    """Unless a layer is so near the bound of a common direction that rounding decides."""
    F = losses[: len(U)]
    groups = fedlf_groups([seen_of(U, F)], True, guidance, COLUMNS)
    assume(
        not any(
            0.9e-3 < np.linalg.norm(group.direction) / group.length < 1.1e-3 for group in groups
        )
    )
    expected = fedlf([seen_of(U, F)], guidance=guidance, layers=COLUMNS)
    got = step(FedLF(guidance=guidance), U, LAYERS, losses=F)
    np.testing.assert_allclose(
        got, expected, rtol=1e-5, atol=1e-5 * np.linalg.norm(expected) + 1e-300
    )


def test_inner_products_are_made_only_with_rows_that_count() -> None:
    """Other rows stay, and count again in a round of fewer clients."""
    online = {1: 4, 2: 2, 3: 3, 4: 1}
    rows: dict[int, tuple[int, int]] = {}

    class Watched(FedLF):
        def weigh(self, cohort: Cohort) -> Decision:
            rows[cohort.round] = len(cohort.gram) - cohort.size, len(cohort.past.kept)
            return super().weigh(cohort)

    strategy = Watched(buffers=BUFFERS)
    grid = MemoryGrid(quadratics(4))
    model = record(initial_model())
    nodes = dict(grid.nodes)
    for t, some in online.items():
        grid.nodes = dict(list(nodes.items())[:some])
        messages = list(strategy.configure_train(t, model, ConfigRecord(), grid))
        model, _ = strategy.aggregate_train(t, grid.send_and_receive(messages))
    # τ = ⌊4/2⌋ and ⌊4/3⌋ rounds for the third and fourth client, the last of which is from round 1;
    # then 4 rounds
    assert rows == {1: (0, 0), 2: (2, 4), 3: (0, 4), 4: (3, 4)}


# Edge cases ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("guidance", ["scaled", "gradient"])
def test_updates_of_zeros_take_no_step_and_divide_by_nothing(guidance: str) -> None:
    zeros = coefficients(FedLF(guidance=guidance), cohort_of(np.zeros((3, 7)), arrays=LAYERS))
    assert zeros.tolist() == np.zeros((5, 3)).tolist()
    assert coefficients(FedLF(), cohort_of(np.zeros((3, 0)), arrays={})).shape in ((0, 3), (1, 3))


def test_a_guidance_row_that_is_rounding_is_left_out() -> None:
    # F = (1, 3): h = (−3, 1)/√10, so updates (1, 0) and (1, 0) times 3 have no guidance by equation
    # 5 but by units
    U = np.array([[1.0, 0.0], [3.0, 0.0]])
    np.testing.assert_allclose(
        step(FedLF(guidance="gradient"), U, losses=[1.0, 3.0]), [2.0, 0.0], rtol=1e-10
    )
    # by units it points the other way: with it there is nothing common
    np.testing.assert_allclose(step(FedLF(), U, losses=[1.0, 3.0]), [0.0, 0.0], atol=1e-12)


# Groups -------------------------------------------------------------------------------------------


def test_groups_are_given_by_name_or_as_text() -> None:
    U = np.random.default_rng(0).normal(size=(3, 7)) + 1.0
    by_layer = {name: name.partition(".")[0] for name in LAYERS}
    text = " ".join(f"{name}={group}" for name, group in by_layer.items())
    plain = step(FedLF(), U, LAYERS)
    for groups in (by_layer, text, None, "", {}):
        np.testing.assert_array_equal(step(FedLF(groups=groups), U, LAYERS), plain)
    whole = step(FedLF(groups=dict.fromkeys(LAYERS, 0)), U, LAYERS)
    np.testing.assert_allclose(whole, step(FedLF(), U), rtol=1e-9)
    assert not np.allclose(whole, plain)


def test_groups_are_ordered_by_their_first_array() -> None:
    """The merge goes to the next group; with a and c in one, that of b is the next one, whatever
    they are called."""
    U = np.array([[1.0, 1.0, 0.0, 1.0], [-1.0, 1.0, 0.0, 2.0]])
    sizes = dict.fromkeys("abcd", 1)
    got = step(FedLF(groups={"a": "z", "b": "y", "c": "z", "d": "a"}), U, sizes, losses=[1.0, 1.0])
    np.testing.assert_allclose(
        got, fedlf([seen_of(U, [1.0, 1.0])], layers=([0, 2], [1], [3])), rtol=1e-9, atol=1e-12
    )
    assert len(fedlf_groups([seen_of(U, [1.0, 1.0])], True, "scaled", ([0, 2], [1], [3]))) == 2


@pytest.mark.parametrize(
    ("groups", "named"),
    [
        ({"weight": 1, "bias": 1, "scale": 1, "head": 1}, "head"),
        ({"weight": 1, "bias": 1}, "scale"),
        ({"weight": 1, "bias": 1, "scale": 1, "norm.mean": 2}, "norm.mean"),
    ],
)
def test_an_unknown_or_missing_name_ends_the_first_round(groups: Any, named: str) -> None:
    strategy = FedLF(groups=groups, buffers=BUFFERS)
    grid = MemoryGrid(quadratics(2))
    messages = list(strategy.configure_train(1, record(initial_model()), ConfigRecord(), grid))
    with pytest.raises(ValueError, match=f"groups .*{named!r}"):
        strategy.aggregate_train(1, grid.send_and_receive(messages))


def test_a_run_has_its_groups_as_text() -> None:
    strategy = Settings.of(
        {"model": "mlp", "method": "fedlf", "fedlf.groups": "0.weight=a 0.bias=a"}
    ).strategy()
    assert isinstance(strategy, FedLF)
    assert strategy.groups == {"0.weight": "a", "0.bias": "a"}
    with pytest.raises(ValueError, match=r"^fedlf\.groups = 'first': "):
        Settings.of({"method": "fedlf", "fedlf.groups": "first"}).strategy()
