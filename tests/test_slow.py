"""Slow tests wait for all others, and say so where no time is left for them."""

import subprocess
import sys

from .docs.pages import ROOT

MIXED, SLOW, QUICK = "tests/client/test_groups.py", "tests/runtimes/test_apps.py", "tests/client/test_app.py"


def pytest_prints(*arguments: str) -> list[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_they_come_last_in_their_file_and_files_of_them_last() -> None:
    lines = pytest_prints("--collect-only", "-m", "", SLOW, MIXED, QUICK)
    files = [line.partition("::")[0] for line in lines if "::" in line]
    assert list(dict.fromkeys(files)) == [QUICK, MIXED, SLOW]
    slow = [line for line in pytest_prints("--collect-only", "-m", "slow", MIXED) if "::" in line]
    assert slow
    assert [line for line in lines if line.startswith(MIXED)][-len(slow) :] == slow


def test_where_no_time_is_left_each_is_skipped_with_the_command_that_runs_it() -> None:
    lines = pytest_prints("-m", "", "--slow-within=0", SLOW)
    assert any(line.startswith("SKIPPED [6]") and "make test-slow" in line for line in lines), lines
    assert lines[-1].startswith("6 skipped")
