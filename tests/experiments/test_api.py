"""The Python functions: what they return, in scripts and in notebooks.

`on_round` of `fairbloom.run`.
"""

import base64
import inspect
import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any, get_type_hints

import pytest

import fairbloom as api
from fairbloom import RecordedRound, Run
from fairbloom.errors import FairbloomError
from fairbloom.experiments.options import StudyOptions
from fairbloom.server.fairness import summarize
from fairbloom.strategies import Cohort, FedAvg, FedFV, FloatArray, FromTorchJD
from tests.simulation.helpers import Outcome, table

from .helpers import ROOT

SMALL: dict[str, Any] = {"clients": 5, "device": "cpu", "progress": False}


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> api.Run:
    return api.run(
        method="fedfv",
        rounds=3,
        out=tmp_path_factory.mktemp("ran") / "a",
        settings={"fedfv.tau": 2},
        clients=5,
        device="cpu",
        progress=False,
    )


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> api.Comparison:
    out = tmp_path_factory.mktemp("compared") / "cmp"
    return api.compare(
        methods=["fedavg", "ditto"], seeds=2, rounds=2, clients=5, jobs=1, out=out, progress=False
    )


# Importing ----------------------------------------------------------------------------------------


def test_importing_fairbloom_imports_nothing_heavy() -> None:
    heavy = "('torch', 'flwr', 'numpy', 'pydantic', 'rich', 'pandas')"
    code = (
        f"import sys, fairbloom; fairbloom.Score; print([name for name in {heavy} if name in"
        " sys.modules])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ended.stdout == "[]\n"


@pytest.mark.parametrize("name", api.__all__)
def test_what_is_exported_is_there(name: str) -> None:
    assert getattr(api, name) is not None
    assert name in dir(api)


@pytest.mark.parametrize("function", [api.run, api.compare, api.search])
def test_only_common_options_are_in_the_signature(function: Callable[..., Any]) -> None:
    documented = inspect.cleandoc(str(api.run.__doc__))
    shown = inspect.signature(function).parameters
    for name, annotation in get_type_hints(StudyOptions).items():
        assert (shown[name].annotation, shown[name].default) == (annotation, None)
        assert re.search(rf"^{name}\n    \S", documented, re.MULTILINE), name
    assert "options" not in shown
    with pytest.raises(
        TypeError, match=rf"{function.__name__}\(\) got an unexpected .* 'learning_rate'"
    ):
        function(learning_rate=0.1)


# A run --------------------------------------------------------------------------------------------


def test_a_run_has_its_final_scores_and_their_measures(ran: api.Run) -> None:
    last = [row for row in table(ran.folder / "clients.csv") if row["round"] == "3"]
    expected = {row["client"]: float(row["test_accuracy_of_global_model"]) for row in last}
    assert ran.final() == expected
    assert {key: ran.summary[key] for key in summarize(expected)} == summarize(expected)
    assert json.loads(json.dumps(ran.summary))["score"] == "accuracy"
    assert ran.settings["fedfv.tau"] == 2
    assert (ran.finished, ran.rounds_done, ran.num_rounds, ran.state) == (True, 3, 3, "finished")
    assert api.load(str(ran.folder)) == ran


def test_a_finished_run_is_extended(tmp_path: Path) -> None:
    api.run(rounds=2, out="a", **SMALL)
    grown = api.run(rounds=4, out="a", **SMALL)
    assert (grown.rounds_done, grown.finished) == (4, True)
    assert not Outcome.of(grown.folder).differences(
        Outcome.of(api.run(rounds=4, out="b", **SMALL).folder)
    )
    written = (grown.folder / "model.safetensors").stat().st_mtime_ns
    assert api.run(rounds=4, out="a", **SMALL).final() == grown.final()
    assert (grown.folder / "model.safetensors").stat().st_mtime_ns == written


def test_a_run_is_quiet_and_leaves_the_log_as_it_was(capfd: pytest.CaptureFixture[str]) -> None:
    level = logging.getLogger("flwr").level
    api.run(rounds=1, out="a", clients=5, device="cpu")
    assert capfd.readouterr() == ("", "")
    assert logging.getLogger("flwr").level == level


@pytest.mark.parametrize(
    ("line", "measure"),
    [
        ("best client", "best_10"),
        ("mean", "mean"),
        ("worst client", "worst_10"),
    ],
)
def test_a_run_draws_its_score_over_the_rounds(ran: api.Run, line: str, measure: str) -> None:
    spec = ran.chart()
    assert "test accuracy, %, higher is better" in axis_titles(spec)
    expected = [
        float(row[f"test_accuracy_of_global_model_{measure}"])
        for row in table(ran.folder / "rounds.csv")
    ]
    drawn = [row["value"] for row in spec["data"]["values"] if row["method"] == line]
    assert drawn == pytest.approx(expected, rel=1e-4)


def axis_titles(spec: dict[str, Any]) -> set[str]:
    """Return what the axes of a chart say."""
    return {layer["encoding"][axis]["title"] for layer in spec["layer"] for axis in ("x", "y")}


class Halved(FedAvg):
    """Takes half of FedAvg's step."""

    def weigh(self, cohort: Cohort) -> FloatArray:
        return 0.5 * super().weigh(cohort)


@pytest.mark.slow
@pytest.mark.parametrize(("given", "name"), [(FedFV, "fedfv"), (Halved, f"{__name__}:Halved")])
def test_a_method_may_be_given_as_its_class(tmp_path: Path, given: type[FedAvg], name: str) -> None:
    folders = [
        api.run(method=each, rounds=1, out=tmp_path / f"{name[-3:]}-{i}", **SMALL).folder
        for i, each in enumerate((given, name))
    ]
    assert len({(folder / "model.safetensors").read_bytes() for folder in folders}) == 1
    assert api.load(folders[0]).settings["method"] == name


@pytest.mark.slow
def test_methods_of_studies_may_be_classes() -> None:
    compared = api.compare(
        methods=[FedFV, "fedavg", Halved],
        baseline=Halved,
        seeds=1,
        jobs=1,
        rounds=1,
        out="cmp",
        **SMALL,
    )
    assert compared.methods == ("FedFV", "FedAvg", "Halved")
    grid = {"learning-rate": [0.1, 0.2]}
    found = api.search(
        methods=Halved, baseline=Halved, grid=grid, seeds=1, jobs=1, rounds=1, out="search", **SMALL
    )
    assert {arm.method for arm in found.study.arms} == {f"{__name__}:Halved"}
    assert compared.baseline == "Halved"


def test_what_cannot_be_imported_is_refused_as_a_method(subtests: pytest.Subtests) -> None:
    class Hidden(FedAvg):
        pass

    for method, words in {
        Hidden: r"<locals>.Hidden",
        FedFV(alpha=0.2): "fedfv.alpha",
        FromTorchJD: "torchjd:upgrad",
        dict: "<class 'dict'>",
    }.items():
        with subtests.test(method=method, words=words):
            with pytest.raises(FairbloomError, match=words):
                api.run(method=method, **SMALL)
            with pytest.raises(FairbloomError, match=words):
                api.compare(methods=[method], **SMALL)
    assert api.run(method="fedfv", rounds=1, settings={"fedfv.alpha": 0.2}, **SMALL).finished
    assert api.run(method="fedfv(alpha=0.2)", rounds=1, **SMALL).settings["fedfv.alpha"] == 0.2


def test_local_is_shown_by_its_personal_models(tmp_path: Path) -> None:
    small = {**SMALL, "rounds": 2}
    local = api.run(method="local", out=tmp_path / "local", **small)
    rows = table(tmp_path / "local" / "clients.csv")
    by_model = {
        model: {
            row["client"]: float(row[f"test_accuracy_of_{model}_model"])
            for row in rows
            if row["round"] == "2"
        }
        for model in ("global", "personal")
    }
    assert (
        local.final() == by_model["personal"] != by_model["global"] == local.final(model="global")
    )
    assert local.summary["mean"] == pytest.approx(fmean(by_model["personal"].values()))
    assert any("(personal models)" in title for title in axis_titles(local.chart()))
    compared = api.compare(methods="fedavg,local", seeds=1, jobs=1, out=tmp_path / "cmp", **small)
    assert compared.methods == ("FedAvg", "Local")
    assert compared.personal == ("Local",)
    assert compared.values["Local"][0] == by_model["personal"]
    assert api.load(tmp_path / "cmp").values == compared.values


def test_a_run_saves_who_had_which_examples() -> None:
    settings = {"partition": "dirichlet", "clients": 5}
    run = api.run(rounds=1, out="a", settings=settings, progress=False)
    written = (run.folder / "split.npz").read_bytes()
    assert run.split().clients == tuple(f"client-{k}" for k in range(5))
    assert run.split().counts().shape == (5, 10)
    api.run(rounds=2, out="a", settings=settings, progress=False)
    assert (run.folder / "split.npz").read_bytes() == written


# Notebooks ----------------------------------------------------------------------------------------


def test_a_notebook_shows_tables_and_charts(
    ran: api.Run, compared: api.Comparison, subtests: pytest.Subtests
) -> None:
    for result in (ran, compared):
        with subtests.test(result=result):
            part = result._repr_html_()
            chart = result.chart()
            assert part.count("<table>") == part.count("</table>") >= 1
            assert 'src="data:image/png;base64,iVBOR' in part
            assert ("<td>Ditto (personal)</td>" in part) == (result is compared)
            assert isinstance(chart, dict)
            assert json.loads(json.dumps(chart)) == chart
            shown = chart._repr_mimebundle_()  # type: ignore[attr-defined]
            assert shown["application/vnd.vegalite.v5+json"] == chart
            assert base64.b64decode(shown["image/png"]).startswith(b"\x89PNG")


def test_a_line_tells_what_an_object_is(ran: api.Run, compared: api.Comparison) -> None:
    assert repr(ran).startswith("Run(FedFV (tau=2) on digits: FedFV (tau=2) serves its clients ")
    assert (
        repr(compared) == f"Comparison(2 methods compared on digits: {compared.verdict.headline})"
    )


# Data frames --------------------------------------------------------------------------------------


def test_the_tables_of_a_comparison_are_data_frames(
    compared: api.Comparison, subtests: pytest.Subtests
) -> None:
    assert compared.table.index.tolist() == ["FedAvg", "Ditto", "Ditto (personal)"]
    for method, row in compared.table.iterrows():
        with subtests.test(method=method, row=row):
            assert row["worst_10"] == pytest.approx(
                compared.estimate(str(method), "worst_10").value
            )
    clients = compared.clients
    chosen = clients[(clients["method"] == "FedAvg") & (clients["seed"] == 1)].set_index("client")[
        "accuracy"
    ]
    assert chosen.to_dict() == compared.values["FedAvg"][1]


def test_settings_may_be_written_as_python_names(tmp_path: Path) -> None:
    settings = {"learning_rate": 0.05, "num_rounds": 1, "fedfv.alpha": 0.2}
    run = api.run(
        "digits", method="fedfv", clients=4, settings=settings, out=tmp_path, progress=False
    )
    assert run.settings["learning-rate"] == 0.05
    assert run.num_rounds == 1
    with pytest.raises(
        FairbloomError, match="learning-rate is given twice, also as learning_rate: give it once"
    ):
        api.compare(
            "digits",
            settings={**settings, "learning-rate": 0.05},
            out=tmp_path / "compared",
            progress=False,
        )


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FairbloomError, match=r"choose another folder \(--out\)$"):
        api.compare(methods="fedavg", seeds=1, rounds=1, out=tmp_path, progress=False)


