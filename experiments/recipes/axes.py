"""What is tried of a setting: a list of values, or a range that a search draws from."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from numpy.random import Generator

from fairbloom.protocol.parameters import Parameter
from fairbloom.protocol.settings import SettingsError, Value, parsed

from .labels import format_value

LOG = "log"

SYNTAX = "LOW..HIGH, or LOW..HIGH:log for even steps of its logarithm, as in learning-rate=0.001..0.3:log"
"""How a range is written."""


@dataclass(frozen=True)
class Span:
    """All numbers of a closed interval, whole ones where the setting takes no others."""

    low: float
    high: float
    log: bool = False  # whether a search draws evenly from the logarithms

    @property
    def whole(self) -> bool:
        """Whether it has whole numbers alone."""
        return isinstance(self.low, int)

    def __str__(self) -> str:
        """Return it as it is written."""
        return f"{format_value(self.low)}..{format_value(self.high)}{f':{LOG}' if self.log else ''}"


Axis = Sequence[Value] | Span
"""What is tried of a setting."""


def draw(axis: Axis, stream: Generator) -> Value:
    """Return a value of an axis; of a range one with four digits, as one would write it."""
    if not isinstance(axis, Span):
        return axis[int(stream.integers(len(axis)))]
    ends = (math.log(axis.low), math.log(axis.high)) if axis.log else (axis.low, axis.high)
    share = stream.random()
    number = ends[0] + share * (ends[1] - ends[0])
    number = math.exp(number) if axis.log else number
    if axis.whole:
        return min(max(round(number), int(axis.low)), int(axis.high))
    return min(max(float(f"{number:.4g}"), axis.low), axis.high)


def axis_of(parameter: Parameter, values: Sequence[Value]) -> Axis:
    """Return the checked values of a setting to try, or the range that a single text among them states."""
    if len(values) == 1 and isinstance(values[0], str) and ".." in values[0] and parameter.kind in (int, float):
        return _span(parameter, values[0])
    checked = [parameter.checked(value) for value in values]
    if twice := [value for value in checked if checked.count(value) > 1]:
        raise SettingsError(f"{parameter.key} = {format_value(twice[0])} is there twice: give each value once")
    return checked


def _span(parameter: Parameter, text: str) -> Span:
    match = re.fullmatch(rf"(.+?)\.\.(.+?)(:{LOG})?", text.strip())
    if match is None:
        raise SettingsError(f"{parameter.key} = {text!r} is no range: write {SYNTAX}")
    low, high = (parameter.checked(parsed(end.strip())) for end in match.group(1, 2))
    span = Span(float(low), float(high), bool(match[3]))
    if parameter.kind is int:
        span = Span(int(low), int(high), span.log)
    if not span.low < span.high or not math.isfinite(span.high - span.low):
        raise SettingsError(f"{parameter.key} = {text!r}: the range is empty or endless: write {SYNTAX}")
    if span.log and not span.low > 0:
        raise SettingsError(f"{parameter.key} = {text!r}: a logarithm needs numbers above 0: begin above it")
    return span


def values_in(text: str) -> tuple[str, list[Value]]:
    """Return the setting and the values of a text as alpha=0,0.1,0.5; raise SettingsError when the text has none."""
    key, equals, listed = text.partition("=")
    words = [word.strip() for word in listed.split(",")]
    if not equals or not key.strip() or not all(words):
        raise SettingsError(f"grid = {text!r}: write it as KEY=VALUE,VALUE, as in alpha=0,0.1,0.5, or KEY={SYNTAX}")
    return key.strip(), [parsed(word) for word in words]
