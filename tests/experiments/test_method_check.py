"""The check of a user's method: the methods of the project pass, and each fault is a line."""

import random
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import pytest

import fairbloom
from fairbloom.protocol.parameters import Range
from fairbloom.protocol.settings import Value
from fairbloom.rounds.arrays import FloatArray
from fairbloom.rounds.cohort import Cohort, Decision, MethodError
from fairbloom.strategies import METHODS, FairStrategy
from tests.strategies.helpers import CORNERS


@pytest.mark.parametrize("name", METHODS)
def test_every_method_passes(name: str) -> None:
    for corner in CORNERS.get(name, [{}]):
        fairbloom.check_method(METHODS[name], corner)


def faults_of(method: type[FairStrategy], parameters: Mapping[str, Value] | None = None) -> str:
    with pytest.raises(MethodError) as raised:
        fairbloom.check_method(method, parameters)
    return str(raised.value)


class ByRank(FairStrategy):
    """Weights by the rank of the loss, found by sorting twice: ties go by place."""

    needs = frozenset({"loss-before"})

    def weigh(self, cohort: Cohort) -> FloatArray:
        ranks = np.argsort(np.argsort(cohort.losses)) + 1.0
        return ranks / ranks.sum()


class Drawing(FairStrategy):
    """Weights from the global generators."""

    def weigh(self, cohort: Cohort) -> FloatArray:
        return cohort.prior * random.random()


class Counting(FairStrategy):
    """A step size by a list that no checkpoint has."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seen: list[int] = []

    def weigh(self, cohort: Cohort) -> FloatArray:
        self.seen.append(cohort.round)
        return cohort.prior / len(self.seen)


class Remembering(FairStrategy):
    """The same by a number that a checkpoint has."""

    def weigh(self, cohort: Cohort) -> Decision:
        rounds = 1 + self.past.memory.get("rounds", 0)
        return Decision(cohort.prior / rounds, memory={"rounds": rounds})


class Spread(FairStrategy):
    """A division by the spread of losses, which a single client has not."""

    needs = frozenset({"loss-before"})

    def weigh(self, cohort: Cohort) -> FloatArray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return cohort.losses / cohort.losses.std()


class Unit(FairStrategy):
    """A division by the updates' lengths."""

    def weigh(self, cohort: Cohort) -> FloatArray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return cohort.prior / np.sqrt(cohort.squared_norms)


class Inverse(FairStrategy):
    """A division by a parameter that may be 0."""

    def __init__(self, *, share: Annotated[float, Range("[0, 1]")] = 0.5, **options: Any) -> None:
        super().__init__(**options)
        self.share = share

    def weigh(self, cohort: Cohort) -> FloatArray:
        return cohort.prior * (1 / self.share)


class Raising(FairStrategy):
    """An error of Python's."""

    def weigh(self, cohort: Cohort) -> FloatArray:
        return cohort.prior[100]


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (ByRank, "the same replies under other names"),
        (Drawing, "a repeated run ends with another model: draw from"),
        (Counting, "a run that is continued from a checkpoint ends with another model"),
        (Spread, "with a single client a run fails"),
        (Unit, "with updates of zero a run fails"),
        (Inverse, "with share = 0, an end of its range, a run fails: ZeroDivisionError"),
        (Raising, "a run of 6 clients fails: IndexError.*test_method_check.py, line"),
    ],
)
def test_a_fault_is_a_line_that_names_it(method: type[FairStrategy], words: str) -> None:
    found = faults_of(method)
    lines = found.splitlines()
    assert all(line.startswith(f"{method.__name__}: ") for line in lines)
    for part in words.split(".*"):
        assert part in found


def test_what_is_in_the_memory_resumes() -> None:
    fairbloom.check_method(Remembering)


def test_given_parameters_are_those_of_every_run() -> None:
    """But for the one whose end is tried."""
    assert "share = 0, an end" in faults_of(Inverse, {"share": 1.0})
    assert "a run of 6 clients fails: ZeroDivisionError" in faults_of(Inverse, {"share": 0.0})


def test_the_generators_of_the_process_are_left_alone() -> None:
    random.seed(5)
    np.random.seed(5)
    fairbloom.check_method(METHODS["fedavg"])
    left = random.random(), np.random.random()
    random.seed(5)
    np.random.seed(5)
    assert left == (random.random(), np.random.random())


def test_a_method_without_faults_warns_of_nothing(said: pytest.LogCaptureFixture) -> None:
    """Its made-up clients with updates of zero are not those of a training function."""
    fairbloom.check_method(METHODS["fedavg"])
    assert [record.getMessage() for record in said.records if record.levelname == "WARNING"] == []
