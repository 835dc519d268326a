"""The battery for client-side rules: each property fails for a rule that breaks it, in words, and for no other."""

import time
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from fairbloom.cli import app
from fairbloom.errors import FairbloomError
from fairbloom.experiments.battery.check import CheckReport, Status, check_rule, is_rule
from fairbloom.experiments.battery.rules import RULE_PROPERTIES, RuleSubject

Arrays = dict[str, Tensor]
HERE, GIVEN = f"{__name__}:", "tests.client.own_rules:"


def failed(report: CheckReport) -> dict[str, str]:
    return {result.name: result.message for result in report.results if result.verdict is Status.FAILED}


# Rules that are right -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("name", "keeps"), [("Plain", "keep nothing"), ("Momentum", "keeps 1 times the model")])
def test_a_right_rule_passes_without_a_remark(name: str, keeps: str) -> None:
    report = check_rule(f"{GIVEN}{name}")
    assert {result.verdict for result in report.results} == {Status.PASSED}
    assert [result.name for result in report.results] == [*RULE_PROPERTIES]
    assert keeps in report["kept"].message


# Rules that are wrong -------------------------------------------------------------------------------------------------


class Plain:
    """A rule that changes and keeps nothing, of which each class below breaks one thing."""

    def start(self, received: Arrays, kept: Arrays, sent: dict[str, Arrays]) -> Any:
        return kept

    def correct(self, gradients: Arrays, state: Any, step: int) -> Arrays:
        return gradients

    def finish(self, received: Arrays, trained: Arrays, state: Any, steps: Any) -> tuple[Arrays, Arrays]:
        return trained, {}


class LosesAGradient(Plain):
    def correct(self, gradients: Arrays, state: Any, step: int) -> Arrays:
        return {name: gradient for name, gradient in gradients.items() if "bias" not in name}


class DividesByTheLength(Plain):
    def correct(self, gradients: Arrays, state: Any, step: int) -> Arrays:
        return {name: gradient / gradient.norm() for name, gradient in gradients.items()}


class DividesByTheSteps(Plain):
    def finish(self, received: Arrays, trained: Arrays, state: Any, steps: Any) -> tuple[Arrays, Arrays]:
        return trained, {"mean": torch.tensor(sum(array.sum().item() for array in trained.values()) / steps.count)}


class RepliesAlone(Plain):
    def finish(self, received: Arrays, trained: Arrays, state: Any, steps: Any) -> tuple[Arrays, Arrays]:
        return trained  # type: ignore[return-value]


class KeepsNumbers(Plain):
    def finish(self, received: Arrays, trained: Arrays, state: Any, steps: Any) -> tuple[Arrays, Arrays]:
        return trained, {"count": steps.count}


class Draws(Plain):
    def correct(self, gradients: Arrays, state: Any, step: int) -> Arrays:
        return {name: gradient + 0.01 * torch.randn_like(gradient) for name, gradient in gradients.items()}


class ReadsTheClock(Plain):
    def finish(self, received: Arrays, trained: Arrays, state: Any, steps: Any) -> tuple[Arrays, Arrays]:
        return trained, {"time": torch.tensor(time.perf_counter_ns())}


class RemembersAside(Plain):
    """What clients keep lies in the class, where the next client finds it, and that of a refused reply, too."""

    velocity: ClassVar[Arrays] = {}

    def correct(self, gradients: Arrays, state: Any, step: int) -> Arrays:
        if self.velocity.keys() != gradients.keys():
            self.velocity.clear()
        for name, gradient in gradients.items():
            self.velocity[name] = gradient + 0.5 * self.velocity.get(name, torch.zeros_like(gradient))
        return dict(self.velocity)


class KeepsAHistory(Plain):
    def finish(self, received: Arrays, trained: Arrays, state: Any, steps: Any) -> tuple[Arrays, Arrays]:
        return trained, {**state, str(len(state)): next(iter(trained.values())).clone()}


