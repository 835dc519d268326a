"""Updates are computed from models where they are read, to the same bits in any way; one pass screens and measures."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbloom.rounds import updates
from fairbloom.rounds.memory import Memory
from fairbloom.rounds.updates import Layout, Model, Updates, Vectors, combine, gram_matrices, gram_matrix

from .helpers import squared_norms

BUFFERS = ("mean",)
TIED = {"twin": "a"}
ODD = (1e-44, 1e-30, 1e25, 3e38, -3e38, np.nan, np.inf, -np.inf)


def model_of(flat: Any, dtypes: tuple[str, str] = ("float32", "float32")) -> dict[str, np.ndarray]:
    """Return a model of five numbers in two arrays, with a buffer, an integer and a name more for the first array."""
    a, b = np.asarray(flat[:2], dtypes[0]), np.asarray(flat[2:5], dtypes[1]).reshape(3, 1)
    return {"twin": a, "a": a, "mean": np.float32(flat[5:7]), "b": b, "steps": np.array(7 * len(flat))}


def borrowed(layout: Layout, models: list[dict[str, np.ndarray]]) -> Updates:
    stored = Updates(layout)
    for model in models:
        stored.add(model)
    return stored


def screened(stored: Updates, *, gram: bool = False) -> dict[int, str]:
    """Leave out the updates that cannot be used; return why, by their places."""
    wrong = {**stored.screen(gram=gram)}
    stored.remove(*wrong)
    return {place: str(reason) for place, reason in wrong.items()}


def contents(stored: Updates) -> list[Any]:
    """Return all that a round sees of the updates, to the bit."""
    vectors, m = stored.vectors, len(stored.vectors)
    counts = np.arange(1.0, m + 1)
    steps = []
    for step in np.eye(m):
        try:
            steps.append(stored.model_after(step, vectors, counts / counts.sum(), counts))
        except ValueError as reason:
            steps.append({"reason": np.array(str(reason))})
    after = [{name: (str(array.dtype), array.tobytes()) for name, array in model.items()} for model in steps]
    rows = [combine(one_hot, vectors).blocks[0][:].tobytes() for one_hot in np.eye(m)]
    products = [each.tobytes() for each in (gram_matrix(vectors, exact=True), squared_norms(vectors), stored.lengths)]
    return [vectors.blocks[0][:].tobytes(), rows, vectors.extreme, products, after]


def drawn(seed: int, m: int, odd: float, dtypes: tuple[str, str]) -> tuple[Layout, list[dict[str, np.ndarray]]]:
    """Return the layout of a random model, and models of which some have numbers out of range."""
    rng = np.random.default_rng(seed)
    w, flats = rng.normal(size=7), rng.normal(size=(m, 7))
    strange = rng.random((m, 7)) < odd
    flats[strange] = rng.choice(ODD, strange.sum())
    if seed % 3 == 0:
        w[0] = 3e38
    with np.errstate(over="ignore"):
        return Layout(model_of(w, dtypes), BUFFERS, TIED), [model_of(flat, dtypes) for flat in flats]


@given(
    seed=st.integers(0, 300),
    odd=st.sampled_from((0.0, 0.02, 0.3)),
    dtypes=st.sampled_from((("float32", "float32"), ("float16", "float32"), ("float64", "float32"))),
    chunk=st.sampled_from((1, 2, 3, 100)),
    exact=st.sampled_from((0, 30)),
)
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_updates_that_are_left_are_as_if_the_others_had_not_come(
    seed: int, odd: float, dtypes: tuple[str, str], chunk: int, exact: int
) -> None:
    """Of the models, or of copies of theirs in a file, and of updates that have taken their place."""
    try:
        layout, models = drawn(seed, 8, odd, dtypes)
    except ValueError:  # the global model itself is beyond float16
        return
    rows = Memory(1e-9).matrix(8, layout.size, layout.dtype)
    for row, model in zip(rows, models, strict=True):
        row[:] = flat(model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(updates, "CHUNK_COLUMNS", chunk)
        patch.setattr(updates, "EXACT_NUMBERS", exact)  # of 30 numbers, updates are computed once
        stored = borrowed(layout, models)
        wrong = screened(stored, gram=exact == 0)
        in_file = [
            {**model, **{n: row[place] for n, place in layout.slices}} for model, row in zip(models, rows, strict=True)
        ]
        filed = borrowed(layout, in_file)
        assert screened(filed) == wrong
        assert contents(filed) == contents(stored)
        left = [model for place, model in enumerate(models) if place not in wrong][1:]
        if left:
            stored.remove(0)
            expected = borrowed(layout, left)
            assert screened(expected) == {}
            assert contents(stored) == contents(expected)
            stored.replace(0, np.asarray(expected.vectors.blocks[0][0]))
            assert contents(stored) == contents(expected)


def small(count: int) -> tuple[Layout, list[dict[str, np.ndarray]]]:
    """Return the layout of a small model, and so many models near it."""
    rng = np.random.default_rng(3)
    model = {"w": rng.normal(size=(50, 3)).astype(np.float32), "b": rng.normal(size=9).astype(np.float32)}
    near = [{n: a + rng.normal(size=a.shape).astype(np.float32) for n, a in model.items()} for _ in range(count)]
    return Layout(model), near


def test_one_pass_screens_updates_and_multiplies_kept_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updates, "EXACT_NUMBERS", 0)
    layout, models = small(9)
    for by_array in (False, True):
        earlier, stored = borrowed(layout, models[:4]), borrowed(layout, models[4:])
        kept = [combine(np.eye(4)[k], earlier.vectors) for k in (1, 3)]
        assert stored.screen(gram=True, by_array=by_array, below=kept) == {}
        rows = Vectors.below([stored.vectors, *kept])
        expected = gram_matrices(rows, layout.ends if by_array else (layout.size,))
        with monkeypatch.context() as patch:
            patch.setattr(updates.Borrowed, "read", None)  # no number is read again
            found = stored.grams(rows, exact=False) if by_array else stored.gram(rows, exact=False)[None]
        np.testing.assert_array_equal(found, expected)


def test_a_kept_row_of_a_borrowed_model_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updates, "EXACT_NUMBERS", 0)
    stored = borrowed(*small(4))
    stored.screen(gram=False)
    expected = stored.vectors.blocks[0][2].tobytes()
    with monkeypatch.context() as patch:
        patch.setattr(updates.Borrowed, "read", None)
        row = combine(np.eye(4)[2], stored.vectors)
    stored.remove(2)
    assert row.blocks[0][0].tobytes() == expected


def test_borrowed_models_are_not_copied() -> None:
    layout, (model,) = drawn(1, 1, 0.0, ("float32", "float32"))
    stored = borrowed(layout, [model])
    model["b"] += np.float32(1.0)
    expected = np.sum((layout.flat - flat(model)).astype(np.float64) ** 2)
    assert gram_matrix(stored.vectors, exact=True)[0, 0] == pytest.approx(expected, rel=1e-12)


def flat(model: Model) -> np.ndarray:
    return np.concatenate([model["a"], model["b"].ravel()])


def test_buffers_that_are_handed_over_may_be_overwritten() -> None:
    layout, (model,) = drawn(0, 1, 0.0, ("float32", "float32"))
    stored = borrowed(layout, [model])
    before = contents(stored)
    model["mean"][:] = 9.0
    assert contents(stored) == before
