"""The figure of a reproduction: bars of printed and measured numbers, or lines over the rounds."""

import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fairbloom as api
from fairbloom import Reproduction, reproduce
from fairbloom.errors import FairbloomError
from fairbloom.experiments.pages import charts
from fairbloom.experiments.pages.chart_rows import CURVE_ROUNDS, curve
from fairbloom.experiments.pages.charts import MOST_BANDS, series_of
from fairbloom.experiments.render.figures import draw_svg, spec_of
from fairbloom.experiments.render.page import Chart, Charts
from fairbloom.experiments.results.measures import find_measure
from fairbloom.experiments.results.presentation import page_of
from fairbloom.experiments.results.run import REPORT, Run
from fairbloom.protocol.scores import ACCURACY

from ..helpers import captured
from .parsed import Parsed

OVER_ROUNDS = """
measures = ["mean", "std", "improved", "improved_last_third", "train_loss", "uniform"]
x = "round"
logarithmic = ["train_loss"]
[settings]
clients = 5
fraction = 0.6
num-rounds = 6
evaluate-every = 2
device = "cpu"
[[rows]]
label = "FedAvg"
[[rows]]
label = "Ditto"
settings = { method = "ditto" }
evaluated = "personal"
"""

PRINTED = """
measures = ["mean", "mean_change"]
[settings]
clients = 5
num-rounds = 1
device = "cpu"
[[rows]]
label = "FedAvg"
published = ["50 ± 3", ""]
[[rows]]
label = "Equal weights"
settings = { weighting = "uniform" }
published = ["", "1.5"]
"""


def carried_out(folder: Path, text: str, seeds: int = 2) -> Reproduction:
    (folder / "mine.toml").write_text(text)
    recipe = str(folder / "mine.toml")
    return reproduce(recipe, seeds=seeds, out=folder / "out", jobs=1, progress=False)


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Reproduction:
    return carried_out(tmp_path_factory.mktemp("lines"), OVER_ROUNDS)


@pytest.fixture(scope="module")
def bars(tmp_path_factory: pytest.TempPathFactory) -> Reproduction:
    return carried_out(tmp_path_factory.mktemp("bars"), PRINTED)


def drawn(done: Reproduction) -> dict[str, Chart]:
    return {chart.name: chart for chart in page_of(done).make_figure().charts}


def values_of(chart: Chart, label: str) -> dict[int, tuple[float, float, float]]:
    """Return mean, lowest and highest of a line, by round."""
    return {
        row["round"]: (row["value"], row["low"], row["high"])
        for row in chart.spec["data"]["values"]
        if row["method"] == label
    }


def expected(by_run: Sequence[Sequence[float]]) -> dict[int, Any]:
    """Return mean, lowest and highest of two runs' numbers after rounds 2, 4 and 6."""
    found = {}
    for number, (one, two) in zip((2, 4, 6), zip(*by_run, strict=True), strict=True):
        row = ((one + two) / 2, min(one, two), max(one, two))
        found[number] = pytest.approx(row, rel=1e-4)  # charts have five digits
    return found


def runs_of(done: Reproduction, row: int) -> list[Run]:
    return [*done.outcomes[row].runs.values()]


def axis_of(chart: Chart) -> dict[str, Any]:
    axis: dict[str, Any] = chart.spec["layer"][0]["encoding"]["y"]
    return axis


# Over the rounds ----------------------------------------------------------------------------------


def test_a_recipe_over_rounds_draws_each_measure_that_has_rounds(lines: Reproduction) -> None:
    assert [*drawn(lines)] == [
        *("rounds-mean", "rounds-std", "rounds-improved"),
        *("rounds-train-loss", "rounds-train-loss-log", "rounds-uniform"),
    ]
    titles = [axis_of(chart)["title"] for chart in drawn(lines).values()]
    dashed = {look.label for look in page_of(lines).make_figure().legend if look.dashed}
    assert dashed == {"Ditto"}, "personal models alone are dashed"
    accuracy = "test accuracy, %"
    assert titles == [
        *(f"mean, {accuracy}", f"std, {accuracy}", "improved, %"),
        *("train loss", "train loss", f"uniform, {accuracy}"),
    ]


@pytest.mark.parametrize("measure", ["mean", "std"])
@pytest.mark.parametrize(("row", "model"), [(0, "global"), (1, "personal")])
def test_lines_are_the_measures_of_rounds_csv(
    lines: Reproduction, measure: str, row: int, model: str
) -> None:
    column = f"test_accuracy_of_{model}_model_{measure}"
    by_run = [run.rounds[column].dropna().tolist() for run in runs_of(lines, row)]
    label = lines.outcomes[row].name
    assert values_of(drawn(lines)[f"rounds-{measure}"], label) == expected(by_run)


def test_improved_is_that_of_each_round(lines: Reproduction) -> None:
    column = "percent_of_participants_improved"
    by_run = [run.rounds[column].dropna().tolist() for run in runs_of(lines, 0)]
    assert values_of(drawn(lines)["rounds-improved"], "FedAvg") == expected(by_run)


