"""Parameters: a run's settings, and the options of methods and tasks.

Each is declared once, where it is used, with its type, range and default:
`alpha: Annotated[float, Range("[0, 1]")] = 0.1`. Checks, error messages, tables, documentation and
the run config's block in pyproject.toml are made from this declaration.
"""

import inspect
import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache, cached_property
from numbers import Integral, Real
from typing import Annotated, Any, get_args, get_origin

from fairbloom.errors import FairbloomError, did_you_mean
from fairbloom.text import quote

from .conditions import Condition, Fault, OnlyInProcess, Under, Where

# The types of a parameter; Flower's run configs have no others.
Value = bool | int | float | str


# A name in quotes, as TOML has them.
QUOTED = r""""(?:[^"\\\n]|\\.)+"|'[^'\n]+'"""


class SettingsError(FairbloomError):
    """A setting that is unknown or impossible; the message names it, its value and the remedy."""


class OptionError(SettingsError):
    """A fault of a method's option, which its reader may know as a setting, by its key."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault)
        self.fault = fault


class Mark(Enum):
    """A property of a setting, as Annotated metadata next to its type, range and meaning.

    A setting without FREE or LIMIT defines the run, and must be the same when the run is continued.
    """

    SENT_TO_CLIENTS = (
        "a client's work depends on it, so a run sets it on deployed clients; they drop all others"
    )
    FREE = "it leaves the numbers unchanged, so it may differ whenever a run is continued"
    LIMIT = (
        "it refuses replies; as some of them may have been honest, it may be changed until the run"
        " is finished"
    )
    EXTENDABLE = "it may be raised when a run is continued, and a finished run is extended then"
    PLACE = "it chooses a device or a folder of a process, so clients of one run may differ in it"
    DEVICE = "it is a path on a device: only the owner of a deployed client sets it, in client.toml"
    DEPLOYED = (
        "it sets how long, or for how many deployed clients, a run waits: it has no effect in one"
        " process"
    )
    NAMES = "it holds names, of clients or scores, with commas between them"
    ROUNDING = "it changes the numbers only by rounding: where and in what order they are computed"
    CHANGES_STEP = (
        "with it a client's step is not that of plain SGD: methods that read gradients off updates"
        " refuse it"
    )
    VARIANT = (
        "the methods of a comparison may differ in it, as in fedavg(learning-rate=0.05); random"
        " numbers stay paired"
    )


@dataclass(frozen=True)
class Range:
    """The numbers that a parameter may be, as an interval: Range("(0, 1]"), Range("[1, inf)").

    Infinity belongs to it if the bracket is square, NaN never does.
    """

    interval: str

    def __contains__(self, number: Any) -> bool:
        """Return whether a number lies in the interval."""
        low, high = self.ends
        above = number > low or (self.interval[0] == "[" and number == low)
        below = number < high or (self.interval[-1] == "]" and number == high)
        return above and below  # both are false for NaN

    @cached_property  # every message has settings that are checked
    def ends(self) -> tuple[float, float]:
        """The lower and the upper end."""
        low, _, high = self.interval[1:-1].partition(",")
        return _parse_end(low.strip()), _parse_end(high.strip())

    @property
    def words(self) -> str:
        """The range as text that follows a type: " at least 0"."""
        low, high = self.ends
        if self.interval[-1] != ")" or high != math.inf:
            return f" in {self.interval}"
        if low == -math.inf:
            return ""
        return f" at least {low:.15g}" if self.interval[0] == "[" else f" above {low:.15g}"


NonNegative = Annotated[float, Range("[0, inf)")]
Positive = Annotated[float, Range("(0, inf)")]


@dataclass(frozen=True, init=False)
class Choices:
    """The words that a parameter may be: Choices("examples", "uniform")."""

    words: tuple[str, ...]

    def __init__(self, *words: str) -> None:
        object.__setattr__(self, "words", words)

    def __contains__(self, text: object) -> bool:
        """Return whether a text is one of the words."""
        return text in self.words


@dataclass(frozen=True)
class Pairs:
    """The texts that mean a mapping of names: "site-a=1200 site-b=300", and "" for no mapping.

    It annotates parameters that may be a mapping in Python:
    `Annotated[Mapping[str, float] | str | None, Pairs("site-a=0.1")]`.
    """

    example: str

    def __contains__(self, text: object) -> bool:
        """Return whether a text means a mapping."""
        try:
            return isinstance(text, str) and split_pairs(text, self.example) is not None
        except ValueError:
            return False


@dataclass(frozen=True, init=False)
class Partitions:
    """The only partitions with which a setting has an effect."""

    names: tuple[str, ...]

    def __init__(self, *names: str) -> None:
        object.__setattr__(self, "names", names)


@dataclass(frozen=True)
class Default:
    """The default of a parameter, if its declaration has no place for one, as in a TypedDict."""

    value: Value


@dataclass(frozen=True)
class Meaning:
    """The meaning of a parameter, in a sentence, if its declaration has no docstring."""

    sentence: str


@dataclass(frozen=True)
class Parameter:
    """A setting of a run, an option of every method, or a parameter of a method or task.

    Attributes
    ----------
    name
        Its name in a run config, with hyphens, without the prefix of its method or task.
    kind
        Its type: int, float, bool or str.
    default
        Its value if none is given; None: a value must be given.
    description
        Its meaning, in a sentence.
    allowed
        The numbers, words or texts that it may be; None for all finite numbers, or all words.
    marks
        Its further properties.
    owner
        The method or task that it belongs to; "" for a setting of every run.
    partitions
        The partitions with which it has an effect; () for all.
    under
        The values that it may have in some runs.
    only_in_process
        Why deployed clients cannot have it, None if they can.
    conditions
        What its values, but for the default, need of other settings.
    """

    name: str
    kind: type
    default: Value | None
    description: str = ""
    allowed: Range | Choices | Pairs | None = None
    marks: frozenset[Mark] = frozenset()
    owner: str = ""
    partitions: tuple[str, ...] = ()
    under: tuple[Under, ...] = ()
    only_in_process: OnlyInProcess | None = None
    conditions: tuple[Condition, ...] = ()

    @property
    def key(self) -> str:
        """Its name in a run config: `fedfv.alpha`."""
        return f"{self.owner}.{self.name}" if self.owner else self.name

    @property
    def argument(self) -> str:
        """Its name in Python."""
        return self.name.replace(".", "__").replace("-", "_")

    @property
    def range(self) -> str:
        """The allowed values as text: "int at least 0"."""
        if isinstance(self.allowed, Choices):
            *others, last = [word or '""' for word in self.allowed.words]
            return f"{', '.join(others)} or {last}" if others else last
        if isinstance(self.allowed, Pairs):
            return f'"" or pairs as in {self.allowed.example!r}'
        if self.allowed is None:
            return self.kind.__name__
        return self.kind.__name__ + self.allowed.words

    def values_in(self, where: Where) -> Under | None:
        """Return which values it may have in some runs, None if its declaration does not say."""
        return next((each for each in self.under if each.where is where), None)

    def checked(self, value: object, called: str = "", *, entry: str = "") -> Value:
        """Return `value` in the parameter's type: a whole number may stand for a float.

        Raise SettingsError if it has another type or is outside the range; the message names
        parameter, value and range. It calls the parameter `called`, by default its key, and `entry`
        says which part of it the value is.
        """
        chosen = self._convert(value)
        if chosen is None:
            facts = {
                "entry": entry,
                "given": quote(value),
                "advice": self._advise(value),
                "range": self.range,
            }
            text = "{setting}{entry} = {given}: {advice}allowed is {range}"
            raise OptionError(Fault(called or self.key, value, text, facts))
        return chosen

    def _advise(self, value: object) -> str:
        """Return the remedy for an impossible value that is a common mistake, else ""."""
        several: Sequence[Any] = ()
        values = "VALUE,VALUE"  # a list may hold data, given by mistake
        if isinstance(value, list | tuple):
            several = value
        elif isinstance(value, str):
            several = [each.strip() for each in value.split(",")]
            values = ",".join(several)
        read = [parsed(each.strip()) if isinstance(each, str) else each for each in several]
        count = len(read)
        if count > 1 and all(self._convert(each) is not None for each in read):
            if self.key == "seed":
                command = f"compare --seeds {count} runs {count} of them"
            else:
                command = f"search --grid {self.key}={values} tries each"
            return f"a run takes one value; fairbloom {command}; "
        if isinstance(self.allowed, Choices) and isinstance(value, str):
            return did_you_mean(value, self.allowed.words)
        if self.kind is bool and isinstance(value, str):
            return "write true or false; "
        if self.allowed is None and self.kind is str and isinstance(value, bool | int | float):
            return f"put it in quotes, as in --set '{self.key}=\"{value}\"'; "
        if self.kind is int and isinstance(value, float) and value.is_integer():
            return f"write {value:.0f}; "
        if isinstance(value, str):
            pointed = value.replace(",", ".").strip()
            if self._convert(parsed(pointed)) is not None:
                remedy = "write decimals with a point" if "," in value else "leave quotes out"
                return f"{remedy}, {pointed}; "
        return ""

    def _convert(self, value: object) -> Value | None:
        """Return a value in the parameter's type, None if it is impossible."""
        if Mark.NAMES in self.marks and type(value) in (int, float):
            return str(value)  # a client's name, or a share, may look like a number
        if self.kind in (bool, str):
            if not isinstance(value, bool | str) or type(value) is not self.kind:
                return None
            return value if self.allowed is None or value in self.allowed else None
        numbers = Integral if self.kind is int else Real
        if isinstance(value, bool) or not isinstance(value, numbers):
            return None
        try:
            number: float = self.kind(value)
        except OverflowError:  # a whole number beyond all floats
            return None
        if isinstance(self.allowed, Range):
            return number if number in self.allowed else None
        return number if -math.inf < number < math.inf else None


