"""Reproductions: a published table is run, resumed, measured and compared with what was printed.

Recipes without their data run from end to end on made-up data in files of the same form.

A row of each is run for a round. The numbers mean nothing; they only show that the recipe runs.
"""

import itertools
import json
import math
import re
import shutil
import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fairbloom as api
from fairbloom import Reproduction, reproduce
from fairbloom.errors import FairbloomError
from fairbloom.experiments.arms import Arm
from fairbloom.experiments.recipe import Printed, Recipe, load_recipe, names
from fairbloom.experiments.results.presentation import page_of
from fairbloom.experiments.results.reproduction import agree, measures_of
from fairbloom.experiments.results.run import REPORT, Run, load
from fairbloom.experiments.studies.reproduce import choose_rows, study_of
from fairbloom.experiments.study import NOUNS, Study
from fairbloom.protocol.settings import Value
from fairbloom.server.fairness import summarize
from fairbloom.tasks import TASKS
from tests.simulation.helpers import table
from tests.tables.helpers import grouped
from tests.tasks import made, test_adult, test_heart_disease
from tests.tasks.test_groups import patients

from ..helpers import as_json, captured, fairbloom, times_in
from ..pages.parsed import Parsed

RECIPE = """
title = "A table"
what = "What it shows."
source = "Somebody, Somewhere 2020, Table 1"
published-seeds = 3
seeds = 2
measures = ["mean", "std", "worst_10", "angle", "uniform", "client:client-1", "percentile_5"]
judged = ["mean"]
notes = ["A note below."]

[settings]
clients = 5
num-rounds = 2
device = "cpu"
qfedavg.lipschitz = 10.0

[[rows]]
label = "FedAvg"
published = ["50 ± 300", "-900 ± 1", "", "", "", "", ""]
note = "A note beside."

[[rows]]
label = "q-FedAvg"
settings = { method = "qfedavg" }
grid = { qfedavg.q = [0.0, 30.0] }
published = ["-900 ± 1", "", "", "", "", "", ""]

[[rows]]
label = "FedAvg"
settings = { partition = "iid" }
published = ["50 ± 300", "-900 ± 1", "", "", "", "", ""]
note = "A note beside."

[[rows]]
label = "Local"
settings = { method = "local", partition = "iid" }
evaluated = "personal"
"""

SMALL = """
title = "Another table"
what = "What it shows."
source = "Somebody, Somewhere 2020, Table 2"
seeds = 2
measures = ["mean", "angle", "client:client-1"]
[settings]
clients = 5
num-rounds = 3
device = "cpu"
"""


def saved(folder: Path, text: str) -> str:
    path = folder / "mine.toml"
    path.write_text(text)
    return str(path)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Reproduction:
    folder = tmp_path_factory.mktemp("reproduced")
    return reproduce(saved(folder, RECIPE), out=folder / "out", jobs=1, progress=False)


@pytest.fixture(scope="module")
def by_row(done: Reproduction) -> Mapping[str, Any]:
    names = (done.recipe.name_of(outcome.row) for outcome in done.outcomes)
    return dict(zip(names, done.as_json["rows"], strict=True))


def values_of(done: Reproduction, index: int, model: str = "global") -> list[dict[str, float]]:
    return [run.final(model=model) for run in done.outcomes[index].runs.values()]


def run_with(done: Reproduction, **settings: Any) -> Run:
    """Return the one run of a reproduction that has these settings, by their names in a run
    config."""
    runs = map(load, (done.folder / "runs").iterdir())
    (found,) = (run for run in runs if settings.items() <= run.settings.items())
    return found


def judging(**about: Any) -> Recipe:
    """Return a recipe that judges numbers by the settings in `about`."""
    output = {
        "title": "A table",
        "what": "What.",
        "source": "Somebody",
        "measures": ["mean"],
        "rows": [{"label": "A"}],
    }
    return Recipe.model_validate(output).model_copy(update=about)


# Numbers ------------------------------------------------------------------------------------------


