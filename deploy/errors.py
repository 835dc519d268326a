"""What stops a command of a federation's operator."""


class DeployError(ValueError):
    """What stops a command of the operator; the message names the thing, its value and what would do."""


class UnreachableError(DeployError):
    """The SuperLink's control API does not answer."""


class RefusedError(DeployError):
    """The SuperLink's control API does not accept the operator's credential."""
