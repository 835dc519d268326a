"""What is tried of a setting: a list of values."""

from collections.abc import Sequence

from fairbloom.protocol.parameters import Parameter
from fairbloom.protocol.settings import SettingsError, Value, parsed

from .labels import format_value


def check_values(parameter: Parameter, values: Sequence[Value]) -> list[Value]:
    """Return the values of a setting that are tried; raise SettingsError for an impossible one, or one given twice."""
    checked = [parameter.checked(value) for value in values]
    if twice := [value for value in checked if checked.count(value) > 1]:
        raise SettingsError(f"{parameter.key} = {format_value(twice[0])} is there twice: give each value once")
    return checked


def values_in(text: str) -> tuple[str, list[Value]]:
    """Return the setting and the values of a text as alpha=0,0.1,0.5; raise SettingsError when the text has none."""
    key, equals, listed = text.partition("=")
    words = [word.strip() for word in listed.split(",")]
    if not equals or not key.strip() or not all(words):
        raise SettingsError(f"grid = {text!r}: write it as KEY=VALUE,VALUE, as in alpha=0,0.1,0.5")
    return key.strip(), [parsed(word) for word in words]