def test_agreement_is_within_two_errors_a_point_or_the_tolerance(subtests: pytest.Subtests) -> None:
    within_a_point = judging()
    tolerant = judging(published_seeds=5, tolerance={"mean": 0.2})
    of_nine = judging(published_seeds=9)
    for recipe, measure, printed, found, seeds, expected in (
        # SE = 3/√9 = 1 and 4/√16 = 1, so that 2·√2 = 2.828 is the most
        (of_nine, "mean", Printed(80.0, 3.0), (82.82, 4.0), 16, True),
        (of_nine, "mean", Printed(80.0, 3.0), (82.84, 4.0), 16, False),
        (of_nine, "mean", Printed(80.0, 3.0), (77.18, 4.0), 16, True),
        # one seed has the printed spread: √(3²/9 + 3²) = 3.162, twice
        (of_nine, "mean", Printed(80.0, 3.0), (86.3, 0.0), 1, True),
        (of_nine, "mean", Printed(80.0, 3.0), (86.4, 0.0), 1, False),
        # without a printed spread, or number of seeds, one point, or a hundredth of what has no
        # unit
        (of_nine, "mean", Printed(80.0), (81.0, 50.0), 16, True),
        (of_nine, "mean", Printed(80.0), (81.01, 50.0), 16, False),
        (within_a_point, "mean", Printed(80.0, 3.0), (81.01, 50.0), 16, False),
        (within_a_point, "angle", Printed(0.5), (0.51, 0.0), 5, True),
        (within_a_point, "angle", Printed(0.5), (0.511, 0.0), 5, False),
        # what the recipe tolerates of a measure, however small the spreads are
        (tolerant, "mean", Printed(80.0, 0.01), (80.2, 0.01), 5, True),
        (tolerant, "mean", Printed(80.0, 0.01), (80.21, 0.01), 5, False),
        (tolerant, "std", Printed(80.0, 0.01), (80.2, 0.01), 5, False),
    ):
        with subtests.test(recipe=recipe, measure=measure):
            assert agree(recipe, measure, printed, found, seeds) is expected, (
                measure,
                printed,
                found,
            )


@pytest.mark.parametrize(
    ("values", "judged"), [((1.0, 3.0), True), ((1.0, math.nan), False), ((1.0, math.inf), False)]
)
def test_a_claim_is_judged_by_finite_numbers_only(
    done: Reproduction, values: tuple[float, ...], judged: bool
) -> None:
    first, second = done.outcomes[:2]
    claim = f"{done.recipe.name_of(first.row)} has a higher mean than q-FedAvg"
    claiming = replace(
        done,
        recipe=done.recipe.model_copy(update={"claims": [claim]}),
        outcomes=[
            replace(first, by_seed={seed: {"mean": each} for seed, each in enumerate(values)}),
            replace(second, by_seed={seed: {"mean": 0.0} for seed in range(len(values))}),
        ],
    )
    assert (claiming.claims[claim] is not None) is judged


@pytest.mark.slow
def test_the_measures_are_those_of_the_runs_tables(
    done: Reproduction,
    by_row: Mapping[str, Any],
    subtests: pytest.Subtests,
) -> None:
    values = values_of(done, 0)
    own = [summarize(each) for each in values]
    row = by_row["FedAvg"]
    assert row["measured"]["percentile_5"] == pytest.approx(
        statistics.fmean([np.percentile([*each.values()], 5) for each in values])
    )
    for measure in ("mean", "std", "worst_10"):
        with subtests.test(measure=measure):
            assert row["measured"][measure] == pytest.approx(
                statistics.fmean(each[measure] for each in own)
            )
            assert row["spread"][measure] == pytest.approx(
                statistics.stdev(each[measure] for each in own)
            )
    assert row["measured"]["angle"] == pytest.approx(
        statistics.fmean(math.acos(each["cosine"]) for each in own)
    )
    assert row["measured"]["client:client-1"] == statistics.fmean(
        each["client-1"] for each in values
    )
    uniform = []
    for run, each in zip(done.outcomes[0].runs.values(), values, strict=True):
        examples = run.test_examples()
        uniform.append(sum(each[name] * examples[name] for name in each) / sum(examples.values()))
    assert row["measured"]["uniform"] == pytest.approx(statistics.fmean(uniform))


