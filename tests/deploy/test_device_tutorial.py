"""The tutorial that ends at a prediction on a device: its commands are read from the page."""

import csv
import shlex
import shutil
from pathlib import Path

import pytest

from benchmarks.flower import flower, listens
from fairbloom import load
from fairbloom.tasks import load_task
from tests.docs.pages import ROOT, blocks

from .test_guide import PORTS, follow

pytestmark = pytest.mark.federation

HOSPITALS = ("north", "south", "west")
SECTION = "Predict on a device"
COMMANDS = [
    line
    for block in blocks("docs/nodes-device.md")
    if block.section == SECTION
    for line in block.commands
]
AT_EACH = ("tar", "mkdir", "cp", "fairbloom client accept", "fairbloom client north/")


def test_the_tutorial_ends_at_a_prediction_on_a_device(tmp_path: Path) -> None:
    for port in PORTS:
        if listens(port):
            pytest.skip(f"port {port} is in use")
    with flower(tmp_path / "home") as runtime:
        shutil.copytree(
            ROOT / "tests" / "docs" / "given" / "nodes-device" / "hospitals",
            runtime.home / "hospitals",
        )
        for line in COMMANDS:
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
                    assert "by the model of round 10 of 10" in said
        patients = (runtime.home / "hospitals" / "north.csv").read_text().splitlines()
        (folder,) = (path.parent for path in runtime.home.rglob("runs/ditto/clients.csv"))
        run = load(folder)
        schema = (folder / "schema.toml").read_text()
        task = load_task(
            {**run.settings, "schema": schema, "data-dir": str(runtime.home / "data-north")}
        )
        tested = task.splits("north").test.rows.tolist()
        for name, model in (("by-all.csv", "global"), ("by-own.csv", "personal")):
            with (runtime.home / name).open(newline="") as file:
                rows = list(csv.DictReader(file))
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
