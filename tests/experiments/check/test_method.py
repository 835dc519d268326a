"""The checks of methods: each property fails for a method that breaks it, in words, and for no other."""

import inspect
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from io import StringIO
from typing import Unpack

import numpy as np
import pytest
import torch
from rich.console import Console

from fairbloom.check import CheckFailedError, CheckReport, Status, check_method
from fairbloom.errors import FairbloomError
from fairbloom.experiments.check.method import PROPERTIES
from fairbloom.experiments.check.report import Failure, Remark
from fairbloom.experiments.check.subject import MethodUnderTest, silence
from fairbloom.experiments.commands.check import arguments_of
from fairbloom.protocol.settings import Value
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.cohort import Cohort, Kept, Probed
from fairbloom.rounds.options import Options
from fairbloom.rounds.ranges import within
from fairbloom.rounds.updates import FloatArray
from fairbloom.strategies import METHODS, FairStrategy
from fairbloom.strategies.torchjd import by_name
from tests.strategies.helpers import ARGUMENTS


def report_on(method: Callable[..., FairStrategy], arguments: Mapping[str, Value] | None = None) -> CheckReport:
    try:
        return check_method(method, arguments)
    except CheckFailedError as error:
        return error.report


def remarks_on(method: Callable[..., FairStrategy], arguments: Mapping[str, Value] | None = None) -> set[str]:
    """Return the properties with a remark; raise CheckFailedError where one fails."""
    results = check_method(method, arguments).results
    return {name for name, result in results.items() if result.status is Status.REMARK}


# Methods that are right ---------------------------------------------------------------------------------------------


def test_our_methods_pass_every_check() -> None:
    """Only `local` gets a remark: its global model stays as it is."""
    for name, method in METHODS.items():
        assert remarks_on(method, ARGUMENTS[name][0]) == ({"learns"} if name == "local" else set()), name


@pytest.mark.slow
def test_methods_of_torchjd_pass_with_true_remarks() -> None:
    """Two draw an order from the seed; with two the mean loss does not fall."""
    pytest.importorskip("torchjd")
    for name in ("alignedmtl", "cagrad", "dualproj", "fairgrad", "imtlg", "mgda", "upgrad"):
        assert remarks_on(partial(by_name, name)) == set(), name
    assert remarks_on(partial(by_name, "krum")) == {"learns"}
    assert remarks_on(partial(by_name, "gradvac")) == {"permutation", "learns"}
    assert remarks_on(partial(by_name, "pcgrad")) == {"permutation"}


def test_kept_rows_are_tried() -> None:
    subject = MethodUnderTest(METHODS["fedfv"], {"tau": 3})
    assert " 0 kept rows" not in PROPERTIES["finite"](subject)
    assert " 0 old updates" not in PROPERTIES["memory"](subject)


def test_the_process_is_left_as_it_was() -> None:
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    level, threads = logging.getLogger("flwr").level, torch.get_num_threads()
    check_method(METHODS["fedavg"])
    drawn = random.random(), np.random.random(), torch.rand(()).item()
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    assert drawn == (random.random(), np.random.random(), torch.rand(()).item())
    assert (logging.getLogger("flwr").level, torch.get_num_threads()) == (level, threads)


# Methods that are wrong in one way ----------------------------------------------------------------------------------


class Broken(FairStrategy):
    """FedAvg, of which each class below breaks one thing."""

    def weigh(self, cohort: Cohort) -> FloatArray:
        return cohort.prior.copy()


