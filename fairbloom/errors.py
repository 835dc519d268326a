"""The base of all errors that a user can mend."""


class FairbloomError(ValueError):
    """Something that a user can mend: the message names the thing, its value and the remedy.

    The command line prints the message as one line and ends with exit code 2. Every other exception is a bug, of ours
    or of an app or a method that somebody wrote, and keeps its traceback.
    """
