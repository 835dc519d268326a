"""Everything that the protocol can ask for is sent to a device with an account: listed, or refused.

A new term, metric or setting fails here until it is classified.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

import pytest

from fairbloom.client.metrics import ALL_METRICS
from fairbloom.errors import ReportableError
from fairbloom.protocol import private
from fairbloom.protocol.conditions import Where
from fairbloom.protocol.private import METRICS, TERMS, check_settings
from fairbloom.protocol.settings import SETTINGS, Mark, marked
from fairbloom.protocol.terms import Terms
from fairbloom.server.settings import Settings

from .device import EVALUATE, TRAIN, Device, opened

REFUSED_TERMS: Mapping[str, Any] = {
    "personal_lambda": 0.1,
    "personal_epochs": 2,
    "personal_parameters": "1",
    "head_epochs": 1,
    "fine_tune_epochs": 1,
    "local_only": True,
    "snapshot_step": 1,
    "loss_transform": "propfair",
    "propfair_baseline": 2.0,
    "propfair_epsilon": 0.1,
    "disparity": "demographic-parity",
    "disparity_sharpness": 5.0,
    "baseline_epochs": 2,
    "baseline_patience": 1,
    "baseline_tolerance": 0.1,
    "client_rule": "my_rules:Mine",
    "wire_dtype": "bfloat16",
    "others": "anything",
}

REFUSED_METRICS = (
    *("accuracy-before", "accuracy-after", "loss-after", "loss-baseline", "loss-personal"),
    *("train-loss", "loss-validation", "loss[sex:f]", "loss", "accuracy"),
    *("disparity", "disparity-hard", "hits-0", "hits-1", "positives-0", "positives-1"),
    *("larger-class", "auc-before", "no-such-metric"),
)

REFUSED_VALUES: Mapping[str, Any] = {
    "batch-size": 10,
    "validation-share": 0.1,
    "optimizer": "lbfgs",
    "augment": "flip",
    "client-rule": "my_rules:Mine",
    "time-budget": 5.0,
    "reported-loss": "batches",
    "scores": "recall",
    "precision": "bfloat16",
    "pooled": True,
}

OF_ACCOUNTS = {key: SETTINGS[key].values_in(Where.ACCOUNT) for key in marked(Mark.SENT_TO_CLIENTS)}


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    """Return a device that is asked for what it refuses: its budget is whole at the end."""
    device = opened(tmp_path_factory.mktemp("device"))
    yield device
    assert device.left == (450, 1)


def test_every_term_is_classified() -> None:
    of_server = {"measures", "state_rounds"}  # not sent
    assert TERMS | REFUSED_TERMS.keys() == {each.name for each in fields(Terms)}
    assert not TERMS & REFUSED_TERMS.keys()
    assert of_server < TERMS


def test_every_setting_of_clients_is_classified() -> None:
    """At its declaration."""
    assert None not in OF_ACCOUNTS.values()
    assert {key for key, each in OF_ACCOUNTS.items() if each and each.values} == {*REFUSED_VALUES}


def test_a_setting_that_does_not_say_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """But at its default."""
    settings = Settings.of({"batch-size": 0, "warmup": 1})
    check_settings(settings)
    silent = replace(SETTINGS["warmup"], under=())
    monkeypatch.setattr(private, "SETTINGS", {**SETTINGS, "warmup": silent})
    with pytest.raises(ReportableError, match="warmup = 1: a privacy account allows only 0"):
        check_settings(settings)
    check_settings(Settings.of({"batch-size": 0}))


def test_every_metric_is_classified() -> None:
    scores = {each for each in ALL_METRICS if "{}" in each}
    assert ALL_METRICS - scores - METRICS <= set(REFUSED_METRICS)
    assert {each.replace("{}", "loss") for each in scores} - METRICS <= {
        *REFUSED_METRICS,
        "loss-validation-personal",
        "loss[loss:loss]",
    }


@pytest.mark.parametrize("name", REFUSED_TERMS)
@pytest.mark.parametrize("kind", [TRAIN, EVALUATE])
def test_other_terms_are_refused_for_nothing(device: Device, kind: str, name: str) -> None:
    assert "does not allow" in str(device.ask(kind, {name.replace("_", "-"): REFUSED_TERMS[name]}))


@pytest.mark.parametrize("name", REFUSED_METRICS)
def test_other_metrics_are_refused_for_nothing(device: Device, name: str) -> None:
    assert "reports only" in str(device.ask(TRAIN, {"measure": [name]}))
    assert "reports only" in str(device.ask(EVALUATE, {"measure": [name]}))


@pytest.mark.parametrize("key", REFUSED_VALUES)
def test_other_values_are_refused_for_nothing(device: Device, key: str) -> None:
    context = device.context()
    context.run_config[key] = REFUSED_VALUES[key]
    assert str(device.ask_in(context)).partition(" = ")[0].endswith(key)


@pytest.mark.parametrize("kind", ["train.mine", "query.mine", "system"])
def test_other_messages_are_refused_for_nothing(device: Device, kind: str) -> None:
    assert isinstance(device.ask(kind), str)


@pytest.mark.parametrize("task", ["digits", "image-folder"])
def test_other_tasks_are_refused_for_nothing(device: Device, task: str) -> None:
    context = device.context()
    context.run_config["task"] = task
    assert isinstance(device.ask_in(context), str)
