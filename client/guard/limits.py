"""The limits that a device's owner sets in owner.toml, and which no run can exceed."""

import math
from collections.abc import Mapping
from dataclasses import field
from threading import TIMEOUT_MAX
from typing import Annotated, Any, Literal, Self

from annotated_types import Ge, Interval
from pydantic import ConfigDict, ValidationError, field_validator
from pydantic.dataclasses import dataclass

from fairbloom.errors import FairbloomError
from fairbloom.protocol.accounts import COUNTS, DELTAS, EPSILONS
from fairbloom.protocol.parameters import Parameter, Range, annotated
from fairbloom.protocol.settings import flatten_tables
from fairbloom.tables.schema import shorten_value

from .accepted_settings import SettingRefusedError, work_settings

# Fewest rows behind a number that leaves a device, unless the owner sets another limit.
DEFAULT_MIN_ROWS = 5


# The field of each key of the table.
KEYS = {
    "rows": "min_rows",
    "order": "order",
    "tasks": "tasks",
    "schema": "schema",
    "settings": "settings",
    "questions-a-day": "questions_a_day",
    "questions-a-run": "questions_a_run",
    "round-seconds": "round_seconds",
    "memory": "memory",
    "snapshots": "snapshots",
    "describe": "describe",
    "release": "release",
    "privacy": "privacy",
}

# The keys of the table `privacy`.
PRIVACY: Mapping[str, Parameter] = {
    name: parameter
    for name, allowed in (
        ("epsilon", Annotated[float, EPSILONS]),
        ("delta", Annotated[float, DELTAS]),
        ("steps", Annotated[int, COUNTS]),
        ("tests", Annotated[int, COUNTS]),
        ("units-a-run", Annotated[int, Range("[0, 10000000]")]),
        ("ledger", str),
    )
    if (parameter := annotated(name, allowed, None))
}


@dataclass(frozen=True, kw_only=True, config=ConfigDict(strict=True))
class Limits:
    """The table `limits` of owner.toml; `KEYS` has the key of each field.

    Attributes
    ----------
    min_rows
        Fewest rows behind a loss, score or count that leaves the device, and fewest rows that a
        model is trained on; fewest units, for example persons, if the schema has a unit. A model of
        many rows can still reveal single ones.
    order
        "device": the order of rows in training follows from a secret of the device; "run": from the
        run's seed, as in one process, for rehearsals with data that anyone may know.
    tasks
        The tasks that a run may have; None: any.
    schema
        "accepted": the device reads its tables only by schemas that its owner has accepted; "any":
        by any schema.
    settings
        The values that a run may give to a setting, by its key: one, or a list of several.
    questions_a_day
        Most messages with a model, to train or to evaluate, that the device answers in a day (UTC).
    questions_a_run
        The same of all runs with the same settings, in a month (UTC); None: four for each of a
        run's rounds.
    round_seconds
        Seconds after which the device drops its work on a message of a round; 0: never.
    memory
        Gigabytes that one message of a run may have; 0: half of the machine's memory.
    snapshots
        Of how many snapshots of the rows a profile, or tables, may leave in twelve months.
    describe
        "off": no table of the rows leaves by `fairbloom client describe`; "counts": one without
        quartiles of numbers; "all": with them.
    release
        What the device does with a model that the operator releases: "take" it for predictions;
        "ask": keep it until the owner takes it; "off": nothing.
    privacy
        The budget of the account that `fairbloom client account open` opens, {} for none: epsilon;
        delta, at most 1/(10 n); training steps, 90 by default; test reports, 1; units-a-run, the
        most units that a run may spend; and ledger, a folder for the account. A smaller epsilon
        or delta holds at once for an account that is open.
    """

    min_rows: Annotated[int, Ge(1)] = DEFAULT_MIN_ROWS
    order: Literal["device", "run"] = "device"
    tasks: list[str] | None = None
    schema: Literal["accepted", "any"] = "accepted"
    settings: dict[str, Any] = field(default_factory=dict)
    questions_a_day: Annotated[int, Ge(1)] = 20_000
    questions_a_run: Annotated[int, Ge(1)] | None = None
    round_seconds: Annotated[float, Interval(ge=0.0, lt=TIMEOUT_MAX)] = 0.0
    memory: Annotated[float, Interval(ge=0.0, lt=math.inf)] = 0.0
    snapshots: Annotated[int, Ge(0)] = 4
    describe: Literal["off", "counts", "all"] = "off"
    release: Literal["take", "ask", "off"] = "take"
    privacy: dict[str, Any] = field(default_factory=dict)

    @field_validator("privacy")
    @classmethod
    def _check_privacy(cls, table: dict[str, Any]) -> dict[str, Any]:
        if "epsilon" not in table:
            raise ValueError("epsilon is missing, as in epsilon = 3")
        for key, value in table.items():
            if key not in PRIVACY:
                raise ValueError(f"{key} is unknown: its keys are {', '.join(PRIVACY)}")
            PRIVACY[key].checked(value)
        return table

    @field_validator("settings")
    @classmethod
    def _check_settings(cls, table: dict[str, Any]) -> dict[str, Any]:
        flat = flatten_tables(table)
        for key in flat:
            if key not in work_settings({"task": key.partition(".")[0]}):
                raise ValueError(f"there is no setting {key} of a client's work")
        return flat

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Self:
        """Return the limits of a table.

        Raise FairbloomError if a key is unknown, or its value impossible.
        """
        for key, value in table.items():
            if key not in KEYS:
                raise FairbloomError(
                    f"limits has {key} = {value!r}: its keys are {', '.join(KEYS)}"
                )
        try:
            return cls(**{KEYS[key]: value for key, value in table.items()})
        except ValidationError as error:
            fault = error.errors()[0]
            (key,) = (key for key, name in KEYS.items() if name == fault["loc"][0])
            raise FairbloomError(
                f"limits has {key} = {fault['input']!r}: {fault['msg']}"
            ) from error

    def check(self, config: Mapping[str, Any]) -> None:
        """Raise SettingRefusedError if a run exceeds a limit.

        `config` has the run's settings, with `own-settings` expanded.
        """
        known = work_settings(config)
        allowed = self.settings if self.tasks is None else {"task": self.tasks, **self.settings}
        for key, value in allowed.items():
            values = value if isinstance(value, list) else [value]
            if key not in known:
                continue
            given = config.get(key, known[key].default)
            if given not in values:
                raise SettingRefusedError(
                    f"the run sets {key} = {shorten_value(given)}, and this device allows"
                    f" {', '.join(map(repr, values)) or 'none'}: change the run; the device's owner"
                    " may change it (limits, in owner.toml)"
                )
