"""The error of commands of an operator or a client that their user can correct."""

from fairbloom.errors import FairbloomError


class DeployError(FairbloomError):
    """A setting, file, certificate or name that cannot be used.

    The message names it, its value and the remedy.
    """
