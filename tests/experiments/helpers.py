"""The command line, in this process and in one of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

from fairbloom.cli import main

ROOT = Path(__file__).parents[2]

SMALL = ("--clients", "5", "--rounds", "3", "--device", "cpu")


def fairbloom(*words: object) -> int:
    """Run the command here; return its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["fairbloom", *map(str, words)])
        try:
            main()
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def start(*words: object, start_new_session: bool = False) -> subprocess.Popen[str]:
    """Start the command in a process of its own."""
    command = [sys.executable, "-c", "from fairbloom.cli import main; main()", *map(str, words)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True, start_new_session=start_new_session)
