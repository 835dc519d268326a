"""Sweeps: the choice is made on validation examples alone, and nothing that is finished is run again."""

import json
import math
import os
import re
import shutil
import signal
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import fairbloom as api
from fairbloom.errors import FairbloomError
from fairbloom.experiments.recipes.recipe import recipe_of
from fairbloom.experiments.results.run import REPORT
from fairbloom.experiments.results.sweep import Sweep
from fairbloom.experiments.studies.sweep import run_sweep
from fairbloom.experiments.studies.swept import load_sweep
from fairbloom.server.fairness import summarize
from fairbloom.server.run_folder.lock import locked_folder
from tests.simulation.helpers import table

from ..helpers import fairbloom, start
from ..pages.parsed import Parsed

OWN = Path(__file__).parents[1] / "own"
VALIDATION, TEST = "validation_accuracy_of_global_model", "test_accuracy_of_global_model"
SMALL = ("--clients", 4, "--rounds", 2, "--device", "cpu")
GRID = ("--grid", "alpha=0,0.5", "--grid", "learning-rate=0.001,0.2")
WORDS = ("sweep", "--method", "fedfv", *GRID, "--baseline", "fedavg", "--seeds", 2, *SMALL, "--jobs", 1)
WRITTEN = {"sweep.json", "sweep.csv", "sweep.png", "sweep.svg", "comparison.csv", "clients.csv", "runs", REPORT}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("swept") / "out"
    assert fairbloom(*WORDS, "--out", out) == 0
    return out


@pytest.fixture
def copied(done: Path, tmp_path: Path) -> Path:
    """A sweep that a test may change."""
    return Path(shutil.copytree(done, tmp_path / "out"))


