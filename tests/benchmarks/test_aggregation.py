"""The aggregation of every method can be measured, and of models of any number of arrays."""

import math

import pytest

from benchmarks.aggregation import ARRAYS, LEFT_OUT, Replies, arrays_of, measure, measure_by_array
from fairbloom.server.settings import Settings
from fairbloom.strategies import METHODS


@pytest.fixture(scope="module")
def replies() -> Replies:
    return Replies(4, 100)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in METHODS if name not in LEFT_OUT])
def test_every_method_gets_all_that_it_needs_of_a_reply(name: str, replies: Replies) -> None:
    strategy = Settings.of({"method": name, "fraction": 1.0}).strategy()
    seconds, memory = measure(strategy, replies, 2)
    assert strategy.progress.steps == 3  # one more is measured for its memory
    assert 0.0 < seconds < math.inf
    assert memory > 0.0


@pytest.mark.parametrize("count", ARRAYS)
def test_models_have_the_numbers_and_arrays_of_the_table(count: int) -> None:
    model = arrays_of(count, 700_000)
    assert (len(model), sum(array.size for array in model.values())) == (count, 700_000)
    assert all(array.size for array in model.values())
    assert list(model)[:2] == ["0.weight", "0.bias"]


def test_both_passes_are_measured_as_often() -> None:
    single, by_array = measure_by_array(4, arrays_of(2, 600_000), 2)
    assert (len(single.values), len(by_array.values)) == (2, 2)
