"""The settings of a run, checked once before any client works."""

import difflib
import inspect
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import Field, ValidationError, field_validator

from fairbloom.errors import FairbloomError
from fairbloom.protocol.settings import Mark, RunSettings, Value, key_of, marked, of_kind
from fairbloom.strategies import METHODS, FairStrategy
from fairbloom.strategies.torchjd import by_name
from fairbloom.tasks import TASKS, Setup

__all__ = [
    "Parameter",
    "Settings",
    "SettingsError",
    "Value",
    "assigned",
    "check_used",
    "default_config",
    "described",
    "may_differ",
    "parameters",
    "parsed",
]

ENGINES = ("loop",)
"""The ways to compute the clients of a run in this process: loop takes one after the other."""

TORCHJD = "torchjd:"
"""The beginning of a method's name that means one of TorchJD's weightings, as in torchjd:upgrad."""

UNSET = ""
"""The value, in a run config, of a parameter without a default that nobody has set: Flower wants every key there."""


class SettingsError(FairbloomError):
    """A setting that is unknown or impossible; the message names it, its value and what would do."""


# Parameters of methods and tasks ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parameter:
    """A parameter of a method, or a setting of a task's own.

    Attributes
    ----------
    key
        Its name in a run config: `fedfv.alpha`.
    kind
        Its type: int, float, bool or str.
    default
        Its value where none is given; None: one must be given.
    range, description
        What it may be and what it means, in words.
    """

    key: str
    kind: type
    default: Value | None
    range: str
    description: str

    @property
    def owner(self) -> str:
        """The method or task that it belongs to."""
        return self.key.partition(".")[0]

    @property
    def argument(self) -> str:
        """Its name in Python."""
        return self.key.partition(".")[2].replace("-", "_")

    def checked(self, value: Value) -> Value:
        """Return `value`, a whole number as the float that is meant; raise SettingsError where the type is another."""
        if not of_kind(value, self.kind):
            raise SettingsError(f"{self.key} = {value!r}: it must be of type {self.kind.__name__} ({self.range})")
        chosen: Value = self.kind(value)
        return chosen


def parameters() -> Mapping[str, Parameter]:
    """Return all parameters of all methods and tasks by their run-config keys."""
    of_methods = (parameter for name, method in METHODS.items() for parameter in parameters_of(name, method))
    of_tasks = (
        Parameter(info.key(own), type(own.default), own.default, own.range, own.description)
        for info in TASKS.values()
        for own in info.settings
    )
    return {parameter.key: parameter for parameter in (*of_methods, *of_tasks)}


@cache
def parameters_of(name: str, method: type[FairStrategy]) -> tuple[Parameter, ...]:
    """Return the parameters of a method: types and defaults from its signature, words from its docstring.

    Raises
    ------
    TypeError
        When a parameter is not annotated as int, float, bool or str, which is all that a run config can carry.
    """
    words, found = described(inspect.getdoc(method) or ""), []
    for parameter in inspect.signature(method, eval_str=True).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:  # the common options
            continue
        if parameter.annotation not in (int, float, bool, str):
            raise TypeError(
                f"{method.__name__}'s parameter {parameter.name} must be annotated: int, float, bool or str"
            )
        what, meaning = words.get(parameter.name, (parameter.annotation.__name__, ""))
        default = None if parameter.default is inspect.Parameter.empty else parameter.default
        key, what = f"{name}.{key_of(parameter.name)}", what.partition(", default ")[0]
        found.append(Parameter(key, parameter.annotation, default, what, meaning))
    return tuple(found)


def described(docstring: str) -> dict[str, tuple[str, str]]:
    """Return what is written after the colon, and the meaning, of each entry of a docstring's Parameters section."""
    section = re.search(r"^Parameters\n-+\n((?:\S+ : .+\n(?: {4}.+\n?)+)+)", docstring, re.MULTILINE)
    entries = re.findall(r"(\S+) : (.+)\n((?: {4}.+\n?)+)", section[1]) if section else []
    return {name: (what, " ".join(meaning.split())) for name, what, meaning in entries}


