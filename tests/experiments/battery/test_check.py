"""The battery for methods: each property fails for a method that breaks it, in words, and for no other."""

import inspect
import logging
import random
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from io import StringIO
from typing import Any, Unpack

import numpy as np
import pytest
import torch
from rich.console import Console

from fairbloom.errors import FairbloomError
from fairbloom.experiments.battery.check import PROPERTIES, CheckReport, Status, arguments_of, check, show_report
from fairbloom.experiments.battery.subject import Failure, Subject, silence
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.cohort import Cohort, Kept, Probed
from fairbloom.rounds.options import Options
from fairbloom.rounds.ranges import at_least
from fairbloom.rounds.updates import FloatArray
from fairbloom.strategies import METHODS, FairStrategy
from fairbloom.strategies.torchjd import by_name
from tests.strategies.helpers import CASES


def failed(report: CheckReport) -> dict[str, str]:
    return {result.name: result.message for result in report.results if result.verdict is Status.FAILED}


WORSE_OFF = "The worst served is worse off than under FedAvg"


def remarks(report: CheckReport) -> dict[str, str]:
    """Return the remarks but for the comparison with FedAvg, which five rounds decide against many a right method."""
    found = {result.name: result.message for result in report.results if result.verdict is Status.REMARK}
    return {
        name: message for name, message in found.items() if WORSE_OFF not in message or TOO_LONG["learns"] in message
    }


# Methods that are right ---------------------------------------------------------------------------------------------

BY_NAME = {"duplicates": "the order of names or a draw decides"}
TOO_LONG = {"learns": "The step is too long"}
DRAWN = {"permutation": "draws from the seed"}

KNOWN_REMARKS: dict[str, dict[str, str]] = {
    "fedfv": BY_NAME,
    "adafed": BY_NAME,
    "local": {"learns": "the global model stays as it is"},
    "torchjd:mgda": BY_NAME,
    "torchjd:krum": BY_NAME | TOO_LONG,
    "torchjd:gradvac": BY_NAME | TOO_LONG | DRAWN,
    "torchjd:pcgrad": BY_NAME | TOO_LONG | DRAWN,
}
"""What the battery has to remark on methods that are as their papers have them."""

TORCHJD = ("alignedmtl", "cagrad", "dualproj", "fairgrad", "gradvac", "imtlg", "krum", "mgda", "pcgrad", "upgrad")

NORMALISED = ("fedavgn", "fedmgdaplus", "mgdaprox")
"""The methods whose step does not depend on the length of all updates."""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "arguments"), CASES)
def test_our_methods_pass_with_true_remarks(name: str, arguments: dict[str, Any]) -> None:
    report = check(METHODS[name], arguments)
    assert failed(report) == {}
    assert report.passed
    expected = KNOWN_REMARKS.get(name, {}) | (DRAWN if arguments.get("order") == "random" else {})
    assert_remarks(report, expected)
    if name == "local":
        assert report["scaling"].verdict is Status.NOT_APPLICABLE
    elif name in NORMALISED:
        assert "The step has the same length however long the updates are" in report["scaling"].message
    elif name in ("qfedavg", "qfedsgd") and arguments["q"]:
        assert "a parameter has their unit" in report["scaling"].message
    else:
        assert "the step is s times as long, as FedAvg's" in report["scaling"].message


@pytest.mark.slow
@pytest.mark.parametrize("name", TORCHJD)
def test_methods_of_torchjd_pass_with_true_remarks(name: str) -> None:
    pytest.importorskip("torchjd")
    report = check(partial(by_name, name))
    assert failed(report) == {}
    assert_remarks(report, KNOWN_REMARKS.get(f"torchjd:{name}", {}))


def assert_remarks(report: CheckReport, expected: Mapping[str, str]) -> None:
    assert remarks(report).keys() == expected.keys()
    for name, words in expected.items():
        assert words in report[name].message


@pytest.mark.slow
def test_a_method_that_favours_the_first_name_is_told_so() -> None:
    """TorchJD's PCD takes the first row of the Gram matrix for its primary objective."""
    pytest.importorskip("torchjd")
    words = failed(check(partial(by_name, "pcd")))
    assert words.keys() == {"permutation"}
    assert "Nobody should count for a name" in words["permutation"]


def test_kept_rows_are_tried() -> None:
    report = check(METHODS["fedfv"], {"tau": 3})
    assert "kept rows" in report["shape"].message
    assert "old updates" in report["memory"].message


