"""The checks of methods: each property fails for a method that breaks it, in words, and for no
other.

The checks of client-side rules: each property fails for a rule that breaks it, in words.
"""

import inspect
import logging
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from io import StringIO
from typing import Any, Unpack

import numpy as np
import pytest
import torch
from rich.console import Console

from fairbloom.check import CheckFailedError, CheckReport, Status, check_method
from fairbloom.checks.method import PROPERTIES
from fairbloom.checks.report import Failure, NotApplicable, Remark, silence
from fairbloom.checks.subject import MethodUnderTest
from fairbloom.cli.check import arguments_of
from fairbloom.errors import FairbloomError
from fairbloom.protocol.settings import Value
from fairbloom.rounds.arrays import FloatArray
from fairbloom.rounds.cohort import Cohort, Decision, Kept, Past, Probed
from fairbloom.rounds.options import Options
from fairbloom.rounds.ranges import within
from fairbloom.strategies import METHODS, FairStrategy
from fairbloom.strategies.torchjd import by_name
from tests.federation import KINDS
from tests.strategies.helpers import ARGUMENTS


def report_on(
    method: Callable[..., FairStrategy], arguments: Mapping[str, Value] | None = None
) -> CheckReport:
    try:
        return check_method(method, arguments)
    except CheckFailedError as error:
        return error.report


def remarks_on(
    method: Callable[..., FairStrategy], arguments: Mapping[str, Value] | None = None
) -> set[str]:
    """Return the properties with a remark; raise CheckFailedError where one fails."""
    results = check_method(method, arguments).results
    return {name for name, result in results.items() if result.status is Status.REMARK}


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
    assert remarks_on(METHODS[name], arguments) == ({"learns"} if name == "local" else set())


@pytest.mark.slow
def test_methods_of_torchjd_pass_with_true_remarks(subtests: pytest.Subtests) -> None:
    """Two draw an order from the seed; with two the mean loss does not fall."""
    pytest.importorskip("torchjd")
    for name in ("alignedmtl", "cagrad", "dualproj", "fairgrad", "imtlg", "mgda", "upgrad"):
        with subtests.test(name=name):
            assert remarks_on(partial(by_name, name)) == set(), name
    assert remarks_on(partial(by_name, "krum")) == {"learns"}
    assert remarks_on(partial(by_name, "gradvac")) == {"permutation", "learns"}
    assert remarks_on(partial(by_name, "pcgrad")) == {"permutation"}


def test_kept_rows_are_tried() -> None:
    assert " 0 kept rows" not in check("finite", METHODS["fedfv"], tau=3)


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


