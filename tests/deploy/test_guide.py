"""The deployment guide: its commands are read from the page and run.

The tutorial that ends at a prediction on a device: its commands are read from the page.
"""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.deployment import rounds
from benchmarks.flower import SCRIPTS, Flower, flower, listens, wait_for_port
from fairbloom import load
from fairbloom.tasks import load_task
from tests.docs.pages import ROOT, blocks
from tests.simulation.helpers import table

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


@pytest.mark.slow
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


HOSPITALS = ("north", "south", "west")
TUTORIAL = "Predict on a device"
BY_COMMAND = [
    line
    for block in blocks("docs/nodes-device.md")
    if block.section == TUTORIAL and block.language == "sh"
    for line in block.commands
]
(OWNER,) = (
    block.text
    for block in blocks("docs/nodes-device.md")
    if block.section == TUTORIAL and block.language == "toml"
)
(NUMBERS,) = (
    block.text
    for block in blocks("docs/nodes-device.md")
    if block.section == TUTORIAL and block.language == "python"
)
AT_EACH = ("tar", "mkdir", "cp", "fairbloom client")


@pytest.mark.federation
def test_the_tutorial_ends_at_a_prediction_on_a_device(tmp_path: Path) -> None:
    for port in PORTS:
        if listens(port):
            pytest.skip(f"port {port} is in use")
    with flower(tmp_path / "home") as runtime:
        shutil.copytree(
            ROOT / "tests" / "docs" / "given" / "nodes-device" / "hospitals",
            runtime.home / "hospitals",
        )
        subprocess.run([sys.executable, "-c", NUMBERS], cwd=runtime.home, check=True)
        for line in BY_COMMAND:
            if line.startswith("fairbloom client profile"):
                for name in HOSPITALS:
                    own = runtime.home / name / "owner.toml"
                    own.write_text(OWNER.replace("north", name))
            each = (
                [line.replace("north", name) for name in HOSPITALS]
                if line.startswith(AT_EACH)
                else [line]
            )
            for words in map(shlex.split, each):
                said = follow(
                    runtime,
                    words,
                    stays=line.startswith(("fairbloom server", "fairbloom client north/")),
                )
                if line.startswith("fairbloom deploy status"):
                    assert "ditto" in said
                if line.startswith("fairbloom predict") and "personal" not in line:
                    assert "by the model of round 10 of ditto: ditto, seed 0, released" in said
        patients = (runtime.home / "hospitals" / "north.csv").read_text().splitlines()
        (folder,) = (path.parent for path in runtime.home.rglob("runs/ditto/clients.csv"))
        run = load(folder)
        schema = (folder / "schema.toml").read_text()
        task = load_task(
            {**run.settings, "schema": schema, "data-dir": str(runtime.home / "data-north")}
        )
        tested = task.splits("north").test.rows.tolist()
        for name, model in (("by-all.csv", "global"), ("by-own.csv", "personal")):
            rows = table(runtime.home / name)
            assert len(rows) == len(patients) - 1
            assert set(rows[0]) >= {
                "age",
                "target",
                "predicted_target",
                "probability_ill",
                "probability_well",
            }
            right = [rows[place]["predicted_target"] == rows[place]["target"] for place in tested]
            assert 100.0 * sum(right) / len(right) == pytest.approx(
                run.final(model=model)["north"], abs=1e-4
            )
            assert sum(right) > 0.6 * len(right)
