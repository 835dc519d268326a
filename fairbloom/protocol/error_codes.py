"""The codes of errors that take the place of a client's reply."""

from enum import IntEnum


class ErrorCode(IntEnum):
    """Flower's codes of errors in messages.

    They are part of Flower's wire format, so they do not depend on the installed version.
    """

    CLIENT_APP_RAISED_EXCEPTION = 2
    MESSAGE_UNAVAILABLE = 3
    REPLY_MESSAGE_UNAVAILABLE = 4
    NODE_UNAVAILABLE = 5
    INVALID_FAB = 7
    CLIENT_APP_CRASHED = 8