# The settings -------------------------------------------------------------------------------------------------------


class Settings(RunSettings):
    """The settings of one run, known and possible; `parameters` holds those of methods and tasks, by their keys."""

    parameters: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def of(cls, config: Mapping[str, Value]) -> "Settings":
        """Return the settings of a flat run config.

        Raises
        ------
        FairbloomError
            When a key is unknown, a value impossible, or a parameter missing that the method needs.
        """
        general, own = {key_of(name) for name in RunSettings.model_fields}, parameters()
        for key, value in config.items():
            if key not in general and key not in own:
                raise SettingsError(f"unknown setting {key} = {value!r}; {_hint(key, [*general, *own])}")
        chosen = {key: value for key, value in config.items() if key in general}
        given = {key: value for key, value in config.items() if key in own and not _is_unset(own[key], value)}
        try:
            settings = cls.model_validate(chosen | {"parameters": given})
        except ValidationError as error:
            raise SettingsError("; ".join(map(_in_words, error.errors()))) from error
        TASKS[settings.task].check(Setup.of(settings.run_config()))
        settings.strategy()
        return settings

    @field_validator("task")
    @classmethod
    def _check_task(cls, name: str) -> str:
        return check_known("task", name, TASKS)

    @field_validator("method")
    @classmethod
    def _check_method(cls, name: str) -> str:
        return name if name.startswith(TORCHJD) else check_known("method", name, METHODS)

    @field_validator("engine")
    @classmethod
    def _check_engine(cls, name: str) -> str:
        return check_known("engine", name, ENGINES)

    @field_validator("log_format")
    @classmethod
    def _check_log_format(cls, name: str) -> str:
        return check_known("log-format", name, ("text", "json"))

    @field_validator("enrolled_sizes")
    @classmethod
    def _check_sizes(cls, words: str) -> str:
        sizes_of(words)
        return words

    def strategy(self, **options: Any) -> FairStrategy:
        """Return the method with its parameters and the common options; `options` add to them.

        Raises
        ------
        SettingsError
            When the method refuses a parameter or an option, or lacks one that it needs.
        """
        own = self._own_of_method()
        common: dict[str, Any] = {
            "fraction_train": self.fraction,
            "seed": self.seed,
            "evaluate_every": self.evaluate_every,
            "unused_rounds": self.unused_rounds,
            "max_growth": self.max_growth,
            "loss_limit": self.loss_limit,
            "enrolled_sizes": sizes_of(self.enrolled_sizes),
        }
        given = {"weighting": self.weighting, "proximal_mu": self.proximal_mu, "personal_lambda": self.personal_lambda}
        common |= {name: value for name, value in given.items() if value}
        try:
            if self.method.startswith(TORCHJD):
                return by_name(self.method.removeprefix(TORCHJD), **common, **options)
            arguments = common | options | {parameters()[key].argument: value for key, value in own.items()}
            return METHODS[self.method](**arguments)
        except ValueError as error:  # how a constructor refuses what it is given
            values = ", ".join(f"{key} = {value!r}" for key, value in own.items())
            raise SettingsError(f"{error} ({values})" if values else str(error)) from error

    def run_config(self) -> dict[str, Value]:
        """Return the flat run config, with what the chosen task and method have of their own and no other has."""
        fields = self.model_dump(by_alias=True, exclude={"parameters"})
        return fields | TASKS[self.task].own(self.parameters) | self._own_of_method()

    def _own_of_method(self) -> dict[str, Value]:
        """Return the values of the method's parameters by their keys."""
        own: dict[str, Value] = {}
        for key, parameter in parameters().items():
            if parameter.owner != self.method:
                continue
            value = self.parameters.get(key, parameter.default)
            if value is None:
                raise SettingsError(
                    f"method = {self.method!r} needs {key} ({parameter.range}: {parameter.description.rstrip('.')}), "
                    f"which has no default: give it by --set {key}=…"
                )
            own[key] = parameter.checked(value)
        return own


