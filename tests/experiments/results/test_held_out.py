"""Clients that are not in training, in the results of a comparison."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from fairbloom.experiments.api import load
from fairbloom.experiments.results import verdict
from fairbloom.experiments.results.comparison import Comparison
from fairbloom.experiments.studies.compare import write_comparison
from fairbloom.server.run_folder.files import HELD_OUT, MODEL

from ..helpers import captured
from ..made_up import make_comparison

MEAN = "not in training: mean"
WORST = "not in training: worst_10"


def made(folder: Path, gain: float) -> Comparison:
    """Return a comparison in which FedFV gains on twelve clients that are not in training.

    One of them lacks the score under Ditto with seed 1.
    """
    make_comparison(folder, ["fedavg", "ditto", "fedfv"], [*range(4)], "abc", 2, personal=["ditto"])
    for label, runs in load(folder).runs.items():
        for seed, run in enumerate(runs):
            values = np.linspace(20, 80, 12) + (label == "FedFV") * gain * (1 + 0.01 * seed)
            scores = {f"h{k}": {"accuracy": value} for k, value in enumerate(values.tolist())}
            scores["h0"] |= {"accuracy": None} if (label, seed) == ("Ditto", 1) else {}
            HELD_OUT.write(run.folder, {"not in training": scores})
    return load(folder)


def test_numbers_are_those_of_the_files(tmp_path: Path) -> None:
    compared = made(tmp_path, 9.0)
    write_comparison(compared, tmp_path)
    rows = [*csv.DictReader((tmp_path / "comparison.csv").read_text().splitlines())]
    means = {}
    for label, runs in compared.runs.items():
        files = [json.loads((run.folder / "held-out.json").read_text()) for run in runs]
        values = [[each["accuracy"] for each in of["not in training"].values()] for of in files]
        values[1] = values[1][1:]
        means[label] = np.array([*map(np.mean, values)])
        worst = [np.mean(sorted(each)[:2]) for each in values]
        assert np.allclose(
            [(float(row[MEAN]), float(row[WORST])) for row in rows if row["method"] == label],
            [*zip(means[label], worst, strict=True)],
        )
        assert compared.estimate(label, WORST).value == pytest.approx(np.mean(worst))
    assert compared.difference("fedfv", MEAN).mean == pytest.approx(
        (means["FedFV"] - means["FedAvg"]).mean()
    )
    assert np.isnan(compared.difference("fedfv", WORST).p_value)


@pytest.mark.parametrize(("gain", "said"), [(9.0, "improves"), (-9.0, "worsens"), (0.0, "")])
def test_the_verdict_claims_what_is_significant(
    tmp_path: Path, gain: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Costs and contradictions are asked as if no gain of other clients had been claimed.
    monkeypatch.setattr(verdict, "_costs", lambda *_: ", at a cost")
    monkeypatch.setattr(
        verdict,
        "find_contradictions",
        lambda _, methods: ["FedFV is asked."] * ("FedFV" in methods),
    )
    words = str(made(tmp_path, gain).verdict)
    assert (f"FedFV significantly {said} the mean of clients not in training by 9" in words) == (
        gain != 0.0
    )
    assert "Ditto significantly improves the mean of clients not" not in words
    assert "at a cost" not in words
    assert "FedFV is asked." in words


def test_pages_show_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "fairbloom.experiments.pages.comparison._first_only", lambda compared: False
    )
    compared = made(tmp_path, 9.0)
    write_comparison(compared, tmp_path)
    report = (tmp_path / "report.html").read_text()
    assert all(
        words in report
        for words in ("not in training: worst 10 %", "(seeds: 4)", "mean over up to 4 seeds")
    )
    run = compared.runs["Ditto"][1]
    for tested in (11, 0):
        shown = captured(capsys, "show", run.folder).out
        assert f"is the mean of {tested} of 12 clients" in shown
        assert "test accuracy (not tested, or it has no finite value there): h0" in shown
        assert ("not in training" in captured(capsys, "show", run.folder, "--json").out) == (
            tested > 0
        )
        HELD_OUT.write(
            run.folder, {"not in training": {f"h{k}": {"accuracy": None} for k in range(12)}}
        )
    MODEL.path_in(run.folder).unlink()
    assert run.held_out() == {}
    assert "not in training" not in captured(capsys, "show", run.folder).out


def test_without_the_setting_nothing_is_shown(tmp_path: Path) -> None:
    make_comparison(tmp_path, ["fedavg", "fedfv"], [0, 1, 2], ["a", "b"], 2)
    compared = load(tmp_path)
    write_comparison(compared, tmp_path)
    for path in (*tmp_path.glob("*.csv"), tmp_path / "report.html"):
        assert "not in training: " not in path.read_text()
    assert "not in training" not in str(compared.verdict)


def test_ditto_shows_its_common_model(tmp_path: Path) -> None:
    compared = made(tmp_path, 0.0)
    compared.__dict__["shown"] = ("FedAvg", "Ditto (personal)", "FedFV")
    assert compared.held_out["Ditto (personal)"] == compared.held_out["Ditto"] != [{}] * 4
    assert not any(made(tmp_path / "b", 0.0).held_out["Ditto (personal)"])
