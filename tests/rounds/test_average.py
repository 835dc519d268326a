"""The mean of all rounds' global models, evaluated and saved instead of the last one."""

from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, MessageType
from flwr.serverapp.strategy import Strategy
from hypothesis import given, strategies as st

from fairbloom.rounds import vectors
from fairbloom.rounds.arrays import CHUNK_COLUMNS
from fairbloom.rounds.layout import Layout
from fairbloom.rounds.run_state import Average
from fairbloom.rounds.updates import Updates
from fairbloom.rounds.vectors import Vectors, combine, subtract_sum
from fairbloom.strategies import FedAvg
from tests.federation import (
    OPTIONS,
    MemoryGrid,
    assert_resumes,
    bits,
    error,
    initial_model,
    quadratics,
    record,
    run,
    undisturbed,
    unpack,
)
from tests.strategies.helpers import ARGUMENTS, make

from .helpers import gram_matrix, squared_norms, taken_in

Arrays = dict[str, Any]


def mean_of(models: list[Arrays]) -> ArrayRecord:
    """Return the float arrays' means, in float64 and rounded once, with the last model's
    integers."""
    last = models[-1]
    means = {
        name: sum(model[name].astype(np.float64) for model in models) / len(models) for name in last
    }
    return record(
        {
            name: np.asarray(means[name], a.dtype) if a.dtype.kind == "f" else a
            for name, a in last.items()
        }
    )


def averaged(name: str, **changes: Any) -> Any:
    return make(name, ARGUMENTS[name][0], average_models=True, **OPTIONS | changes)


@pytest.mark.parametrize("name", ["fedavg", "fedfv", "drfa"])
def test_training_goes_on_from_the_last_model_not_the_mean(name: str) -> None:
    _, expected = undisturbed(name)
    result, rounds = run(averaged(name))
    assert [bits(r.arrays) for r in rounds] == [bits(r.arrays) for r in expected], name
    models = [unpack(r.arrays) for r in rounds]
    for number, finished in enumerate(rounds, start=1):
        assert bits(finished.average) == bits(mean_of(models[:number]))
        assert finished.evaluated is finished.average
    assert bits(result.arrays) == bits(rounds[-1].average)
    assert all(r.average is None and r.evaluated is r.arrays for r in expected)


def test_a_resumed_run_ends_with_the_same_mean() -> None:
    assert_resumes(lambda: averaged("fedfv"), 5, (2, 5))
    plain = FedAvg()
    result, _ = run(plain)
    # which a run without them cannot resume with
    with pytest.raises(ValueError, match="average_models"):
        run(FedAvg(average_models=True), initial_arrays=result.arrays, resume=plain.state_dict())


def test_a_skipped_round_counts_with_the_model_as_it_stays() -> None:
    _, rounds = run(
        FedAvg(average_models=True), quadratics(3), 2, {(f"site-{k}", 2): error for k in range(3)}
    )
    assert not rounds[1].coefficients
    first = unpack(rounds[0].arrays)
    assert bits(rounds[1].average) == bits(mean_of([first, first]))


def test_under_flowers_own_loop_clients_evaluate_the_mean(subtests: pytest.Subtests) -> None:
    grids = MemoryGrid(quadratics(4)), MemoryGrid(quadratics(4))
    _, ours = run(FedAvg(average_models=True), grids[0])
    theirs = Strategy.start(
        FedAvg(average_models=True), grids[1], record(initial_model()), num_rounds=4
    )
    for grid in grids:
        with subtests.test(grid=grid):
            seen = [
                bits(m.content.array_records["arrays"])
                for _, m in grid.sent_to(MessageType.EVALUATE)
            ][::4]
            assert seen == [bits(r.average) for r in ours]
    assert bits(theirs.arrays) == bits(ours[-1].arrays)


MODELS = (
    st.integers(0, 2**31).map(np.random.default_rng).map(lambda rng: rng.normal(size=(5, 3, 2)))
)


@given(
    flats=MODELS, dtype=st.sampled_from(["float16", "float32", "float64"]), count=st.integers(1, 5)
)
def test_the_mean_is_numpys_in_the_models_own_dtype(flats: Any, dtype: str, count: int) -> None:
    models = [
        {"w": flat.astype(dtype), "0-d": np.asarray(flat[0, 0], dtype)} for flat in flats[:count]
    ]
    average = Average()
    for model in models:
        average = average.plus(model)
    for name, array in average.mean(models[-1]).items():
        expected = np.mean([model[name] for model in models], axis=0, dtype=np.float64)
        assert type(array) is np.ndarray
        assert (array.dtype, array.shape) == (models[0][name].dtype, models[0][name].shape)
        np.testing.assert_allclose(
            array, expected, rtol=np.finfo(dtype).eps, atol=np.finfo(dtype).tiny
        )


