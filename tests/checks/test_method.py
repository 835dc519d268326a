"""The checks of methods: each property fails for a method that breaks it, in words."""

import inspect
import logging
import random
import re
from collections.abc import Callable, Mapping
from typing import Any, Unpack

import numpy as np
import pytest
import torch

from fairbloom.check import CheckFailedError, check_method
from fairbloom.checks.method import PROPERTIES
from fairbloom.checks.report import Failure, silence
from fairbloom.checks.subject import MethodUnderTest
from fairbloom.cli.check import arguments_of
from fairbloom.errors import FairbloomError
from fairbloom.protocol.settings import Value
from fairbloom.rounds.arrays import FloatArray
from fairbloom.rounds.cohort import Cohort, Decision, Past, Probed
from fairbloom.rounds.options import Options
from fairbloom.rounds.ranges import within
from fairbloom.strategies import METHODS, FairStrategy
from tests.federation import KINDS
from tests.strategies.helpers import ARGUMENTS


def check(name: str, method: Callable[..., FairStrategy], **arguments: Value) -> str:
    with silence():
        return PROPERTIES[name](MethodUnderTest(method, arguments))


# Methods that are right ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(each, marks=() if each in {*KINDS, "local"} else pytest.mark.slow)
        for each in METHODS
    ],
)
def test_our_methods_pass_every_check(name: str) -> None:
    """Only `local` gets a remark: its global model stays as it is.

    FairMOO lowers the mean loss only below its tolerance of the variance.
    """
    arguments = {"tolerance": 1e9} if name == "fairmoo" else ARGUMENTS[name][0]
    found = check_method(METHODS[name], arguments)
    assert found.keys() == PROPERTIES.keys()
    remarks = {each for each, said in found.items() if said.startswith(("Remark:", "Not checked:"))}
    assert remarks == ({"learns"} if name == "local" else set())


def test_the_process_is_left_as_it_was() -> None:
    def draw() -> list[float]:
        return [random.random(), np.random.random(), torch.rand(()).item()]

    def seed() -> None:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)

    seed()
    level = logging.getLogger("flwr").level
    threads = torch.get_num_threads()
    check_method(METHODS["fedavg"])
    drawn = draw()
    seed()
    assert drawn == draw()
    assert (logging.getLogger("flwr").level, torch.get_num_threads()) == (level, threads)


# Methods that are wrong in one way ----------------------------------------------------------------


def broken(base: type[FairStrategy] = FairStrategy, **parts: Any) -> type[FairStrategy]:
    """Return a class that is FedAvg but for these parts."""
    return type(
        "Broken",
        (base,),
        {"__module__": __name__, "weigh": lambda self, cohort: cohort.prior.copy(), **parts},
    )


def deciding(**parts: Callable[[Cohort, FloatArray], Any]) -> dict[str, Any]:
    """Return the parts of a method that remembers, or keeps rows, which do not count."""

    def weigh(self: object, cohort: Cohort) -> Decision:
        c = np.concatenate([cohort.prior, np.zeros(len(cohort.memory))])
        return Decision(c, **{name: made(cohort, c) for name, made in parts.items()})

    return {"weigh": weigh}


def changing(change: Callable[[Any, Cohort], Any]) -> dict[str, Any]:
    """Return the parts of a method that changes something of its own after each step."""

    def learn(self: Any, past: Past, cohort: Cohort, probed: Probed) -> Mapping[str, Any]:
        change(self, cohort)
        return past.memory

    return {"learn": learn}


def set_average(self: Any, value: float) -> None:
    self.average[0] = value


