"""A log file that several processes write to, and that is continued in a new one meanwhile."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.flower import wait_until
from fairbloom.system.log_file import LARGEST_BYTES
from tests.checkout import ROOT

LINES, LENGTH = 2500, 2000
PROGRAM = f"""
import os, signal, subprocess, sys, time
from pathlib import Path
from fairbloom.system.log_file import log_to_file

log_to_file(Path(sys.argv[1]))
print("begin", flush=True)
write = "import sys; [sys.stderr.write(f'{{sys.argv[1]}} {{n}} ' + 'x' * {LENGTH} + '\\\\n') for n in range({LINES})]"
writers = [subprocess.Popen([sys.executable, "-c", write, name]) for name in "abc"]
for each in writers:
    each.wait()
os.write(2, b"\\xff killed")
os.kill(os.getpid(), signal.SIGKILL)
"""


def run(file: Path, program: str = PROGRAM) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, str(file)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_no_line_is_lost_of_processes_that_are_killed(tmp_path: Path) -> None:
    file = tmp_path / "client.log"
    process = run(file)
    assert process.communicate() == ("", "")
    assert process.returncode == -signal.SIGKILL
    wait_until(lambda: not file.with_name("client.log.lock").exists())  # everything is written
    files = [file.with_name("client.log.1"), file]
    assert sorted(tmp_path.iterdir()) == sorted(files)
    assert all(each.stat().st_size <= LARGEST_BYTES and each.stat().st_mode & 0o077 == 0 for each in files)
    lines = [line.split(" ", 2) for each in files for line in each.read_text().splitlines()]
    assert all(re.fullmatch(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}", f"{day} {time}") for day, time, _ in lines)
    words = [words for _, _, words in lines]
    assert (words[0], words[-1]) == ("begin", "\ufffd killed")
    for name in "abc":
        expected = [f"{name} {number} {'x' * LENGTH}" for number in range(LINES)]
        assert [line for line in words if line.startswith(f"{name} ")] == expected


@pytest.mark.parametrize("victim", [0, 1], ids=["the first", "the one that writes"])
def test_a_log_goes_on_when_a_process_of_it_is_killed(tmp_path: Path, victim: int) -> None:
    file = tmp_path / "log"
    beat = "[(print(n, flush=True), time.sleep(0.05)) for n in range(60)]; writers ="
    process = run(file, PROGRAM.replace("writers =", beat))
    wait_until(lambda: file.exists() and "begin" in file.read_text())
    listed = subprocess.run(["ps", "-ewwo", "pid,args"], capture_output=True, text=True, check=True).stdout.splitlines()
    both = sorted(int(line.split()[0]) for line in listed if line.endswith(f"fairbloom.system.log_file {file}"))
    assert len(both) == 2
    os.kill(both[victim], signal.SIGKILL)
    assert process.communicate() == ("", "")
    wait_until(lambda: not file.with_name("log.lock").exists())
    words = file.with_name("log.1").read_text() + file.read_text()
    assert words.endswith(" \ufffd killed\n")
    assert ("the process that writes this log was killed" in words) == (victim == 1)


def test_a_log_file_has_one_owner(tmp_path: Path) -> None:
    """A second one would rename the file under the first."""
    file = tmp_path / "log"
    first = run(file, PROGRAM.replace("writers =", "time.sleep(100); writers ="))
    wait_until(lambda: file.exists() and "begin" in file.read_text())
    second = run(file)
    _, said = second.communicate()
    assert f"{file} is another process's log (process " in said
    assert "name another file" in said
    assert second.returncode == 1
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()


def test_a_log_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    file = tmp_path / "no" / "log"
    _, said = run(file).communicate()
    assert f"{file}: No such file or directory" in said
    assert f"--log-file {file} cannot be used" in said