def test_the_training_loss_is_drawn_on_both_axes(lines: Reproduction) -> None:
    by_run = [
        run.clients.groupby("round")["train_loss_of_global_model"].mean().tolist()
        for run in runs_of(lines, 0)
    ]
    plain, logarithmic = (drawn(lines)[f"rounds-train-loss{end}"] for end in ("", "-log"))
    assert values_of(plain, "FedAvg") == values_of(logarithmic, "FedAvg") == expected(by_run)
    assert axis_of(logarithmic)["scale"] == {"type": "log", "nice": False}
    assert "type" not in axis_of(plain)["scale"]


def test_uniform_counts_each_test_example_in_each_round(lines: Reproduction) -> None:
    by_run = []
    for run in runs_of(lines, 0):
        tested = run.clients
        right = tested["test_accuracy_of_global_model"] * tested["test_examples"]
        examples = tested.groupby("round")["test_examples"].sum()
        by_run.append((right.groupby(tested["round"]).sum() / examples).tolist())
    assert values_of(drawn(lines)["rounds-uniform"], "FedAvg") == expected(by_run)


def test_a_run_after_a_round_is_the_shorter_run(tmp_path: Path) -> None:
    def of(rounds: int) -> Run:
        out = tmp_path / str(rounds)
        return api.run(clients=4, rounds=rounds, seed=1, out=out, progress=False)

    whole, short = of(3), of(2)
    assert whole.after(2).final() == short.final() != whole.final()
    assert whole.after(2).training["train_loss"] == short.training["train_loss"]
    assert (whole.after(2).rounds_done, whole.rounds_done) == (2, 3)
    assert whole.after(4).final() == {}


def test_figure_and_report_are_written(lines: Reproduction) -> None:
    assert (lines.folder / "figure.png").read_bytes().startswith(b"\x89PNG")
    svg = (lines.folder / "figure.svg").read_text(encoding="utf-8")
    assert all(words in svg for words in ("FedAvg", "Ditto", "Train loss, logarithmic", "round"))
    assert "var(" not in svg
    report = Parsed.of((lines.folder / REPORT).read_text(encoding="utf-8"))
    assert {f"spec-{name}" for name in drawn(lines)} <= report.data.keys()
    assert "var(--series-0)" in str(report.data["spec-rounds-mean"]), "it follows dark mode"


