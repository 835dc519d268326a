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
        raise _Ended

    before = signal.signal(signal.SIGINT, end)
    try:
        yield
    except _Ended:
        pass
    finally:
        signal.signal(signal.SIGINT, before)