def test_on_round_gets_each_round_as_it_is_recorded(tmp_path: Path) -> None:
    seen: list[RecordedRound] = []
    run = api.run(
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
    def stop(recorded: RecordedRound) -> None:
        if recorded.number == 2:
            raise RuntimeError("seen enough")

    whole = api.run(**SMALL, rounds=4, out=tmp_path / "whole")
    with pytest.raises(RuntimeError, match="seen enough"):
        api.run(**SMALL, rounds=4, out=tmp_path / "stopped", on_round=stop)
    stopped = api.load(tmp_path / "stopped")
    assert (stopped.state, stopped.rounds_done) == ("interrupted", 2)
    api.run(**SMALL, rounds=4, out=tmp_path / "stopped")
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "stopped")]
    assert models[0] == models[1]
    # nothing is run: not called
    assert api.run(**SMALL, rounds=4, out=whole.folder, on_round=stop).finished


def test_on_run_gets_each_run_of_a_comparison_as_it_finishes(tmp_path: Path) -> None:
    """A run that was finished before is not repeated, and an error ends the comparison."""
    seen: list[Run] = []
    about = {**SMALL, "methods": "fedavg,fedfv", "rounds": 1, "jobs": 1, "out": tmp_path}
    api.compare(**about, seeds=1, on_run=seen.append)
    assert [run.folder.name for run in seen] == ["fedavg-seed0", "fedfv-seed0"]
    assert all(run.finished and run.final() for run in seen)

    def fail(run: Run) -> None:
        raise RuntimeError(run.folder.name)

    with pytest.raises(RuntimeError, match="fedavg-seed1"):
        api.compare(**about, seeds=2, on_run=fail)
    api.compare(**about, seeds=2, on_run=seen.append)
    assert len(api.load(tmp_path).seeds) == 2


def test_default_methods_that_cannot_be_run_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    small: dict[str, Any] = {**SMALL, "rounds": 1}
    settings = {"momentum": 0.9}
    found = api.compare(seeds=1, jobs=1, out=tmp_path / "c", settings=settings, **small)
    assert "FedDyn is left out: " in caplog.text
    assert "FedDyn" not in found.methods
    assert "QFedAvg" in found.methods
    # Named, it is an error; and so is what concerns all.
    with pytest.raises(FairbloomError, match="leave out momentum"):
        api.compare(methods="fedavg,feddyn", out=tmp_path / "d", settings=settings, **small)
    with pytest.raises(FairbloomError, match="momentum"):
        api.compare(out=tmp_path / "e", settings={"momentum": -1.0}, **small)