def test_integers_are_the_last_models_and_sums_never_change() -> None:
    """A checkpoint may be written later than the next round begins."""
    first, last = (
        {"w": np.float32([k]), "steps": np.array(k), "on": np.array(k > 1)} for k in (1, 2)
    )
    one = Average().plus(first)
    mean = one.plus(last).mean(last)
    assert (mean["w"].item(), mean["steps"].item(), mean["on"].item()) == (1.5, 2, True)
    assert one.sums["w"].item() == 1.0
    assert Average().mean(first) is first


SIZES = st.sampled_from(
    (1, 2, CHUNK_COLUMNS - 1, CHUNK_COLUMNS, CHUNK_COLUMNS + 1, 3 * CHUNK_COLUMNS)
)
LARGE = (-1e30, -1.0, -1e-30, 0.0, 1e-30, 1e-40, 1.0, 1e30)


def model(**arrays: Any) -> dict[str, np.ndarray]:
    return {name: np.asarray(array) for name, array in arrays.items()}


def added(
    w: dict[str, np.ndarray], *replies: dict[str, np.ndarray], shared: dict[str, str] | None = None
) -> Updates:
    stored = taken_in(Layout(w, (), shared), replies)
    for reason in stored.screen(gram=False).values():
        raise reason
    return stored


def after(stored: Updates, *coefficients: float) -> dict[str, np.ndarray]:
    n = np.ones(len(coefficients))
    return stored.model_after(np.array(coefficients), stored.vectors, n / n.sum(), n)[0]


def drawn(seed: int, m: int, d: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(m, d)).astype(dtype)


def below(U: np.ndarray) -> Vectors:
    """The rows of U, each in its own Vectors."""
    return Vectors.concat(list(map(Vectors.of, U)))


# Gram matrix and sums -----------------------------------------------------------------------------


