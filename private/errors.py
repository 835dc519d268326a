"""Why a private round does not go on."""

from fairbloom.errors import ReportableError


class RefusedError(ReportableError):
    """A client's refusal to answer an exchange; the message names the check and reveals nothing of its data."""


class SkippedError(Exception):
    """A private round that is skipped, with the reason; nothing was unmasked."""
