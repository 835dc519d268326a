"""Editors and type checkers find the modules of an editable checkout, with their types."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

THEIRS = """
import fairbloom
from fairbloom.client.fair import fair
from fairbloom.rounds.ranges import within
from fairbloom.strategies import FedFV

reveal_type(within("[0, 1]", share=1))
strategy: int = FedFV(alpha=0.1)
finished: int = fairbloom.run(rounds=1)
"""


def checked(folder: Path, *command: str | Path) -> str:
    """Return the output of a type checker for a user's file with two wrong lines."""
    (folder / "theirs.py").write_text(THEIRS)
    done = subprocess.run(
        [sys.executable, "-m", *command, "theirs.py"], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def test_fairbloom_is_installed_from_its_checkout() -> None:
    files = importlib.metadata.files("fairbloom") or []
    assert not [file for file in files if file.parts[:2] == ("fairbloom", "strategies")], (
        "this test needs an editable installation"
    )


@pytest.mark.slow
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_type_checker_knows_the_types_of_imports(checker: str, tmp_path: Path) -> None:
    options: dict[str, tuple[str | Path, ...]] = {
        "mypy": ("--cache-dir", tmp_path / "cache"),
        "pyright": ("--pythonpath", sys.executable),
    }
    output = checked(tmp_path, checker, *options[checker])
    errors = [line for line in output.splitlines() if " error: " in line]
    assert len(errors) == 2, output
    assert "FedFV" in errors[0]
    assert "Run" in errors[1]
    assert "float" in output