class Attributed(FairStrategy):
    """A method with attributes of its own, outside its memory."""

    def __init__(self, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.average = [1.0]
        self.random = np.random.default_rng(0)


class Unannotated(FairStrategy):
    def __init__(self, *, share=0.5, **options: Unpack[Options]) -> None:  # type: ignore[no-untyped-def]
        super().__init__(**options)


class TakesNoOptions(FairStrategy):
    def __init__(self, *, share: float = 0.5) -> None:
        super().__init__()
        self.share = within("[0, inf)", share=share)


class DropsOptions(FairStrategy):
    def __init__(self, **options: Unpack[Options]) -> None:
        super().__init__()


class MakesNothing(FairStrategy):
    def __init__(self, **options: Unpack[Options]) -> None:
        pass


class Raises(FairStrategy):
    def weigh(self, cohort: Cohort) -> FloatArray:
        return cohort.prior / self.share  # type: ignore[attr-defined, no-any-return]


def change_itself(self: Any, cohort: Cohort) -> FloatArray:
    self.average[0] *= 0.9
    return np.asarray(cohort.prior * self.average[0])


LOSSES = {"needs": frozenset({"loss-before"})}

WRONG: list[tuple[str, type[FairStrategy], str]] = [
    ("parameters", Unannotated, "must be annotated"),
    ("parameters", TakesNoOptions, "seed=5"),
    ("parameters", DropsOptions, "seed=5"),
    ("parameters", MakesNothing, "super().__init__(**options)"),
    ("determinism", broken(weigh=lambda self, cohort: np.random.default_rng().random(cohort.size)), "generator"),
    ("determinism", broken(weigh=lambda self, cohort: np.random.random(cohort.size)), "generator"),
    ("determinism", Raises, "AttributeError: 'Raises' object has no attribute 'share' (test_method.py, line "),
    ("determinism", broken(weigh=lambda self, cohort: cohort.losses), "'loss-before'"),
    ("determinism", broken(weigh=lambda self, cohort: np.append(cohort.prior, 0.0)), "float64 of shape (4,)"),
    ("determinism", broken(**deciding(memory=lambda cohort, c: 3)), "memory = 3"),
    ("resume", broken(**deciding(memory=lambda cohort, c: {"last": {cohort.round: 1.0}})), "{'last': {2: 1.0}}"),
    ("resume", broken(**deciding(memory=lambda cohort, c: {"seen": set(cohort.names)})), "which keeps dicts by str"),
    ("resume", broken(Attributed, **changing(lambda self, cohort: set_average(self, 0.9 * self.average[0])),
                      weigh=lambda self, cohort: cohort.prior * self.average[0]), "must be in a Decision's memory"),
    ("learns", broken(weigh=lambda self, cohort: -cohort.prior), "uphill"),
    ("learns", broken(weigh=lambda self, c: c.prior.mean() * np.resize([1.0, -1.0], c.size)), "no step"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "method", "words"), WRONG)
def test_a_broken_method_fails_a_property_in_words(name: str, method: Any, words: str) -> None:
    with pytest.raises(Failure) as failure:
        check(name, method)
    assert words in str(failure.value)


def test_some_method_breaks_each_property() -> None:
    assert {name for name, _, _ in WRONG} == {*PROPERTIES}


def test_a_fault_is_reported_once_with_its_line() -> None:
    lines, first = inspect.getsourcelines(Raises)
    number = first + next(k for k, line in enumerate(lines) if "self.share" in line)
    with pytest.raises(CheckFailedError, match=r"^Raises\(\) fails determinism: In") as error:
        check_method(Raises)
    assert f"test_method.py, line {number}: `return cohort.prior / self.share" in str(error.value)


# Remarks ------------------------------------------------------------------------------------------


UNKNOWN = broken(needs=frozenset({"blood-pressure"}))


def test_a_step_that_is_too_long_is_remarked() -> None:
    said = check("learns", broken(weigh=lambda self, cohort: 1e4 * cohort.prior))
    assert said.startswith("Remark: the mean loss did not fall")


def test_a_shorter_step_is_no_remark() -> None:
    assert "The sum of the coefficients is 0.5; FedAvg's is 1." in check(
        "learns", broken(weigh=lambda self, cohort: 0.5 * cohort.prior)
    )


def test_no_round_is_run_where_real_clients_lack_a_metric() -> None:
    found = check_method(UNKNOWN)
    assert found["parameters"] == "Its own: none."
    for name in ("determinism", "resume", "learns"):
        assert re.match("Not checked: .*blood-pressure", found[name])


# Arguments and the printed report -----------------------------------------------------------------


class NeedsAShare(FairStrategy):
    def __init__(self, *, share: float, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.share = within("[0, inf)", share=share)

    def weigh(self, cohort: Cohort) -> FloatArray:
        return cohort.prior


def test_a_parameter_without_a_default_has_to_be_given() -> None:
    with pytest.raises(CheckFailedError, match=r"fails parameters: .*--set needsashare\.share="):
        check_method(NeedsAShare)
    assert check_method(NeedsAShare, {"share": 0.1})
    words = r"^NeedsAShare\(share=-1\.0\) fails parameters: .*share = -1\.0"
    with pytest.raises(CheckFailedError, match=words):
        check_method(NeedsAShare, {"share": -1.0})


@pytest.mark.parametrize(("key", "value"), [("needsashare.part", 1), ("needsashare.share", "a")])
def test_arguments_are_read_from_settings_as_a_run_has_them(key: str, value: int | str) -> None:
    assert arguments_of(NeedsAShare, {}) == {}
    assert arguments_of(NeedsAShare, {"needsashare.share": 1}) == {"share": 1.0}
    with pytest.raises(FairbloomError, match=rf"{key} = {value!r}: .*"):
        arguments_of(NeedsAShare, {key: value})
