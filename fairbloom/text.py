"""Words of messages and pages that depend on a number or a condition."""


def plural(count: int, one: str, many: str) -> str:
    """Return `one` for a count of one, `many` for any other."""
    return one if count == 1 else many


def text_if(condition: object, text: str) -> str:
    """Return a text if the condition is true, "" otherwise."""
    return text if condition else ""