def test_the_grid_takes_the_point_with_the_best_mean(
    done: Reproduction, by_row: Mapping[str, Any]
) -> None:
    means = {
        q: statistics.fmean(
            summarize(run_with(done, method="qfedavg", seed=seed, **{"qfedavg.q": q}).final())[
                "mean"
            ]
            for seed in (0, 1)
        )
        for q in (0.0, 30.0)
    }
    row = by_row["q-FedAvg"]
    assert row["parameters"] == {"q": max(means, key=lambda q: means[q])}
    assert row["measured"]["mean"] == pytest.approx(max(means.values()))


# Output -------------------------------------------------------------------------------------------


def test_json_has_rows_with_printed_and_measured_numbers(
    done: Reproduction, by_row: Mapping[str, Any]
) -> None:
    output = json.loads(json.dumps(done.as_json))
    assert (output["recipe"], output["comparable"], output["seeds"]) == ("mine", True, [0, 1])
    assert [row["method"] for row in output["rows"]] == ["FedAvg", "q-FedAvg", "FedAvg", "Local"]
    fedavg = by_row["FedAvg"]
    assert fedavg["published"] == {"mean": 50.0, "std": -900.0}
    assert fedavg["published_spread"] == {"mean": 300.0, "std": 1.0}
    assert fedavg["measured"].keys() == fedavg["spread"].keys() == {*done.recipe.measures}
    assert fedavg["note"] == "A note beside."
    assert (fedavg["agrees"], fedavg["disagrees_in"]) == (True, ["std"])  # which is not judged
    assert by_row["q-FedAvg"]["agrees"] is False
    local = by_row["Local (partition=iid)"]
    assert (local["published"], local["agrees"]) == ({}, None)


def test_table_and_report_have_both_numbers(
    done: Reproduction,
    capsys: pytest.CaptureFixture[str],
    subtests: pytest.Subtests,
) -> None:
    rows = table(done.folder / "results.csv")
    assert len(rows) == 4 * len(done.recipe.measures)
    assert [rows[0][key] for key in ("method", "measure", "agrees")] == ["FedAvg", "mean", "yes"]
    assert float(rows[0]["published"]) == 50.0
    assert float(rows[0]["measured"]) == done.outcomes[0].measured["mean"][0]
    written = (done.folder / REPORT).read_text(encoding="utf-8")
    shown = Parsed.of(written).rows("rows")
    for outcome, row in zip(done.outcomes, shown, strict=True):
        with subtests.test(outcome=outcome, row=row):
            mean = row.get("mean, measured") or row["mean"]
            assert row["row"] == outcome.name
            assert float(re.findall(r"[\d.]+", mean)[0]) == pytest.approx(
                outcome.measured["mean"][0], abs=0.0051
            )
    assert (shown[0]["mean, printed"], shown[0]["agrees"]) == ("50.00 ±300.00", "yes")
    (done.folder / REPORT).unlink()
    assert fairbloom("report", done.folder) == 0
    assert (done.folder / REPORT).read_text(encoding="utf-8") == written
    capsys.readouterr()
    done.show()
    output = capsys.readouterr().out
    mean, spread = done.outcomes[0].measured["mean"]
    assert [
        words
        for words in (
            f"{mean:.2f} ±{spread:.2f}",
            "≠",
            "A note beside.",
            "A note below.",
            "2 of 3 rows agree",
        )
        if words not in output
    ] == []


def test_the_list_names_each_recipe_once(capsys: pytest.CaptureFixture[str]) -> None:
    listed = {row["name"]: row for row in as_json(capsys, "reproduce", "--list")}
    assert listed["fedfv-table3"]["tasks"] == ["fashion-mnist"]
    assert listed["fedfv-table3"]["runs"] == 5 * listed["fedfv-table3"]["rows"]
    output = captured(capsys, "reproduce", "--list").out
    assert all(name in output for name in names())


# What is run --------------------------------------------------------------------------------------


def test_what_has_run_is_not_run_again_and_more_seeds_add_to_it(
    done: Reproduction, tmp_path: Path
) -> None:
    before = times_in(done.folder)
    rows = ["FedAvg (partition=iid)"]
    again = reproduce(
        saved(tmp_path, RECIPE), seeds=3, rows=rows, out=done.folder, jobs=1, progress=False
    )
    assert before.items() <= times_in(done.folder).items(), "the table of all rows stays as it is"
    assert [again.recipe.name_of(outcome.row) for outcome in again.outcomes] == rows
    assert len(again.outcomes[0].runs.values()) == 3