@cache
def parameters_of(
    owner: str, declared: Callable[..., Any], *, skipped: int = 0
) -> tuple[Parameter, ...]:
    """Return the parameters of a method or task, from its signature and docstring.

    Their keys begin with `owner`; the first `skipped` parameters are left out. A mapping is a text
    here (`Pairs`), and None is "", or 0 of a number. Raise SettingsError if a parameter is not
    annotated as int, float, bool or str.
    """
    meanings = described(inspect.getdoc(declared) or "")
    found = []
    is_class = isinstance(declared, type)
    function = declared.__init__ if is_class else declared
    arguments = list(inspect.signature(function, eval_str=True).parameters.values())
    for argument in arguments[skipped + is_class :]:
        if argument.kind is inspect.Parameter.VAR_KEYWORD:  # the options that all methods have
            continue
        default = None if argument.default is inspect.Parameter.empty else argument.default
        annotation = argument.annotation
        pairs = [each for each in get_args(annotation) if isinstance(each, Pairs)]
        if pairs:
            annotation = Annotated[str, pairs[0]]
            default = default or ""
        if get_args(annotation)[:1] == (float | None,):
            annotation = Annotated[float, *get_args(annotation)[1:]]
            default = default or 0.0
        parameter = annotated(
            argument.name, annotation, default, meanings.get(argument.name, ""), owner
        )
        if parameter is None:
            raise SettingsError(
                f"{declared.__name__}'s parameter {argument.name} must be annotated: int, float,"
                " bool or str"
            )
        found.append(parameter)
    return tuple(found)