def test_an_unfinished_reproduction_draws_what_there_is(
    lines: Reproduction, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    shutil.copytree(lines.folder, folder)
    kept, removed = runs_of(lines, 0)
    for run in (removed, *runs_of(lines, 1)):
        shutil.rmtree(folder / "runs" / run.folder.name)
    out = tmp_path / "drawn.svg"
    assert captured(capsys, "show", folder, "--figure", out).out.endswith(f"figure: {out}\n")
    assert "FedAvg" in out.read_text()
    assert "Ditto" not in out.read_text()
    column = "test_accuracy_of_global_model_mean"
    of_one = [kept.rounds[column].dropna().tolist()] * 2
    left = api.load(folder)
    assert isinstance(left, Reproduction)
    assert values_of(drawn(left)["rounds-mean"], "FedAvg") == expected(of_one)
    shutil.rmtree(folder / "runs")
    out.unlink()
    printed = captured(capsys, "show", folder, "--figure", out, code=2)
    assert "Rows finished: 0 of 2; runs missing: 4. The same command runs them." in printed.out
    assert "there is nothing to draw" in printed.err
    assert not out.exists()


@pytest.mark.parametrize("column", ["test_accuracy_of_global_model", "train_loss_of_global_model"])
def test_a_round_without_a_number_has_no_point(lines: Reproduction, column: str) -> None:
    """Where no client has the score, the round has no measure at all."""
    first = lines.outcomes[0]
    run = replace(first.runs[0])
    vars(run)["clients"] = run.clients.copy()
    run.clients.loc[run.clients["round"] == 2, column] = math.nan
    done = drawn(replace(lines, outcomes=[replace(first, runs={0: run})]))
    assert [*values_of(done["rounds-train-loss"], "FedAvg")] == [4, 6]
    has_score = column == "train_loss_of_global_model"
    assert [*values_of(done["rounds-mean"], "FedAvg")] == ([2, 4, 6] if has_score else [4, 6])


def test_a_round_that_a_run_lacks_has_no_point() -> None:
    by_run = [{1: 1.0, 2: 2.0, 3: math.nan}, {1: 3.0, 3: 1.0, 4: 1e300}]
    assert curve("A", by_run) == [
        {"round": 1, "method": "A", "value": 2.0, "low": 1.0, "high": 3.0}
    ]
    many = curve("A", [dict.fromkeys(range(1, 1001), 1.0)])
    assert len(many) == CURVE_ROUNDS
    assert (many[0]["round"], many[-1]["round"]) == (1, 1000)


def test_a_logarithmic_axis_leaves_zeros_out(lines: Reproduction) -> None:
    """All clients have the same accuracy after round 2, a deviation of 0."""
    first = lines.outcomes[0]
    run = replace(first.runs[0])
    vars(run)["clients"] = run.clients.copy()
    run.clients.loc[run.clients["round"] == 2, "test_accuracy_of_global_model"] = 50.0
    recipe = lines.recipe.model_copy(update={"measures": ["std"], "logarithmic": ["std"]})
    done = replace(lines, recipe=recipe, outcomes=[replace(first, runs={0: run})])
    plain, logarithmic = drawn(done).values()
    assert [*values_of(plain, "FedAvg")] == [2, 4, 6]
    assert [*values_of(logarithmic, "FedAvg")] == [4, 6]


@pytest.mark.parametrize("count", [MOST_BANDS, MOST_BANDS + 1])
def test_many_lines_have_no_bands(count: int) -> None:
    labels = [f"method {place}" for place in range(count)]
    rows = [
        {"round": number, "method": label, "value": 2.0, "low": 1.0, "high": 3.0}
        for label in labels
        for number in (1, 2)
    ]
    spec = charts.over_rounds(rows, series_of(labels, labels[0], []), "mean")
    marks = [layer["mark"]["type"] for layer in spec["layer"]]
    assert ("area" in marks) is (count == MOST_BANDS)


def test_a_chart_without_points_is_drawn() -> None:
    """As where no two seeds share an evaluated round."""
    for logarithmic in (False, True):
        spec = charts.over_rounds([], series_of(["A"], "A", []), "mean", logarithmic=logarithmic)
        assert draw_svg(spec_of(Charts([Chart("a", "A", "", spec)]))).startswith(b"<svg")


@pytest.mark.parametrize(
    ("measure", "title"),
    [
        ("worst_10", "worst 10 %, test accuracy, %"),
        ("var", "var, test accuracy squared"),
        ("jain", "jain"),
        ("suffering_share", "suffering share, %"),
        ("client:lund", "lund, test accuracy, %"),
        ("group-gap:selection-rate", "selection rate gap"),
    ],
)
def test_an_axis_says_its_unit(measure: str, title: str) -> None:
    assert find_measure(measure).axis(ACCURACY) == title


# Bars ---------------------------------------------------------------------------------------------


def test_a_recipe_of_rows_draws_bars(bars: Reproduction) -> None:
    """Also measures against the first row, which have no line over rounds."""
    mean, change = drawn(bars).values()
    measured, spread = bars.outcomes[0].measured["mean"]
    printed, ours, *others = mean.spec["data"]["values"]
    assert printed == {
        "name": "FedAvg",
        "method": "printed",
        "value": 50.0,
        "low": 47.0,
        "high": 53.0,
    }
    assert (ours["name"], ours["method"]) == ("FedAvg", "measured")
    ends = [measured, measured - spread, measured + spread]
    assert [ours["value"], ours["low"], ours["high"]] == pytest.approx(ends, rel=1e-4)
    assert [row["method"] for row in others] == ["measured"]
    values = change.spec["data"]["values"]
    assert [row["method"] for row in values] == ["measured", "printed", "measured"]
    assert [values[1][key] for key in ("value", "low", "high")] == [1.5] * 3, "without a ±"
    bar, span = mean.spec["layer"]
    assert (bar["mark"]["type"], span["mark"]["type"]) == ("bar", "rule")
    across = bar["encoding"]["x"]
    assert (across["title"], across["scale"]["zero"]) == ("mean, test accuracy, %", True)
    svg = draw_svg(bars.chart()).decode()
    assert all(words in svg for words in ("FedAvg", "Equal weights", "printed", "measured"))


def test_a_study_without_printed_numbers_has_one_bar_a_row(bars: Reproduction) -> None:
    ours = replace(bars, outcomes=[replace(each, published={}) for each in bars.outcomes])
    assert [look.label for look in page_of(ours).make_figure().legend] == ["measured"]
    for chart in drawn(ours).values():
        assert [row["method"] for row in chart.spec["data"]["values"]] == ["measured"] * 2
    assert [look.label for look in page_of(bars).make_figure().legend] == ["printed", "measured"]


def test_a_measure_without_a_number_is_not_drawn(bars: Reproduction) -> None:
    first, second = bars.outcomes
    lacking = replace(first, by_seed={0: {"mean": math.nan, "mean_change": 1.0}})
    assert [*drawn(replace(bars, outcomes=[lacking, second]))] == ["bars-mean", "bars-mean-change"]
    assert [*drawn(replace(bars, outcomes=[lacking]))] == ["bars-mean-change"]
    empty = replace(bars, outcomes=[replace(first, by_seed={}), replace(second, by_seed={})])
    with pytest.raises(FairbloomError, match="there is nothing to draw"):
        empty.chart()


def test_rows_left_out_leave_the_figure_as_it_is(bars: Reproduction, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    shutil.copytree(bars.folder, folder)
    before = (folder / "figure.png").stat().st_mtime_ns
    recipe = str(bars.folder.parent / "mine.toml")
    reproduce(recipe, seeds=3, rows=["Equal"], out=folder, jobs=1, progress=False)
    assert (folder / "figure.png").stat().st_mtime_ns == before
