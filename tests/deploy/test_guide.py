"""The deployment guide: its commands are read from the page and run."""

import shlex
import subprocess
from pathlib import Path

import pytest

from benchmarks.deployment import rounds
from benchmarks.flower import SCRIPTS, Flower, flower, listens, wait_for_port
from tests.docs.pages import blocks

pytestmark = pytest.mark.slow

SECTION = "A federation in six steps"
COMMANDS = [
    line
    for block in blocks("docs/deployment.md")
    if block.section == SECTION
    for line in block.commands
]
STAY = ("fairbloom server", "fairbloom client")
PORTS = (9092,)


def follow(runtime: Flower, words: list[str], *, stays: bool) -> str:
    """Start a long-running command of a page, or run another one; return the output."""
    if stays:
        runtime.start(*words)
        for port in PORTS if words[1] == "server" else ():
            wait_for_port(port)
        return ""
    done = subprocess.run(
        [SCRIPTS / words[0] if words[0] == "fairbloom" else words[0], *words[1:]],
        env=runtime.environment,
        cwd=runtime.home,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_six_steps_make_a_federation(tmp_path: Path) -> None:
    for port in PORTS:
        if listens(port):
            pytest.skip(f"port {port} is in use")
    assert [line.split()[0] for line in COMMANDS].count("fairbloom") == 6
    with flower(tmp_path / "home") as runtime:
        for line in COMMANDS:
            line = line.replace("fl.example.org", "localhost").replace(
                "num-rounds=50", "num-rounds=2"
            )
            each = (
                [line, line.replace("site-a", "site-b")]
                if line.startswith(("tar", "fairbloom client"))
                else [line]
            )
            for words in map(shlex.split, each):
                follow(runtime, words, stays=line.startswith(STAY))
        (run,) = (runtime.home / "runs").iterdir()
    assert [row["replies_used"] for row in rounds(run)] == ["2", "2"]
