"""The limits that a device's owner sets in client.toml, which no run passes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from threading import TIMEOUT_MAX
from typing import Any, Self

from fairbloom.errors import FairbloomError
from fairbloom.protocol.parameters import Parameter
from fairbloom.protocol.settings import Mark, marked, split_names
from fairbloom.tasks import TASKS
from fairbloom.tasks.leaving import FLOOR_ROWS

from .settings import SettingRefusedError, shorten_value, work_settings

LIMIT_ROWS = "limit-rows"
"""Key of Flower's node config, which belongs to the device, for `rows`."""

OWNER = "the device's owner may change it (limits, in client.toml)"


class LimitsError(FairbloomError):
    """Limits that make no sense; the message names the key, its value and what would do."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The table `limits` of client.toml, with hyphens there.

    Attributes
    ----------
    rows
        Fewest rows behind a mean, a category or a count that leaves the device, and by which two of them must differ.
    tasks
        The tasks that a run may have; None: any.
    groupings
        The columns by which a run may group rows; None: any, (): none.
    settings
        The values that a run may give to a setting, by its key: one, or a list of several.
    round_seconds
        Seconds after which the device drops its work on a message of a round; 0: it never does.
    """

    rows: int = FLOOR_ROWS
    tasks: tuple[str, ...] | None = None
    groupings: tuple[str, ...] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    round_seconds: float = 0.0

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Self:
        """Return the limits of a table; raise LimitsError where a key is unknown, or its value impossible."""
        names = [each.name.replace("_", "-") for each in fields(cls)]
        for key, value in table.items():
            if key not in names:
                raise LimitsError(f"limits has {key} = {value!r}: there are {', '.join(names)}")
        rows, settings = table.get("rows", FLOOR_ROWS), table.get("settings", {})
        if type(rows) is not int or rows < 1:
            raise LimitsError(f"limits has rows = {rows!r}: it must be a whole number, 1 or more")
        seconds = table.get("round-seconds", 0.0)
        if type(seconds) not in (int, float) or not 0.0 <= seconds < TIMEOUT_MAX:
            raise LimitsError(
                f"limits has round-seconds = {seconds!r}: it must be a number of seconds, or 0 for no limit"
            )
        if not isinstance(settings, Mapping):
            raise LimitsError(f"limits has settings = {settings!r}: it must be a table of keys and values")
        settings, known = _flatten(settings), marked(Mark.SENT_TO_CLIENTS)
        for key in settings:
            if key not in known and not ("." in key and key.partition(".")[0] in TASKS):
                raise LimitsError(f"limits has settings.{key}: there is no such setting of a client's work")
        lists = {key: _texts(key, table[key]) for key in ("tasks", "groupings") if key in table}
        return cls(rows=rows, settings=settings, round_seconds=float(seconds), **lists)

    def check(self, config: Mapping[str, Any]) -> None:
        """Raise SettingRefusedError where a run passes a limit; `config` are its settings, `own-settings` expanded."""
        known = work_settings(config)
        task = config.get("task", known["task"].default)
        if self.tasks is not None and task not in self.tasks:
            raise _refusal("task", task, ", ".join(self.tasks) or "none")
        for key, value in config.items():
            if self.groupings is not None and key.endswith(".group"):
                self._check_groupings(key, str(value))
        for key, value in self.settings.items():
            allowed = value if isinstance(value, list) else [value]
            if key in known and (given := _given(known[key], config)) not in allowed:
                raise _refusal(key, given, ", ".join(map(repr, allowed)))

    def _check_groupings(self, key: str, value: str) -> None:
        columns = {re.split("[<>=]", word)[0].strip().lower() for word in split_names(value)}
        if columns - set(map(str.lower, self.groupings or ())):
            raise _refusal(key, value, ", ".join(self.groupings or ()) or "none")


def _flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings with dotted names: `csv.group = "sex"` is a table in TOML."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat


def _texts(key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise LimitsError(f"limits has {key} = {value!r}: it must be a list of texts")
    return tuple(value)


def _given(setting: Parameter, config: Mapping[str, Any]) -> object:
    return config.get(setting.key, setting.default)


def _refusal(key: str, value: object, allowed: str) -> SettingRefusedError:
    return SettingRefusedError(
        f"the run sets {key} = {shorten_value(value)}, and this device allows {allowed}: change the run; {OWNER}"
    )
