"""What stops a command of an operator or a client, and can be corrected by its user."""

from fairbloom.errors import FairbloomError


class DeployError(FairbloomError):
    """A setting, file, certificate or name that cannot be used.

    The message names it, its value and the remedy.
    """
