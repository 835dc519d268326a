"""Ctrl-C as the way to end what would go on for ever."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class _Ended(BaseException):
    """Ctrl-C was pressed; no `except Exception` on the way catches it."""


@contextmanager
def until_interrupted() -> Iterator[None]:
    """Let Ctrl-C end the block, as the way that is meant and not as an error."""

    def end(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # once more, it would end what is on its way to the end
        raise _Ended

    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, end)
        yield
    except _Ended:
        pass
    finally:
        signal.signal(signal.SIGINT, before)
