"""Words that name the arrays which clients keep for themselves, and names that wrappers give."""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

# The words that name parts of a model; all others are patterns of names.
PART_WORDS = frozenset({"head", "body", "norm"})

# What DataParallel, torch.compile and Opacus put before the names of a wrapped model's arrays.
WRAPPERS = re.compile(r"(?<![^.])(?:module|_orig_mod|_module)\.")


def split_words(patterns: str) -> list[str]:
    """Return the words of a text that names arrays."""
    return patterns.replace(",", " ").split()


def match_names(names: Iterable[str], patterns: str) -> list[str]:
    """Return the names that match one of the patterns, in their order."""
    words = split_words(patterns)
    return [name for name in names if any(fnmatchcase(name, word) for word in words)]


def without_wrappers(name: str) -> str:
    """Return the name of an array without those of wrappers: "0.weight" of "module.0.weight"."""
    return WRAPPERS.sub("", name)
