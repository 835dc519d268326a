"""How clients are to train, checked before any of them works; and what becomes of it over a whole
run."""

import logging
from pathlib import Path
from typing import Any

import pytest

from fairbloom.errors import FairbloomError
from fairbloom.protocol.settings import Mark, SettingsError, marked
from fairbloom.rounds.compatibility import PLAIN_SGD
from fairbloom.server.settings import Settings
from fairbloom.strategies import METHODS
from tests.simulation.helpers import run

PLAIN_SGD_ALONE = {name for name, method in METHODS.items() if PLAIN_SGD in method.requires}

OTHER_STEPS: dict[str, Any] = {
    "optimizer": "adamw",
    "momentum": 0.9,
    "nesterov": True,
    "gradient-clip": 1.0,
    "client-rule": "my_rules:Mine",
}


@pytest.mark.parametrize(("key", "value"), OTHER_STEPS.items())
def test_methods_that_need_plain_sgd_refuse_other_steps(
    key: str, value: str | float | bool
) -> None:
    """The remedies are to leave it out, or to take another method."""
    assert {"fcfl", "qfedsgd"} == PLAIN_SGD_ALONE
    assert set(marked(Mark.CHANGES_STEP)) == set(OTHER_STEPS)
    given = {key: value} | ({"momentum": 0.9} if key == "nesterov" else {})
    first = "momentum" if key == "nesterov" else key
    with pytest.raises(SettingsError, match=rf"{first} = .*: QFedSGD .*: leave {first} out, or"):
        Settings.of({"method": "qfedsgd", **given})
    Settings.of({"method": "qfedavg", **given})
    Settings.of(
        {
            "method": "qfedsgd",
            "learning-rate-decay": 0.9,
            "schedule": "cosine",
            "weight-decay": 0.001,
        }
    )


def test_a_method_that_sets_momentum_needs_an_optimizer_with_one() -> None:
    with pytest.raises(
        SettingsError,
        match=r"optimizer = 'adam' has no momentum, .* set the method's momentum to 0",
    ):
        Settings.of({"method": "fedfa", "optimizer": "adam"})
    for remedy in (
        {"optimizer": "torch.optim:RMSprop"},
        {"optimizer": "adam", "fedfa.client-momentum": 0.0},
    ):
        Settings.of({"method": "fedfa", **remedy})


def test_an_optimizer_in_capitals_is_the_same_run() -> None:
    assert (
        Settings.of({"optimizer": "SGD", "method": "qfedsgd"}).run_config()
        == Settings.of({"method": "qfedsgd"}).run_config()
    )
    assert Settings.of({"optimizer": "AdamW"}).optimizer == "adamw"


# Over a whole run ---------------------------------------------------------------------------------


def test_a_run_with_a_schedule_over_rounds_cannot_be_extended(tmp_path: Path) -> None:
    chosen: dict[str, Any] = {"schedule": "cosine", "num_rounds": 2}
    run(tmp_path / "run", **chosen)
    with pytest.raises(
        FairbloomError, match="decay over 2 rounds, so it cannot be extended to 4: choose another"
    ):
        run(tmp_path / "run", **chosen | {"num_rounds": 4})


def test_a_rate_that_is_sgds_default_is_remarked_with_adam(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    subtests: pytest.Subtests,
) -> None:
    cases: tuple[tuple[dict[str, Any], bool], ...] = (
        ({"optimizer": "adam"}, True),
        ({"optimizer": "adam", "learning_rate": 0.01}, False),
        ({}, False),
    )
    for place, (changes, warned) in enumerate(cases):
        with subtests.test(place=place, changes=changes):
            caplog.clear()
            with caplog.at_level(logging.WARNING, "flwr"):
                run(tmp_path / str(place), num_rounds=1, **changes)
            assert ("learning-rate = 0.1 is the default for SGD" in caplog.text) is warned
