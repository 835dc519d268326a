"""`on_round` of `fairbloom.run`."""

from pathlib import Path

import pytest

import fairbloom
from fairbloom import RecordedRound, Run
from tests.simulation.helpers import table

SMALL = {"task": "digits", "clients": 4, "device": "cpu", "progress": False}


def test_on_round_gets_each_round_as_it_is_recorded(tmp_path: Path) -> None:
    seen: list[RecordedRound] = []
    run = fairbloom.run(
        **SMALL,
        rounds=4,
        settings={"evaluate-every": 2},
        out=tmp_path / "run",
        on_round=seen.append,
    )
    assert [each.number for each in seen] == [1, 2, 3, 4]
    assert (
        [bool(each.scores) for each in seen]
        == [bool(each.measures) for each in seen]
        == [False, True, False, True]
    )
    assert seen[-1].scores == run.final()
    assert seen[-1].measures["worst"] == min(run.final().values())
    last = [
        row
        for row in table(tmp_path / "run" / "clients.csv")
        if row["round"] == "4" and row["coefficient"]
    ]
    assert seen[-1].coefficients == {row["client"]: float(row["coefficient"]) for row in last}
    assert seen[1].row["test_accuracy_of_global_model_mean"] == seen[1].measures["mean"]
    assert (seen[0].refused, seen[0].missing) == ({}, ())


def test_what_on_round_raises_ends_the_run(tmp_path: Path) -> None:
    class EnoughError(Exception):
        pass

    def stop(recorded: RecordedRound) -> None:
        if recorded.number == 2:
            raise EnoughError("seen enough")

    whole = fairbloom.run(**SMALL, rounds=4, out=tmp_path / "whole")
    with pytest.raises(EnoughError, match="seen enough"):
        fairbloom.run(**SMALL, rounds=4, out=tmp_path / "stopped", on_round=stop)
    stopped = fairbloom.load(tmp_path / "stopped")
    assert (stopped.state, stopped.rounds_done) == ("interrupted", 2)
    fairbloom.run(**SMALL, rounds=4, out=tmp_path / "stopped")
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "stopped")]
    assert models[0] == models[1]
    # nothing is run: not called
    assert fairbloom.run(**SMALL, rounds=4, out=whole.folder, on_round=stop).finished


def test_on_run_gets_each_run_of_a_comparison_as_it_finishes(tmp_path: Path) -> None:
    """A run that was finished before is not repeated, and an error ends the comparison."""
    seen: list[Run] = []
    about = {**SMALL, "methods": "fedavg,fedfv", "rounds": 1, "jobs": 1, "out": tmp_path}
    fairbloom.compare(**about, seeds=1, on_run=seen.append)
    assert [run.folder.name for run in seen] == ["fedavg-seed0", "fedfv-seed0"]
    assert all(run.finished and run.final() for run in seen)

    def fail(run: Run) -> None:
        raise RuntimeError(run.folder.name)

    with pytest.raises(RuntimeError, match="fedavg-seed1"):
        fairbloom.compare(**about, seeds=2, on_run=fail)
    fairbloom.compare(**about, seeds=2, on_run=seen.append)
    assert len(fairbloom.load(tmp_path).seeds) == 2