class Uphill(Plain):
    def correct(self, gradients: Arrays, state: Any, step: int) -> Arrays:
        return {name: -gradient for name, gradient in gradients.items()}


WRONG = [
    (LosesAGradient, "arrays", "'first.bias' is missing"),
    (DividesByTheLength, "arrays", "Given gradients of zero, "),
    (DividesByTheSteps, "arrays", "Given no step at all, finish raised ZeroDivisionError: "),
    (RepliesAlone, "arrays", "finish must return two, the arrays to reply and those to keep"),
    (KeepsNumbers, "arrays", "must be tensors by name"),
    (Draws, "determinism", "draw no random numbers"),
    (ReadsTheClock, "determinism", "read no clock"),
    (RemembersAside, "apart", "RemembersAside.velocity changes from round to round"),
    (RemembersAside, "resume", "it differs from one that was not stopped"),
    (RemembersAside, "refusals", "A refused reply must leave nothing behind"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "name", "words"), WRONG, ids=lambda value: getattr(value, "__name__", None))
def test_a_broken_rule_fails_a_property_in_words(rule: type[Plain], name: str, words: str) -> None:
    RemembersAside.velocity.clear()
    report = check_rule(f"{HERE}{rule.__name__}")
    assert words in failed(report)[name]
    assert not report.passed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "name", "words"),
    [(KeepsAHistory, "kept", "keeps more with every round"), (Uphill, "learns", "steps go uphill, or are too long")],
)
def test_what_may_be_meant_is_remarked(rule: type[Plain], name: str, words: str) -> None:
    report = check_rule(f"{HERE}{rule.__name__}")
    assert failed(report) == {}
    assert [result.name for result in report.results if result.verdict is Status.REMARK] == [name]
    assert words in report[name].message


def test_what_hangs_on_a_fault_is_no_fault_of_its_own() -> None:
    report = check_rule(f"{HERE}RepliesAlone")
    assert failed(report).keys() == {"arrays"}
    assert report["resume"].message == "It cannot be checked yet: correct arrays first."


def test_every_property_has_a_rule_that_breaks_it() -> None:
    assert {name for _, name, _ in WRONG} == {*RULE_PROPERTIES} - {"kept", "learns", "records"}  # remarks: see above


# The command ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_tells_rules_from_methods() -> None:
    assert is_rule(f"{GIVEN}Momentum")
    assert not is_rule("fairbloom.strategies:FedAvg")
    assert not is_rule("fedavg")
    done = CliRunner().invoke(app, ["check", f"{GIVEN}Momentum"])
    assert done.exit_code == 0
    assert all(name in done.output for name in RULE_PROPERTIES)
    assert CliRunner().invoke(app, ["check", f"{HERE}RepliesAlone"]).exit_code == 1
    with pytest.raises(FairbloomError, match="--set share=3: a client-side rule has no settings: leave it out"):
        CliRunner().invoke(app, ["check", f"{GIVEN}Momentum", "--set", "share=3"], catch_exceptions=False)


def test_what_is_no_rule_is_refused() -> None:
    with pytest.raises(FairbloomError, match="it has no function start; a rule has start, correct and finish"):
        check_rule("fairbloom.errors:FairbloomError")


class WaitsForARecord(Plain):
    def start(self, received: Arrays, kept: Arrays, sent: dict[str, Arrays]) -> Any:
        return sent.get("heading", {})


class InsistsOnARecord(Plain):
    def start(self, received: Arrays, kept: Arrays, sent: dict[str, Arrays]) -> Any:
        return sent["heading"]


@pytest.mark.parametrize("name", ["WaitsForARecord", "InsistsOnARecord"])
def test_a_record_that_no_method_sends_is_remarked(name: str) -> None:
    verdict, message = RULE_PROPERTIES["records"](RuleSubject(f"{HERE}{name}"))
    assert verdict is Status.REMARK
    assert "'heading'" in message
    assert RULE_PROPERTIES["records"](RuleSubject(f"{HERE}Plain"))[0] is Status.PASSED