class NamesNothing(Broken):
    def __init__(self, *, share: float = 0.5, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        if not 0.0 < share <= 1.0:
            raise ValueError("out of range")


class Unannotated(Broken):
    def __init__(self, *, share=0.5, **options: Unpack[Options]) -> None:  # type: ignore[no-untyped-def]
        super().__init__(**options)


class TakesNoOptions(Broken):
    def __init__(self, *, share: float = 0.5) -> None:
        super().__init__()
        self.share = within("[0, inf)", share=share)


class DropsOptions(Broken):
    def __init__(self, **options: Unpack[Options]) -> None:
        super().__init__()


class MakesNothing(Broken):
    def __init__(self, **options: Unpack[Options]) -> None:
        pass


class NeedsAnother(Broken):
    needs = frozenset({"loss_before"})


class NeedsAWord(Broken):
    needs = "loss-before"  # type: ignore[assignment]


class ForgetsToAsk(Broken):
    def weigh(self, cohort: Cohort) -> FloatArray:
        return cohort.losses / cohort.losses.sum()


class ProbesWithoutSnapshots(Broken):
    def probe(self, cohort: Cohort, coefficients: FloatArray) -> FloatArray | None:
        return coefficients


class AsksForNoSnapshot(ProbesWithoutSnapshots):
    second = "snapshot"


class ReturnsNoTerms(Broken):
    def terms(self, server_round: int) -> Terms:
        return {"local-steps": 5}  # type: ignore[return-value]


class AwaitsNoDisparity(Broken):
    second = "arrays-disparity"

    def weigh(self, cohort: Cohort) -> FloatArray:
        return np.append(cohort.prior, cohort.prior)


class AsksForADisparity(Broken):
    def terms(self, server_round: int) -> Terms:
        return replace(super().terms(server_round), disparity="demographic-parity")


class ForgetsSecondUpdates(AsksForADisparity):
    second = "arrays-disparity"


class CrossesUpdates(ForgetsSecondUpdates):
    """The second updates of the first clients count by the losses of the last ones."""

    needs = frozenset({"loss-before"})

    def weigh(self, cohort: Cohort) -> FloatArray:
        return np.append(cohort.prior, cohort.losses[::-1])


class ARowTooMany(Broken):
    requires = frozenset({"gram by array"})

    def weigh(self, cohort: Cohort) -> FloatArray:
        return np.tile(cohort.prior, (len(cohort.arrays) + 1, 1))


class DividesByAnArray(Broken):
    requires = frozenset({"gram by array"})

    def weigh(self, cohort: Cohort) -> FloatArray:
        with np.errstate(divide="ignore", invalid="ignore"):
            lengths = np.sqrt(np.diagonal(cohort.grams, axis1=1, axis2=2))
            return np.asarray(cohort.prior * lengths.mean(axis=1, keepdims=True) / lengths)


class ByPlaceInAnArray(Broken):
    requires = frozenset({"gram by array"})

    def weigh(self, cohort: Cohort) -> FloatArray:
        c = np.tile(cohort.prior, (len(cohort.arrays), 1))
        c[1] *= 1.0 + np.arange(cohort.size)
        return c


class SendsWhatItHasNot(Broken):
    def sends(self) -> Mapping[str, tuple[Kept, float]]:
        return {"velocity": (Kept("velocity", 1), 1.0)}


class KeepsWhatItHasNot(Broken):
    def remember(self, cohort: Cohort, coefficients: FloatArray, probed: Probed) -> Mapping[Kept, FloatArray | None]:
        return {Kept("step", cohort.round - 1): None}


class OneTooMany(Broken):
    def weigh(self, cohort: Cohort) -> FloatArray:
        return np.append(cohort.prior, 0.0)


class ForgetsKeptRows(Broken):
    def weigh(self, cohort: Cohort) -> FloatArray:
        return cohort.prior

    def remember(self, cohort: Cohort, coefficients: FloatArray, probed: Probed) -> Mapping[Kept, FloatArray]:
        row = np.zeros(cohort.size + len(cohort.memory))
        row[0] = 1.0
        return {Kept("first", cohort.round): row}


class Raises(Broken):
    def weigh(self, cohort: Cohort) -> FloatArray:
        return cohort.prior / self.share  # type: ignore[attr-defined, no-any-return]


class DividesByTheLoss(Broken):
    needs = frozenset({"loss-before"})

    def weigh(self, cohort: Cohort) -> FloatArray:
        c: FloatArray = cohort.prior / cohort.losses
        return c / c.sum()


class RaisesWithoutUpdates(Broken):
    def weigh(self, cohort: Cohort) -> FloatArray:
        if not cohort.gram.any():
            raise RuntimeError("no updates")
        return cohort.prior


class ByPlace(Broken):
    def weigh(self, cohort: Cohort) -> FloatArray:
        c = 1.0 + np.arange(cohort.size)
        return np.asarray(c / c.sum())


class ChangesTheCohort(Broken):
    needs = frozenset({"loss-before"})

    def weigh(self, cohort: Cohort) -> FloatArray:
        F = np.maximum(cohort.losses, 1.0, out=cohort.losses)
        return np.asarray(F / F.sum())


class ChangesItself(Broken):
    def weigh(self, cohort: Cohort) -> FloatArray:
        self.memory["round"] = cohort.round
        return cohort.prior


class RemembersByNumber(Broken):
    def remember(self, cohort: Cohort, coefficients: FloatArray, probed: Probed) -> Mapping[Kept, FloatArray]:
        self.memory = {"last": {cohort.round: 1.0}}
        return {}


class RemembersASet(Broken):
    def remember(self, cohort: Cohort, coefficients: FloatArray, probed: Probed) -> Mapping[Kept, FloatArray]:
        self.memory = {"seen": set(cohort.names)}
        return {}


class ReturnsNothing(Broken):
    def remember(self, cohort: Cohort, coefficients: FloatArray, probed: Probed) -> Mapping[Kept, FloatArray]:
        self.memory = {"round": cohort.round}  # and no return
        return None  # type: ignore[return-value]


class KeepsShortRows(Broken):
    def weigh(self, cohort: Cohort) -> FloatArray:
        return np.concatenate([cohort.prior, np.zeros(len(cohort.memory))])

    def remember(self, cohort: Cohort, coefficients: FloatArray, probed: Probed) -> Mapping[Kept, FloatArray]:
        return {Kept("step", cohort.round): coefficients[: cohort.size]}


class RemembersAside(Broken):
    def __init__(self, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.average = 1.0

    def weigh(self, cohort: Cohort) -> FloatArray:
        return cohort.prior * self.average

    def remember(self, cohort: Cohort, coefficients: FloatArray, probed: Probed) -> Mapping[Kept, FloatArray]:
        self.average *= 0.9
        return {}


class GoesByTheEnd(Broken):
    def weigh(self, cohort: Cohort) -> FloatArray:
        return cohort.prior * (1.0 - 0.5 * cohort.round / (cohort.num_rounds or 1))


class Draws(Broken):
    def weigh(self, cohort: Cohort) -> FloatArray:
        c = np.random.default_rng().random(cohort.size)
        return np.asarray(c / c.sum())


class DrawsGlobally(Broken):
    def weigh(self, cohort: Cohort) -> FloatArray:
        c = np.random.random(cohort.size)
        return np.asarray(c / c.sum())


class Uphill(Broken):
    def weigh(self, cohort: Cohort) -> FloatArray:
        return -cohort.prior


class Centred(Broken):
    def weigh(self, cohort: Cohort) -> FloatArray:
        return cohort.prior - cohort.prior.mean() if cohort.size > 1 else cohort.prior


class FirstCountsMore(FairStrategy):
    """The mean, in which the client that comes first counts one per cent more, of many clients alone."""

    def __init__(self, *, many: int = 1, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.many = many

    def weigh(self, cohort: Cohort) -> FloatArray:
        share = np.ones(cohort.size)
        if cohort.size >= self.many:
            share[0] *= 1.01
        return share / share.sum()


WRONG: list[tuple[type[FairStrategy], str, str]] = [
    (NamesNothing, "parameters", "that names share"),
    (Unannotated, "parameters", "must be annotated: int, float, bool or str"),
    (TakesNoOptions, "parameters", "seed=5, and it is not accepted"),
    (DropsOptions, "parameters", "seed=5, and the method has seed = 0"),
    (MakesNothing, "parameters", "does not call super().__init__(**options)"),
    (NeedsAnother, "needs", "'loss-before' is meant?"),
    (NeedsAWord, "needs", "write needs = frozenset({'loss-before'})"),
    (ForgetsToAsk, "finite", "reads the metric 'loss-before', which its needs do not name"),
    (ProbesWithoutSnapshots, "finite", "need second = 'snapshot'"),
    (AsksForNoSnapshot, "needs", "set snapshot_step and local_steps"),
    (ReturnsNoTerms, "needs", "terms(7) returned {'local-steps': 5}"),
    (AwaitsNoDisparity, "needs", "needs both, second = 'arrays-disparity' and a disparity"),
    (AsksForADisparity, "needs", "needs both, second = 'arrays-disparity' and a disparity"),
    (ForgetsSecondUpdates, "finite", "for each update and kept row, shape (2,)"),
    (ARowTooMany, "finite", "for each array that is trained, shape (3, 1)"),
    (DividesByAnArray, "finite", "did not move (zero updates)"),
    (KeepsWhatItHasNot, "finite", "remember returned None for Kept(key='step', round=0)"),
    (OneTooMany, "finite", "Given a single client, OneTooMany.weigh, in round 1, returned float64 of shape (2,)"),
    (ForgetsKeptRows, "finite", "and 1 kept rows in round 2, ForgetsKeptRows.weigh"),
    (Raises, "finite", "weigh raised AttributeError: 'Raises' object has no attribute 'share' (test_method.py, line "),
    (DividesByTheLoss, "finite", "Given 4 clients with zero losses"),
    (RaisesWithoutUpdates, "finite", "did not move (zero updates), weigh raised RuntimeError: no updates"),
    (CrossesUpdates, "permutation", "not by their place in cohort.names"),
    (ByPlaceInAnArray, "permutation", "not by their place in cohort.names"),
    (ByPlace, "permutation", "not by their place in cohort.names"),
    (FirstCountsMore, "permutation", "the step is another one"),
    (SendsWhatItHasNot, "finite", "it must return {record: (row of self.progress.kept, factor)}"),
    (ChangesTheCohort, "memory", "weigh changes cohort.metrics['loss-before'] in place"),
    (ChangesItself, "memory", "weigh changes self.memory"),
    (RemembersByNumber, "memory", "self.memory = {'last': {1: 1.0}} "),
    (RemembersASet, "memory", "cannot be saved in a checkpoint"),
    (ReturnsNothing, "finite", "remember returned None"),
    (KeepsShortRows, "finite", "shape (4,)"),
    (RemembersAside, "resume", "must be in self.memory"),
    (GoesByTheEnd, "resume", "say so by a property paced that returns True"),
    (Draws, "determinism", "streams.generator(self.seed"),
    (DrawsGlobally, "determinism", "streams.generator(self.seed"),
    (Uphill, "learns", "the step goes uphill"),
    (Centred, "learns", "where clients agree, no step"),
]


def test_a_broken_method_fails_a_property_in_words() -> None:
    for method, name, words in WRONG:
        with silence(), pytest.raises(Failure) as failure:
            PROPERTIES[name](MethodUnderTest(method, {}))
        assert words in str(failure.value), method
    assert {name for _, name, _ in WRONG} == {*PROPERTIES}


@pytest.mark.slow
def test_a_broken_method_fails_one_property() -> None:
    for method, name, _ in WRONG:
        assert report_on(method).failures.keys() == {name}, method


def test_a_small_bias_by_place_fails_in_any_cohort() -> None:
    for many in (8, 40):
        with pytest.raises(Failure, match="the step is another one"):
            PROPERTIES["permutation"](MethodUnderTest(FirstCountsMore, {"many": many}))


def test_a_fault_is_reported_once_with_its_line() -> None:
    lines, first = inspect.getsourcelines(Raises)
    number = first + next(k for k, line in enumerate(lines) if "self.share" in line)
    with pytest.raises(CheckFailedError, match=r"^Raises\(\) fails finite: Given") as error:
        check_method(Raises)
    results = error.value.report.results
    assert f"test_method.py, line {number}: `return cohort.prior / self.share" in results["finite"].message
    assert results["resume"] == (Status.NOT_APPLICABLE, "It is checked once finite passes.")
    assert results["parameters"].status is Status.PASSED


# Remarks ------------------------------------------------------------------------------------------------------------


class KeepsAHistory(Broken):
    def remember(self, cohort: Cohort, coefficients: FloatArray, probed: Probed) -> Mapping[Kept, FloatArray]:
        self.memory = {"history": [*self.memory.get("history", []), *coefficients.tolist()]}
        return {}


class KeepsAllUpdates(Broken):
    def weigh(self, cohort: Cohort) -> FloatArray:
        return np.concatenate([cohort.prior, np.zeros(len(cohort.memory))])

    def remember(self, cohort: Cohort, coefficients: FloatArray, probed: Probed) -> Mapping[Kept, FloatArray]:
        rows = np.eye(len(coefficients))
        labels = [Kept(str(cohort.round), cohort.round), *cohort.memory]
        return dict(zip(labels, [rows[0], *rows[cohort.size :]], strict=True))


class AsksForAMetricOfItsOwn(Broken):
    needs = frozenset({"blood-pressure"})


class Overshoots(Broken):
    def weigh(self, cohort: Cohort) -> FloatArray:
        return 1e4 * cohort.prior


class ForgetsLate(FairStrategy):
    """Keeps what it learns outside its memory, from round 16 on."""

    def __init__(self, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.best = 1.0

    def weigh(self, cohort: Cohort) -> FloatArray:
        return self.best * cohort.prior

    def remember(self, cohort: Cohort, coefficients: FloatArray, probed: Probed) -> Mapping[Kept, FloatArray]:
        if cohort.round > 15:
            self.best *= 0.99
        return {}


class DrawsInside(FairStrategy):
    """Draws from a generator of its own as it remembers."""

    def __init__(self, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.random = np.random.default_rng(0)

    def weigh(self, cohort: Cohort) -> FloatArray:
        return cohort.prior

    def remember(self, cohort: Cohort, coefficients: FloatArray, probed: Probed) -> Mapping[Kept, FloatArray]:
        self.random.random()
        return {}


class Halves(Broken):
    def weigh(self, cohort: Cohort) -> FloatArray:
        return 0.5 * cohort.prior


REMARKED = [
    (KeepsAHistory, "memory", "more with every round"),
    (KeepsAllUpdates, "memory", "After 50 rounds it keeps 50 old updates"),
    (ForgetsLate, "memory", "self.best changes in round 16"),
    (DrawsInside, "memory", "self.random changes in round 1"),
    (AsksForAMetricOfItsOwn, "needs", "do not report blood-pressure"),
    (Overshoots, "learns", "The mean loss did not fall"),
]


def test_what_may_be_meant_is_remarked() -> None:
    for method, name, words in REMARKED:
        with silence(), pytest.raises(Remark) as remark:
            PROPERTIES[name](MethodUnderTest(method, {}))
        assert words in str(remark.value), method


def test_a_shorter_step_is_no_remark() -> None:
    with silence():
        message = PROPERTIES["learns"](MethodUnderTest(Halves, {}))
    assert "sum to 0.5 to 0.5 (FedAvg: 1)" in message


def test_no_round_is_run_where_real_clients_lack_a_metric() -> None:
    result = check_method(AsksForAMetricOfItsOwn).results["learns"]
    assert result.status is Status.NOT_APPLICABLE
    assert "do not report blood-pressure" in result.message


def test_metrics_that_clients_report_are_known() -> None:
    for metric in ("accuracy-baseline", "loss-baseline", "num-examples", "step-sum", "disparity-hard"):
        wanting = type("Wanting", (Broken,), {"needs": frozenset({metric})})
        assert metric in PROPERTIES["needs"](MethodUnderTest(wanting, {}))


# Arguments and the printed report -----------------------------------------------------------------------------------


class NeedsAShare(Broken):
    def __init__(self, *, share: float, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.share = within("[0, inf)", share=share)


def test_a_parameter_without_a_default_has_to_be_given() -> None:
    words = report_on(NeedsAShare).failures["parameters"]
    assert "share has no default: give it by --set needsashare.share=…" in words
    assert check_method(NeedsAShare, {"share": 0.1}).name == "NeedsAShare(share=0.1)"
    assert "share = -1.0: allowed is float at least 0" in report_on(NeedsAShare, {"share": -1.0}).failures["parameters"]


def test_arguments_are_read_from_settings_as_a_run_has_them() -> None:
    assert arguments_of(NeedsAShare, {}) == {}
    assert arguments_of(NeedsAShare, {"needsashare.share": 1}) == {"share": 1.0}
    with pytest.raises(FairbloomError, match=r"needsashare\.part = 1: .*; there are needsashare\.share"):
        arguments_of(NeedsAShare, {"needsashare.part": 1})
    with pytest.raises(FairbloomError, match=r"needsashare\.share = 'a': allowed is float"):
        arguments_of(NeedsAShare, {"needsashare.share": "a"})


def test_the_printed_report_fits_on_a_narrow_screen() -> None:
    report, printed = report_on(Raises), StringIO()
    report.show(Console(file=printed, width=60))
    rows = printed.getvalue().splitlines()
    assert all(len(row) <= 60 for row in rows)
    words = "".join("".join(row[15:].split()) for row in rows)
    for result in report.results.values():
        assert "".join(result.message.split()) in words
