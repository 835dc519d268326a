"""The split of a run: in its folder, and as a picture."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fairbloom
from fairbloom.cli import app
from fairbloom.errors import FairbloomError
from fairbloom.experiments.views.report.sections import split_charts


def test_a_run_saves_who_had_which_examples_and_keeps_it_when_it_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    settings = {"partition": "dirichlet", "clients": 5}
    split = fairbloom.run(rounds=1, out=folder, settings=settings, progress=False).split()
    written = (folder / "split.npz").read_bytes()
    assert split.clients == tuple(f"client-{k}" for k in range(5))
    assert split.counts().shape == (5, 10)
    fairbloom.run(rounds=2, out=folder, settings=settings, progress=False)
    assert (folder / "split.npz").read_bytes() == written


def test_a_damaged_split_is_named(tmp_path: Path) -> None:
    run = fairbloom.run(rounds=1, out=tmp_path / "run", settings={"clients": 5}, progress=False)
    (run.folder / "split.npz").write_bytes(b"damaged")
    with pytest.raises(FairbloomError, match=r"split\.npz cannot be read"):
        run.split()
    (run.folder / "split.npz").unlink()
    with pytest.raises(FairbloomError, match=r"has no split\.npz"):
        run.split()


def test_the_split_of_a_run_and_of_settings_are_drawn_on_demand(tmp_path: Path) -> None:
    chosen = ["--clients", "5", "--seed", "3"]
    told = CliRunner().invoke(app, ["data", "--task", "digits", *chosen, "--figure", str(tmp_path / "asked"), "--json"])
    assert told.exit_code == 0, told.output
    assert sum(row["train"] + row["test"] for row in json.loads(told.output)["clients"]) == 1797
    assert CliRunner().invoke(app, ["run", "--rounds", "1", *chosen, "--out", str(tmp_path / "run")]).exit_code == 0
    shown = CliRunner().invoke(app, ["show", str(tmp_path / "run"), "--split", str(tmp_path / "had")])
    assert shown.exit_code == 0, shown.output
    assert (tmp_path / "asked.svg").read_bytes() == (tmp_path / "had.svg").read_bytes()


def test_a_picture_names_few_clients_and_counts_many(tmp_path: Path) -> None:
    for clients, named in ((5, True), (60, False)):
        folder = tmp_path / str(clients)
        split = fairbloom.run(rounds=1, out=folder, clients=clients, partition="iid", progress=False).split()
        (chart,) = split_charts(split).charts
        labels = {row["client"] for row in chart.spec["data"]["values"]}
        assert (set(split.clients) == labels) is named
