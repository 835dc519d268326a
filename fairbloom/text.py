"""Words of messages and pages that depend on a number, a condition or a list."""

from collections.abc import Sequence


def plural(count: int, one: str, many: str) -> str:
    """Return `one` for a count of one, `many` for any other."""
    return one if count == 1 else many


def text_if(condition: object, text: str) -> str:
    """Return a text if the condition is true, "" otherwise."""
    return text if condition else ""


def join_first(names: Sequence[str], most: int = 12) -> str:
    """Return the first `most` names, joined for a sentence, and the number of others."""
    joined = ", ".join(names[:most])
    rest = len(names) - most
    return f"{joined} and {rest} more" if rest > 0 else joined
