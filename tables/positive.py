"""The positive one of two classes, which sensitivity, F1 and the rates of groups are of."""

from collections.abc import Collection, Sequence

from .schema import fold

# The class that a 1 is opposed to, where it means yes; of 1 and 2, either may.
OPPOSITES = ("0", "-1")


def choose_positive(
    classes: Sequence[str], counts: Sequence[int], words: Collection[str]
) -> tuple[str, str]:
    """Return the class of two that is probably the positive one, and why.

    It is the one with a name among `words`, which are in lower case, or else the rarer one, or else
    the second. `counts` are the numbers of rows of each.
    """
    named = [
        name
        for name, other in zip(classes, reversed(classes), strict=True)
        if fold(name) in words and (name != "1" or other in OPPOSITES)
    ]
    if len(named) == 1:
        return named[0], "by its name"
    if counts[0] == counts[1]:
        return classes[1], "the second one"
    return classes[int(counts[1] < counts[0])], "the rarer one"


def ask_about_positive(reason: str) -> str:
    """Return the comment behind the positive class that a draft of a schema has chosen."""
    return f"# {reason}: is it the class to find? Sensitivity, F1 and rates are of it"