class NamesNothing(FairStrategy):
    def __init__(self, *, share: float = 0.5, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        if not 0.0 < share <= 1.0:
            raise ValueError("out of range")


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


class FirstCountsMore(FairStrategy):
    """The mean, in which the client that comes first counts one per cent more, of many clients
    alone."""

    def __init__(self, *, many: int = 1, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.many = many

    def weigh(self, cohort: Cohort) -> FloatArray:
        share = np.where((np.arange(cohort.size) == 0) & (cohort.size >= self.many), 1.01, 1.0)
        return np.asarray(share / share.sum())


def change_losses(self: object, cohort: Cohort) -> FloatArray:
    return np.asarray(np.maximum(cohort.losses, 1.0, out=cohort.losses) * cohort.prior)


def change_prior(self: object, cohort: Cohort) -> FloatArray:
    return np.add(cohort.prior, 0.0, out=cohort.prior)


def change_itself(self: Any, cohort: Cohort) -> FloatArray:
    self.average[0] *= 0.9
    return np.asarray(cohort.prior * self.average[0])


def set_itself(self: Any, cohort: Cohort) -> FloatArray:
    self.last = cohort.round
    return cohort.prior


def divide_by_arrays(self: object, cohort: Cohort) -> FloatArray:
    with np.errstate(divide="ignore", invalid="ignore"):
        lengths = np.sqrt(np.diagonal(cohort.grams, axis1=1, axis2=2))
        return np.asarray(cohort.prior * lengths.mean(axis=1, keepdims=True) / lengths)


def weigh_by_place(self: object, cohort: Cohort) -> FloatArray:
    c = np.tile(cohort.prior, (len(cohort.arrays), 1))
    c[1] *= 1.0 + np.arange(cohort.size)
    return c


def weigh_by_rank(self: object, cohort: Cohort) -> FloatArray:
    ranks = np.argsort(np.argsort(cohort.losses, kind="stable"))
    return np.asarray((ranks + 1.0) / (ranks + 1.0).sum())


LOSSES = {"needs": frozenset({"loss-before"})}
BY_ARRAY = {"requires": frozenset({"gram by array"})}
DISPARITY = {
    "terms": lambda self, r: replace(FairStrategy.terms(self, r), disparity="demographic-parity")
}
SECOND = {"second": "arrays-disparity", **DISPARITY}

WRONG: list[tuple[str, type[FairStrategy], str]] = [
    ("parameters", NamesNothing, "share"),
    ("parameters", Unannotated, "must be annotated"),
    ("parameters", TakesNoOptions, "seed=5"),
    ("parameters", DropsOptions, "seed=5"),
    ("parameters", MakesNothing, "super().__init__(**options)"),
    ("needs", broken(needs=frozenset({"loss_before"})), "'loss-before'"),
    ("needs", broken(needs="loss-before"), "needs = 'loss-before'"),
    ("needs", broken(second="snapshot"), "snapshot_step"),
    ("needs", broken(terms=lambda self, number: {"local-steps": 5}), "{'local-steps': 5}"),
    ("needs", broken(second="arrays-disparity"), "second = 'arrays-disparity'"),
    ("needs", broken(**DISPARITY), "second = ''"),
    ("finite", broken(weigh=lambda self, cohort: cohort.losses), "'loss-before'"),
    ("finite", broken(**SECOND), "shape (2,)"),
    ("finite", broken(**BY_ARRAY, weigh=lambda self, cohort: np.tile(cohort.prior, (4, 1))), "shape (3, 1)"),
    ("finite", broken(**BY_ARRAY, weigh=divide_by_arrays), "zero updates"),
    ("finite", broken(weigh=lambda self, cohort: np.append(cohort.prior, 0.0)), "float64 of shape (2,)"),
    ("finite", broken(weigh=lambda self, cohort: Decision(
        cohort.prior, keep={Kept("first", cohort.round): np.eye(cohort.rows)[0]})), "1 kept rows in round 2"),
    ("finite", Raises, "AttributeError: 'Raises' object has no attribute 'share' (test_method.py, line "),
    ("finite", broken(**LOSSES, weigh=lambda self, cohort: cohort.prior / cohort.losses), "zero losses"),
    ("finite", broken(weigh=lambda self, cohort: cohort.prior * (1.0 if cohort.gram.any() else np.inf)), "zero update"),
    ("finite", broken(sends=lambda self: {"velocity": (Kept("velocity", 1), 1.0)}), "velocity"),
    ("finite", broken(**deciding(keep=lambda cohort, c: {Kept("step", cohort.round - 1): None})), "round=0"),
    ("finite", broken(**deciding(keep=lambda cohort, c: None)), "keep = None"),
    ("finite", broken(**deciding(memory=lambda cohort, c: 3)), "memory = 3"),
    ("finite", broken(**deciding(keep=lambda cohort, c: {Kept("step", cohort.round): c[:-1]})), "shape (1,)"),
    ("permutation", broken(**SECOND, **LOSSES, weigh=lambda self, c: np.append(c.prior, c.losses[::-1])), "place"),
    ("permutation", broken(**BY_ARRAY, weigh=weigh_by_place), "place"),
    ("permutation", FirstCountsMore, "place"),
    ("permutation", broken(**LOSSES, weigh=weigh_by_rank), "every two report the same"),
    ("finite", broken(**LOSSES, weigh=change_losses), "change_losses raised ValueError: output array is read-only"),
    ("finite", broken(weigh=change_prior), "change_prior raised ValueError: output array is read-only"),
    ("finite", broken(weigh=set_itself), "return Decision(coefficients, memory)"),
    ("resume", broken(**deciding(memory=lambda cohort, c: {"last": {cohort.round: 1.0}})), "{'last': {2: 1.0}}"),
    ("resume", broken(**deciding(memory=lambda cohort, c: {"seen": set(cohort.names)})), "which keeps dicts by str"),
    ("resume", broken(Attributed, **changing(lambda self, cohort: set_average(self, 0.9 * self.average[0])),
                      weigh=lambda self, cohort: cohort.prior * self.average[0]), "must be in its memory"),
    ("resume", broken(weigh=lambda self, cohort: cohort.prior * (2.0 - cohort.round / cohort.num_rounds)), "paced"),
    ("determinism", broken(Attributed, weigh=change_itself), "when the method was asked once more"),
    ("determinism", broken(weigh=lambda self, cohort: np.random.default_rng().random(cohort.size)), "generator"),
    ("determinism", broken(weigh=lambda self, cohort: np.random.random(cohort.size)), "generator"),
    ("learns", broken(weigh=lambda self, cohort: -cohort.prior), "uphill"),
    ("learns", broken(weigh=lambda self, c: c.prior - c.prior.mean() * (c.size > 1)), "no step"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "method", "words"), WRONG)
def test_a_broken_method_fails_a_property_in_words(name: str, method: Any, words: str) -> None:
    with pytest.raises(Failure) as failure:
        check(name, method)
    assert (words in str(failure.value), failure.value.status) == (True, Status.FAILED)


def test_some_method_breaks_each_property() -> None:
    assert {name for name, _, _ in WRONG} == {*PROPERTIES}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "method"), [broken[:2] for broken in WRONG])
