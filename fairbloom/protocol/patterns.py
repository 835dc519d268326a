"""Words that name the arrays which clients keep for themselves."""

from collections.abc import Iterable
from fnmatch import fnmatchcase

# The words that name parts of a model; all others are patterns of names.
PART_WORDS = frozenset({"head", "body", "norm"})


def split_words(patterns: str) -> list[str]:
    """Return the words of a text that names arrays."""
    return patterns.replace(",", " ").split()


def match_names(names: Iterable[str], patterns: str) -> list[str]:
    """Return the names that match one of the patterns, in their order."""
    words = split_words(patterns)
    return [name for name in names if any(fnmatchcase(name, word) for word in words)]
