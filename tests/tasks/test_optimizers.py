"""Which optimizers there are, and what is said of those that cannot be had."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fairbloom.errors import FairbloomError
from fairbloom.protocol.settings import RunSettings
from fairbloom.tasks.optimizers import ELEMENTWISE, OptimizerChoice, check_optimizer


def settings(**changes: Any) -> RunSettings:
    return RunSettings.of({key.replace("_", "-"): value for key, value in changes.items()})


@pytest.mark.parametrize("name", [*sorted(ELEMENTWISE), "adafactor", "muon", "AdamW", "RMSprop"])
def test_every_gradient_optimizer_of_pytorch_is_known(name: str) -> None:
    check_optimizer(settings(optimizer=name))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"optimizer": "adamm"}, "optimizer = 'adamm': did you mean adam"),
        ({"optimizer": "optimizer"}, "optimizer = 'optimizer': "),
        ({"optimizer": "nowhere:Mine"}, "optimizer = 'nowhere:Mine': there is no module nowhere"),
        ({"optimizer": "math:pi"}, "it is a float; an optimizer is a subclass of torch.optim.Optimizer"),
        ({"optimizer": "lbfgs"}, "optimizer = 'lbfgs' cannot take a step by a gradient alone .*closure.*adamw say"),
        ({"optimizer": "sparseadam"}, "optimizer = 'sparseadam' cannot take a step .*dense gradients, adamw say"),
        ({"optimizer": "adam", "momentum": 0.9}, "momentum = 0.9 has no effect with optimizer = 'adam', .* leave"),
        ({"optimizer": "rprop", "weight_decay": 0.1}, "weight-decay = 0.1 has no effect with optimizer = 'rprop'"),
        ({"optimizer_parameters": "betas=(0.9,0.98)"}, "betas = .*: sgd has no such parameter: .*there are dampening"),
        ({"optimizer": "adamw", "optimizer_parameters": "beta=0.9"}, "adamw has no such parameter: did you mean betas"),
        ({"optimizer": "adamw", "optimizer_parameters": "betas=0.9"}, "betas = 0.9: adamw takes 2 values in parenth"),
        ({"optimizer": "adamw", "optimizer_parameters": "eps=small"}, "eps = 'small': adamw takes a number there"),
        ({"optimizer": "adamw", "optimizer_parameters": "amsgrad=1"}, "amsgrad = 1: adamw takes true or false there"),
        ({"optimizer": "adamw", "optimizer_parameters": "lr=0.1"}, "lr = 0.1: learning-rate sets that: give it there"),
        ({"optimizer": "adamw", "optimizer_parameters": "weight_decay=0.1"}, "weight-decay sets that"),
        (
            {"optimizer": "adamw", "optimizer_parameters": "betas=(0.9,1.5)"},
            "betas=.*: Invalid beta parameter at",
        ),
        ({"optimizer": "adamw", "optimizer_parameters": "eps=1 eps=2"}, "eps is given twice: give it once"),
        ({"optimizer_parameters": "nesterov=true"}, "nesterov=True: Nesterov momentum requires a momentum"),
    ],
    ids=str,
)
def test_what_cannot_be_is_named_with_its_remedy(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(FairbloomError, match=words):
        check_optimizer(settings(**changes))


def test_what_the_errors_advise_works() -> None:
    check_optimizer(settings(optimizer="adamw", optimizer_parameters="betas=(0.9, 0.98), eps=1e-6 amsgrad=true"))
    check_optimizer(settings(optimizer="rmsprop", momentum=0.9, optimizer_parameters="alpha=0.9"))
    check_optimizer(settings(momentum=0.9, optimizer_parameters="nesterov=true"))


def test_one_number_in_parentheses_is_one_of_several() -> None:
    with pytest.raises(FairbloomError, match="takes 2 values in parentheses"):
        check_optimizer(settings(optimizer="adamw", optimizer_parameters="betas=(0.9,)"))


def test_a_choice_reads_as_a_call() -> None:
    assert str(OptimizerChoice.of(settings(optimizer="Adam", optimizer_parameters="eps=0.5"))) == "adam(eps=0.5)"
    assert OptimizerChoice.of(settings()).is_plain_sgd
    assert not OptimizerChoice.of(settings(optimizer_parameters="dampening=0.5")).is_plain_sgd


def test_plain_sgd_imports_nothing_of_pytorchs_compiler(tmp_path: Path) -> None:
    code = """
import sys
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
simulate(Settings.of({"clients": 3, "num-rounds": 1, "engine": "loop", "momentum": 0.5, "out": sys.argv[1]}))
assert "torch._dynamo" not in sys.modules
"""
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
