"""What several tests of the pages need."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands import forked_workers

__all__ = ["folder", "forked_workers"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in which this process stands as a reader does."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    handler = signal.getsignal(signal.SIGINT)  # our command sets one of its own
    yield tmp_path
    signal.signal(signal.SIGINT, handler)
