"""The checks of methods: each fails for a method that breaks it, in words."""

import logging
import random
from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np
import pytest
import torch

from fairbloom.check import CheckFailedError, check_method
from fairbloom.rounds.arrays import FloatArray
from fairbloom.rounds.cohort import Cohort, Decision
from fairbloom.rounds.options import Options
from fairbloom.rounds.ranges import within
from fairbloom.strategies import METHODS, FairStrategy
from tests.experiments.helpers import captured
from tests.federation import KINDS
from tests.strategies.helpers import ARGUMENTS

PROPERTIES = {"determinism", "resume"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(each, marks=() if each in {*KINDS} else pytest.mark.slow)
        for each in METHODS
        if each != "local"  # it trains no global model
    ],
)
def test_our_methods_pass_every_check(name: str) -> None:
    assert check_method(METHODS[name], ARGUMENTS[name][0]).keys() == PROPERTIES


def test_the_process_is_left_as_it_was() -> None:
    def draw() -> list[float]:
        return [random.random(), np.random.random(), torch.rand(()).item()]

    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    states = random.getstate(), np.random.get_state(), torch.random.get_rng_state()
    level = logging.getLogger("flwr").level
    check_method(METHODS["fedavg"])
    drawn = draw()
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.random.set_rng_state(states[2])
    assert drawn == draw()
    assert logging.getLogger("flwr").level == level


class Average(FairStrategy):
    """A method with a number of its own outside its memory."""

    def __init__(self, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.average = [1.0]

    def weigh(self, cohort: Cohort) -> FloatArray:
        self.average[0] *= 0.9
        return np.asarray(cohort.prior * self.average[0])


class Draws(FairStrategy):
    def weigh(self, cohort: Cohort) -> FloatArray:
        return np.random.default_rng().random(cohort.size)


class Raises(FairStrategy):
    def weigh(self, cohort: Cohort) -> FloatArray:
        return cohort.prior / self.share  # type: ignore[attr-defined, no-any-return]


class Forgets(FairStrategy):
    def weigh(self, cohort: Cohort) -> FloatArray:
        return cohort.losses


class Wrong(FairStrategy):
    def weigh(self, cohort: Cohort) -> FloatArray:
        return np.append(cohort.prior, 0.0)


class RemembersASet(FairStrategy):
    def weigh(self, cohort: Cohort) -> Decision:
        memory: Mapping[str, Any] = {"seen": set(cohort.names)}
        return Decision(cohort.prior.copy(), memory=memory)


class NeedsMore(FairStrategy):
    needs = frozenset({"blood-pressure"})


class NeedsAShare(FairStrategy):
    def __init__(self, *, share: float, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.share = within("[0, inf)", share=share)

    def weigh(self, cohort: Cohort) -> FloatArray:
        return cohort.prior


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (Draws, "determinism: .* draw from fairbloom.protocol.streams.generator"),
        (Average, "resume: .* must be in a Decision's memory"),
        (Raises, r"'Raises' object has no attribute 'share' \(test_method.py, line \d+: `return"),
        (Forgets, "reads the metric 'loss-before', which its needs do not name"),
        (Wrong, r"float64 of shape \(4,\)"),
        (RemembersASet, "set is not JSON serializable"),
        (NeedsMore, "blood-pressure"),
        (NeedsAShare, "share"),
    ],
)
def test_a_broken_method_fails_in_words(method: type[FairStrategy], words: str) -> None:
    with pytest.raises(CheckFailedError, match=rf"^{method.__name__}\(\) fails.*{words}"):
        check_method(method)


def test_a_parameter_is_given_as_in_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_method(NeedsAShare, {"share": 0.1}).keys() == PROPERTIES
    with pytest.raises(CheckFailedError, match=r"^NeedsAShare\(share=-1\.0\) fails: .*share = -1"):
        check_method(NeedsAShare, {"share": -1.0})
    said = captured(capsys, "check", "fedfv", "--set", "fedfv.alpha=0.2").out
    assert said.count("the same to the bit") == 2
    said = captured(capsys, "check", "fedfv", "--set", "fedfv.alpha=7", code=1).out
    assert "fedfv(alpha=7) fails:" in said.lower()
