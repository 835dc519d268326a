"""The settings that a device takes from a run: a short list, without paths or code.

A deployed client takes these settings of a run and drops all others, which concern only the server.
In one process and under `flwr run`, a client sees all settings.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any

from fairbloom.errors import FairbloomError, ReportableError
from fairbloom.imports import is_import_string
from fairbloom.protocol.parameters import Choices, Parameter
from fairbloom.protocol.settings import (
    FINGERPRINT,
    SETTINGS,
    Mark,
    SettingsError,
    expand_own_settings,
    fingerprint,
    marked,
)
from fairbloom.tables.schema import shorten_value
from fairbloom.tasks import TASKS, find_task
from fairbloom.tasks.classifiers import is_classifier
from fairbloom.text import text_if

# A plain word: neither a path nor an import string, without colons, separators, or a dot at either
# end.
PLAIN = re.compile(r"[A-Za-z0-9_-]([A-Za-z0-9_.-]{0,62}[A-Za-z0-9_-])?")

# A value of a task's own setting: several words, for example names of columns, but neither a path
# nor an import string.
HARMLESS = re.compile(r"(?!\.)[^/\\:~\x00-\x1f\x7f]{1,500}(?<!\.)")

DEVICE = re.compile(r"auto|cpu|mps|cuda(:[0-9]{1,3})?")

# The setting with the text of a schema.
SCHEMA_KEY = "schema"


class SettingRefusedError(ReportableError):
    """A run, or a setting of it, that this device does not allow; the message names it."""


def work_settings(config: Mapping[str, Any]) -> dict[str, Parameter]:
    """Return the settings that a client's work depends on, including the task's, by their keys.

    A task with an import string is imported; an unknown task has no parameters.
    """
    task = config.get("task")
    settings = {key: SETTINGS[key] for key in marked(Mark.SENT_TO_CLIENTS)}
    if not (isinstance(task, str) and (task in TASKS or is_import_string(task))):
        return settings
    info = find_task(task)
    return settings | {
        setting.key: setting for setting in info.settings if setting.name not in info.in_process
    }


def accepted_settings(config: Mapping[str, Any], allow: Collection[str] = ()) -> dict[str, Any]:
    """Return the settings that a device takes from a run, and the run's fingerprint.

    `allow` has the values, such as import strings, that the device's owner allows. Raise
    SettingRefusedError for any other value that is impossible or not a plain word.
    """
    try:
        config = expand_own_settings(config)
        # checked first, because the next line may import the task
        _check_safe(SETTINGS["task"], config.get("task"), allow)
        known = work_settings(config)
    except SettingRefusedError:
        raise
    except FairbloomError as error:
        raise SettingRefusedError(f"the run sets {getattr(error, 'reportable', error)}") from error
    chosen = {key: value for key, value in config.items() if key in known}
    for key, value in chosen.items():
        try:
            known[key].checked(value)
        except SettingsError as error:
            raise SettingRefusedError(
                f"the run sets {key} = {shorten_value(value)}: allowed is {known[key].range}"
            ) from error
        _check_safe(known[key], value, allow)
    return chosen | {FINGERPRINT: fingerprint(config)}


def settings_to_allow(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of a run that a device takes only if its owner allows their values."""
    config = expand_own_settings(config)
    known = work_settings(config)
    return {
        key: value
        for key, value in config.items()
        if key in known and _why_unsafe(known[key], value)
    }


def _check_safe(parameter: Parameter, value: object, allow: Collection[str]) -> None:
    why = _why_unsafe(parameter, value)
    if why and value not in allow:
        raise SettingRefusedError(f"the run sets {parameter.key} = {shorten_value(value)}{why}")


def _why_unsafe(parameter: Parameter, value: object) -> str:
    """Return the reason to refuse a value that could open or import something, "" for a safe one.

    Values with a fixed set of words are safe. So is a method, which a device never imports.
    """
    key = parameter.key
    if not isinstance(value, str) or isinstance(parameter.allowed, Choices) or key == "method":
        return ""
    if key == "model" and is_classifier(value):
        return ""
    if not value and (key not in SETTINGS or parameter.default == ""):
        return ""
    if key == SCHEMA_KEY:
        return text_if("\n" not in value, ": a device takes its text, and no place")
    if key == "device":
        return text_if(not DEVICE.fullmatch(value), ": auto, cpu, cuda, cuda:1 or mps would do")
    names = [word.strip(" ") for word in value.split(",")]
    words = names if key in marked(Mark.NAMES) else [value]
    safe = HARMLESS if "." in key else PLAIN  # a setting of a task has a dot
    if all(safe.fullmatch(word) for word in words):
        return ""
    return (
        ", and this client allows no path and no import string there: the device's owner may allow"
        " this value (allow, in owner.toml)"
    )