@pytest.mark.slow
def test_the_process_is_left_as_it_was() -> None:
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    level, threads = logging.getLogger("flwr").level, torch.get_num_threads()
    check(METHODS["fedavg"])
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
        self.share = at_least(0.0, share=share)


class DropsOptions(Broken):
    def __init__(self, **options: Unpack[Options]) -> None:
        super().__init__()


class MakesNothing(Broken):
    def __init__(self, **options: Unpack[Options]) -> None:
        pass


class NeedsAnother(Broken):
    needs = frozenset({"loss_before"})


class NeedsWhatEvaluationHas(Broken):
    needs = frozenset({"accuracy"})


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


class TurnsRound(Broken):
    def weigh(self, cohort: Cohort) -> FloatArray:
        return cohort.prior * (1.0 - 1e-3 * cohort.squared_norms.mean())


class LooksUpByLoss(Broken):
    needs = frozenset({"loss-before"})

    def weigh(self, cohort: Cohort) -> FloatArray:
        last = {loss: k for k, loss in enumerate(cohort.losses)}
        c = np.zeros(cohort.size)
        c[list(last.values())] = 1.0 / len(last)
        return c


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


class ReportsNothing(Broken):
    reports = ("clipped",)


class ReportsTheInfinite(Broken):
    reports = ("clipped",)

    def own_metrics(self, cohort: Cohort, coefficients: FloatArray) -> dict[str, float]:
        return {"clipped": float("inf")}


class Uphill(Broken):
    def weigh(self, cohort: Cohort) -> FloatArray:
        return -cohort.prior


class Centred(Broken):
    def weigh(self, cohort: Cohort) -> FloatArray:
        return cohort.prior - cohort.prior.mean() if cohort.size > 1 else cohort.prior


WRONG: list[tuple[type[FairStrategy], str, str]] = [
    (NamesNothing, "parameters", "name share in"),
    (Unannotated, "parameters", "must be annotated: int, float, bool or str"),
    (TakesNoOptions, "parameters", "seed=5 is not accepted"),
    (DropsOptions, "parameters", "seed=5 was given, and the method has seed = 0"),
    (MakesNothing, "parameters", "does not call super().__init__(**options)"),
    (NeedsAnother, "needs", "'loss-before' is meant?"),
    (NeedsWhatEvaluationHas, "needs", "when they evaluate, and not when they train"),
    (NeedsAWord, "needs", "write needs = frozenset({'loss-before'})"),
    (ForgetsToAsk, "needs", "reads the metric 'loss-before' (`return cohort.losses / cohort.losses.sum()`)"),
    (ProbesWithoutSnapshots, "needs", "set second = 'snapshot'"),
    (AsksForNoSnapshot, "needs", "set snapshot_step and local_steps"),
    (ReturnsNoTerms, "needs", "terms(7) returned {'local-steps': 5}"),
    (AwaitsNoDisparity, "needs", "second = 'arrays-disparity' awaits"),
    (AsksForADisparity, "needs", "set second = 'arrays-disparity'"),
    (ForgetsSecondUpdates, "shape", "for each update and kept row, shape (2,)"),
    (CrossesUpdates, "permutation", "not by their place in cohort.names"),
    (ARowTooMany, "shape", "for each array that is trained, shape (3, 1)"),
    (DividesByAnArray, "finiteness", "did not move (zero updates)"),
    (ByPlaceInAnArray, "permutation", "not by their place in cohort.names"),
    (SendsWhatItHasNot, "memory", "it must be a row of self.progress.kept"),
    (KeepsWhatItHasNot, "shape", "remember returned None for Kept(key='step', round=0)"),
    (OneTooMany, "shape", "Given a single client, OneTooMany.weigh, in round 1, returned float64 of shape (2,)"),
    (ForgetsKeptRows, "shape", "and 1 kept rows in round 2, ForgetsKeptRows.weigh"),
    (Raises, "shape", "weigh raised AttributeError: 'Raises' object has no attribute 'share' (test_check.py, line "),
    (DividesByTheLoss, "finiteness", "Given 4 clients with zero losses"),
    (RaisesWithoutUpdates, "finiteness", "did not move (zero updates), weigh raised RuntimeError: no updates"),
    (ByPlace, "permutation", "not by their place in cohort.names"),
    (TurnsRound, "scaling", "the step points the other way"),
    (LooksUpByLoss, "duplicates", "do not look clients up by their loss"),
    (ChangesTheCohort, "memory", "weigh changes cohort.metrics['loss-before'] in place"),
    (ChangesItself, "memory", "weigh changes self.memory"),
    (RemembersByNumber, "memory", "self.memory['last'] has the key 1, a int"),
    (RemembersASet, "memory", "self.memory['seen'] is a set"),
    (ReturnsNothing, "memory", "remember returned None"),
    (KeepsShortRows, "memory", "remember returned a row for 'step' of shape (3,)"),
    (RemembersAside, "resume", "self.average changed in these rounds"),
    (GoesByTheEnd, "resume", "say so by a property paced that returns True"),
    (Draws, "determinism", "streams.generator(self.seed"),
    (DrawsGlobally, "determinism", "streams.generator(self.seed"),
    (ReportsNothing, "reports", "own_metrics does not return"),
    (ReportsTheInfinite, "reports", "clipped = inf"),
    (Uphill, "learns", "the step goes uphill"),
    (Centred, "learns", "nowhere where clients agree"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "name", "words"), WRONG, ids=lambda value: getattr(value, "__name__", None))
