"""Log records of worker processes, printed by the process that started them: its progress bar makes room for them."""

import logging
import os
from logging.handlers import QueueHandler
from multiprocessing.connection import Connection, wait
from multiprocessing.synchronize import Lock


def send_records(pipe: Connection, turn: Lock) -> None:
    """Let another process print what this one logs, and Python's warnings; `turn` is held by the one that sends."""
    logging.captureWarnings(True)
    for name in ("flwr", "py.warnings"):
        logging.getLogger(name).handlers = [_Sender(pipe, turn)]


class _Sender(QueueHandler):
    """Sends log records through a pipe into which several processes write."""

    def __init__(self, pipe: Connection, turn: Lock) -> None:
        super().__init__(pipe)  # type: ignore[arg-type]  # `enqueue` below is all that uses it
        self._pipe, self._turn = pipe, turn

    def enqueue(self, record: logging.LogRecord) -> None:
        """Send a record."""
        with self._turn:
            self._pipe.send(record)


def print_records(pipe: Connection, ended: Connection) -> None:
    """Print the log records of other processes as if they were of this one, until something comes through `ended`.

    On a terminal, what several processes say in the same words stands once.
    """
    said: set[str] = set()
    while pipe in wait([pipe, ended]):
        record: logging.LogRecord = pipe.recv()
        record.msg = str(record.msg).rstrip("\n")  # Python's warnings end a line
        if record.msg not in said or not os.isatty(2):  # `sys.stderr` may be that of a progress bar
            logging.getLogger(record.name).handle(record)
        said.add(record.msg)
