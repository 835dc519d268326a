"""Inner products and coefficients by array: what they are in vectors, however the arrays lie in
chunks."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fairbloom.rounds import arrays, vectors
from fairbloom.rounds.aggregation import NoStepError, build_cohort, compute_coefficients
from fairbloom.rounds.arrays import CHUNK_COLUMNS, FloatArray
from fairbloom.rounds.clients import TrainReplies
from fairbloom.rounds.cohort import Cohort, Kept, MethodError, Probed
from fairbloom.rounds.layout import Layout
from fairbloom.rounds.refusals import Refusals
from fairbloom.rounds.updates import Updates
from fairbloom.rounds.vectors import Vectors, gram_matrices
from fairbloom.strategies import FairStrategy, FedMGDA
from tests.federation import BUFFERS, flat, initial_model, quadratics, run, unpack

from .helpers import gram_matrix, squared_norms, taken_in

SHAPES: Sequence[tuple[int, ...]] = ((), (0,), (1,), (3,), (2, 3), (0, 4), (50,), (4, 5, 6))
"""A single number, no numbers, and arrays with which a chunk of 1 to 100 columns has parts of many
or of one."""


@st.composite
def models(draw: st.DrawFn) -> tuple[Layout, list[dict[str, np.ndarray]], np.random.Generator]:
    """A layout with a buffer, an integer, a frozen array and one array under two names, and the
    models of clients."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shapes = draw(st.lists(st.sampled_from(SHAPES), max_size=12))
    scales = draw(st.sampled_from(((1.0,), (1.0, 1e-30, 1e25), (0.0, 1.0))))
    names = {f"layer-{k}.weight": shape for k, shape in enumerate(shapes)}

    def made(frozen: np.ndarray) -> dict[str, np.ndarray]:
        scale = rng.choice(scales)
        model = {
            name: np.asarray(scale * rng.normal(size=shape), np.float32)
            for name, shape in names.items()
        }
        model |= {
            "mean": rng.normal(size=2).astype(np.float32),
            "base": frozen,
            "steps": np.array(rng.integers(99)),
        }
        return model | ({"twin": model["layer-0.weight"]} if shapes else {})

    base = rng.normal(size=4).astype(np.float32)
    shared = {"twin": "layer-0.weight"} if shapes else {}
    layout = Layout(made(base), ("mean",), shared, ("base",))
    return layout, [made(base) for _ in range(draw(st.integers(1, 5)))], rng


def fragments(stored: Updates) -> list[FloatArray]:
    """The updates in float64, one matrix of shape (m, size) for each array."""
    whole = np.vstack([np.asarray(block) for block in stored.vectors.blocks]).astype(np.float64)
    return [whole[:, place] for _, place in stored.layout.slices]


# Inner products -----------------------------------------------------------------------------------

CHUNKS = st.sampled_from((1, 7, 100))


@given(drawn=models(), chunk=CHUNKS, few=st.booleans())
def test_inner_products_are_those_of_the_trained_entries(drawn: Any, chunk: int, few: bool) -> None:
    """Each array's, and the whole ones: a parameter of two names counts once, and buffers and
    frozen arrays never."""
    layout, replies, _ = drawn
    rounding, tiny = (1e-12, 1e-300) if few else (1e-6, 1e-36)  # the least square of float32
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "CHUNK_COLUMNS", chunk)
        patch.setattr(vectors, "EXACT_NUMBERS", 10**9 if few else 0)
        stored = taken_in(layout, replies)
        assert stored.screen(gram=False) == {}
        grams = stored.grams(stored.vectors, exact=False)
        whole = stored.gram(stored.vectors, exact=False)
        parts = fragments(stored)
        squares = squared_norms(stored.vectors)
    assert list(layout.trainable) == [name for name in layout.arrays if name.startswith("layer-")]
    assert grams.shape == (len(layout.trainable), len(replies), len(replies))
    norms = np.sqrt(np.diag(whole))
    for gram, U, name in zip(grams, parts, layout.trainable, strict=True):
        received, after = (
            np.array([model[name].ravel() for model in models], np.float64)
            for models in ([layout.arrays] * len(replies), replies)
        )
        largest = np.abs(received).max(initial=0.0) + np.abs(after).max(initial=0.0)
        np.testing.assert_allclose(U, received - after, atol=1e-6 * largest)
        lengths = np.linalg.norm(U, axis=1)
        np.testing.assert_array_less(
            np.abs(gram - U @ U.T), rounding * np.outer(lengths, lengths) + tiny
        )
        np.testing.assert_array_equal(gram, gram.T)
    assert (np.abs(grams.sum(axis=0) - whole) <= rounding * np.outer(norms, norms)).all()
    np.testing.assert_allclose(
        squares, sum(((U**2).sum(axis=1) for U in parts), np.zeros(len(replies))), rtol=rounding
    )


