"""The base of all errors that a user can correct, and what they suggest."""

import difflib
import traceback
from collections.abc import Iterable
from pathlib import PurePath


class FairbloomError(ValueError):
    """Something that a user can correct: the message names the thing, its value and the remedy.

    The command line prints the message as one line and ends with exit code 2. Every other exception is a bug, of ours
    or of an app or a method that somebody wrote, and keeps its traceback.
    """


def is_expected(error: BaseException) -> bool:
    """Return whether an error is a FairbloomError, of this Fairbloom or of another one that a run has brought."""
    return any((each.__module__, each.__name__) == (__name__, FairbloomError.__name__) for each in type(error).__mro__)


class ReportableError(FairbloomError):
    """An error on a client whose words were written for the server to read, too.

    Every other error of a deployed client stays in that client's log, because nobody knows what its text quotes.

    Attributes
    ----------
    reportable
        What the server may get to know. It quotes nothing of what the client's files hold; the message may.
    """

    def __init__(self, message: str, reportable: str = "") -> None:
        super().__init__(message)
        self.reportable = reportable or message


def reportable(error: BaseException) -> str:
    """Return what a server may know of a client's error: a text written for it, else the error's kind and place."""
    words = getattr(error, "reportable", None)  # asked of any class: a bundle may bring another copy of this module
    if isinstance(words, str):
        return words
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    place = f" in {PurePath(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{place}: what it says stays in this client's own log"


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Return a question for the choice nearest to a name, "did you mean fedfv? ", or "" where none is near.

    It says where the two differ in upper and lower case alone, which is easily overlooked.
    """
    by_folded = {choice.casefold(): choice for choice in choices}
    close = difflib.get_close_matches(name.casefold(), by_folded, n=1)
    if not close:
        return ""
    by_case = " (upper and lower case matter)" if close[0] == name.casefold() else ""
    return f"did you mean {by_folded[close[0]]}{by_case}? "
