"""The random streams: each a function of the seed, the purpose and the place."""

import itertools
from typing import Any

import pytest

from fairbloom.protocol.streams import generator, seed_of

PLACES: list[tuple[int, str, tuple[int | str, ...]]] = [
    (seed, purpose, where)
    for seed in (0, 1, 2**62)
    for purpose in ("train", "evaluate")
    for where in ((), (1,), (2,), (1, "client-0"), (1, "client-1"), ("1",), (1, 1))
]


def test_every_seed_purpose_and_place_has_a_stream_of_its_own() -> None:
    drawn = {
        place: tuple(generator(place[0], place[1], *place[2]).integers(2**62, size=4))
        for place in PLACES
    }
    assert all(drawn[one] != drawn[other] for one, other in itertools.combinations(PLACES, 2))


@pytest.mark.parametrize(("seed", "purpose", "where"), PLACES)
def test_a_stream_is_the_same_whatever_was_drawn_before_it(
    seed: Any, purpose: Any, where: Any
) -> None:
    first = generator(seed, purpose, *where).integers(2**62, size=4).tolist()
    generator(seed + 1, purpose, *where).random(1000)
    assert generator(seed, purpose, *where).integers(2**62, size=4).tolist() == first


def test_every_machine_and_version_draws_the_same_numbers() -> None:
    assert generator(0, "train", 1).integers(1000, size=5).tolist() == [932, 182, 400, 958, 737]
    assert seed_of(0, "train", 1) == 219968077643412045
    assert generator(0, "batches", 3, "client-1").permutation(7).tolist() == [3, 2, 0, 1, 6, 5, 4]
