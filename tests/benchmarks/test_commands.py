"""Every command of the section on speed in docs/measured.md starts its work and prints what it measured."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.deploy.flower import ROOT

SMALL: Mapping[str, str] = {
    "engines": "--ray --workloads logistic --engines loop --seconds 0.1 --repeats 1",
    "memory": "--workloads logistic --engines loop --rounds 4",
    "scale": "--rounds 4",
    "aggregation": "--gigabytes 0.05 --repeats 1",
    "deployed": "--clients 1 --rounds 3",
}
"""Options of each command with which it does little."""


def documented() -> list[str]:
    speed = Path(ROOT, "docs", "measured.md").read_text().partition("\n## Speed and memory\n")[2]
    return sorted({*re.findall(r"python -m benchmarks\.(\w+)", speed)})


def test_each_documented_command_has_a_small_run() -> None:
    assert documented() == sorted(SMALL)


@pytest.mark.slow
@pytest.mark.parametrize("name", documented())
def test_a_documented_command_does_its_work(name: str) -> None:
    command = [sys.executable, "-m", f"benchmarks.{name}", *shlex.split(SMALL[name])]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # no TMPDIR under tmp_path: Ray's sockets need a short path
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) > 2
