"""Models in a matrix, in memory or in a file, are to the bit what they are, borrowed; one pass
screens them all."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fairbloom.errors import FairbloomError
from fairbloom.rounds import arrays, updates, vectors
from fairbloom.rounds.layout import Layout
from fairbloom.rounds.updates import Updates
from fairbloom.rounds.vectors import Vectors, combine, gram_matrices
from fairbloom.simulation.memory import GIGABYTE, empty_matrix

from .helpers import gram_matrix, squared_norms, taken_in as borrowed

TINY = 1e-9
"""Gigabytes that hold one byte."""

BUFFERS = ("mean",)
TIED = {"twin": "a"}
ODD = (1e-44, 1e-30, 1e25, 3e38, -3e38, np.nan, np.inf, -np.inf)


def model_of(flat: Any, dtypes: tuple[str, str] = ("float32", "float32")) -> dict[str, np.ndarray]:
    """Return a model of five numbers in two arrays, with a buffer, an integer and a name more for
    the first array."""
    a = np.asarray(flat[:2], dtypes[0])
    b = np.asarray(flat[2:5], dtypes[1]).reshape(3, 1)
    return {
        "twin": a,
        "a": a,
        "mean": np.float32(flat[5:7]),
        "b": b,
        "steps": np.array(7 * len(flat)),
    }


def written(
    layout: Layout, models: list[dict[str, np.ndarray]], cut: int = 0, gigabytes: float = 1.0
) -> Updates:
    """Write models into the rows of a matrix, in memory or in a file, and add them: `cut` of them
    first."""
    matrix = empty_matrix(len(models), layout.size, layout.dtype, gigabytes)
    assert isinstance(matrix, np.memmap) == (gigabytes == TINY)
    stored = Updates(layout, matrix)
    for start, stop in ((0, cut), (cut, len(models))):
        for k in range(start, stop):
            for name, place in layout.slices:
                stored.matrix[k, place] = models[k][name].ravel()
        stored.add_rows(
            [{name: model[name] for name in ("mean", "steps")} for model in models[start:stop]]
        )
    return stored


def screened(stored: Updates, *, gram: bool = False) -> dict[int, str]:
    """Remove the unusable updates; return the reasons by place."""
    wrong = {**stored.screen(gram=gram)}
    stored.remove(*wrong)
    return {place: str(reason) for place, reason in wrong.items()}


def contents(stored: Updates) -> list[Any]:
    vectors = stored.vectors
    m = len(stored.vectors)
    counts = np.arange(1.0, m + 1)
    steps = []
    for step in np.eye(m):
        try:
            after, _ = stored.model_after(step, vectors, counts / counts.sum(), counts)
            steps.append(after)
        except ValueError as reason:
            steps.append({"reason": np.array(str(reason))})
    after = [
        {name: (str(array.dtype), array.tobytes()) for name, array in model.items()}
        for model in steps
    ]
    return [np.asarray(vectors.blocks[0]).tobytes(), vectors.needs_float64, after]


def drawn(
    seed: int, m: int, odd: float, dtypes: tuple[str, str]
) -> tuple[Layout, list[dict[str, np.ndarray]]]:
    """Return the layout of a random model, and models of which some have numbers out of range."""
    rng = np.random.default_rng(seed)
    w = rng.normal(size=7)
    flats = rng.normal(size=(m, 7))
    strange = rng.random((m, 7)) < odd
    flats[strange] = rng.choice(ODD, strange.sum())
    if seed % 3 == 0:
        w[0] = 3e38
    with np.errstate(over="ignore"):
        return Layout(model_of(w, dtypes), BUFFERS, TIED), [
            model_of(flat, dtypes) for flat in flats
        ]


DTYPES = st.sampled_from((("float32", "float32"), ("float16", "float32"), ("float64", "float32")))
ODDS = st.sampled_from((0.0, 0.02, 0.3))


@given(
    seed=st.integers(0, 300),
    cut=st.integers(0, 8),
    odd=ODDS,
    dtypes=DTYPES,
    cache=st.sampled_from((1, 12, 10**6)),
    chunk=st.sampled_from((1, 2, 3, 100)),
    large=st.booleans(),
    gigabytes=st.sampled_from((1.0, TINY)),
)
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_models_in_a_matrix_have_the_bits_of_borrowed_ones(
    seed: int,
    cut: int,
    odd: float,
    dtypes: tuple[str, str],
    cache: int,
    chunk: int,
    large: bool,
    gigabytes: float,
) -> None:
    try:
        layout, models = drawn(seed, 8, odd, dtypes)
    except ValueError:  # the global model itself is beyond float16
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(updates, "CACHED_NUMBERS", cache)
        patch.setattr(arrays, "CHUNK_COLUMNS", chunk)
        # of 30, products are made in float64 once few are left
        patch.setattr(vectors, "EXACT_NUMBERS", 0 if large else 30)
        stored = written(layout, models, cut, gigabytes)
        expected = borrowed(layout, models)
        wrong = screened(stored, gram=large)
        assert wrong == screened(expected)
        np.testing.assert_array_equal(
            stored.gram(stored.vectors, exact=False), expected.gram(expected.vectors, exact=False)
        )
        np.testing.assert_array_equal(stored.norms, expected.norms)
        if len(expected) > 2:  # those that are left are as if the others had not come
            usable = [model for k, model in enumerate(models) if k not in wrong]
            expected = borrowed(
                layout, [model for k, model in enumerate(usable) if k not in (0, 2)]
            )
            assert screened(expected) == {}
            stored.remove(0, 2)
        a = stored.vectors
        b = expected.vectors
        np.testing.assert_array_equal(gram_matrix(a), gram_matrix(b))
        np.testing.assert_array_equal(gram_matrix(a, exact=True), gram_matrix(b, exact=True))
        np.testing.assert_array_equal(squared_norms(a), squared_norms(b))
        assert contents(stored) == contents(expected)
        for k in range(len(b)):
            one_hot = np.arange(len(b)) == k
            ours, theirs = (combine(one_hot * 1.0, each).blocks[0] for each in (a, b))
            assert np.asarray(ours).tobytes() == np.asarray(theirs).tobytes()


def small(count: int) -> tuple[Layout, list[dict[str, np.ndarray]]]:
    """Return the layout of a small model, and this many models near it."""
    rng = np.random.default_rng(3)
    model = {
        "w": rng.normal(size=(50, 3)).astype(np.float32),
        "b": rng.normal(size=9).astype(np.float32),
    }
    near = [
        {n: a + rng.normal(size=a.shape).astype(np.float32) for n, a in model.items()}
        for _ in range(count)
    ]
    return Layout(model), near


@pytest.mark.parametrize("by_array", [False, True])
def test_one_pass_screens_updates_and_multiplies_kept_rows(
    monkeypatch: pytest.MonkeyPatch, by_array: bool
) -> None:
    monkeypatch.setattr(vectors, "EXACT_NUMBERS", 0)
    layout, models = small(9)
    earlier = borrowed(layout, models[:4])
    stored = borrowed(layout, models[4:])
    kept = [combine(np.eye(4)[k], earlier.vectors) for k in (1, 3)]
    assert stored.screen(gram=True, by_array=by_array, below=kept) == {}
    rows = Vectors.concat([stored.vectors, *kept])
    expected = gram_matrices(rows, layout.ends if by_array else (layout.size,))
    with monkeypatch.context() as patch:
        patch.setattr(updates.Borrowed, "read", None)  # no number is read again
        found = (
            stored.grams(rows, exact=False) if by_array else stored.gram(rows, exact=False)[None]
        )
    np.testing.assert_array_equal(found, expected)


def test_borrowed_models_are_not_copied() -> None:
    layout, (model,) = drawn(1, 1, 0.0, ("float32", "float32"))
    stored = borrowed(layout, [model])
    model["b"] += np.float32(1.0)
    after = np.concatenate([model["a"], model["b"].ravel()])
    expected = np.sum((layout.flat - after).astype(np.float64) ** 2)
    assert gram_matrix(stored.vectors, exact=True)[0, 0] == pytest.approx(expected, rel=1e-12)


def test_buffers_that_are_handed_over_may_be_overwritten() -> None:
    layout, (model,) = drawn(0, 1, 0.0, ("float32", "float32"))
    stored = written(layout, [model])
    before = contents(stored)
    model["mean"][:] = 9.0
    assert contents(stored) == before


def test_the_budget_is_for_all_matrices_of_a_round(subtests: pytest.Subtests) -> None:
    size = 5 * 1000 * 4 / GIGABYTE
    for gigabytes, of, in_file in (
        (size, 1, False),
        (size, 2, True),
        (2 * size, 2, False),
        (0.0, 2, False),
    ):
        with subtests.test(gigabytes=gigabytes, of=of):
            assert (
                isinstance(empty_matrix(5, 1000, np.float32, gigabytes, of=of), np.memmap)
                == in_file
            )


def test_the_file_has_no_name_while_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    matrix = empty_matrix(3, 5, np.float32, TINY)
    matrix[:] = 1.0
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_an_error_before_the_round_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    free = shutil.disk_usage(tmp_path).free
    with pytest.raises(
        FairbloomError, match=r"memory = 0\.5 allows.*has no room for them.*raise memory"
    ) as error:
        # Larger than any file: less would fill the disk for a moment, and fail the tests beside.
        empty_matrix(1000, 2**40, np.float32, 0.5)
    assert str(tmp_path) in str(error.value)
    assert shutil.disk_usage(tmp_path).free > free // 2
