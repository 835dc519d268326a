"""The aggregation of every method can be measured."""

import math

import pytest

from benchmarks.aggregation import LEFT_OUT, Replies, measure
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
