"""The limits that a device's owner sets in owner.toml, which no run passes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from threading import TIMEOUT_MAX
from typing import Any, Self

from fairbloom.errors import FairbloomError
from fairbloom.protocol.settings import Mark, marked
from fairbloom.tasks import TASKS

from .schemas import ANY
from .settings import SettingRefusedError, shorten_value, work_settings

LIMIT_ROWS = "limit-rows"
"""Key of Flower's node config, which belongs to the device, for `rows`."""

FEWEST_ROWS = 5
"""Fewest rows behind a number that leaves a device, unless its owner says otherwise."""

OWNER = "the device's owner may change it (limits, in owner.toml)"


class LimitsError(FairbloomError):
    """Limits that make no sense; the message names the key, its value and what would do."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The table `limits` of client.toml, with hyphens there.

    Attributes
    ----------
    rows
        Fewest rows behind any number that leaves the device: a loss, a score, a count, an update.
    tasks
        The tasks that a run may have; None: any.
    schema
        "accepted": the device reads its tables by the schemas alone that its owner has accepted; "any": by any.
    settings
        The values that a run may give to a setting, by its key: one, or a list of several.
    round_seconds
        Seconds after which the device drops its work on a message of a round; 0: it never does.
    """

    rows: int = FEWEST_ROWS
    tasks: tuple[str, ...] | None = None
    schema: str = "accepted"
    settings: Mapping[str, Any] = field(default_factory=dict)
    round_seconds: float = 0.0

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Self:
        """Return the limits of a table; raise LimitsError where a key is unknown, or its value impossible."""
        names = [each.name.replace("_", "-") for each in fields(cls)]
        for key, value in table.items():
            if key not in names:
                raise LimitsError(f"limits has {key} = {value!r}: there are {', '.join(names)}")
        rows, settings = table.get("rows", FEWEST_ROWS), table.get("settings", {})
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
        schema = table.get("schema", "accepted")
        if schema not in ("accepted", ANY):
            raise LimitsError(f"limits has schema = {schema!r}: it must be 'accepted' or 'any'")
        tasks = _texts("tasks", table["tasks"]) if "tasks" in table else None
        return cls(rows=rows, tasks=tasks, schema=schema, settings=settings, round_seconds=float(seconds))

    def check(self, config: Mapping[str, Any]) -> None:
        """Raise SettingRefusedError where a run passes a limit; `config` are its settings, `own-settings` expanded."""
        known = work_settings(config)
        task = config.get("task", known["task"].default)
        if self.tasks is not None and task not in self.tasks:
            raise _refusal("task", task, ", ".join(self.tasks) or "none")
        for key, value in self.settings.items():
            allowed = value if isinstance(value, list) else [value]
            if key in known and (given := config.get(key, known[key].default)) not in allowed:
                raise _refusal(key, given, ", ".join(map(repr, allowed)))


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


def _refusal(key: str, value: object, allowed: str) -> SettingRefusedError:
    return SettingRefusedError(
        f"the run sets {key} = {shorten_value(value)}, and this device allows {allowed}: change the run; {OWNER}"
    )