def check_known(what: str, value: str, choices: Collection[str]) -> str:
    """Return `value` if it is among `choices`; else say so and suggest the nearest."""
    if value not in choices:
        close = difflib.get_close_matches(value, choices, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise ValueError(f"unknown {what}: {hint}there are {', '.join(choices)}")
    return value


def sizes_of(words: str) -> dict[str, int]:
    """Return the clients' sizes that words as site-a=1200 site-b=300 state.

    Raises
    ------
    ValueError
        When a word states no size, or a client is named twice.
    """
    sizes: dict[str, int] = {}
    for word in words.split():
        name, _, size = word.partition("=")
        if not (name and size.isascii() and size.isdigit() and int(size) >= 1):
            raise ValueError(f"{word!r} does not state a client's number of examples: write it as site-a=1200")
        if name in sizes:
            raise ValueError(f"client {name} is named twice: give each client one number of examples")
        sizes[name] = int(size)
    return sizes


def check_used(given: Iterable[str], methods: Collection[str], task: str) -> None:
    """Raise SettingsError when a key that a user has given belongs to another task, or to none of these methods.

    A run config has the parameters of all methods and tasks, so only where somebody typed one is it a mistake.
    """
    info = TASKS[task]
    without_choice = {"model": not info.models, "partition": not info.partitions}
    for key in given:
        owner, dot, _ = key.partition(".")
        if dot and owner in TASKS and owner != task:
            raise SettingsError(f"{key} has no effect with task = {task!r}: leave it out, or set task={owner}")
        if dot and owner in METHODS and owner not in methods:
            chosen = ", ".join(map(repr, methods))
            raise SettingsError(f"{key} has no effect with method = {chosen}: leave it out, or set method={owner}")
        if without_choice.get(key):
            raise SettingsError(f"{key} has no effect with task = {task!r}, which has but one: leave it out")


def may_differ(*, finished: bool) -> Collection[str]:
    """Return the keys of settings that may differ from those that a run was begun with; a finished one has fewer."""
    return frozenset(marked(Mark.FREE) if finished else marked(Mark.FREE, Mark.LIMIT))


def default_config() -> dict[str, Value]:
    """Return every run-config key with its default, those of all methods and tasks included; "" where there is none."""
    own = {key: UNSET if each.default is None else each.default for key, each in parameters().items()}
    return RunSettings.model_validate({}).model_dump(by_alias=True) | own


# What a user types --------------------------------------------------------------------------------------------------


def assigned(words: Iterable[str]) -> dict[str, Value]:
    """Return the settings of KEY=VALUE words; of several values of a key, the last.

    Raises
    ------
    SettingsError
        When a word is no assignment.
    """
    config: dict[str, Value] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals:
            raise SettingsError(f"--set {word}: write it as KEY=VALUE, as in fedfv.alpha=0.2")
        config[key.strip()] = parsed(text.strip())
    return config


def parsed(text: str) -> Value:
    """Return a boolean, a number or a string as TOML reads it; anything else is taken as it is written."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return value if isinstance(value, Value) else text


def _is_unset(parameter: Parameter, value: object) -> bool:
    return parameter.default is None and value == UNSET


def _hint(key: str, known: Collection[str]) -> str:
    """Return what was probably meant by an unknown key: a setting of a task or method by that name, or the nearest."""
    same = [each for each in known if each.endswith(f".{key}")]
    close = same or difflib.get_close_matches(key, known, n=1)
    return f"did you mean {close[0]}?" if close else "fairbloom settings lists them"


def _in_words(error: Mapping[str, Any]) -> str:
    reason = str(error["msg"]).removeprefix("Value error, ")
    where = ".".join(str(part) for part in error["loc"])
    return f"{where} = {error['input']!r}: {reason}" if where else reason
