"""Fairbloom's logger, and how Flower's, which it is below, writes its lines."""

import logging
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from textwrap import indent
from types import TracebackType
from typing import Any, TextIO

from fairbloom.errors import is_expected

# Where Fairbloom logs: below Flower's logger, so that both are seen, set and silenced together.
log = logging.getLogger("flwr").getChild("fairbloom")


@lru_cache(maxsize=1000)
def log_once(words: str, *values: object, level: int = logging.WARNING) -> None:
    """Log a line unless this process has logged it: runs and messages share a process."""
    log.log(level, words, *values)


def escape_unprintable(words: str, *, but: str = "") -> str:
    """Return text that cannot steer a terminal, whoever wrote it; the characters in `but` stay.

    Line ends and tabs, of an error of several lines for example, become spaces.
    """
    if words.isprintable():
        return words
    shown = {
        each: f"\\x{ord(each):02x}"
        for each in set(words)
        if not (each.isprintable() or each in but)
    }
    return "".join(
        shown.get(char, char) if char not in "\n\r\t" or char in but else " " for char in words
    )


def print_lines(*lines: str, to: TextIO | None = None) -> None:
    """Print lines, to standard output or another stream: all that commands print goes through here.

    No word in a line steers the terminal or begins a line of its own, whoever wrote it. Tables go
    through `command.Terminal`, and JSON through `command.print_json`.
    """
    shown = [f"{escape_unprintable(line)}\n" for line in lines]
    stream = to or sys.stdout
    stream.write("".join(shown))
    stream.flush()


def print_part(text: str) -> None:
    """Print a part of a log, which may end within a line; words in it may not steer a terminal."""
    sys.stdout.write(escape_unprintable(text, but="\n\t"))
    sys.stdout.flush()


def print_traceback(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print an error that nobody foresaw, as `sys.excepthook`: its text may quote others."""
    lines = "".join(traceback.format_exception(kind, error, trace))
    print_lines(*lines.splitlines(), to=sys.stderr)


def _escape_record(record: logging.LogRecord) -> bool:
    """Escape what a record quotes, names of clients for example; return that it is logged.

    A message is one line, and the lines of a traceback are indented: no quoted text can look like a
    record of its own.
    """
    if hasattr(record, "is_escaped"):  # by the logger, before a handler
        return True
    record.is_escaped = True
    message = record.getMessage()
    if (shown := escape_unprintable(message)) != message:
        record.msg = shown
        record.args = ()
    if record.exc_info:
        shown = logging.Formatter().formatException(record.exc_info)
        record.exc_text = indent(escape_unprintable(shown, but="\n"), "  ")
    return True


log.addFilter(_escape_record)


def _leave_traceback_out(record: logging.LogRecord) -> bool:
    """Make one line of an error that a user can correct; return that it is logged."""
    error = record.exc_info[1] if record.exc_info else None
    if error is not None and is_expected(error):
        record.msg = f"{record.getMessage()}: {error}"
        record.args = ()
        record.exc_info = None
    return True


# Flower logs each error of an app with its traceback.
logging.getLogger("flwr").addFilter(_leave_traceback_out)


def escape_all_records() -> None:
    """Escape what the records of all loggers quote, not only of ours: errors quote others' text."""
    root = logging.getLogger().handlers
    for handler in filter(None, (*root, logging.lastResort, *_flowers_handlers())):
        handler.addFilter(_escape_record)


def colour_on_terminals_alone(*, never: bool = False) -> None:
    """Let Flower's handlers colour what goes to a terminal, unless NO_COLOR or `never` is set."""
    for handler in _flowers_handlers():
        handler.colored = not never and not os.environ.get("NO_COLOR") and handler.stream.isatty()


@contextmanager
def follow_stderr() -> Iterator[None]:
    """Make Flower's handlers write to the current `sys.stderr`, where progress bars make room."""
    before = [(handler, handler.setStream(sys.stderr)) for handler in _flowers_handlers()]
    try:
        yield
    finally:
        for handler, stream in before:
            if stream is not None:
                handler.setStream(stream)


def _flowers_handlers() -> list[Any]:
    return [
        handler
        for handler in logging.getLogger("flwr").handlers
        if isinstance(handler, logging.StreamHandler) and hasattr(handler, "colored")
    ]


@contextmanager
def log_from(level: int) -> Iterator[None]:
    """Drop log lines below a level, Flower's and ours, for a while."""
    log = logging.getLogger("flwr")
    before = log.level
    log.setLevel(max(level, before))
    try:
        yield
    finally:
        log.setLevel(before)


@contextmanager
def warn_once() -> Iterator[None]:
    """Drop warnings of ours that equal an earlier one, for a while."""
    seen = set[str]()

    def is_new(record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING:
            return True
        message = record.getMessage()
        if message in seen:
            return False
        seen.add(message)
        return True

    log.addFilter(is_new)
    try:
        yield
    finally:
        log.removeFilter(is_new)
