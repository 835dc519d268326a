"""The base of all errors that a user can correct, and what they suggest."""

import difflib
import inspect
import os
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import islice
from pathlib import PurePath
from types import CodeType
from typing import Any

from fairbloom.text import join_first, plural, text_if


class FairbloomError(ValueError):
    """Something that a user can correct: the message names the thing, its value and the remedy.

    The command line prints the message as one line and ends with exit code 2. Every other exception
    is a bug, of ours or of an app or a method that somebody wrote, and keeps its traceback.
    """


def reason_of(fault: Mapping[str, Any]) -> str:
    """Return why pydantic refuses a value, without its prefix for errors of our own."""
    own = fault.get("ctx", {}).get("error")
    return str(fault["msg"] if own is None else own)


def is_expected(error: BaseException) -> bool:
    """Return whether an error is a FairbloomError, also of a copy that a run has brought."""
    return any(
        (each.__module__, each.__name__) == (__name__, FairbloomError.__name__)
        for each in type(error).__mro__
    )


class ReportableError(FairbloomError):
    """An error on a client with a text that the server may read.

    `reportable` quotes nothing of the client's files. Other errors of deployed clients stay in the
    clients' logs. `code` is that of the error in a message, if a server decides by it.
    """

    def __init__(self, message: str, reportable: str = "", *, code: int | None = None) -> None:
        super().__init__(message)
        self.reportable = reportable or message
        self.code = code


def reportable(error: BaseException) -> str:
    """Return a client's error for the server: its text if reportable, else kind and place."""
    # asked of any class: a bundle may bring another copy of this module
    words = getattr(error, "reportable", None)
    if isinstance(words, str):
        return words
    place = place_of(error) or innermost_place(error)
    return (
        f"{type(error).__name__}{text_if(place, f' in {place}')}: what it says stays in this"
        " client's own log"
    )


# The folders of Python itself and of installed packages.
INSTALLED = tuple(
    {
        f"{sysconfig.get_path(name)}{os.sep}"
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
    }
)


def place_of(error: BaseException) -> str:
    """Return file and line of the innermost call in a user's code, "" if none took part."""
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        place = _own_place(str(frame.f_globals.get("__name__", "")), frame.f_code, line) or place
    return place


def place_of_function(function: Callable[..., object]) -> str:
    """Return file and line of a user's own function, "" for any other."""
    found = inspect.unwrap(function)
    found = found.func if isinstance(found, partial) else found
    code = getattr(found, "__code__", None)
    return "" if code is None else _own_place(found.__module__, code, code.co_firstlineno)


def _own_place(module: str, code: CodeType, line: int) -> str:
    """Return file and line of code that is neither ours, nor Python's or an installed package's.

    Else "".
    """
    ours = module.partition(".")[0] == __name__.partition(".")[0]
    if ours or code.co_filename.startswith(("<frozen", *INSTALLED)):
        return ""
    return f"{PurePath(code.co_filename).name}, line {line}"


def innermost_place(error: BaseException) -> str:
    """Return file and line of the innermost call of an error, whoever wrote it."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<")
    ]
    return f"{PurePath(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""


def failure_reason(error: BaseException) -> str:
    """Return an error in one line: its text, for unforeseen ones also kind and place."""
    place = place_of(error)
    if is_expected(error) or (isinstance(error, ValueError) and not place):
        return str(error)
    return f"{type(error).__name__}: {error} ({place or innermost_place(error)})"


# Whether the package index has Fairbloom under its name: before that, whoever registers the name
# runs code wherever somebody installs it. `make settings` writes pages by it.
RELEASED = False

REPOSITORY = "https://github.com/fairbloom/fairbloom"


def install_command(extra: str) -> str:
    """Return the command that installs Fairbloom with an extra: "pip install 'fairbloom[excel]'".

    Before the first release it names the repository.
    """
    source = "" if RELEASED else f" @ git+{REPOSITORY}"
    return f"pip install 'fairbloom[{extra}]{source}'"


# The longest name for which a message has a suggestion, and the most names that it looks at: all
# of these, as unlike each other as names can be, take a few seconds.
MAX_NEAR = 60
MOST_NEAR = 2000

# How many names a message lists; it counts the others.
MAX_LISTED = 3


def join_names(names: Iterable[str]) -> str:
    """Return the first MAX_LISTED names and the number of others; "others" for no name."""
    return join_first(list(names), MAX_LISTED) or "others"


def describe_online(online: int, of: int) -> str:
    """Return as text how many clients are online, and of how many."""
    return f"{online} of {of} clients {plural(online, 'is', 'are')} online"


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Return a question for the nearest choices, "did you mean fedfv? ", or "".

    It points out a difference only in upper and lower case, which is easily overlooked.
    """
    nearest = find_equally_near(name, choices)
    if not nearest:
        return ""
    by_case = text_if(nearest[0].casefold() == name.casefold(), " (upper and lower case matter)")
    return f"did you mean {' or '.join(nearest)}{by_case}? "


def find_nearest(name: str, choices: Iterable[str]) -> str | None:
    """Return the choice nearest to a name, or None if no choice is near."""
    return next(iter(find_equally_near(name, choices)), None)


def find_equally_near(name: str, choices: Iterable[str], least: float = 0.6) -> list[str]:
    """Return the choice nearest to a name, with those that are as near; at most three.

    Choices with a difflib ratio below `least` are left out. Of the others, one with the same
    letters in another order is the nearest. Names longer than MAX_NEAR, and choices from the
    MOST_NEAR-th on, are not compared: a schema, which another site wrote, may have many of them.
    """
    folded = name.casefold()
    if len(folded) > MAX_NEAR:
        return []
    comparable = (choice for choice in choices if len(choice) <= MAX_NEAR)
    by_folded = {choice.casefold(): choice for choice in islice(comparable, MOST_NEAR)}
    close = difflib.get_close_matches(folded, by_folded, cutoff=least)
    for each in close:
        if sorted(each) == sorted(folded):
            return [by_folded[each]]
    ratios = [difflib.SequenceMatcher(None, each, folded).ratio() for each in close]
    return [
        by_folded[each] for each, ratio in zip(close, ratios, strict=True) if ratio == ratios[0]
    ]
