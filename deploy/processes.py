"""What our processes beside Flower's have in common: they end together, and say a thing once."""

import logging
import os
import signal
import threading
import time

LOOK_SECONDS = 0.5


def end_with(parent: int) -> None:
    """End this process when its parent, which tells its id, has ended, killed or not: nobody would stop it."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True, name="watch-parent").start()


class SaidOnce(logging.Filter):
    """Lets one line through when a connection is lost, and one when it is back, in place of one a try.

    Parameters
    ----------
    lost
        What is said in place of the first of Flower's lines about a connection that fails.
    """

    FAILING, BACK = "Connection attempt failed, retrying", "Connection successful after"

    def __init__(self, lost: str) -> None:
        super().__init__()
        self._lost, self._silent = lost, False

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is said."""
        if str(record.msg).startswith(self.FAILING):
            said, self._silent = self._silent, True
            record.msg, record.args = self._lost, ()
            return not said
        if str(record.msg).startswith(self.BACK):
            self._silent = False
        return True
