"""FCFL in whole runs: each site keeps to its budget, every engine makes the same of it, and a killed run goes on."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from fairbloom.experiments.results.run import Run, load
from fairbloom.server.run_folder.recorded import RecordedRound
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate

from .helpers import Outcome
from .test_fair_groups import write_sites


def settings_of(data: Path, out: Path, **changes: Any) -> Settings:
    plain = {
        "task": "csv",
        "csv.group": "sex",
        "method": "fcfl",
        "fraction": 1.0,
        "device": "cpu",
        "learning-rate": 0.2,
    }
    changed = {"data-dir": str(data), "out": str(out), **changes}
    return Settings.of({**plain, "evaluate-every": 0, "num-rounds": 8, "fcfl.stage1-rounds": 4, **changed})


def gaps_of(run: Run) -> Mapping[str, float]:
    """Return the difference of the groups' selection rates at each site, on its test examples, from 0 to 1."""
    rows = run.gaps.query("score == 'selection-rate' and client != 'all clients'")
    return {str(row["client"]): float(row["gap"]) / 100.0 for _, row in rows.iterrows()}


@pytest.mark.slow
def test_each_site_comes_within_its_budget_in_both_stages(tmp_path: Path) -> None:
    """Without one, the sites that judge women more strictly are far beyond it."""
    data = write_sites(tmp_path / "data", 0, sites=4)
    long = {"num-rounds": 200, "fcfl.stage1-rounds": 120}
    free = load(simulate(settings_of(data, tmp_path / "free", **long, **{"fcfl.budget": 1.0})))
    bound = load(simulate(settings_of(data, tmp_path / "bound", **long, **{"fcfl.budget": 0.1})))
    assert max(gaps_of(bound).values()) < 0.7 * max(gaps_of(free).values())  # on test examples, and of decisions
    assert set(free.rounds["over_budget"]) == {0.0}
    assert max(bound.rounds["over_budget"]) > 0.0
    last = bound.clients["train_disparity_before_round"]  # which the budgets are for
    assert (last.abs() > 0.1).sum() == bound.rounds["over_budget"].iloc[-1]
    assert last.abs().max() == pytest.approx(0.1, abs=0.01)
    of_decisions = bound.clients["train_disparity_hard_before_round"]
    np.testing.assert_allclose(of_decisions, last, atol=0.05)
    assert (of_decisions != last).all()
    specific = {"fcfl.budgets": "site-0=0.9 site-1=0.9 site-2=0.9 site-3=0.9", "fcfl.budget": 0.1}
    loose = load(simulate(settings_of(data, tmp_path / "loose", **long, **specific)))
    np.testing.assert_allclose(model_of(loose.folder), model_of(free.folder), rtol=1e-4, atol=1e-5)


def model_of(folder: Path) -> np.ndarray[Any, Any]:
    return np.concatenate([array.ravel() for array in load_file(folder / "model.safetensors").values()])


class KilledError(Exception):
    pass


def test_a_killed_run_goes_on_to_the_same_bits_in_both_stages(tmp_path: Path) -> None:
    """With temperatures that have fallen: killed at the end of stage 1."""
    data = write_sites(tmp_path / "data", 2, sites=3)
    falling = {"fcfl.delta-factor": 0.01, "fcfl.delta-decay": 0.5}

    def kill(recorded: RecordedRound) -> None:
        if recorded.number == 4:
            raise KilledError

    whole = simulate(settings_of(data, tmp_path / "whole", **falling))
    with pytest.raises(KilledError):
        simulate(settings_of(data, tmp_path / "killed", **falling), kill)
    resumed = simulate(settings_of(data, tmp_path / "killed", **falling))
    assert Outcome.of(resumed).differences(Outcome.of(whole)) == ""