def test_large_work_is_multiplied_in_float32_within_1_5e_minus_7(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    U = drawn(0, 5, 10 * CHUNK_COLUMNS + 3)
    rows = below(U)
    exact = U.astype(np.float64) @ U.T.astype(np.float64)
    monkeypatch.setattr(vectors, "EXACT_NUMBERS", 0)
    norms = np.sqrt(np.diag(exact))
    assert np.abs((gram_matrix(rows) - exact) / np.outer(norms, norms)).max() <= 1.5e-7
    np.testing.assert_allclose(gram_matrix(rows, exact=True), exact, rtol=1e-12, atol=1e-8)


@given(
    seed=st.integers(0, 99),
    sizes=st.lists(st.sampled_from(LARGE), min_size=2, max_size=4),
    fast=st.booleans(),
)
def test_huge_and_tiny_updates_have_exact_products_and_steps(
    seed: int, sizes: list[float], fast: bool
) -> None:
    U = np.array(sizes)[:, None] * drawn(seed, len(sizes), 20)
    replies = [model(w=-u.astype(np.float32)) for u in U]
    stored = added(model(w=np.zeros(20, np.float32)), *replies)
    exact = np.array([-reply["w"] for reply in replies], np.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vectors, "EXACT_NUMBERS", 0 if fast else vectors.EXACT_NUMBERS)
        G = gram_matrix(stored.vectors)
    norms = np.linalg.norm(exact, axis=1)
    assert (np.abs(G - exact @ exact.T) <= 1e-6 * np.outer(norms, norms)).all()
    np.testing.assert_allclose(squared_norms(stored.vectors), norms**2, rtol=1e-12)
    for k, u in enumerate(exact):
        np.testing.assert_array_equal(
            after(stored, *np.eye(len(exact))[k])["w"], -u.astype(np.float32)
        )


def test_no_updates_and_empty_models_have_empty_products() -> None:
    assert gram_matrix(Vectors(())).shape == (0, 0)
    assert squared_norms(Vectors(())).shape == (0,)
    nothing = below(np.empty((2, 0), np.float32))
    assert gram_matrix(nothing).tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert squared_norms(nothing).tolist() == [0.0, 0.0]
    assert after(added(model(steps=1), model(steps=4)), 1.0)["steps"] == 4


def test_combining_with_one_coefficient_of_one_is_that_row(subtests: pytest.Subtests) -> None:
    U = drawn(0, 3, 5)
    for rows in (below(U), Vectors((U,)), Vectors((U[:1], U[1:]))):
        with subtests.test(rows=rows):
            combined = combine(np.array([0.0, 1.0, 0.0]), rows)
            assert combined.blocks[0].tobytes() == U[1].tobytes()
            assert not np.shares_memory(combined.blocks[0], U)
            assert len(combined) == 1


@given(seed=st.integers(0, 99), cut=st.integers(1, 4), exact=st.booleans())
def test_rows_in_several_blocks_have_the_bits_of_those_in_one(
    seed: int, cut: int, exact: bool
) -> None:
    U = drawn(seed, 5, CHUNK_COLUMNS + 7)
    one = Vectors((U,))
    two = Vectors.concat([Vectors((U[:cut],)), Vectors((U[cut:],))])
    np.testing.assert_array_equal(gram_matrix(one, exact=exact), gram_matrix(two, exact=exact))
    np.testing.assert_array_equal(squared_norms(one), squared_norms(two))
    into = np.zeros((2, CHUNK_COLUMNS + 7), np.float32)
    subtract_sum(np.arange(1.0, 6.0), one, into=into[0])
    subtract_sum(np.arange(1.0, 6.0), two, into=into[1])
    np.testing.assert_array_equal(into[0], into[1])


# The update and the model after it ----------------------------------------------------------------


@given(seed=st.integers(0, 99), m=st.integers(1, 4))
def test_the_model_after_the_step_is_rounded_once(seed: int, m: int) -> None:
    w = drawn(seed, 1, 30)[0]
    replies = drawn(seed + 1, m, 30)
    c = np.random.default_rng(seed).normal(size=m)
    stored = added(model(w=w), *(model(w=reply) for reply in replies))
    exact = w.astype(np.float64) - c @ (w - replies).astype(np.float64)
    np.testing.assert_allclose(after(stored, *c)["w"], exact, rtol=1.2e-7, atol=1e-14)


@pytest.mark.parametrize("other", [5.0, np.nan])
def test_of_a_shared_parameter_the_first_name_is_taken(other: float) -> None:
    w = model(a=np.zeros(2, np.float32), twin=np.zeros(2, np.float32))
    stored = added(
        w, model(a=np.ones(2, np.float32), twin=np.full(2, other, np.float32)), shared={"twin": "a"}
    )
    assert gram_matrix(stored.vectors).tolist() == [[2.0]]
    assert {name: array.tolist() for name, array in after(stored, 1.0).items()} == {
        "a": [1, 1],
        "twin": [1, 1],
    }


@pytest.mark.parametrize(
    ("shared", "words"),
    [
        *(({each: "a"}, f"'{each}' is no parameter") for each in ("unknown", "mean", "a")),
        *(({"twin": each}, f"'{each}' is no parameter") for each in ("unknown", "steps", "mean")),
        ({"twin": "a", "other": "twin"}, "'twin' is no parameter"),
        *(
            ({each: "a"}, f"{{'{each}': 'a'}}: the two arrays of the model differ")
            for each in ("other", "steps", "wide")
        ),
    ],
)
def test_arrays_that_are_not_one_parameter_are_refused_by_name(
    shared: dict[str, str], words: str
) -> None:
    zeros = np.zeros(2, np.float32)
    w = model(
        a=zeros, twin=zeros, mean=zeros, other=zeros + 1, wide=np.zeros(2), steps=np.array([0, 0])
    )
    with pytest.raises(ValueError, match=words):
        Layout(w, ("mean",), shared)


@given(seed=st.integers(0, 99), dtype=st.sampled_from(("float16", "float32", "float64")))
def test_an_array_that_no_client_changes_keeps_its_bits(seed: int, dtype: str) -> None:
    """Frozen layers: whatever the coefficients, and whatever the dtypes of the others."""
    frozen = drawn(seed, 3, 7).astype(dtype)
    others = drawn(seed, 4, 5, "float64")
    stored = added(
        model(frozen=frozen, free=others[0]),
        *(model(frozen=frozen, free=other) for other in others[1:]),
    )
    result = after(stored, *np.random.default_rng(seed).normal(size=3))
    np.testing.assert_array_equal(result["frozen"], frozen)
    assert result["frozen"].dtype == frozen.dtype
    assert not np.array_equal(result["free"], others[0])


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_an_update_or_a_step_beyond_the_dtype_is_refused(dtype: str) -> None:
    top = np.float32([3e38])
    with pytest.raises(ValueError, match="beyond the range of float32"):
        added(model(w=-top), model(w=top))
    w = model(narrow=np.zeros(1, dtype), wide=np.zeros(1, np.float64))
    with pytest.raises(ValueError, match=f"beyond the range of {dtype}"):
        after(added(w, {**w, "narrow": np.array([0.9 * np.finfo(dtype).max], dtype)}), 2.0)


@pytest.mark.parametrize("size", [1e-300, 1e-200, 1e100, 1e149])
def test_a_float64_update_that_can_be_squared_is_used(size: float) -> None:
    stored = added(
        model(w=np.zeros(2)),
        model(w=np.array([size, -size / 2])),
        model(w=np.array([1.0, 1.0])),
    )
    np.testing.assert_array_equal(after(stored, 1.0, 0.0)["w"], [size, -size / 2])
    assert np.isfinite(after(stored, 0.5, 0.5)["w"]).all()


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.float32([np.nan]), "array 'w' of the global model is not finite"),
        (np.array([1j]), "array 'w' has dtype complex128"),
    ],
)
def test_an_infinite_or_odd_model_is_refused_by_array(array: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Layout(model(w=array))


def test_the_model_that_went_out_is_not_changed() -> None:
    w = model(w=np.ones(3, np.float32), n=np.array(1))
    reply = model(w=np.zeros(3, np.float32), n=np.array(2))
    after(added(w, reply), 1.0)
    assert (w["w"].tolist(), int(w["n"])) == ([1.0, 1.0, 1.0], 1)
    assert (reply["w"].tolist(), int(reply["n"])) == ([0.0, 0.0, 0.0], 2)
