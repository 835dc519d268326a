"""The codes of errors that take the place of a client's reply."""

from enum import IntEnum


class ErrorCode(IntEnum):
    """Codes of errors in messages: Flower's below 100, and ours, from which a server decides.

    Flower's are part of its wire format, so they do not depend on the installed version.
    """

    CLIENT_APP_RAISED_EXCEPTION = 2
    MESSAGE_UNAVAILABLE = 3
    REPLY_MESSAGE_UNAVAILABLE = 4
    NODE_UNAVAILABLE = 5
    INVALID_FAB = 7
    CLIENT_APP_CRASHED = 8
    # The privacy account has no budget left for the work.
    BUDGET_SPENT = 103
    # The privacy account is halted, as work failed after a charge.
    ACCOUNT_HALTED = 104
    # The app cannot answer a term or a metric that the message asks for.
    UNKNOWN_TERM = 105


def code_of(error: BaseException) -> int:
    """Return the code of a client's error: its own if it is reportable and has one."""
    # asked of any class: a bundle may bring another copy of ReportableError
    is_reportable = isinstance(getattr(error, "reportable", None), str)
    code = getattr(error, "code", None) if is_reportable else None
    return code if isinstance(code, int) else ErrorCode.CLIENT_APP_RAISED_EXCEPTION
