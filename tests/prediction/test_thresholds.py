"""Predictions go by the threshold that the clients, or one of them, chose on validation examples."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from flwr.app import Context, RecordDict

import fairbloom
from fairbloom.client import app as client_app
from fairbloom.prediction.predictor import Predictor, load_predictor
from fairbloom.server.app import main
from fairbloom.server.run_folder.files import BEST, MODEL
from fairbloom.server.settings import Settings
from fairbloom.simulation.grid import InProcessGrid
from tests.experiments.helpers import fairbloom as command

from .hospitals import write_hospital, write_hospitals
from .made import held_out, read

MODES = ("client", "together")
SITES = ("h0", "h1", "h2", "h3")
SETTINGS = {
    "csv.classes": "sick,well",
    "csv.positive": "sick",
    "scores": "f1,sensitivity,specificity",
    "validation-share": 0.3,
    "personal-lambda": 0.1,
    "learning-rate": 0.02,
}


@pytest.fixture(scope="module", params=MODES)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> fairbloom.Run:
    """Four hospitals with common means, whose clients have chosen thresholds; sick, the first class, is positive."""
    folder = tmp_path_factory.mktemp(request.param)
    write_hospitals(folder / "data")
    return fairbloom.run(
        "csv",
        data_dir=folder / "data",
        rounds=4,
        out=folder / "run",
        device="cpu",
        progress=False,
        settings={**SETTINGS, "threshold": request.param, "csv.standardise": "together"},
    )


def scores_of(predictor: Predictor, rows: list[dict[str, str]]) -> dict[str, float]:
    """Return the scores of predictions for rows whose target is known, in percent."""
    frame = predictor.predict(pandas.DataFrame(rows))
    sick, found = frame["target"] == "sick", frame["predicted_target"] == "sick"
    hits = (sick & found).sum()
    return {
        "f1": 2 * hits / (sick.sum() + found.sum()),
        "sensitivity": 100 * hits / sick.sum(),
        "specificity": 100 * (~sick & ~found).sum() / (~sick).sum(),
    }


@pytest.mark.parametrize("model", ["last", "best", "personal"])
def test_scores_of_predictions_are_those_of_the_table_to_the_row(run: fairbloom.Run, model: str) -> None:
    after = BEST.read_about(run.folder)["round"] if model == "best" else None
    for client in SITES:
        found = scores_of(load_predictor(run.folder, client=client, model=model), held_out(run, client))
        for score in run.scores:
            if score.name in found:
                of = "personal" if model == "personal" else "global"
                assert found[score.name] == pytest.approx(run.final(score, of, after=after)[client], rel=1e-12)


def test_thresholds_of_these_tests_differ_from_a_half(run: fairbloom.Run) -> None:
    for client in SITES:
        predictor = load_predictor(run.folder, client=client)
        frame = predictor.predict(pandas.DataFrame(held_out(run, client)))
        sick = frame["probability_sick"] >= predictor.threshold
        assert list(frame["predicted_target"]) == list(np.where(sick, "sick", "well"))
    assert {load_predictor(run.folder, client=client).threshold for client in SITES} - {0.5, None}


def test_without_a_client_only_a_threshold_for_all_counts(run: fairbloom.Run, caplog: pytest.LogCaptureFixture) -> None:
    predictor = load_predictor(run.folder)
    if run.settings["threshold"] == "together":
        assert predictor.threshold == load_predictor(run.folder, client="h0").threshold
    else:
        assert predictor.threshold is None
        assert "each client has its own, so name one by --client" in caplog.text


def test_the_command_says_the_threshold(run: fairbloom.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new, out = run.folder.parent / "data" / "h2.csv", tmp_path / "out.csv"
    threshold = load_predictor(run.folder, client="h2").threshold
    assert command("predict", run.folder, new, "--client", "h2", "--out", out) == 0
    assert capsys.readouterr().out == f"90 predictions, sick from a probability of {threshold:g}: {out}\n"
    assert {row["predicted_target"] for row in read(out)} == {"sick", "well"}


# A site that took no part, and devices --------------------------------------------------------------------------------


def test_a_new_site_is_measured_and_predicts_by_the_threshold(run: fairbloom.Run, tmp_path: Path) -> None:
    write_hospital(tmp_path / "new" / "newtown.csv", 150, 9, 14.0)
    found = fairbloom.evaluate(run.folder, data_dir=tmp_path / "new", out=tmp_path / "site")
    predictor = load_predictor(tmp_path / "site")
    if run.settings["threshold"] == "together":
        assert predictor.threshold == load_predictor(run.folder, client="h0").threshold
    rows = read(tmp_path / "new" / "newtown.csv")
    test = held_out_of_site(run, tmp_path / "new")
    expected = scores_of(predictor, [rows[place] for place in test])
    assert {name: found.before[name] for name in expected} == pytest.approx(expected, rel=1e-12)
    again = fairbloom.evaluate(tmp_path / "site", data_dir=tmp_path / "new")
    assert again.before == found.before


def held_out_of_site(run: fairbloom.Run, data: Path) -> Iterable[int]:
    """Return the places of the rows on which a new site tests a run's model."""
    from fairbloom.tasks import load_task

    agreed = (run.folder / "agreed.json").read_text()
    task = load_task({**run.settings, "data-dir": str(data), "agreed": agreed})
    rows = task.splits("newtown").test.rows
    assert rows is not None
    return rows.tolist()


class Hospitals(InProcessGrid):
    """The four hospitals, each deployed with a file and a state folder of its own."""

    def __init__(self, settings: Settings, data: Path, state: Path) -> None:
        super().__init__(client_app.app, settings.run_config(), len(SITES))
        for name, context in zip(SITES, self.contexts.values(), strict=True):
            context.node_config = {"name": name, "data-dir": str(data / f"{name}.csv"), "state-dir": str(state / name)}


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_device_predicts_by_its_threshold(mode: str, tmp_path: Path) -> None:
    """Each client standardises by its own rows, so that nobody else can predict for it."""
    write_hospitals(tmp_path / "data")
    given: dict[str, Any] = {"task": "csv", "num-rounds": 3, "fraction": 1.0, "device": "cpu", "threshold": mode}
    settings = Settings.of({**SETTINGS, **given, "out": str(tmp_path / "run")})
    grid = Hospitals(settings, tmp_path / "data", tmp_path / "state")
    main(grid, Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=settings.run_config()))
    measured = {row["client"]: row for row in read(tmp_path / "run" / "clients.csv")}
    for name in SITES:
        (model,) = (tmp_path / "state" / name).glob(f"*/*/{MODEL.name}")
        predictor = load_predictor(model.parent)
        assert predictor.threshold == float(measured[name]["threshold"])
        assert predictor.preprocessing is not None
        assert predictor.preprocessing.positive == "sick"
        assert load_predictor(model.parent, model="personal").threshold is None
    assert any(float(row["threshold"]) != 0.5 for row in measured.values())


@pytest.mark.parametrize("absurd", [0.0, 1.5, -1.0, float("nan"), "0.3", 1])
def test_a_server_cannot_set_an_absurd_threshold(absurd: Any) -> None:
    from fairbloom.client.kept import About

    assert About.of("run", 1, "checksum", "global", absurd).threshold is None
    assert About.of("run", 1, "checksum", "global", 0.3).threshold == 0.3