@pytest.mark.parametrize(
    "words",
    [
        ["FedAvg (partition=iid),Local"],
        ["fedavg (partition=iid), local"],
        ["FedAvg (partition=iid)", "Local"],
        ["(partition=iid"],
    ],
)
def test_rows_are_named_with_commas_or_one_by_one(tmp_path: Path, words: list[str]) -> None:
    recipe = load_recipe(saved(tmp_path, RECIPE))
    both = ["FedAvg (partition=iid)", "Local (partition=iid)"]
    assert [recipe.name_of(row) for row in choose_rows(recipe, words)] == both


def test_what_is_finished_is_shown(
    tmp_path: Path,
    done: Reproduction,
    by_row: Mapping[str, Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A run of a grid is missing, and one of a row without a grid."""
    folder = tmp_path / "out"
    shutil.copytree(done.folder, folder)
    best = {f"qfedavg.{key}": value for key, value in by_row["q-FedAvg"]["parameters"].items()}
    for missing in (
        run_with(done, method="qfedavg", seed=1, **best),
        run_with(done, method="fedavg", seed=1, partition="iid"),
    ):
        shutil.rmtree(folder / "runs" / missing.folder.name)
    before = times_in(folder)
    fedavg, other, base, local = as_json(capsys, "show", folder)["rows"]
    assert fedavg == by_row["FedAvg"]
    assert (other["seeds"], other["unfinished"], other["agrees"]) == (2, 1, None)
    assert other["parameters"]["q"] != best["qfedavg.q"], (
        "a point without all of its runs is not chosen"
    )
    assert (base["seeds"], base["unfinished"], base["disagrees_in"]) == (1, 1, [])
    assert local == by_row["Local (partition=iid)"]
    assert base["measured"]["mean"] == summarize(values_of(done, 2)[0])["mean"]
    assert "Rows finished: 2 of 4; runs missing: 2." in captured(capsys, "show", folder).out
    assert times_in(folder) == before


@pytest.mark.slow
def test_quick_runs_a_tenth_of_the_rounds(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = SMALL.replace("num-rounds = 3", "num-rounds = 35\nevaluate-every = 10")
    path = saved(here, f'{text}[[rows]]\nlabel = "A"\npublished = ["50", "", ""]\n')
    printed = captured(capsys, "reproduce", path, "--quick", "--jobs", 1).out
    assert "cut short by --quick: the numbers cannot be compared" in printed
    (folder,) = (here / "runs" / "reproduce" / "mine-quick" / "runs").iterdir()
    assert not re.search(
        "≠|A row agrees", printed + (folder.parents[1] / "report.html").read_text()
    )
    run = load(folder)
    assert (run.num_rounds, run.settings["evaluate-every"], run.settings["seed"]) == (4, 1, 0)
    output = as_json(capsys, "reproduce", path, "--quick", "--jobs", 1)
    assert (output["quick"], output["comparable"], output["seeds"]) == (True, False, [0])
    assert (output["rows"][0]["agrees"], output["rows"][0]["disagrees_in"]) == (None, [])
    assert as_json(capsys, "reproduce", path, "--quick", "--seeds", 3, "--jobs", 1)["seeds"] == [
        0,
        1,
        2,
    ]


def test_rows_are_chosen_by_their_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path, RECIPE)
    words = ("--seeds", 1, "--jobs", 1, "--out", tmp_path / "out", "--set", "qfedavg.q=0.5")
    output = as_json(capsys, "reproduce", path, "--rows", "q-fedavg", *words)
    assert [row["method"] for row in output["rows"]] == ["q-FedAvg"]
    assert output["comparable"] is False, "it has other settings than the recipe's"
    assert len(list((tmp_path / "out" / "runs").iterdir())) == 1, (
        "what the user sets, the grid does not try"
    )
    assert "FedFV" in captured(capsys, "reproduce", path, "--rows", "FedFV", *words, code=2).err


@pytest.mark.parametrize("settings", [{"seed": 3}, {"fedmgdaplus.epsilon": 1}, {"num-round": 3}])
def test_a_setting_that_no_run_takes_is_refused(tmp_path: Path, settings: dict[str, int]) -> None:
    with pytest.raises(FairbloomError, match=next(iter(settings))):
        reproduce(saved(tmp_path, RECIPE), settings=settings, out=tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()


GROUPED = """
seeds = 1
x = "round"
measures = ["group-gap:selection-rate", "group-gap:selection-rate:porto", "client:porto"]
[settings]
task = "csv"
schema = "SCHEMA"
num-rounds = 3
device = "cpu"
[[rows]]
label = "FedAvg"
published = ["1.5", "", ""]
"""


@pytest.fixture(scope="module")
def clinics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with patients of two hospitals, with two sexes."""
    folder = tmp_path_factory.mktemp("clinics")
    for name, rows in (("lund", 90), ("porto", 120)):
        (folder / f"{name}.csv").write_text(patients(rows, target=lambda k: "01"[k * 7 // 3 % 2]))
    (folder / "schema.toml").write_text(grouped(folder, "sex", "age>=80"))
    (folder / "mine.toml").write_text(GROUPED.replace("SCHEMA", str(folder / "schema.toml")))
    return folder


def test_gaps_between_groups_are_measures(clinics: Path, tmp_path: Path) -> None:
    """They are those of the first grouping, which `Run.gaps` has too, after each round."""
    done = reproduce(
        str(clinics / "mine.toml"),
        data_dir=clinics,
        out=tmp_path / "out",
        jobs=1,
        progress=False,
    )
    (run,) = done.outcomes[0].runs.values()
    gaps = run.gaps[run.gaps["grouping"] == "sex"].set_index(["client", "score"])["gap"]
    assert done.outcomes[0].measured == {
        "group-gap:selection-rate": (gaps[None, "selection-rate"], 0.0),
        "group-gap:selection-rate:porto": (gaps["porto", "selection-rate"], 0.0),
        "client:porto": (run.final()["porto"], 0.0),
    }
    assert (gaps > 0.0).any()
    charts = {
        chart.title: chart.spec["data"]["values"] for chart in page_of(done).make_figure().charts
    }
    drawn = [row["value"] for row in charts["Selection rate gap, porto"]]
    assert len({*drawn}) == 3
    assert drawn[-1] == pytest.approx(gaps["porto", "selection-rate"], rel=1e-4)


def test_a_measure_that_is_not_there_is_found_at_once(
    clinics: Path, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    recipe = (clinics / "mine.toml").read_text()
    small = f'{SMALL}[[rows]]\nlabel = "A"\n'
    for text, wrong, words in (
        (
            recipe.replace("group-gap:selection-rate", "group-gap:selection"),
            "selection",
            "did you mean selection-rate",
        ),
        (recipe.replace("rate:porto", "rate:oslo"), "oslo", "there are lund, porto"),
        (small.replace("client:client-1", "group-gap:accuracy"), "group-gap:accuracy", "no groups"),
        (small.replace("client:client-1", "client:shirt"), "shirt", "there are client-0"),
        (f'criterion = "wurst"\n{small}', "wurst", "did you mean worst"),
    ):
        with subtests.test(text=text, wrong=wrong):
            data = clinics if '"csv"' in text else None
            with pytest.raises(FairbloomError, match=f"{wrong}.*{words}"):
                reproduce(
                    saved(tmp_path, text),
                    data_dir=data,
                    seeds=1,
                    out=tmp_path / "out",
                    jobs=1,
                    progress=False,
                )
    assert not (tmp_path / "out" / "runs").exists()


ODD = f"""{SMALL}unused-rounds = 1
[[rows]]
label = "Ditto"
settings = {{ method = "ditto" }}
[[rows]]
label = "Ditto, personal"
settings = {{ method = "ditto" }}
evaluated = "personal"
[[rows]]
label = "A grid"
grid = {{ learning-rate = [1e300, 0.1] }}
[[rows]]
label = "Failing"
settings = {{ learning-rate = 1e300 }}
[[rows]]
label = "One client"
settings = {{ clients = 1, partition = "iid" }}
""".replace('"angle", "client:client-1"', '"uniform", "client:client-2"')


def test_rows_share_runs_and_a_failed_one_loses_no_other(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    subtests: pytest.Subtests,
) -> None:
    """Steps of 1e300 make updates that are not finite; one client has no client-2."""
    done = reproduce(saved(tmp_path, ODD), seeds=1, out=tmp_path / "out", jobs=1, progress=False)
    ditto, personal, grid, failing, alone = done.outcomes
    assert (
        next(iter(done.outcomes[0].runs.values())).folder
        == next(iter(done.outcomes[1].runs.values())).folder
    )
    assert ditto.measured["mean"] != personal.measured["mean"]
    assert (grid.parameters, grid.measured["mean"][0] > 0.0) == ({"learning-rate": 0.1}, True)
    for outcome in (failing, alone):
        with subtests.test(outcome=outcome):
            assert outcome.fault
            assert (outcome.measured, done.agrees(outcome)) == ({}, None)
    assert "client:client-2" in alone.fault
    assert (done.folder / "results.csv").exists()
    done.show()
    assert "failed" in capsys.readouterr().out


def test_a_grid_is_searched_with_its_seeds_and_criterion(tmp_path: Path) -> None:
    """Validation examples choose the arm, which is then run with the other seeds too."""
    text = f"""criterion = "worst"\ngrid-seeds = 1{SMALL}validation-share = 0.2
[[rows]]
label = "FedFV"
settings = {{ method = "fedfv" }}
grid = {{ alpha = [0.0, 1.0] }}
"""
    done = reproduce(saved(tmp_path, text), out=tmp_path / "out", jobs=1, progress=False)
    assert len(list((tmp_path / "out" / "runs").iterdir())) == 3
    found = {
        alpha: min(
            run_with(done, seed=0, **{"fedfv.alpha": alpha}).final(split="validation").values()
        )
        for alpha in (0.0, 1.0)
    }
    assert done.outcomes[0].parameters == {"alpha": max(found, key=lambda alpha: found[alpha])}
    assert [run.settings["seed"] for run in done.outcomes[0].runs.values()] == [0, 1]


def test_a_study_of_ones_own_needs_no_paper(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "[settings]\nclients = 5\nnum-rounds = 3\ndevice = 'cpu'\n[[rows]]\nlabel = 'Mine'\n"
    reproduce(saved(tmp_path, text), seeds=1, out=tmp_path / "out", jobs=1, progress=False).show()
    shown = capsys.readouterr().out
    assert re.search(r"row +mean +std +worst 10 % +best 10 % +seeds\n", shown)
    assert re.search(r"\nMine +\d", shown)
    assert [word for word in ("agree", "printed", "measured,") if word in shown] == []


# Folders ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_no_study_writes_into_the_folder_of_another_kind(
    done: Reproduction,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    subtests: pytest.Subtests,
) -> None:
    small = ("--clients", 4, "--rounds", 1, "--jobs", 1)
    commands = {
        "comparison": ("compare", "--methods", "fedavg", *small),
        "search": ("search", "--grid", "learning-rate=0.1,0.2", *small),
        "reproduction": (
            "reproduce",
            saved(tmp_path, f'{SMALL}[[rows]]\nlabel = "A"\n'),
            "--jobs",
            1,
        ),
    }
    for written, there in NOUNS.items():
        with subtests.test(written=written):
            folder = tmp_path / written
            Study(written, [], []).write(folder)
            for kind, words in commands.items():
                if kind != there:
                    assert f"holds a {there}: choose another folder" in " ".join(
                        captured(capsys, *words, "--out", folder, code=2).err.split()
                    )
            assert [path.name for path in folder.iterdir()] == ["study.json"]


QUICK: dict[str, Value] = {"num-rounds": 1, "batch-size": 50, "device": "cpu"}

UNVERIFIED: dict[str, Value] = {"verify-data": False}


def speakers(root: Path) -> Path:
    return made.shakespeare(
        root, [(f"SPEAKER {k:02d}", f"{k:02d} words of no meaning " * 11) for k in range(31)]
    )


def people(root: Path) -> Path:
    root.mkdir()
    lines = [
        test_adult.line_of(education, income, sex=sex, race=race, age=str(20 + k))
        for k, (education, income, sex, race) in enumerate(
            itertools.product(
                ("Doctorate", "HS-grad"), ("<=50K", ">50K"), ("Female", "Male"), ("White", "Black")
            )
        )
    ]
    return test_adult.written(root, lines * 3, lines)


def hospitals(root: Path) -> Path:
    (root / "heart-disease").mkdir(parents=True)
    for site in ("cleveland", "hungarian", "switzerland", "va"):
        (root / "heart-disease" / f"processed.{site}.data").write_text(
            test_heart_disease.patients(30, 12)
        )
    return root


WRITTEN: dict[str, Callable[[Path], object]] = {
    "adult": people,
    "heart-disease": hospitals,
    "fashion-mnist": lambda root: made.mnist(root, folder="FashionMNIST"),
    "mnist": made.mnist,
    "cifar10": lambda root: made.cifar10(root, train=1000, test=200),
    "cifar100": lambda root: made.cifar100(root, train=24, test=10),
    "cinic10": lambda root: made.cinic10(root, count=12),
    "femnist": lambda root: made.femnist(root, {f"f{k:04d}_00": 6 for k in range(10)}),
    "shakespeare": speakers,
    "stackoverflow": lambda root: made.stackoverflow(
        root, {f"u{k}": [f"how do i sort {k} lists of words"] * 6 for k in range(3)}
    ),
    "synthetic": lambda root: root.mkdir(),
}

FEW: dict[str, Value] = {"clients": 2, "learning-rate": 0.01}

# their networks are LSTMs
SLOW = ("fedmgda-table14", "semivred-table6-shakespeare", "semivred-table6-stackoverflow")

FIGURES = tuple(f"fedmgda-figure{k}" for k in ("1", "3", "3-left", "4", "8", "s5-9"))

# Settings besides `QUICK`: fewer clients or test examples, because the made-up data are few.
RECIPES: dict[str, dict[str, Value]] = {
    **dict.fromkeys(("fedfv-figure2", *FIGURES), UNVERIFIED | {"clients": 10}),
    "fedmgda-figure2": UNVERIFIED | {"clients": 10, "attackers": "0.1"},
    "fedfv-table2": UNVERIFIED,
    "fedmgda-table8": UNVERIFIED,
    **dict.fromkeys(("fedmgda-table6", "fedmgda-table13"), UNVERIFIED | {"clients": 10}),
    "fedmgda-table12": UNVERIFIED | {"clients": 10, "fraction": 0.1},
    "fedmgda-table14": UNVERIFIED | {"fraction": 0.1, "test-share": 0.5},
    "semivred-table2": UNVERIFIED | FEW,
    "semivred-table6-cifar10": UNVERIFIED | {"smallest-client": 5},
    "semivred-table6-cifar100": UNVERIFIED | FEW,
    "semivred-table6-cinic10": UNVERIFIED | FEW,
    "semivred-table6-shakespeare": UNVERIFIED | {"clients": 2, "shakespeare.smallest": 0},
    "semivred-table6-stackoverflow": UNVERIFIED | {"clients": 2, "stackoverflow.smallest": 0},
    "qffl-synthetic": {"clients": 10},
}


@pytest.mark.parametrize(
    "name",
    # an LSTM
    [pytest.param(each, marks=[pytest.mark.slow] if each in SLOW else []) for each in names()],
)
def test_a_run_of_one_round_has_every_measure_of_its_recipe(tmp_path: Path, name: str) -> None:
    """One row of each kind: as usual, with attackers, judged by personal models, pooled."""
    recipe = load_recipe(name)
    kinds: dict[tuple[object, ...], Arm] = {}
    study = study_of(recipe, recipe.rows)
    for arm in study.arms:
        config = study.config(arm)
        kinds.setdefault((arm.evaluated, config.get("attackers"), config.get("pooled")), arm)
    for number, arm in enumerate(kinds.values()):
        info = TASKS[str(study.config(arm)["task"])]
        root = tmp_path / "data"
        if not root.exists():
            WRITTEN[info.name](root)
        config = study.config(arm) | QUICK | UNVERIFIED | RECIPES.get(name, {})
        config |= {"model": "logistic"} if "logistic" in info.models else {}
        config |= {"data-dir": str(root)} if info.files else {}
        if "data-dir" not in config:  # as for a task with drawn data
            del config["verify-data"]
        run = api.run(settings=config, out=tmp_path / str(number), progress=False)
        assert measures_of(run, recipe.measures, arm.evaluated).keys() == {*recipe.measures}