def test_equal_updates_have_equal_products_in_every_array(
    monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    U = np.random.default_rng(0).normal(size=(5, 2 * CHUNK_COLUMNS + 3)).astype(np.float32)
    U[3] = U[1]
    monkeypatch.setattr(vectors, "EXACT_NUMBERS", 0)
    products = vectors.squares_and_products

    def uneven(vectors: Vectors, ends: Sequence[int], *, exact: bool) -> Any:
        """The products of a processor with a rounding that depends on the place of a row."""
        squares, found = products(vectors, ends, exact=exact)
        error = np.random.default_rng(1).normal(scale=1e-7, size=(5, 5))
        return squares, found * (1.0 + error + error.T)

    monkeypatch.setattr(vectors, "squares_and_products", uneven)
    for gram in gram_matrices(Vectors((U,)), (4, CHUNK_COLUMNS + 9, 2 * CHUNK_COLUMNS + 3)):
        with subtests.test(gram=gram):
            np.testing.assert_array_equal(gram[3], gram[1])
            np.testing.assert_array_equal(gram[:, 3], gram[:, 1])
            assert gram[0, 0] != gram[1, 1]


@pytest.mark.parametrize("tiny", [1e-155, 1e-200, 1e-300])
def test_a_part_next_to_nothing_has_products_of_zero(tiny: float) -> None:
    U = np.array([[tiny, 1.0], [3.0, 1.0], [0.0, tiny]])
    whole = gram_matrix(Vectors((U,)))
    grams = gram_matrices(Vectors((U,)), (1, 2))
    assert whole[2].tolist() == whole[:, 2].tolist() == [0.0, 0.0, 0.0]
    assert whole[:2, :2].tolist() == [[1.0, 1.0 + 3.0 * tiny], [1.0 + 3.0 * tiny, 10.0]]
    assert grams[0].tolist() == [[0.0, 0.0, 0.0], [0.0, 9.0, 0.0], [0.0, 0.0, 0.0]]
    assert grams[1].tolist() == [[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]


# Steps --------------------------------------------------------------------------------------------


@given(drawn=models(), chunk=CHUNKS, few=st.booleans(), by_array=st.booleans())
def test_each_array_is_stepped_by_its_own_coefficients(
    drawn: Any, chunk: int, few: bool, by_array: bool
) -> None:
    """Or all by the same; buffers are averaged by examples, and integers are those of the client
    with the most."""
    layout, replies, rng = drawn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "CHUNK_COLUMNS", chunk)
        patch.setattr(vectors, "EXACT_NUMBERS", 10**9 if few else 0)
        stored = taken_in(layout, replies)
        assert stored.screen(gram=False) == {}
        C = rng.normal(size=(len(layout.trainable), len(replies)) if by_array else len(replies))
        counts = rng.integers(1, 9, len(replies)).astype(np.float64)
        after, _ = stored.model_after(C, stored.vectors, counts / counts.sum(), counts)
        parts = fragments(stored)
    for number, (name, U) in enumerate(zip(layout.trainable, parts, strict=True)):
        received = layout.arrays[name].astype(np.float64)
        expected = received - ((C[number] if by_array else C) @ U).reshape(received.shape)
        largest = np.abs(U).max(initial=0.0) + np.abs(received).max(initial=0.0)
        np.testing.assert_allclose(after[name], expected, atol=1e-5 * largest)
    kept = {name: (type(array), array.dtype, array.shape) for name, array in layout.arrays.items()}
    assert {name: (type(array), array.dtype, array.shape) for name, array in after.items()} == kept
    assert list(after) == list(layout.arrays)
    assert after["base"] is layout.arrays["base"]
    assert after["steps"] == replies[int(np.argmax(counts))]["steps"]
    mean = np.average([reply["mean"] for reply in replies], axis=0, weights=counts)
    np.testing.assert_allclose(after["mean"], mean, rtol=1e-5, atol=1e-6)
    if "twin" in layout.shared:
        np.testing.assert_array_equal(after["twin"], after["layer-0.weight"])


# A round ------------------------------------------------------------------------------------------


class ByArray(FairStrategy):
    """The weight goes by the first client, the bias by the mean of all, and the scale against the
    last one.

    It keeps the mean update, and steps the scale along the one of the round before.
    """

    requires = frozenset({"gram by array"})
    default_weighting = None

    def weigh(self, cohort: Cohort) -> FloatArray:
        C = np.zeros((len(cohort.arrays), cohort.size + len(cohort.memory)))
        C[cohort.arrays.index("weight"), 0] = 1.0
        C[cohort.arrays.index("bias"), : cohort.size] = 1.0 / cohort.size
        C[cohort.arrays.index("scale"), cohort.size - 1] = -1.0
        C[cohort.arrays.index("scale"), cohort.size :] = 0.5
        return C

    def remember(
        self, cohort: Cohort, coefficients: FloatArray, probed: Probed
    ) -> dict[Kept, FloatArray]:
        assert coefficients.shape == (3, cohort.size + len(cohort.memory))
        mean = np.append(np.full(cohort.size, 1.0 / cohort.size), np.zeros(len(cohort.memory)))
        return {Kept("mean", cohort.round): mean}


def test_a_round_steps_by_array_and_records_its_coefficients() -> None:
    _, rounds = run(ByArray(buffers=BUFFERS, fraction_train=0.6), rounds=2)
    before = initial_model()
    clients = quadratics(6)
    kept = np.zeros(10)
    for finished in rounds:
        U = np.array(
            [flat(before) - flat(clients[name].trained(before)) for name in finished.participants]
        )
        m = len(U)
        (weight, bias, scale) = np.split(U, [6, 9], axis=1)
        step = np.concatenate([weight[0], bias.mean(axis=0), -scale[-1] + 0.5 * kept[9:]])
        after = unpack(finished.arrays)
        np.testing.assert_allclose(flat(after), flat(before) - step, rtol=1e-5, atol=1e-5)
        C = np.vstack([np.eye(m)[0], np.full(m, 1.0 / m), -np.eye(m)[-1]])
        squares = np.array([(part**2).sum(axis=1) for part in (weight, bias, scale)])
        expected = (C * squares).sum(axis=0) / squares.sum(axis=0)
        np.testing.assert_allclose(list(finished.coefficients.values()), expected, rtol=1e-5)
        before = after
        kept = U.mean(axis=0)


def made(method: FairStrategy, U: FloatArray, sizes: Sequence[int]) -> Cohort:
    """The cohort of updates of zeros, of a model with arrays of these sizes."""
    model = {f"a{k}": np.zeros(size) for k, size in enumerate(sizes)}
    names = [f"client-{k}" for k in range(len(U))]
    trained = TrainReplies.empty(method.layout_of(model), refused=Refusals(1))
    for name, u in zip(names, U, strict=True):
        parts = dict(zip(model, np.split(-u, np.cumsum(sizes)[:-1]), strict=True))
        trained.add(name, {"num-examples": 1.0}, parts, {})
    draws = dict.fromkeys(names, 1)
    cohort, _ = build_cohort(
        method, trained, server_round=1, num_rounds=2, online=names, draws=draws, sent={}
    )
    return cohort


def test_a_layerwise_gram_matrix_is_the_sum_to_the_bit() -> None:
    U = np.random.default_rng(0).normal(size=(3, 9))
    cohort, plain = (made(method, U, (2, 0, 4, 3)) for method in (ByArray(), FedMGDA()))
    assert cohort.arrays == ("a0", "a1", "a2", "a3")
    np.testing.assert_array_equal(cohort.gram, cohort.grams.sum(axis=0))
    np.testing.assert_allclose(plain.gram, U @ U.T, rtol=1e-12)
    np.testing.assert_allclose(plain.grams, cohort.grams, rtol=1e-12)


@pytest.mark.parametrize("shape", [(2,), (3, 2), (2, 4), (2, 3, 1), ()])
def test_coefficients_of_another_shape_are_refused_by_shapes(shape: tuple[int, ...]) -> None:
    cohort = made(ByArray(), np.eye(3), (2, 1))
    odd = type(
        "Odd", (FairStrategy,), {"weigh": lambda self, cohort, shape=shape: np.ones(shape)}
    )()
    with pytest.raises(MethodError, match=r"Odd\.weigh.*shape \(3,\).*shape \(2, 3\)"):
        compute_coefficients(odd, cohort)
    wrong = np.array([[1.0, 1.0, 1.0], [1.0, np.inf, 1.0]])
    infinite = type("Infinite", (FairStrategy,), {"weigh": lambda self, cohort: wrong})()
    with pytest.raises(MethodError, match=r"not finite \(of client-1\)"):
        compute_coefficients(infinite, cohort)


def test_inner_products_that_are_not_finite_are_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Updates, "grams", lambda *_, **__: np.full((1, 1, 1), np.inf))
    with pytest.raises(
        NoStepError, match=r"not finite; .* of the length 1, is that of client client-0"
    ):
        _ = made(ByArray(), np.ones((1, 1)), (1,)).grams
