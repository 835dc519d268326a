"""The settings as one typed object: in at one door, out at another."""

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from fairbloom.protocol.settings import RunSettings, SettingsError, digest
from fairbloom.server.settings import default_config

TYPED: dict[str, Any] = {
    "task": "csv",
    "clients": 3,
    "learning-rate": 1,
    "csv.target": "died",
    "ditto.lam": 0.5,
    "my_task.my_word": "x",
    "own-settings": "mine.share=0.25 'mine.words=to be'",
}


def test_settings_have_the_run_configs_values_and_defaults() -> None:
    settings = RunSettings.of(TYPED)
    assert (settings.task, settings.clients, settings.learning_rate, settings.batch_size) == (
        "csv",
        3,
        1.0,
        10,
    )
    assert settings.own_settings == ""
    own = {
        "csv.target": "died",
        "ditto.lam": 0.5,
        "my_task.my_word": "x",
        "mine.share": 0.25,
        "mine.words": "to be",
    }
    assert settings.parameters == own
    assert settings.given() == {"task": "csv", "clients": 3, "learning-rate": 1.0, **own}


def test_the_run_config_of_settings_gives_the_same_settings() -> None:
    settings = RunSettings.of(TYPED)
    assert RunSettings.of(settings.run_config()) == settings
    assert RunSettings.of(settings) is settings
    assert RunSettings.of(default_config()).run_config() == {
        k: v for k, v in default_config().items() if k != "own-settings"
    }


def test_settings_are_frozen_travel_and_are_changed_by_a_copy() -> None:
    settings = RunSettings.of(TYPED)
    with pytest.raises(ValueError, match="frozen"):
        settings.seed = 3  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(settings)) == settings  # noqa: S301 (our own bytes, as other processes get them)
    changed = settings.model_copy(update={"seed": 3, "csv.target": "cured"})
    assert (changed.seed, changed.parameters["csv.target"], changed.task) == (3, "cured", "csv")
    assert changed.run_config() == settings.run_config() | {"seed": 3, "csv.target": "cured"}
    assert len({settings, RunSettings.of(TYPED), changed}) == 2


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"clients": -1, "fraction": 2.0}, "clients = -1.*fraction = 2.0"),
        ({"seed": "x"}, "seed = 'x'"),
        ({"seed": True}, "seed = True"),
        ({"own-settings": "mine.share"}, "'mine.share'"),
        ({"own-settings": "=3"}, "'=3'"),
        ({"own-settings": "a='b"}, """own-settings = "a='b": No closing quotation: write KEY=V"""),
    ],
)
def test_impossible_settings_are_refused_by_key_and_value(config: Any, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        RunSettings.of(config)


@pytest.mark.parametrize(
    "make", [lambda: RunSettings(batch_size=16), lambda: RunSettings.of({"batch_size": 16})]
)
def test_a_field_by_its_python_name_is_refused(make: Callable[[], RunSettings]) -> None:
    """It would be kept as a setting of some task, while the field kept its default."""
    with pytest.raises(
        ValueError, match=r"unknown setting batch_size = 16; did you mean batch-size\?"
    ):
        make()
    assert RunSettings(**{"batch-size": 16}).batch_size == 16
    assert RunSettings.of({}).model_copy(update={"batch_size": 16}).batch_size == 16


def test_a_digest_depends_on_keys_and_values_and_on_no_order() -> None:
    assert digest({"a": 1, "b": "x"}) == digest({"b": "x", "a": 1}) == "ce5c626f"
    assert len({digest(each) for each in ({"a": 1}, {"a": 2}, {"a": 1.0}, {"b": 1}, {})}) == 5
