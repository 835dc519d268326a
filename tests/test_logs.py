"""Output of Flower's log handlers in files and on terminals."""

import io
import logging
import os
import pty
import subprocess
import sys

import pytest
from flwr.common.logger import console_handler

from fairbloom.errors import FairbloomError
from fairbloom.experiments.studies.progress import study_progress
from fairbloom.logs import colour_on_terminals_alone, escape_all_records, log
from fairbloom.protocol.settings import SettingsError
from fairbloom.text import text_if
from tests.experiments.helpers import fairbloom

WARN = """
import logging
import flwr.common.logger
from fairbloom.logs import colour_on_terminals_alone
colour_on_terminals_alone({})
logging.getLogger("flwr").warning("mind the gap")
"""
SEND = """
import logging
import multiprocessing
import warnings
import flwr.common.logger
from fairbloom.experiments.studies.pool import print_records, send_records
from fairbloom.logs import colour_on_terminals_alone

def warn(sent, turn):
    send_records(sent, turn)
    warnings.warn("mind the %d steps")
    logging.getLogger("flwr").getChild("fairbloom").warning("mind the %s", "gap")

colour_on_terminals_alone()
context = multiprocessing.get_context("fork")
(records, sent), (ended, end), turn = context.Pipe(False), context.Pipe(False), context.Lock()
for _ in range(2):
    process = context.Process(target=warn, args=(sent, turn))
    process.start()
    process.join()
end.send_bytes(b"end")
print_records(records, ended)
"""
LINE = "WARNING :   mind the gap"


def written(program: str, environment: dict[str, str], *, terminal: bool) -> str:
    without = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    ours, theirs = pty.openpty() if terminal else os.pipe()
    subprocess.run(
        [sys.executable, "-c", program], env=without | environment, stderr=theirs, check=True
    )
    found = os.read(ours, 1 << 16).decode()
    for end in (ours, theirs):
        os.close(end)
    return found


@pytest.mark.parametrize(
    ("given", "environment", "terminal", "is_coloured"),
    [
        ("", {}, False, False),
        ("", {}, True, True),
        ("", {"NO_COLOR": "1"}, True, False),
        ("never=True", {}, True, False),
    ],
)
def test_a_terminal_has_colours_unless_they_are_disabled(
    given: str, environment: dict[str, str], terminal: bool, is_coloured: bool
) -> None:
    said = written(WARN.format(given), environment, terminal=terminal)
    assert ("\x1b[93m" in said) == is_coloured
    assert is_coloured or said.splitlines() == [LINE]


def test_warnings_of_workers_are_printed_once_by_the_parent() -> None:
    sent = ["<string>:11: UserWarning: mind the %d steps", LINE]
    printed = written(SEND, {}, terminal=False)
    assert without_source(printed) == sent * 2
    printed = written(SEND, {"NO_COLOR": "1"}, terminal=True)
    assert without_source(printed) == sent


def without_source(text: str) -> list[str]:
    """Return the lines but for those of source, which Python shows from 3.13 on for `-c`, too."""
    return [line for line in text.splitlines() if not line.startswith("  warnings.warn(")]


@pytest.mark.parametrize("name", ["flwr.fairbloom", "flwr", "asyncio"])
def test_a_traceback_forges_no_record(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(logging.Formatter("fairbloom client: %(message)s"))
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    escape_all_records()
    forged = "x\nfairbloom client: connected as client FAKE\x1b[2J\rfairbloom"
    try:
        raise ValueError(forged)
    except ValueError as error:
        logging.getLogger(name).error("the app raised %s", error, exc_info=True)
    lines = written.getvalue().split("\n")[:-1]
    assert [line for line in lines if line.startswith("fairbloom client: ")] == [lines[0]]
    assert lines[1] == "  Traceback (most recent call last):"
    assert lines[-1] == "  fairbloom client: connected as client FAKE\\x1b[2J fairbloom"


def _error(kind: type[Exception]) -> Exception:
    try:
        raise kind("set x = 1")
    except kind as error:
        return error


@pytest.mark.parametrize(
    ("kind", "is_ours"), [(FairbloomError, True), (SettingsError, True), (ValueError, False)]
)
def test_flower_logs_an_error_of_ours_in_one_line(
    kind: type[Exception], is_ours: bool, caplog: pytest.LogCaptureFixture
) -> None:
    flowers = logging.getLogger("flwr")
    with caplog.at_level(logging.ERROR):
        flowers.error("%s raised an exception", "Simulation", exc_info=_error(kind))
        flowers.error("no error")
    said = "Simulation raised an exception" + text_if(is_ours, ": set x = 1")
    assert [each.getMessage() for each in caplog.records] == [said, "no error"]
    assert ("Traceback" in caplog.text) != is_ours


def test_our_commands_write_no_colours_to_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(console_handler, "colored", True)
    monkeypatch.setattr(console_handler, "stream", io.StringIO())
    assert fairbloom("methods", "fedavg") == 0
    assert not console_handler.colored


def test_handlers_of_other_libraries_are_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        logging.getLogger("flwr"), "handlers", [logging.NullHandler(), logging.StreamHandler()]
    )
    colour_on_terminals_alone()


def test_a_study_says_a_warning_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        with study_progress("comparing", shown=False):
            for gap in ("gap", "gap", "step"):
                log.warning("mind the %s", gap)
                log.error("fell into the %s", gap)
    warnings = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert warnings == ["mind the gap", "mind the step"] * 2
    assert len(caplog.records) == len(warnings) + 6