def test_a_broken_method_fails_one_property_in_words(method: type[FairStrategy], name: str, words: str) -> None:
    report = check(method)
    assert failed(report).keys() == {name}
    assert words in report[name].message
    assert not report.passed


def test_every_property_has_a_method_that_fails_it() -> None:
    """All but the cost, which is told and never judged."""
    assert {name for _, name, _ in WRONG} == {*PROPERTIES} - {"cost"}


def test_a_fault_names_the_line_that_made_it() -> None:
    lines, first = inspect.getsourcelines(Raises)
    number = first + next(k for k, line in enumerate(lines) if "self.share" in line)
    assert f"test_check.py, line {number}: `return cohort.prior / self.share" in check(Raises)["shape"].message


def test_what_hangs_on_a_fault_is_not_told_as_a_fault_of_its_own() -> None:
    report = check(Raises)
    assert report["resume"].verdict is Status.NOT_APPLICABLE
    assert report["resume"].message == "It cannot be checked yet: correct shape first."
    assert report["parameters"].verdict is Status.PASSED


# Remarks ------------------------------------------------------------------------------------------------------------


class FirstOfTheWorst(Broken):
    needs = frozenset({"loss-before"})

    def weigh(self, cohort: Cohort) -> FloatArray:
        return np.asarray(np.arange(cohort.size) == cohort.losses.argmax(), np.float64)


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


class StopsWhenItIsSmall(Broken):
    def weigh(self, cohort: Cohort) -> FloatArray:
        return cohort.prior * (cohort.squared_norms.max() > 1e-4)


class AsksForAMetricOfItsOwn(Broken):
    needs = frozenset({"blood-pressure"})


