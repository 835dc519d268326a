"""Parameters: the settings of a run, the options of every method, and those of single methods and tasks.

Each is declared once, where it is used, with its type, range and default: `alpha: Annotated[float,
Range("[0, 1]")] =
0.1`. Checks, error messages, tables, documentation and the run config's block in pyproject.toml are
made from that.
"""

import inspect
import math
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from numbers import Integral, Real
from typing import Annotated, Any, get_args, get_origin

from fairbloom.errors import FairbloomError, did_you_mean

Value = bool | int | float | str
"""What a parameter may be; Flower's run configs carry nothing else."""


class SettingsError(FairbloomError):
    """A setting that is unknown or impossible.

    The message names it, its value and what would do.
    """


class Mark(Enum):
    """What is known of a setting in addition to its type, range and meaning, as Annotated metadata.

    A setting without FREE or LIMIT belongs to what a run is, and must be the same when the run is
    continued.
    """

    SENT_TO_CLIENTS = (
        "a client's work depends on it, so a run sets it on deployed clients; they drop all others"
    )
    FREE = "it leaves the numbers unchanged, so it may differ whenever a run is continued"
    LIMIT = (
        "it refuses replies; an honest one may have been among them, so it may be changed until the"
        " run is finished"
    )
    EXTENDABLE = "it may be raised when a run is continued, and a finished run is extended then"
    PLACE = (
        "it says where a process computes or keeps things, so clients of one run may differ in it"
    )
    DEVICE = (
        "it is a path on a device: the owner of a deployed client sets it in client.toml, and no"
        " run does"
    )
    DEPLOYED = (
        "it says how long, and for how many deployed clients, a run waits: in one process it has no"
        " effect"
    )
    NAMES = "it holds names, of clients or scores, with commas between them"
    ROUNDING = "it changes the numbers by rounding alone: where and in what order they are computed"
    CHANGES_STEP = (
        "with it a client's step is not that of plain SGD: methods that read gradients off updates"
        " refuse it"
    )
    VARIANT = (
        "the methods of a comparison may differ in it, as in fedavg(learning-rate=0.05); draws stay"
        " paired"
    )


@dataclass(frozen=True)
class Range:
    """The numbers that a parameter may be, as in mathematics: Range("(0, 1]"), Range("[1, inf)").

    Infinity belongs to it where the bracket is square there, and NaN never does.
    """

    interval: str

    def __contains__(self, number: float) -> bool:
        """Return whether a number lies in the interval."""
        low, high = self.ends
        above = number > low or (self.interval[0] == "[" and number == low)
        below = number < high or (self.interval[-1] == "]" and number == high)
        return above and below  # both are false for NaN

    @property
    def ends(self) -> tuple[float, float]:
        """The lower and the upper end."""
        low, high = (end.strip() for end in self.interval[1:-1].split(","))
        return _number(low), _number(high)

    @property
    def words(self) -> str:
        """The range in words, to follow a type: " at least 0"."""
        low, high = self.ends
        if self.interval[-1] == ")" and high == math.inf:
            return (
                f" {'at least' if self.interval[0] == '[' else 'above'} {low:.15g}"
                if low > -math.inf
                else ""
            )
        return f" in {self.interval}"


NonNegative = Annotated[float, Range("[0, inf)")]
Positive = Annotated[float, Range("(0, inf)")]


@dataclass(frozen=True, init=False)
class Choices:
    """The words that a parameter may be: Choices("examples", "uniform")."""

    words: tuple[str, ...]

    def __init__(self, *words: str) -> None:
        object.__setattr__(self, "words", words)