@pytest.fixture
def disagreeing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a user whose task has test examples with flipped answers."""
    shutil.copy(OWN / "my_disagreeing_task.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def last(folder: Path, column: str) -> dict[str, float]:
    """Return a column of the last round of clients.csv by client."""
    rows = table(folder / "clients.csv")
    number = max(int(row["round"]) for row in rows)
    return {row["client"]: float(row[column]) for row in rows if int(row["round"]) == number and row[column]}


def written_in(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in (folder / "runs").rglob("*") if path.is_file()}


def shown_json(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    capsys.readouterr()
    assert fairbloom(*words, "--json") == 0
    return json.loads(capsys.readouterr().out)


# The choice ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_point_is_worth_the_mean_of_its_validation_scores_over_clients_and_seeds(done: Path) -> None:
    swept = load_sweep(done)
    assert len(swept.points) == 4
    for point in swept.points:
        runs = [done / name for name in point.planned.runs(swept.plan.seeds)]
        by_seed = [statistics.fmean(last(run, VALIDATION).values()) for run in runs]
        assert point.values == pytest.approx(by_seed)
        assert point.mean == pytest.approx(statistics.fmean(by_seed))
        assert point.error == pytest.approx(statistics.stdev(by_seed) / math.sqrt(2))
        settings = [api.load(run).settings for run in runs]
        assert [each["seed"] for each in settings] == [0, 1]
        assert all(each[key] == value for each in settings for key, value in point.planned.settings.items())
    assert swept.best is max(swept.points, key=lambda point: point.mean)


def test_the_test_figure_is_of_the_chosen_point_and_of_the_baselines_and_of_no_other(done: Path) -> None:
    swept = load_sweep(done)
    assert swept.test is not None
    assert swept.best is not None
    assert swept.baseline is not None
    names = [swept.best.name, swept.baseline.name]
    rows = table(done / "comparison.csv")
    assert [(row["method"], row["seed"]) for row in rows] == [(name, str(seed)) for name in names for seed in (0, 1)]
    for point, of_point in ((swept.best, rows[:2]), (swept.baseline, rows[2:])):
        for name, row in zip(point.planned.runs(swept.plan.seeds), of_point, strict=True):
            tested = last(done / name, TEST)
            assert {key: float(row[key]) for key in summarize(tested)} == summarize(tested)
    assert not any("test" in column for column in table(done / "sweep.csv")[0])
    assert {path.name for path in done.iterdir()} >= WRITTEN


def test_the_baseline_is_searched_over_the_axes_that_it_has_and_never_chosen(done: Path) -> None:
    swept = load_sweep(done)
    assert [point.name for point in swept.bases] == ["FedAvg (learning-rate=0.001)", "FedAvg (learning-rate=0.2)"]
    assert swept.baseline is not None
    assert swept.baseline.name == "FedAvg (learning-rate=0.2)"
    assert {point.planned.row for point in swept.points} == {"FedFV"}


def test_the_report_has_the_points_the_choice_and_the_test_numbers(done: Path) -> None:
    written = (done / REPORT).read_text(encoding="utf-8")
    page, swept = Parsed.of(written), load_sweep(done)
    points = {row["point"]: row for row in page.rows("points")}
    assert {name: float(row[swept.measured].partition(" ")[0]) for name, row in points.items()} == {
        point.name: pytest.approx(point.mean, abs=0.051) for point in (*swept.points, *swept.bases)
    }
    assert swept.best is not None
    assert swept.test is not None
    assert points[swept.best.name]["state"] == "chosen"
    assert swept.sentences()[0] in page.text
    tested = {row["method"]: float(row["mean"].partition(" ")[0]) for row in page.rows("measures")}
    assert tested == {name: pytest.approx(swept.test.spread(name, "mean")[0], abs=0.051) for name in swept.test.methods}
    (done / REPORT).unlink()
    assert fairbloom("report", done) == 0
    assert (done / REPORT).read_text(encoding="utf-8") == written


@pytest.mark.usefixtures("disagreeing")
def test_the_choice_is_by_validation_examples_where_test_examples_say_the_opposite() -> None:
    swept = api.sweep(
        task="my_disagreeing_task:flipped",
        grid={"learning-rate": [1e-6, 0.5]},
        rounds=5,
        seeds=2,
        device="cpu",
        out="out",
        jobs=1,
        progress=False,
    )
    idle, learned = (
        [statistics.fmean(last(Path("out", name), TEST).values()) for name in point.planned.runs([0, 1])]
        for point in swept.points
    )
    assert statistics.fmean(idle) > statistics.fmean(learned) + 20.0  # by the test examples it would be chosen
    assert swept.best is swept.points[1]
    assert swept.test is not None
    assert swept.test.spread(swept.best.name, "mean")[0] == pytest.approx(statistics.fmean(learned))


def test_another_criterion_chooses_again_from_the_same_runs(copied: Path) -> None:
    before = written_in(copied)
    assert fairbloom(*WORDS, "--criterion", "mean+worst-10", "--out", copied) == 0
    assert written_in(copied) == before
    swept = api.load_sweep(copied)
    for point in swept.points:
        scores = [last(copied / name, VALIDATION) for name in point.planned.runs([0, 1])]
        by_seed = [(statistics.fmean(each.values()) + min(each.values())) / 2.0 for each in scores]
        assert point.values == pytest.approx(by_seed)


def test_points_have_a_mean_and_an_error_and_no_test(done: Path) -> None:
    """The best of many points looks better than it is on the examples that chose it."""
    swept = load_sweep(done)
    said = " ".join(swept.sentences())
    assert "differ significantly" not in said
    assert not re.search(r"\bp\b|significant", " ".join(str(key) for key in swept.as_json["points"][0]))
    page = Parsed.of((done / REPORT).read_text(encoding="utf-8"))
    assert {*page.rows("points")[0]} == {"point", swept.measured, "standard error", "state"}


def test_bars_never_pass_what_is_expected(tmp_path: Path) -> None:
    """The runs of the chosen point and of the baseline were counted twice."""
    expected, done = list[int](), list[int]()
    recipe = recipe_of(
        {
            "settings": {"clients": 4, "num-rounds": 1, "device": "cpu"},
            "grid": {"learning-rate": [0.05, 0.1]},
            "grid-seeds": 1,
            "baseline": "B",
            "rows": [{"label": "A", "settings": {"method": "fedfv"}}, {"label": "B"}],
        }
    )
    run_sweep(recipe, range(2), tmp_path, 1, lambda: done.append(expected[-1]), expected.append)
    assert expected == [4, 6]
    assert len(done) == 6
    assert all(number <= total for number, total in enumerate(done, start=1))


@pytest.mark.usefixtures("disagreeing")
def test_clients_without_validation_examples_are_named_and_where_all_lack_them_nothing_is_chosen() -> None:
    words: dict[str, Any] = {
        "task": "my_disagreeing_task:flipped",
        "rounds": 1,
        "seeds": 1,
        "jobs": 1,
        "progress": False,
    }
    grid = {"learning-rate": [0.1, 0.5]}
    swept = api.sweep(**words, grid=grid, settings={"flipped.unjudged": 1}, out="some")
    assert any(line.startswith("Client a has no validation accuracy, and no part") for line in swept.sentences())
    with pytest.raises(FairbloomError, match="sets no validation examples apart"):
        api.sweep(**words, grid=grid, settings={"flipped.unjudged": 3}, out="none")


def test_clients_with_five_rows_are_swept_and_the_choice_is_said_to_be_by_chance(tmp_path: Path) -> None:
    for name in ("basel", "lund"):
        rows = "".join(f"{0.1 * i},{i % 2}\n" for i in range(5))
        (tmp_path / f"{name}.csv").write_text(f"x,outcome\n{rows}")
    words: dict[str, Any] = {"task": "csv", "data_dir": tmp_path, "rounds": 1, "seeds": 1, "jobs": 1, "progress": False}
    settings = {"csv.target": "outcome"}
    swept = api.sweep(**words, grid={"learning-rate": [0.1, 0.5]}, settings=settings, out=tmp_path / "out")
    assert swept.best is not None
    assert any(line.startswith("A client is judged on about 1 validation example, fewer") for line in swept.sentences())


@pytest.mark.slow
def test_a_constraint_is_held_against_the_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("sweep", "--method", "qfedavg(lipschitz=10)", "--grid", "q=0,30", "--baseline", "fedavg", "--seeds", 2)
    words += (*SMALL, "--rounds", 4, "--jobs", 1, "--out", tmp_path)
    free = shown_json(capsys, *words, "--criterion", "gap")
    bound = shown_json(capsys, *words, "--criterion", "gap, mean within 0.5 points of FedAvg")
    missing = {point["name"]: point["misses"] for point in bound["points"]}
    assert all(point["misses"] == 0.0 for point in free["points"])
    assert max(missing.values()) > 0.0
    if bound["chosen"] is None:
        assert "No point can be chosen: none keeps the constraints." in bound["sentences"]
    else:
        assert missing[bound["chosen"]["name"]] == 0.0


# Going on -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_more_values_seeds_and_rounds_run_what_is_missing_alone(copied: Path) -> None:
    before = written_in(copied)
    runs = {path.name for path in (copied / "runs").iterdir()}
    grid = ("--grid", "alpha=0", "--grid", "learning-rate=0.001,0.1,0.2")
    words = ("sweep", "--method", "fedfv", *grid, *SMALL, "--jobs", 1, "--out", copied)
    assert fairbloom(*words, "--seeds", 2) == 0
    now = {path.name for path in (copied / "runs").iterdir()}
    assert len(now - runs) == 2  # the new learning rate with each seed
    assert {path: time for path, time in written_in(copied).items() if path in before} == before
    assert fairbloom(*words, "--seeds", 3) == 0
    later = {path.name for path in (copied / "runs").iterdir()} - now
    assert len(later) == 3
    assert all(name.endswith("-seed2") for name in later)
    assert {path: time for path, time in written_in(copied).items() if path in before} == before
    assert fairbloom(*words, "--seeds", 3, "--rounds", 3) == 0
    assert {path.name for path in (copied / "runs").iterdir()} == now | later
    points = api.load_sweep(copied).points
    assert {api.load(copied / name).rounds_done for point in points for name in point.planned.runs(range(3))} == {3}


@pytest.mark.slow
def test_a_sweep_that_is_killed_goes_on_to_the_same_bits(done: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start(*WORDS, "--jobs", 1, "--out", out, start_new_session=True)
    while process.poll() is None and not list(out.glob("runs/*/model.safetensors")):
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    finished = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/model.safetensors")}
    swept = api.load_sweep(out)
    assert (swept.plan.ended, swept.unfinished > 0) == (False, True)
    assert any("the same fairbloom sweep goes on" in line for line in swept.sentences())
    assert fairbloom(*WORDS, "--out", out) == 0
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    for name in ("sweep.csv", "comparison.csv", "clients.csv", "sweep.json"):
        assert (out / name).read_bytes() == (done / name).read_bytes()


@pytest.mark.slow
def test_ctrl_c_ends_a_sweep_with_130(tmp_path: Path) -> None:
    words = ("sweep", "--grid", "learning-rate=0.1,0.2", "--clients", 5, "--rounds", 100_000, "--jobs", 1)
    process = start(*words, "--out", tmp_path, start_new_session=True)
    while process.poll() is None and not list(tmp_path.rglob("checkpoint/*.safetensors")):
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130
    assert "Traceback" not in said


def test_a_second_sweep_into_a_folder_is_refused_while_the_first_goes_on(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with locked_folder(copied, wait=False):
        assert fairbloom(*WORDS, "--out", copied) == 2
    assert "wait for it to end" in capsys.readouterr().err


def test_points_that_fail_are_shown_and_never_win_and_do_not_end_the_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("sweep", "--grid", "learning-rate=1e300,0.1", "--seeds", 1, *SMALL, "--set", "unused-rounds=1")
    shown = shown_json(capsys, *words, "--jobs", 1, "--out", tmp_path)
    failed, good = shown["points"]
    assert failed["fault"]
    assert (failed["values"], failed["mean"]) == ([], None)
    assert shown["chosen"]["name"] == good["name"] == "FedAvg (learning-rate=0.1)"
    assert fairbloom("show", tmp_path) == 0  # a later look has it from sweep.json
    printed = capsys.readouterr().out
    assert re.search(r"FedAvg \(learning-rate=1e\+300\)( +–)+ +failed", printed)
    assert "FedAvg (learning-rate=1e+300) failed: " in " ".join(printed.split())
    assert shown_json(capsys, "show", tmp_path) == shown


def test_where_all_points_fail_the_first_error_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("sweep", "--grid", "learning-rate=1e300,1e301", "--seeds", 1, *SMALL, "--set", "unused-rounds=1")
    assert fairbloom(*words, "--out", tmp_path / "out") == 2
    assert "FedAvg (learning-rate=1e+300) with seed 0: " in capsys.readouterr().err


# What is shown ------------------------------------------------------------------------------------------------------


def test_a_sweep_prints_json_alone_and_is_shown_again_as_it_was(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = shown_json(capsys, *WORDS, "--out", copied)
    assert shown_json(capsys, "show", copied) == shown
    assert [sorted(point["parameters"]) for point in shown["points"]] == [["alpha", "learning-rate"]] * 4
    assert shown["chosen"]["settings"]["method"] == "fedfv"
    assert {row["method"] for row in shown["test"]["methods"]} == {shown["chosen"]["name"], shown["baseline"]["name"]}
    assert fairbloom(*WORDS, "--out", copied) == 0
    printed = capsys.readouterr().out
    assert fairbloom("show", copied) == 0
    assert capsys.readouterr().out == printed
    assert "validation-share = 0.2 was set" in printed


def test_a_sweep_is_a_value_with_a_figure_and_html(done: Path, tmp_path: Path) -> None:
    swept = load_sweep(done)
    assert isinstance(swept, Sweep)
    assert repr(swept).startswith(f"Sweep({str(done)!r}: 4 points, 2 seeds, chosen FedFV (alpha=")
    rows = swept.chart()["data"]["values"]
    kinds = {row["client"]: row["method"] for row in rows}
    assert kinds[swept.best.name] == "chosen"
    assert sorted(kinds.values()) == ["baseline", "chosen", *["other points"] * 3]
    assert "<table>" in swept._repr_html_()
    assert fairbloom("show", done, "--figure", tmp_path / "drawn") == 0
    assert (tmp_path / "drawn.svg").exists()


def test_a_sweeps_folder_is_known_as_one(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(FairbloomError, match="holds a sweep, of several runs: name one run"):
        api.load(done)
    assert fairbloom("show", done, "--split", "x") == 2
    assert "holds a sweep: draw the split of one of its runs" in capsys.readouterr().err
    assert len(shown_json(capsys, "list", done)) == 12


def test_a_damaged_sweep_says_what_to_do(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copied / "sweep.json").write_text('{"title": "Sweep"}')
    assert fairbloom("show", copied) == 2
    assert "Run the same fairbloom sweep again" in capsys.readouterr().err
    assert fairbloom(*WORDS, "--out", copied) == 0
    assert fairbloom("show", copied) == 0


# Files --------------------------------------------------------------------------------------------------------------

FILE = """
seeds = 1
criterion = "worst"
baseline = "Averaging"

