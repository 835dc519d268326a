"""The settings that a device takes from a run: a short list, without paths or code.

A deployed client takes these settings of a run and drops the rest, which concern the server alone. In process and
under `flwr run` a client sees all of them.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fairbloom.errors import FairbloomError
from fairbloom.imports import is_import_string
from fairbloom.protocol.names import DEPLOYED, FLOOR
from fairbloom.protocol.parameters import Choices, Parameter
from fairbloom.protocol.settings import (
    OWN_SETTINGS,
    SETTINGS,
    Mark,
    SettingsError,
    digest,
    expand_own_settings,
    marked,
)
from fairbloom.tasks import TASKS, find_task

PLAIN = re.compile(r"[A-Za-z0-9_-]([A-Za-z0-9_.-]{0,62}[A-Za-z0-9_-])?")
"""A plain word is neither a path nor an import string: it has no colon, no separator and no dot at either end."""

HARMLESS = re.compile(r"(?!\.)[^/\\:~\x00-\x1f\x7f]{1,500}(?<!\.)")
"""A task's own setting may have several words, names of columns say, but is neither a path nor an import string."""

DEVICE = re.compile(r"auto|cpu|mps|cuda(:[0-9]{1,3})?")

FINGERPRINT = "fingerprint"
"""The key by which a deployed client knows its run; the value stands for all settings, dropped ones included."""


SCHEMA = "schema"
"""The setting whose value is the text of a schema."""


class SettingRefusedError(FairbloomError):
    """A setting of a run that this device does not allow; the message names it and its value."""


def work_settings(config: Mapping[str, Any]) -> dict[str, Parameter]:
    """Return all settings that a client's work depends on, by their keys: the parameters of the run's task too.

    A task that is named by an import string is imported for it; one that is not known here has no parameters.
    """
    task = config.get("task")
    known = isinstance(task, str) and (task in TASKS or is_import_string(task))
    of_task = find_task(str(task)).settings if known else ()
    return {key: SETTINGS[key] for key in marked(Mark.SENT_TO_CLIENTS)} | {each.key: each for each in of_task}


def accepted_settings(config: Mapping[str, Any], allow: Collection[str] = ()) -> dict[str, Any]:
    """Return what a device takes of a run's settings, and the run's fingerprint.

    `allow` has the values, such as import strings, that the device's owner allows. Any other value that is impossible,
    or no plain word, raises SettingRefusedError.
    """
    try:
        config = expand_own_settings(config)
        _check_word("task", config.get("task"), allow)  # before anything is imported by it
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
            words = f"the run sets {key} = {shorten_value(value)}: allowed is {known[key].range}"
            raise SettingRefusedError(words) from error
        if key == SCHEMA:
            _check_schema(str(value))
        elif not _is_listed(known[key]):
            _check_word(key, value, allow)
    return chosen | {FINGERPRINT: fingerprint(config)}


def settings_to_allow(config: Mapping[str, Any]) -> dict[str, str]:
    """Return those of a run's settings that a device takes only where its owner allows their values."""
    config = expand_own_settings(config)
    known = work_settings(config)
    unlisted = {key: value for key, value in config.items() if key in known and not _is_listed(known[key])}
    return {key: value for key, value in unlisted.items() if not _is_harmless(key, value)}


def _is_listed(parameter: Parameter) -> bool:
    """Return whether a setting's own check is enough: its words are known, or nothing is opened or imported by it."""
    return isinstance(parameter.allowed, Choices) or parameter.key in ("method", SCHEMA)


def _is_harmless(key: str, value: object) -> bool:
    try:
        _check_word(key, value, ())
    except SettingRefusedError:
        return False
    return True


def fingerprint(config: Mapping[str, Any]) -> str:
    """Return eight letters that stand for all settings that make a run what it is; a client keeps its state by them."""
    others = {*marked(Mark.FREE, Mark.LIMIT, Mark.PLACE, Mark.EXTENDABLE), OWN_SETTINGS, DEPLOYED, FLOOR}
    others.add("score")  # which changes no client's work, and is decided after the clients have begun theirs
    defaults = {key: each.default for key, each in SETTINGS.items()}
    about = {key: value for key, value in expand_own_settings(config).items() if key not in others}
    return digest({key: value for key, value in about.items() if value != defaults.get(key)})


def shorten_value(value: object) -> str:
    """Return how a value is written, cut off where it is long."""
    written = repr(value)
    return written if len(written) <= 60 else f"{written[:60]}…"


def _check_schema(text: str) -> None:
    """Raise SettingRefusedError where a run's schema is a place on this device: it must be the text itself."""
    if text and "\n" not in text:
        raise SettingRefusedError(f"the run sets schema = {shorten_value(text)}: a device takes its text, and no place")


def _split_value(key: str, value: str) -> Sequence[str]:
    """Return the words of a value that are checked one by one: the names, with commas between, of several clients."""
    return [word.strip(" ") for word in value.split(",")] if key in marked(Mark.NAMES) else [value]


def _check_word(key: str, value: object, allow: Collection[str]) -> None:
    if (
        not isinstance(value, str)
        or value in allow
        or (not value and (key not in SETTINGS or SETTINGS[key].default == ""))
    ):
        return
    if key == "device":
        if not DEVICE.fullmatch(value):
            raise SettingRefusedError(
                f"the run sets device = {shorten_value(value)}: auto, cpu, cuda, cuda:1 or mps would do"
            )
    elif not all((HARMLESS if "." in key else PLAIN).fullmatch(word) for word in _split_value(key, value)):
        raise SettingRefusedError(
            f"the run sets {key} = {shorten_value(value)}, and this client allows no path and no import string there: "
            "the device's owner may allow this value (allow, in owner.toml)"
        )
