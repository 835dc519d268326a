"""Flower's quickstart with the lines changed that docs/flower.md counts, between real processes."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.deployment import Deployment, federation, names, rounds, wait_for_rounds
from tests.client import changed
from tests.docs.pages import blocks
from tests.simulation.helpers import table

pytestmark = pytest.mark.federation

CLIENTS = 2
CONFIG = changed.CONFIG | {"num-server-rounds": 5}


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A federation of two clients with the installed app."""
    (lines,) = (block for block in blocks("docs/flower.md") if block.file == "owner.toml")
    installed = tmp_path_factory.mktemp("installed") / "app"
    changed.change(installed)
    with federation(tmp_path_factory.mktemp("there") / "home", CLIENTS) as runtime:
        before = runtime.environment.get("PYTHONPATH", "")
        runtime.environment["PYTHONPATH"] = f"{installed}{os.pathsep}{before}"
        for name in names(CLIENTS):
            (runtime.bundle(name) / "owner.toml").write_text(lines.text)
            runtime.start_client(name)
        runtime.environment["PYTHONPATH"] = before
        runtime.wait_for_clients(*names(CLIENTS))
        yield runtime


@pytest.fixture
def apps(tmp_path: Path) -> tuple[Path, Path]:
    """Return the folders of two such apps: one for the deployed run, one for the run in process."""
    for name in ("deployed", "in-process"):
        changed.change(tmp_path / name)
        changed.aim(tmp_path / name, tmp_path / f"{name}-run")
    return tmp_path / "deployed", tmp_path / "in-process"


def run_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}-run")


def assert_same_run(folder: Path, other: Path) -> None:
    """Assert that the runs of two apps have the same rows per client and the same weights."""
    model = torch.load(f"{run_of(folder)}.pt")
    for name, weights in torch.load(f"{run_of(other)}.pt").items():
        torch.testing.assert_close(model[name], weights, rtol=1e-5, atol=1e-6)
    rows = table(run_of(folder) / "clients.csv")
    for row, expected in zip(rows, table(run_of(other) / "clients.csv"), strict=True):
        assert row.keys() == expected.keys()
        for column, value in expected.items():
            if column == "client" or not value:
                assert row[column] == value
            else:
                assert float(row[column]) == pytest.approx(float(value), rel=1e-5, abs=1e-6), column


def test_a_killed_run_continues_and_ends_as_in_process(
    there: Deployment, apps: tuple[Path, Path]
) -> None:
    deployed, in_process = apps
    changed.run_in_process(in_process, CONFIG, CLIENTS)
    submitted = there.submitting(CONFIG, deployed)
    wait_for_rounds(run_of(deployed), 2)
    there.kill_run()
    there.wait_for_end(submitted)
    log = there.log(submitted)
    assert log.count("run folder: ") == 2, "the run was over before its process was killed"
    assert "Traceback" not in log
    assert_same_run(deployed, in_process)


def test_a_run_in_a_run_folder_outlives_the_server(
    there: Deployment, apps: tuple[Path, Path]
) -> None:
    folder = apps[0]
    submitted = there.submitting(CONFIG, folder)
    wait_for_rounds(run_of(folder), 1)
    there.kill(there.server)
    there.start_server()
    there.wait_for_end(submitted)
    assert [row["replies_used"] for row in rounds(run_of(folder))] == ["2"] * 5
