"""The options that runs and studies share."""

import inspect
import os
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypedDict, TypeVar, get_type_hints

from fairbloom.protocol.settings import SETTINGS, SettingsError, Value, key_of
from fairbloom.text import quote

Function = TypeVar("Function", bound=Callable[..., Any])


class StudyOptions(TypedDict, total=False):
    """Settings that a run and every study take by name; None keeps the default.

    `fairbloom.run` describes each.
    """

    data_dir: str | os.PathLike[str] | None
    schema: str | os.PathLike[str] | None
    model: str | None
    clients: int | None
    partition: str | None
    rounds: int | None
    fraction: float | None
    score: str | None
    engine: str | None
    device: str | None
    memory: float | None


def expand_options(function: Function) -> Function:
    """Replace `**options` in a function's signature by the common options; refuse other names."""
    signature = inspect.signature(function)
    own = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind is not parameter.VAR_KEYWORD
    ]
    common = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in get_type_hints(StudyOptions).items()
    ]
    signature = signature.replace(parameters=[*own, *common])

    @wraps(function)
    def checked(*values: Any, **named: Any) -> Any:
        try:
            signature.bind(*values, **named)
        except TypeError as error:
            raise TypeError(f"{function.__name__}() {error}") from None
        return function(*values, **named)

    vars(checked)["__signature__"] = signature
    return checked  # type: ignore[return-value]  # its declared type is unchanged


def as_settings(options: Mapping[str, Any]) -> dict[str, Value | None]:
    """Return the settings of options, which are given by their names in Python."""
    settings = {}
    for name, value in options.items():
        key = "num-rounds" if name == "rounds" else key_of(name)
        settings[key] = os.fspath(value) if isinstance(value, os.PathLike) else value
    return settings


def merge_settings(
    options: Mapping[str, Value | None], settings: Mapping[str, Value]
) -> dict[str, Value]:
    """Return options and settings together; raise SettingsError if a key has two values.

    Settings may be written with underscores, as Python writes names.
    """
    config = {key: value for key, value in options.items() if value is not None}
    for written, value in (*config.items(), *settings.items()):
        if not isinstance(value, Value):  # a table has no truth value, nor is it compared below
            raise SettingsError(
                f"{written} = {quote(value)}: a setting is a text, a number, True or False"
            )
    for written, value in settings.items():
        key = key_of(written) if key_of(written) in SETTINGS else written
        if key != written and key in settings:
            raise SettingsError(f"{key} is given twice, also as {written}: give it once")
        if key in config and config[key] != value:
            raise SettingsError(
                f"{key} is given two values, {config[key]!r} and {value!r}: give it one"
            )
        config[key] = value
    return config


def choose_task(config: Mapping[str, Value]) -> dict[str, Value]:
    """Return the settings, with the task csv if they have a folder and a schema, but no task."""
    has_files = config.get("data-dir") and config.get("schema")
    return {**config, "task": config.get("task", "csv")} if has_files else {**config}
