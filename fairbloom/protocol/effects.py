"""Settings and options without an effect in a run: each is refused, with reason and remedy."""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple


class WithoutEffect(NamedTuple):
    """Settings that have no effect if `applies`; `reason` follows "has no effect" in the error."""

    names: Collection[str]
    applies: bool
    reason: str
    remedy: str


def explain_without_effect(given: Mapping[str, str], rules: Iterable[WithoutEffect]) -> str:
    """Return the error of the first given setting that has no effect, or "".

    `given` has the settings by name, as they are written in the error.
    """
    for rule in rules:
        for name in rule.names if rule.applies else ():
            if name in given:
                return f"{given[name]} has no effect{rule.reason}: {rule.remedy}"
    return ""
