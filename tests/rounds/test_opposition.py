"""Who opposes the others: by a Gram matrix, or by a sample of the updates' numbers."""

from typing import NoReturn

import numpy as np
import pytest

from fairbloom.rounds.opposition import FEWEST_ROUNDS, SAMPLED_CHUNKS, Counts, Products, add_round, opposing_often
from fairbloom.rounds.updates import CHUNK_COLUMNS, FloatArray, Vectors


def turned(d: int) -> FloatArray:
    """Return similar updates of d numbers, of which the second is turned and half as long."""
    random = np.random.default_rng(d)
    rows = random.normal(size=d) + 3.0 * random.normal(size=(5, d))
    rows[1] *= -0.5
    return np.asarray(rows)


@pytest.mark.parametrize("d", [0, 1, 300, SAMPLED_CHUNKS * CHUNK_COLUMNS])
def test_the_sample_of_a_small_model_is_all_of_it(d: int) -> None:
    rows, scales = turned(d), np.array([1.0, 2.0, 0.5, 1.0, 4.0])
    found = Products.of_sample(Vectors((rows,), scales), np.random.default_rng(1))
    due = Products.of_gram((scales[:, None] * rows) @ (scales[:, None] * rows).T)
    np.testing.assert_allclose(found.with_sum, due.with_sum, rtol=1e-9)
    np.testing.assert_allclose(found.squares, due.squares, rtol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_sample_names_who_opposes_in_any_part(dtype: type[np.floating]) -> None:
    vectors = Vectors((turned(600_000).astype(dtype),), np.ones(5))
    for seed in range(9):
        cosines = Products.of_sample(vectors, np.random.default_rng(seed)).cosines
        np.testing.assert_array_equal(cosines < 0.0, [False, True, False, False, False])


def test_cosines_are_those_with_the_sum_of_the_others() -> None:
    rows = np.vstack([turned(40), np.zeros(40)])
    others = rows.sum(axis=0) - rows
    lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(others, axis=1)
    due = np.divide((rows * others).sum(axis=1), lengths, out=np.zeros(6), where=lengths > 0.0)
    np.testing.assert_allclose(Products.of_gram(rows @ rows.T).cosines, due, atol=1e-12)


@pytest.mark.parametrize("chunks", [1, 3, 4, 5, 9, 31])
def test_each_part_is_read_in_some_round(chunks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, read = list[int](), Vectors.chunks

    def noted(self: Vectors, *where: int) -> object:
        for place, chunk in read(self, *where):
            seen.append(place.start)
            yield place, chunk

    monkeypatch.setattr(Vectors, "chunks", noted)
    vectors = Vectors((np.ones((1, chunks * CHUNK_COLUMNS - 1), np.float32),), np.ones(1))
    for seed in range(50):
        before = len(seen)
        Products.of_sample(vectors, np.random.default_rng(seed))
        assert len(seen) - before <= SAMPLED_CHUNKS
    assert len({*seen}) == chunks


def test_a_client_is_named_for_most_of_enough_rounds() -> None:
    counts: Counts = {}
    for number in range(FEWEST_ROUNDS):
        assert opposing_often(counts, counts) == ()
        add_round(counts, ["a", "b", "c"], [*["a"] * (number % 2 == 0), "b", *["c"] * (number > 2)])
    assert opposing_often(counts, ["b", "c", "a", "new"]) == ("a", "b")
    assert counts["c"] == (2, FEWEST_ROUNDS)


def test_a_round_looks_at_its_own_clients_alone() -> None:
    class Counted(dict[str, tuple[int, int]]):
        def __iter__(self) -> NoReturn:
            raise AssertionError("all clients ever seen are read")

        keys = items = values = __iter__

    counts = Counted({f"client-{number}": (5, 5) for number in range(9)})
    add_round(counts, ["client-1", "new"], ["new"])
    assert opposing_often(counts, ["client-1", "new"]) == ("client-1",)
    assert (counts["client-1"], counts["new"], len(counts)) == ((5, 6), (1, 1), 10)
