"""The base of all errors that a user can mend, and what they suggest."""

import difflib
from collections.abc import Iterable


class FairbloomError(ValueError):
    """Something that a user can mend: the message names the thing, its value and the remedy.

    The command line prints the message as one line and ends with exit code 2. Every other exception is a bug, of ours
    or of an app or a method that somebody wrote, and keeps its traceback.
    """


def is_expected(error: BaseException) -> bool:
    """Return whether an error is a FairbloomError, of this Fairbloom or of another one that a run has brought."""
    return any((each.__module__, each.__name__) == (__name__, FairbloomError.__name__) for each in type(error).__mro__)


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Return a question for the choice nearest to a name, "did you mean fedfv? ", or "" where none is near."""
    close = difflib.get_close_matches(name, list(choices), n=1)
    return f"did you mean {close[0]}? " if close else ""