def annotated(
    name: str, annotation: object, default: Value | None, description: str = "", owner: str = ""
) -> Parameter | None:
    """Return the parameter that an annotation declares, None if its type fits no run config."""
    kind, *others = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    if kind not in (int, float, bool, str):
        return None
    allowed: Range | Choices | Pairs | None = None
    marks = set[Mark]()
    partitions: tuple[str, ...] = ()
    under: list[Under] = []
    only_in_process: OnlyInProcess | None = None
    conditions: list[Condition] = []
    for other in others:
        match other:
            case Default():
                default = other.value
            case Meaning():
                description = other.sentence
            case Range() | Choices() | Pairs():
                allowed = other
            case Mark():
                marks.add(other)
            case Partitions():
                partitions = other.names
            case Under():
                under.append(other)
            case OnlyInProcess():
                only_in_process = other
            case Condition():
                conditions.append(other)
    return Parameter(
        key_of(name),
        kind,
        default,
        description,
        allowed=allowed,
        marks=frozenset(marks),
        owner=owner,
        partitions=partitions,
        under=tuple(under),
        only_in_process=only_in_process,
        conditions=tuple(conditions),
    )


@cache
def arguments_of(function: Callable[..., Any]) -> Mapping[str, Parameter | None]:
    """Return a function's parameters by their names in Python, None for other annotations.

    If annotations cannot be evaluated, such as names that only a type checker imports, return {}.
    """
    try:
        arguments = inspect.signature(function, eval_str=True).parameters.values()
    except NameError:
        return {}
    return {
        each.name: annotated(each.name, each.annotation, None)
        for each in arguments
        if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
    }