[settings]
clients = 4
num-rounds = 1
device = "cpu"
validation-share = 0.3

[grid]
learning-rate = [0.05, 0.1]
alpha = [0.0, 0.5]

[[rows]]
label = "FedFV"
settings = { method = "fedfv" }

[[rows]]
label = "Gentle"
settings = { method = "qfedavg", qfedavg.q = 0.5 }

[[rows]]
label = "Averaging"
"""


@pytest.mark.slow
def test_a_file_has_rows_with_grids_and_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(FILE)
    swept = api.sweep("mine.toml", jobs=1, progress=False)
    assert swept.folder == tmp_path / "runs" / "mine"
    assert [point.name for point in swept.points] == [
        *(f"FedFV (learning-rate={rate}, alpha={alpha})" for rate in (0.05, 0.1) for alpha in ("0", "0.5")),
        *(f"Gentle (q=0.5, learning-rate={rate})" for rate in (0.05, 0.1)),
    ]
    assert len(swept.bases) == 2
    assert (swept.plan.title, swept.measured) == ("mine", "worst client")
    assert not any("was set" in line for line in swept.sentences())
    assert {run.settings["validation-share"] for run in map(api.load, (swept.folder / "runs").iterdir())} == {0.3}
    more = api.sweep("mine.toml", seeds=2, settings={"batch-size": 20}, jobs=1, progress=False, criterion="mean")
    assert (len(more.plan.seeds), more.plan.criterion) == (2, "mean")


def test_a_file_may_search_with_fewer_seeds_than_it_tests_with(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(FILE.replace("seeds = 1", "seeds = 3\ngrid-seeds = 1"))
    swept = api.sweep(path, out=tmp_path / "out", jobs=1, progress=False)
    assert {len(point.values) for point in (*swept.points, *swept.bases)} == {1}
    assert len(list((tmp_path / "out" / "runs").iterdir())) == 8 + 2 * 2
    assert swept.test is not None
    assert swept.test.seeds == (0, 1, 2)


REFUSED_FILES = {
    "published = ['1', '', '', '']": "published has no use in a sweep: leave it out; fairbloom reproduce compares",
    "settings = { seed = 1 }": "settings: leave seed out: it is set for each run",
    "settings = { clients = 5 }": "rows differ in clients: points would be judged by other examples",
    "grid = { test-share = [0.1, 0.2] }": "a sweep cannot try values of test-share: points would be judged by other",
    "grid = { beta = [0.1, 0.2] }": "grid: beta is neither a setting nor a parameter of fedavg",
}


@pytest.mark.parametrize("text", REFUSED_FILES)
def test_what_a_sweep_cannot_use_of_a_recipe_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(FILE + f'[[rows]]\nlabel = "Another"\n{text}\n'.replace("'", '"'))
    with pytest.raises(FairbloomError, match=re.escape(REFUSED_FILES[text])):
        api.sweep(path, out=tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()


# Mistakes -----------------------------------------------------------------------------------------------------------

MISTAKES: dict[str, tuple[Sequence[object], str]] = {
    "unknown": (
        ("--grid", "alfa=0,1"),
        "grid: alfa is neither a setting nor a parameter of fedfv: did you mean alpha?",
    ),
    "unused": (("--grid", "qfedavg.q=0,1"), "grid: qfedavg.q has no effect with method = 'fedfv': leave it out"),
    "of another partition": (("--grid", "dirichlet-alpha=0.1,1"), "a sweep cannot try values of dirichlet-alpha"),
    "twice the same": (("--grid", "alpha=0.1,0.10"), "fedfv.alpha = 0.1 is there twice: give each value once"),
    "axis twice": (("--grid", "alpha=0.1", "--grid", "alpha=0.2"), "grid: alpha is there twice"),
    "impossible": (("--grid", "alpha=0.1,7"), "fedfv.alpha = 7: allowed is float in [0, 1]"),
    "of another type": (("--grid", "tau=1,much"), "fedfv.tau = 'much'"),
    "no values": (("--grid", "alpha"), "write it as KEY=VALUE,VALUE"),
    "a hole": (("--grid", "alpha=0,,1"), "write it as KEY=VALUE,VALUE"),
    "one point": (("--grid", "alpha=0.1"), "there is nothing to choose from but FedFV (alpha=0.1)"),
    "nothing": ((), "there is nothing to choose from but FedFV: give values by --grid"),
    "set as well": (
        ("--grid", "learning-rate=0.1,0.2", "--set", "learning-rate=0.3"),
        "learning-rate is given twice, as a setting of all runs and in the grid",
    ),
    "set by the method": (
        ("--method", "fedfv(alpha=0.3)", "--grid", "alpha=0,1"),
        "grid: alpha is given twice, here and by FedFV (alpha=0.3)",
    ),
    "seeds": (("--grid", "seed=0,1"), "leave seed out: it is set for each run"),
    "methods": (("--grid", "method=fedavg,fedfv"), "a sweep cannot try values of method: name several methods"),
    "clients": (("--grid", "clients=4,5"), "a sweep cannot try values of clients"),
    "no validation": (
        ("--grid", "alpha=0,1", "--set", "validation-share=0"),
        "validation-share = 0: a sweep chooses by validation examples, never by test examples",
    ),
    "criterion": (("--grid", "alpha=0,1", "--criterion", "median"), "criterion = 'median': there is no measure"),
    "constraint without baseline": (
        ("--grid", "alpha=0,1", "--criterion", "worst, mean within 1 point of fedavg"),
        "compares with a method: name it by --baseline",
    ),
    "constraint against another": (
        ("--grid", "alpha=0,1", "--baseline", "fedavg", "--criterion", "worst, mean within 1 point of qfedavg"),
        "is against QFedAvg, and the baseline is FedAvg",
    ),
    "no such client": (("--grid", "alpha=0,1", "--criterion", "client berlin"), "there is no client 'berlin'"),
    "worse service": (("--grid", "alpha=0,1", "--criterion", "mean as low as possible"), "mean as high as possible"),
    "baseline": (("--grid", "alpha=0,1", "--baseline", "fedfv"), "baseline = 'fedfv' is among the methods"),
    "another's setting": (
        ("--grid", "alpha=0,1", "--set", "qfedavg.q=1"),
        "qfedavg.q has no effect with method = 'fedfv'",
    ),
    "range": (("--grid", "alpha=0..1"), "fedfv.alpha = '0..1'"),
    "too few examples": (("--grid", "alpha=0,1", "--set", "test-share=0.9"), "none of its"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_refused_before_anything_is_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mistake: str
) -> None:
    words, said = MISTAKES[mistake]
    method = () if "--method" in words else ("--method", "fedfv")
    assert fairbloom("sweep", *method, *words, *SMALL, "--seeds", 1, "--out", tmp_path / "out") == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_methods_and_values_are_not_said_beside_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fairbloom("sweep", tmp_path / "mine.toml", "--method", "fedfv") == 2
    assert "says which methods and values are tried" in capsys.readouterr().err


def test_several_methods_are_chosen_from_by_one_sweep_each_with_its_own_parameters(tmp_path: Path) -> None:
    grid: dict[str, str | Sequence[Any]] = {"alpha": [0, 0.5], "q": [1.0], "batch_size": "20"}
    words: dict[str, Any] = {"clients": 4, "rounds": 1, "seeds": 1, "device": "cpu", "jobs": 1, "progress": False}
    swept = api.sweep(method="fedfv,qfedavg(lipschitz=5)", grid=grid, out=tmp_path, **words)
    assert [point.name for point in swept.points] == [
        "FedFV (alpha=0, batch-size=20)",
        "FedFV (alpha=0.5, batch-size=20)",
        "QFedAvg (lipschitz=5, q=1, batch-size=20)",
    ]


def test_a_method_without_a_global_model_is_judged_by_its_personal_models(tmp_path: Path) -> None:
    words: dict[str, Any] = {"clients": 4, "rounds": 2, "seeds": 1, "device": "cpu", "jobs": 1, "progress": False}
    swept = api.sweep(method="local", grid={"learning-rate": [0.001, 0.2]}, out=tmp_path, **words)
    for point in swept.points:
        personal = last(tmp_path / point.planned.runs([0])[0], VALIDATION.replace("global", "personal"))
        assert point.values == pytest.approx([statistics.fmean(personal.values())])
    assert swept.best is swept.points[1]