def test_a_broken_method_fails_one_property(name: str, method: Any) -> None:
    assert report_on(method).failures.keys() == {name}


@pytest.mark.parametrize("many", [8, 40])
def test_a_small_bias_by_place_fails_in_any_cohort(many: int) -> None:
    with pytest.raises(Failure, match="the step is another one"):
        check("permutation", FirstCountsMore, many=many)


def test_a_fault_is_reported_once_with_its_line() -> None:
    lines, first = inspect.getsourcelines(Raises)
    number = first + next(k for k, line in enumerate(lines) if "self.share" in line)
    with pytest.raises(CheckFailedError, match=r"^Raises\(\) fails finite: Given") as error:
        check_method(Raises)
    results = error.value.report.results
    assert (
        f"test_method.py, line {number}: `return cohort.prior / self.share"
        in results["finite"].message
    )
    assert results["resume"] == (Status.NOT_APPLICABLE, "It is checked once finite passes.")
    assert results["parameters"].status is Status.PASSED


# Remarks ------------------------------------------------------------------------------------------


UNKNOWN = broken(needs=frozenset({"blood-pressure"}))
REMARKED = [
    ("needs", UNKNOWN, "blood-pressure"),
    ("learns", broken(weigh=lambda self, cohort: 1e4 * cohort.prior), "did not fall"),
]


@pytest.mark.parametrize(("name", "method", "words"), REMARKED)
def test_what_may_be_meant_is_remarked(name: str, method: type, words: str) -> None:
    with pytest.raises(Remark, match=re.escape(words)):
        check(name, method)


def test_a_shorter_step_is_no_remark() -> None:
    assert "The sum of the coefficients is 0.5; FedAvg's is 1." in check(
        "learns", broken(weigh=lambda self, cohort: 0.5 * cohort.prior)
    )


@pytest.mark.parametrize(
    "metric",
    [
        "accuracy-baseline",
        "loss-baseline",
        "num-examples",
        "step-sum",
        "disparity-hard",
    ],
)
def test_no_round_is_run_where_real_clients_lack_a_metric(metric: str) -> None:
    with pytest.raises(NotApplicable, match="blood-pressure"):
        check("learns", UNKNOWN)
    assert metric in check("needs", broken(needs=frozenset({metric})))


# Arguments and the printed report -----------------------------------------------------------------


class NeedsAShare(FairStrategy):
    def __init__(self, *, share: float, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.share = within("[0, inf)", share=share)

    def weigh(self, cohort: Cohort) -> FloatArray:
        return cohort.prior


def test_a_parameter_without_a_default_has_to_be_given() -> None:
    assert "--set needsashare.share=" in report_on(NeedsAShare).failures["parameters"]
    assert check_method(NeedsAShare, {"share": 0.1}).name == "NeedsAShare(share=0.1)"
    assert "share = -1.0" in report_on(NeedsAShare, {"share": -1.0}).failures["parameters"]


@pytest.mark.parametrize(("key", "value"), [("needsashare.part", 1), ("needsashare.share", "a")])
def test_arguments_are_read_from_settings_as_a_run_has_them(key: str, value: int | str) -> None:
    assert arguments_of(NeedsAShare, {}) == {}
    assert arguments_of(NeedsAShare, {"needsashare.share": 1}) == {"share": 1.0}
    with pytest.raises(FairbloomError, match=rf"{key} = {value!r}: .*"):
        arguments_of(NeedsAShare, {key: value})


def test_the_printed_report_fits_on_a_narrow_screen(subtests: pytest.Subtests) -> None:
    report = report_on(Raises)
    printed = StringIO()
    report.show(Console(file=printed, width=60))
    rows = printed.getvalue().splitlines()
    assert all(len(row) <= 60 for row in rows)
    words = "".join("".join(row[15:].split()) for row in rows)
    for result in report.results.values():
        with subtests.test(result=result):
            assert "".join(result.message.split()) in words
