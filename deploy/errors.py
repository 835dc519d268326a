"""What stops a command of an operator or a client, and can be corrected by its user."""

from fairbloom.errors import FairbloomError


class DeployError(FairbloomError):
    """What stops a command of the operator; the message names the thing, its value and the remedy."""


class ClientError(FairbloomError):
    """A setting or file of a client that cannot be used; the message names it, its value and the remedy."""