def described(docstring: str) -> dict[str, str]:
    """Return the meaning of each entry of a docstring's Parameters section, in NumPy style."""
    section = re.search(r"^Parameters\n-+\n((?:\S.*\n(?: {4}.+\n?)+)+)", docstring, re.MULTILINE)
    if section is None:
        return {}
    return {
        name.strip(): " ".join(meaning.split())
        for names, meaning in re.findall(r"^(\S.*)\n((?: {4}.+\n?)+)", section[1], re.MULTILINE)
        for name in names.partition(" : ")[0].split(",")
    }


def parsed(text: str) -> Value:
    """Return the boolean, number or string of a TOML value, and any other text unchanged.

    Unlike TOML, .9 is a number.
    """
    if re.match(r"[^\"']*[#\n\[{]", text):  # a comment, a second line, a list or a table to TOML
        return text
    try:
        value = tomllib.loads("value = " + re.sub(r"^([+-]?)\.(?=[0-9])", r"\g<1>0.", text))[
            "value"
        ]
    except tomllib.TOMLDecodeError:
        return text
    return value if isinstance(value, Value) else text


def split_names(text: str) -> tuple[str, ...]:
    """Return the words that commas separate, for example names of clients.

    A name with a comma is in quotes.
    """
    return tuple(
        _unquote(word)
        for word in re.findall(rf"(?:^|,)\s*({QUOTED}|[^,]*?)\s*(?=,|$)", text)
        if word
    )


def split_pairs(text: str, example: str) -> dict[str, str]:
    """Return the value of each name in a text such as "site-a=1200 site-b=300".

    A name with a space or an equals sign is in quotes. Raise ValueError, with `example` as the
    remedy, for any other text.
    """
    pairs: dict[str, str] = {}
    for word in re.findall(rf"(?:{QUOTED})=\S*|\S+", text):
        stated = re.fullmatch(rf"({QUOTED}|[^=]+)=(.+)", word)
        if stated is None:
            raise ValueError(
                f"{word!r} does not state a value: write it as {example}, and a name with spaces or"
                " equals signs in quotes"
            )
        name = _unquote(stated[1])
        if name in pairs:
            raise ValueError(f"{name} is named twice: give each name one value")
        pairs[name] = stated[2]
    return pairs


def _unquote(name: str) -> str:
    return str(parsed(name)) if re.fullmatch(QUOTED, name) else name


@cache
def key_of(name: str) -> str:
    """Return the key of a parameter with this name in Python: an_option is an-option.

    That of `schema_` is schema, and that of `privacy__mode` is privacy.mode.
    """
    return name.rstrip("_").replace("__", ".").replace("_", "-")


def of_kind(value: object, kind: type) -> bool:
    """Return whether a value has a setting's type; a whole number is also a float."""
    return type(value) is kind or (kind is float and type(value) is int)


def _parse_end(text: str) -> float:
    """Return an end of an interval; a whole number of any size is exact."""
    return int(text) if re.fullmatch(r"-?\d+", text) else float(text)
