"""The checks of client-side rules: each property fails for a rule that breaks it, in words."""

import time
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from fairbloom.check import CheckFailedError, Status, check_rule
from fairbloom.checks.report import Failure, Remark
from fairbloom.checks.rule import RULE_PROPERTIES, RuleUnderTest, is_rule
from fairbloom.cli.main import app
from fairbloom.errors import FairbloomError

Arrays = dict[str, Tensor]
HERE = f"{__name__}:"
GIVEN = "tests.client.own_rules:"


@pytest.mark.parametrize(
    ("name", "keeps"), [("Plain", "keeps 0 numbers: nothing"), ("Momentum", "keeps 16 numbers")]
)
def test_a_right_rule_passes_without_a_remark(name: str, keeps: str) -> None:
    results = check_rule(f"{GIVEN}{name}").results
    assert {result.status for result in results.values()} == {Status.PASSED}
    assert keeps in results["kept"].message


# Rules that are wrong -----------------------------------------------------------------------------


class Plain:
    """A rule that changes and keeps nothing, of which each class below breaks one thing."""

    def start(self, received: Arrays, kept: Arrays, sent: dict[str, Arrays]) -> Any:
        return kept

    def correct(self, gradients: Arrays, state: Any, step: int) -> Arrays:
        return gradients

    def finish(
        self, received: Arrays, trained: Arrays, state: Any, steps: Any
    ) -> tuple[Arrays, Arrays]:
        return trained, self.kept(trained, state, steps)

    @staticmethod
    def kept(trained: Arrays, state: Any, steps: Any) -> Any:
        return {}


class Draws(Plain):
    def correct(self, gradients: Arrays, state: Any, step: int) -> Arrays:
        return {
            name: gradient + 0.01 * torch.randn_like(gradient)
            for name, gradient in gradients.items()
        }


class LosesAGradient(Plain):
    def correct(self, gradients: Arrays, state: Any, step: int) -> Arrays:
        return {name: gradient for name, gradient in gradients.items() if "bias" not in name}


class DividesByTheLength(Plain):
    def correct(self, gradients: Arrays, state: Any, step: int) -> Arrays:
        return {name: gradient / gradient.norm() for name, gradient in gradients.items()}


class DividesByTheSteps(Plain):
    kept = staticmethod(lambda trained, state, steps: {"mean": torch.tensor(1.0 / steps.count)})


class KeepsNumbers(Plain):
    kept = staticmethod(lambda trained, state, steps: {"count": steps.count})


class ReadsTheClock(Plain):
    kept = staticmethod(
        lambda trained, state, steps: {"time": torch.tensor(time.perf_counter_ns())}
    )


class KeepsAHistory(Plain):
    kept = staticmethod(
        lambda trained, state, steps: {
            **state,
            str(len(state)): next(iter(trained.values())).clone(),
        }
    )


class RepliesAlone(Plain):
    def finish(
        self, received: Arrays, trained: Arrays, state: Any, steps: Any
    ) -> tuple[Arrays, Arrays]:
        return trained  # type: ignore[return-value]


class RemembersAside(Plain):
    """What clients keep lies in the class, where the next client finds it, and that of a refused
    reply, too."""

    velocity: ClassVar[Arrays] = {}

    def correct(self, gradients: Arrays, state: Any, step: int) -> Arrays:
        if self.velocity.keys() != gradients.keys():
            self.velocity.clear()
        for name, gradient in gradients.items():
            self.velocity[name] = gradient + 0.5 * self.velocity.get(
                name, torch.zeros_like(gradient)
            )
        return dict(self.velocity)


WRONG = [
    (LosesAGradient, "arrays", "first.bias"),
    (DividesByTheLength, "arrays", "gradients of zero"),
    (DividesByTheSteps, "arrays", "ZeroDivisionError"),
    (RepliesAlone, "arrays", "finish"),
    (KeepsNumbers, "arrays", "tensors"),
    (Draws, "determinism", "random"),
    (ReadsTheClock, "determinism", "clock"),
    (RemembersAside, "determinism", "finish"),
    (RemembersAside, "resume", "stopped"),
]


@pytest.mark.parametrize(("rule", "name", "words"), WRONG)
def test_a_broken_rule_fails_a_property_in_words(rule: type, name: str, words: str) -> None:
    RemembersAside.velocity.clear()
    with pytest.raises(Failure) as failure:
        RULE_PROPERTIES[name](RuleUnderTest(f"{HERE}{rule.__name__}"))
    assert words in str(failure.value), rule


def test_state_that_grows_is_remarked() -> None:
    with pytest.raises(Remark, match="keeps more with every round"):
        RULE_PROPERTIES["kept"](RuleUnderTest(f"{HERE}KeepsAHistory"))


def test_what_hangs_on_a_fault_is_no_fault_of_its_own() -> None:
    with pytest.raises(CheckFailedError) as error:
        check_rule(f"{HERE}RepliesAlone")
    assert error.value.report.failures.keys() == {"arrays"}
    assert error.value.report.results["resume"].message == "It is checked once arrays passes."


def test_what_is_no_rule_is_refused() -> None:
    with pytest.raises(FairbloomError, match="with the functions start, correct, finish"):
        check_rule("fairbloom.errors:FairbloomError")


# The command --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_tells_rules_from_methods() -> None:
    assert is_rule(f"{GIVEN}Momentum")
    assert not is_rule("fairbloom.strategies:FedAvg")
    assert not is_rule("fedavg")
    done = CliRunner().invoke(app, ["check", f"{GIVEN}Momentum"])
    assert done.exit_code == 0
    assert all(name in done.output for name in RULE_PROPERTIES)
    assert CliRunner().invoke(app, ["check", f"{HERE}RepliesAlone"]).exit_code == 1
    with pytest.raises(
        FairbloomError, match="--set share=3: a client-side rule has no settings: leave it out"
    ):
        CliRunner().invoke(
            app, ["check", f"{GIVEN}Momentum", "--set", "share=3"], catch_exceptions=False
        )
