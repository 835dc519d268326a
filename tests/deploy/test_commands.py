"""Commands of a federation import few libraries, and Ctrl-C during imports ends them."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fairbloom.cli import main as cli
from tests.checkout import ROOT

from .commands import client_command

LOADED = """
import sys
from fairbloom.__main__ import main
try:
    main()
finally:
    print("torch" in sys.modules)
"""


@pytest.mark.parametrize(
    "words", [["deploy", "--help"], ["deploy", "enroll", "a", "--dir", "nowhere"]], ids=str
)
def test_commands_import_no_pytorch_and_end_as_the_command_line(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "argv", ["fairbloom", *words])
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *words], cwd=ROOT, capture_output=True, text=True
    )
    with pytest.raises(SystemExit) as end:
        cli.main()
    printed = capfd.readouterr()
    assert done.stdout.replace("-c deploy", "fairbloom deploy").split() == [
        *printed.out.split(),
        "False",
    ]
    assert (done.returncode, done.stderr) == (end.value.code, printed.err)


INTERRUPTED = """
import signal
import sys

class Interrupt:
    def find_spec(name, path=None, target=None):
        if name == "{}":
            signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.modules.pop("{}", None)
sys.meta_path.insert(0, Interrupt)
from fairbloom.__main__ import main
main()
"""


@pytest.mark.parametrize(
    "module", ["importlib.metadata", "typer", "fairbloom.command", "fairbloom.strategies"]
)
def test_ctrl_c_during_imports_ends_a_command_silently(module: str) -> None:
    program = INTERRUPTED.replace("{}", module)
    done = subprocess.run(
        [sys.executable, "-c", program, "methods"], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_a_devices_help_says_what_each_argument_is(tmp_path: Path) -> None:
    """By `python -m fairbloom.deploy`, without the whole command line, as in the client's image."""
    done = client_command("keys", "--help", folder=tmp_path)
    assert "Name of this client in the" in done.stdout, done.stderr
