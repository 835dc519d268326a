"""What Flower's handlers write into files and on terminals."""

import io
import logging
import os
import pty
import subprocess
import sys

import pytest
from flwr.common.logger import console_handler

from fairbloom.logs import colour_on_terminals_alone
from tests.experiments.helpers import fairbloom

WARN = """
import logging
import flwr.common.logger
from fairbloom.logs import colour_on_terminals_alone
colour_on_terminals_alone({})
logging.getLogger("flwr").warning("mind the gap")
"""
LINE = "WARNING :   mind the gap"


def written(argument: str, environment: dict[str, str], *, terminal: bool) -> str:
    """Return what a process writes that warns, into a pipe or on a terminal."""
    without = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    ours, theirs = pty.openpty() if terminal else os.pipe()
    subprocess.run([sys.executable, "-c", WARN.format(argument)], env=without | environment, stderr=theirs, check=True)
    found = os.read(ours, 1 << 16).decode()
    for end in (ours, theirs):
        os.close(end)
    return found


def test_a_warning_in_a_file_has_no_colour_codes() -> None:
    assert written("", {}, terminal=False).splitlines() == [LINE]


def test_a_terminal_has_colours_unless_the_user_wants_none() -> None:
    assert "\x1b[93m" in written("", {}, terminal=True)
    assert written("", {"NO_COLOR": "1"}, terminal=True).splitlines() == [LINE]
    assert written("never=True", {}, terminal=True).splitlines() == [LINE]


def test_our_commands_colour_nothing_where_their_words_go_to_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_handler, "colored", True)
    monkeypatch.setattr(console_handler, "stream", io.StringIO())
    assert fairbloom("methods", "fedavg") == 0
    assert not console_handler.colored


def test_handlers_of_others_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "handlers", [logging.NullHandler(), logging.StreamHandler()])
    colour_on_terminals_alone()