class TakesMinusOne(Broken):
    def __init__(self, *, share: float = 0.5, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.share = at_least(-1.0, share=share)


class Overshoots(Broken):
    def weigh(self, cohort: Cohort) -> FloatArray:
        return 1e4 * cohort.prior


REMARKED = [
    (KeepsAHistory, "memory", "grows with every round"),
    (KeepsAllUpdates, "memory", "keeps more old updates with every round, 50 after 50 rounds"),
    (StopsWhenItIsSmall, "scaling", "there is no step any more"),
    (AsksForAMetricOfItsOwn, "needs", "do not report blood-pressure"),
    (TakesMinusOne, "parameters", "share = -1 is taken"),
    (Overshoots, "learns", "The step is too long"),
    (FirstOfTheWorst, "duplicates", "the order of names or a draw decides"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "name", "words"), REMARKED, ids=lambda value: getattr(value, "__name__", None))
def test_what_may_be_meant_is_remarked(method: type[FairStrategy], name: str, words: str) -> None:
    report = check(method)
    assert failed(report) == {}
    assert remarks(report).keys() == {name}
    assert words in report[name].message


class Halves(Broken):
    def weigh(self, cohort: Cohort) -> FloatArray:
        return 0.5 * cohort.prior


class PrefersTheBest(Broken):
    needs = frozenset({"loss-before"})

    def weigh(self, cohort: Cohort) -> FloatArray:
        weights = cohort.prior * np.exp(-5.0 * cohort.losses)
        return np.asarray(weights / weights.sum())


def test_the_worst_served_is_compared_with_fedavg() -> None:
    for method, total in ((METHODS["fedavg"], "1"), (Halves, "0.5"), (PrefersTheBest, "1")):
        with silence():
            verdict, message = PROPERTIES["learns"](Subject(method, {}))
        assert f"sum to {total} (FedAvg: 1)" in message
        assert re.search(r"from 2\.64 to \S+ \(FedAvg: 1\.61\)", message)
        assert (verdict is Status.REMARK) == (method.__name__ != "FedAvg")
        assert (WORSE_OFF in message) == (verdict is Status.REMARK)


def test_rounds_with_real_clients_are_left_out_where_these_lack_a_metric() -> None:
    report = check(AsksForAMetricOfItsOwn)
    assert report["learns"].verdict is Status.NOT_APPLICABLE
    assert "do not report blood-pressure" in report["learns"].message


def test_cost_says_when_the_gram_matrix_is_asked_for() -> None:
    assert "Gram matrix" in check(METHODS["fedmgda"])["cost"].message
    assert "Gram matrix" not in check(METHODS["fedavg"])["cost"].message


# Arguments and the printed report -----------------------------------------------------------------------------------


class NeedsAShare(Broken):
    def __init__(self, *, share: float, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.share = at_least(0.0, share=share)

    def terms(self, server_round: int) -> Terms:
        return replace(super().terms(server_round), proximal_mu=self.share)


def test_a_parameter_without_a_default_has_to_be_given() -> None:
    assert "share has no default: give it by --set needsashare.share=…" in failed(check(NeedsAShare))["parameters"]
    report = check(NeedsAShare, {"share": 0.1})
    assert report.passed
    assert report.method == "NeedsAShare(share=0.1)"


def test_arguments_are_read_from_settings_as_a_run_has_them() -> None:
    assert arguments_of(NeedsAShare, {}) == {}
    assert arguments_of(NeedsAShare, {"needsashare.share": 1}) == {"share": 1.0}
    with pytest.raises(
        FairbloomError, match=r"needsashare.part = 1: NeedsAShare has no such parameter; there are needsa"
    ):
        arguments_of(NeedsAShare, {"needsashare.part": 1})
    with pytest.raises(FairbloomError, match=r"needsashare.share = 'a': allowed is float"):
        arguments_of(NeedsAShare, {"needsashare.share": "a"})


def test_an_argument_that_the_method_refuses_is_told_in_its_words() -> None:
    words = failed(check(NeedsAShare, {"share": -1.0}))
    assert words.keys() == {"parameters"}
    assert "share = -1.0: allowed is float at least 0" in words["parameters"]


def test_the_printed_report_has_all_words_on_a_narrow_screen() -> None:
    report, printed = check(Raises), StringIO()
    show_report(report, Console(file=printed, width=60))
    *rows, total = printed.getvalue().splitlines()
    assert all(len(row) <= 60 for row in rows)
    words = "".join("".join(row[15:].split()) for row in rows)
    for result in report.results:
        assert "".join(result.message.split()) in words
    assert total.startswith("1 passed, 1 failed, 11 not applicable; ")


# What is outside its memory, many clients, and truth ------------------------------------------------------------------


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


@pytest.mark.parametrize(("method", "name"), [(ForgetsLate, "best"), (DrawsInside, "random")])
def test_attributes_that_change_are_remarked(method: type[FairStrategy], name: str) -> None:
    verdict, message = PROPERTIES["memory"](Subject(method, {}))
    assert verdict is Status.REMARK
    assert f"self.{name} changes" in message
    assert "self.memory" in message


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


@pytest.mark.parametrize("many", [1, 8, 40])
def test_a_small_bias_by_place_fails_in_any_cohort(many: int) -> None:
    with pytest.raises(Failure, match="the step is another one"):
        PROPERTIES["permutation"](Subject(FirstCountsMore, {"many": many}))


@pytest.mark.parametrize("metric", ["accuracy-baseline", "loss-baseline", "num-examples", "step-sum", "disparity-hard"])
def test_metrics_that_clients_report_are_known(metric: str) -> None:
    class Needs(FairStrategy):
        needs = frozenset({metric})

        def weigh(self, cohort: Cohort) -> FloatArray:
            return cohort.prior + 0.0 * cohort.metrics[metric]

    subject = Subject(Needs, {})
    assert PROPERTIES["needs"](subject)[0] is Status.PASSED


@pytest.mark.parametrize("metric", ["accuracy", "loss-validation", "train-loss", "loss-personal"])
def test_metrics_of_evaluations_are_refused(metric: str) -> None:
    class Needs(FairStrategy):
        needs = frozenset({metric})

        def weigh(self, cohort: Cohort) -> FloatArray:
            return cohort.prior

    with pytest.raises(Failure, match="report when they evaluate"):
        PROPERTIES["needs"](Subject(Needs, {}))