@dataclass(frozen=True)
class Pairs:
    """The texts that mean a mapping of names, as "site-a=1200 site-b=300" does, and "" for none.

    It stands with what may be a mapping in Python: `Annotated[Mapping[str, float] | str | None,
    Pairs("site-a=0.1")]`.
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
    """The partitions with which a setting has an effect; it has none with others."""

    names: tuple[str, ...]

    def __init__(self, *names: str) -> None:
        object.__setattr__(self, "names", names)


@dataclass(frozen=True)
class Default:
    """The default of a parameter that is declared where there is no place for one, as in a TypedDict."""

    value: Value


@dataclass(frozen=True)
class Parameter:
    """A setting of a run, an option of every method, or a parameter of a method or task.

    Attributes
    ----------
    name
        Its name in a run config, with hyphens, without that of the method or task that it belongs
        to.
    kind
        Its type: int, float, bool or str.
    default
        Its value where none is given; None: one must be given.
    description
        What it means, in a sentence.
    allowed
        The numbers, words or texts that it may be; None for all finite numbers, or all words.
    marks
        What else is known of it.
    owner
        The method or task that it belongs to; "" for a setting of every run.
    partitions
        The partitions with which it has an effect; () for all.
    """

    name: str
    kind: type
    default: Value | None
    description: str = ""
    allowed: Range | Choices | Pairs | None = None
    marks: frozenset[Mark] = frozenset()
    owner: str = ""
    partitions: tuple[str, ...] = ()

    @property
    def example(self) -> Value:
        """A value that it may have: its default, or else one that is allowed."""
        if self.default is not None:
            return self.default
        if isinstance(self.allowed, Choices):
            return self.allowed.words[0]
        low, high = self.allowed.ends if isinstance(self.allowed, Range) else (0.0, math.inf)
        inside = (
            (low + high) / 2
            if math.isfinite(high - low)
            else low + 1
            if math.isfinite(low)
            else high - 1
        )
        example: Value = (
            self.kind(inside if math.isfinite(inside) else 1) if self.kind is not str else ""
        )
        return example

    @property
    def key(self) -> str:
        """Its name in a run config: `fedfv.alpha`."""
        return f"{self.owner}.{self.name}" if self.owner else self.name

    @property
    def argument(self) -> str:
        """Its name in Python."""
        return self.name.replace("-", "_")

    @property
    def range(self) -> str:
        """What it may be, in words: "int at least 0"."""
        if isinstance(self.allowed, Choices):
            *first, last = (word or '""' for word in self.allowed.words)
            return f"{', '.join(first)} or {last}" if first else last
        if isinstance(self.allowed, Pairs):
            return f'"" or pairs as in {self.allowed.example!r}'
        return self.kind.__name__ + (self.allowed.words if self.allowed else "")

    def checked(self, value: object, called: str = "") -> Value:
        """Return `value` in its type: a whole number as the float that is meant.

        A value of another type, or outside the range, raises SettingsError, which names parameter,
        value and range. Errors call the parameter `called`, by default its key in a run config.
        """
        chosen = self._taken(value)
        if chosen is None:
            raise SettingsError(
                f"{called or self.key} = {value!r}: {self._advise(value)}allowed is {self.range}"
            )
        return chosen

    def _advise(self, value: object) -> str:
        """Return what to do about an impossible value that looks like a certain mistake, "" about any other one."""
        several = (
            value.split(",")
            if isinstance(value, str)
            else value
            if isinstance(value, list | tuple)
            else ()
        )
        read = [parsed(each.strip()) if isinstance(each, str) else each for each in several]
        if len(read) > 1 and all(self._taken(each) is not None for each in read):
            if self.key == "seed":
                return (
                    f"a run takes one value; fairbloom compare --seeds {len(read)} runs {len(read)}"
                    " of them; "
                )
            values = ",".join(str(each).strip() for each in several)
            return (
                f"a run takes one value; fairbloom search --grid {self.key}={values} tries each; "
            )
        if isinstance(self.allowed, Choices):
            return did_you_mean(str(value), self.allowed.words)
        if self.kind is bool and isinstance(value, str):
            return "write true or false; "
        if self.kind is str and isinstance(value, bool | int | float):
            return f"put it in quotes, as in --set '{self.key}=\"{value}\"'; "
        if self.kind is int and isinstance(value, float) and value.is_integer():
            return f"write {value:.0f}; "
        if (
            isinstance(value, str)
            and self._taken(parsed(pointed := value.replace(",", ".").strip())) is not None
        ):
            return (
                f"write decimals with a point, {pointed}; "
                if "," in value
                else f"leave quotes out, {pointed}; "
            )
        return ""

    def _taken(self, value: object) -> Value | None:
        """Return a value in the parameter's type, None where it is impossible.

        A name, or a share, may be a number.
        """
        if Mark.NAMES in self.marks and type(value) in (int, float):
            return str(value)
        if self.kind in (bool, str):
            right: Value | None = (
                value if isinstance(value, bool | str) and type(value) is self.kind else None
            )
            if isinstance(self.allowed, Pairs) and right not in self.allowed:
                return None
            return (
                None
                if isinstance(self.allowed, Choices) and right not in self.allowed.words
                else right
            )
        if isinstance(value, bool) or not isinstance(value, Integral if self.kind is int else Real):
            return None
        try:
            number: float = self.kind(value)
        except OverflowError:  # a whole number beyond all floats
            return None
        allowed = (
            number in self.allowed
            if isinstance(self.allowed, Range)
            else -math.inf < number < math.inf
        )
        return number if allowed else None


@cache
def parameters_of(
    owner: str, declared: Callable[..., Any], *, skipped: int = 0
) -> tuple[Parameter, ...]:
    """Return the parameters of a method or task: the meaning from its docstring, all else from its signature.

    Their keys begin with `owner`; the first `skipped` parameters are left out. A mapping is a text
    here (`Pairs`), and None is "". A parameter that is no int, float, bool or str, or has no
    annotation, raises SettingsError.
    """
    meanings = described(inspect.getdoc(declared) or "")
    found = []
    is_class = isinstance(declared, type)
    # whose annotations have the ranges
    function = inspect.unwrap(declared.__init__ if is_class else declared)
    for argument in list(inspect.signature(function, eval_str=True).parameters.values())[
        skipped + is_class :
    ]:
        if argument.kind is inspect.Parameter.VAR_KEYWORD:  # the options that all methods have
            continue
        default = None if argument.default is inspect.Parameter.empty else argument.default
        annotation = argument.annotation
        if pairs := [each for each in get_args(annotation) if isinstance(each, Pairs)]:
            annotation = Annotated[str, pairs[0]]
            default = default or ""
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
    """Return the parameter that an annotation declares, None where it is none that a run config could carry."""
    kind, *others = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    if kind not in (int, float, bool, str):
        return None
    allowed = next((each for each in others if isinstance(each, Range | Choices | Pairs)), None)
    marks = frozenset(each for each in others if isinstance(each, Mark))
    standing_in = next((each.value for each in others if isinstance(each, Default)), default)
    partitions = next((each.names for each in others if isinstance(each, Partitions)), ())
    return Parameter(
        key_of(name), kind, standing_in, description, allowed, marks, owner, partitions
    )


@cache
def arguments_of(function: Callable[..., Any]) -> Mapping[str, Parameter | None]:
    """Return a function's parameters by their names in Python, None for those with other annotations.

    Annotations that cannot be evaluated, such as names that only a type checker imports, declare
    nothing.
    """
    try:
        found = inspect.signature(function, eval_str=True).parameters.values()
    except NameError:
        return {}
    named = [each for each in found if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]
    return {each.name: annotated(each.name, each.annotation, None) for each in named}


def described(docstring: str) -> dict[str, str]:
    """Return the meaning of each entry of a docstring's Parameters section, as numpydoc writes it."""
    section = re.search(r"^Parameters\n-+\n((?:\S.*\n(?: {4}.+\n?)+)+)", docstring, re.MULTILINE)
    entries = re.findall(r"^(\S.*)\n((?: {4}.+\n?)+)", section[1], re.MULTILINE) if section else []
    return {
        name.strip(): " ".join(meaning.split())
        for names, meaning in entries
        for name in names.partition(" : ")[0].split(",")
    }


def parsed(text: str) -> Value:
    """Return a boolean, a number or a string as TOML reads it, .9 too.

    Anything else is taken as it is written.
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


def split_pairs(text: str, example: str) -> dict[str, str]:
    """Return the value of each name in a text such as "site-a=1200 site-b=300".

    Errors show `example` as the remedy.
    """
    pairs: dict[str, str] = {}
    for word in text.split():
        name, _, value = word.partition("=")
        if not (name and value):
            raise ValueError(f"{word!r} does not state a value: write it as {example}")
        if name in pairs:
            raise ValueError(f"{name} is named twice: give each name one value")
        pairs[name] = value
    return pairs


@cache
def key_of(name: str) -> str:
    """Return what a run config calls a parameter of this name in Python; `schema_` is schema."""
    return name.rstrip("_").replace("_", "-")


def of_kind(value: object, kind: type) -> bool:
    """Return whether a value is of a setting's type; a whole number is, where any number may be."""
    return type(value) is kind or (kind is float and type(value) is int)


def _number(text: str) -> float:
    """Return an end of an interval; whole numbers exactly, however large."""
    return int(text) if re.fullmatch(r"-?\d+", text) else float(text)
