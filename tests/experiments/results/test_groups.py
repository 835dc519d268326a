"""Groups of runs and comparisons: sums over clients, fairlearn's gaps, and what is left out.

A score over all clients says which clients it leaves out, at its number.
"""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score

import fairbloom as api
from fairbloom.errors import FairbloomError
from fairbloom.experiments.pages.run import page_of_run
from fairbloom.experiments.results.caveats import describe_worst_class
from fairbloom.experiments.results.group_scores import ALL
from fairbloom.experiments.results.run import REPORT, Run
from fairbloom.protocol.scores import RECALL
from fairbloom.server.run_folder.files import KNOWN
from fairbloom.server.run_folder.values import Known
from fairbloom.tables.groups import find_two_groups
from fairbloom.tasks import load_task
from tests.experiments.helpers import as_json, captured, fairbloom
from tests.experiments.pages.parsed import Parsed
from tests.simulation.helpers import table
from tests.tables.helpers import grouped
from tests.tasks.test_groups import named, patients

fairlearn = pytest.importorskip("fairlearn.metrics")


def write_sites(folder: Path, **tables: str) -> None:
    folder.mkdir()
    for name, text in tables.items():
        (folder / f"{name}.csv").write_text(text)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files of three sites, of which c has few women, and two runs with
    groups."""
    here = tmp_path_factory.mktemp("groups")
    sick = {"target": lambda k: "01"[(k * 7 // 3) % 2]}
    write_sites(
        here / "sites",
        a=patients(120, **sick),
        b=patients(80, first=10, **sick),
        c=patients(90, sex=lambda k: "F" if k < 12 else "M", **sick),
    )
    (here / "schema.toml").write_text(grouped(here / "sites", "sex", "age>=80"))
    (here / "by-sex.toml").write_text(grouped(here / "sites", "sex"))
    for name, *more in (("all", "--set", "smallest-group=1"), ("large",)):
        words = (
            "run",
            "--task",
            "csv",
            "--data-dir",
            here / "sites",
            "--rounds",
            "2",
            "--out",
            here / name,
        )
        assert (
            fairbloom(*words, "--schema", here / "schema.toml", "--set", "device=cpu", *more) == 0
        )
    return here


def predictions(run: Run) -> dict[str, np.ndarray[Any, Any]]:
    """Return targets, predictions, sexes and clients of all test examples, by the run's own
    model."""
    task = load_task(run.settings)
    model = task.model()
    model.load_state_dict({name: torch.from_numpy(array) for name, array in run.arrays().items()})
    found: dict[str, list[Any]] = {"target": [], "answer": [], "sex": [], "client": []}
    for client in task.clients:
        test = task.splits(client).test
        inputs, targets = test[:]
        with torch.no_grad():
            found["answer"] += model(inputs).argmax(1).tolist()
        found["target"] += targets.tolist()
        found["sex"] += named(task, "sex", test)
        found["client"] += [client] * len(test)
    return {key: np.array(values) for key, values in found.items()}


# Sums and gaps ------------------------------------------------------------------------------------


def test_gaps_over_all_clients_and_of_each_are_fairlearns(
    here: Path, subtests: pytest.Subtests
) -> None:
    run = api.load(here / "all")
    seen = predictions(run)
    report = run.by_group()
    by_sex = {"y_true": seen["target"], "y_pred": seen["answer"], "sensitive_features": seen["sex"]}
    expected = {
        "accuracy": fairlearn.MetricFrame(metrics=accuracy_score, **by_sex).difference(),
        "selection-rate": fairlearn.demographic_parity_difference(**by_sex),
        "true-positive-rate": fairlearn.equal_opportunity_difference(**by_sex),
    }
    gaps = {gap.score.name: gap for gap in report.gaps([ALL]) if gap.grouping == "sex"}
    assert {name: gap.size / 100 for name, gap in gaps.items()} == pytest.approx(expected, rel=1e-9)
    assert {each.group: each.count for each in report.of(ALL, "sex")} == {
        sex: int((seen["sex"] == sex).sum()) for sex in "FM"
    }
    assert report.left_out("sex") == 0
    for client in report.clients:
        with subtests.test(client=client):
            of_client = {name: each[seen["client"] == client] for name, each in by_sex.items()}
            (gap,) = (
                gap
                for gap in report.gaps([client])
                if (gap.grouping, gap.score.name) == ("sex", "selection-rate")
            )
            assert gap.size / 100 == pytest.approx(
                fairlearn.demographic_parity_difference(**of_client)
            )


def test_a_run_names_the_class_with_the_lowest_recall(tmp_path: Path) -> None:
    given = {"clients": 3, "scores": "recall", "smallest-group": 1, "partition": "iid"}
    runs = [
        api.run(
            "digits",
            rounds=1,
            seed=seed,
            out=tmp_path / f"{engine}{seed}",
            engine=engine,
            settings=given,
        )
        for seed, engine in ((1, "loop"), (1, "stacked"), (2, "loop"), (3, "loop"))
    ]
    reports = [run.by_group() for run in runs]
    rows = reports[0].rows()
    assert rows == reports[1].rows()
    for client, score in runs[0].final(RECALL).items():
        assert score == pytest.approx(
            np.mean([row["recall"] for row in rows if row["client"] == client])
        )
    worst = min(rows[:10], key=lambda row: row["recall"])
    named = f"Of the classes that clients report, {worst['group']} has the lowest recall over all"
    assert f"{named} test examples: {worst['recall']:.1f} %." in page_of_run(runs[0]).sentences
    # The lowest class of three seeds, of which two are the same run: class 8; of the last, 9.
    lows = [report.gaps([ALL])[0].low for report in reports[:3]]
    assert [*describe_worst_class(reports)] == [
        f"{named} test examples in 3 of 4 seeds: {np.mean(lows):.1f} %."
    ]
    with pytest.raises(FairbloomError, match="between groups needs groups of examples"):
        api.run("digits", method="fairfed", rounds=1, settings={"scores": "recall"})


def test_groups_over_all_clients_are_sums(here: Path, subtests: pytest.Subtests) -> None:
    run = api.load(here / "large")
    report = run.by_group()
    rows = [
        row
        for row in table(here / "large" / "groups.csv")
        if row["round"] == "2" and row["grouping"] == "sex"
    ]
    assert {row["client"] for row in rows} == {"a", "b"}
    for each in report.of(ALL, "sex"):
        with subtests.test(each=each):
            mine = [row for row in rows if row["group"] == each.group]
            assert each.count == sum(int(row["count"]) for row in mine)
            assert each.values["accuracy"] == pytest.approx(
                sum(int(row["count"]) * float(row["accuracy"]) for row in mine) / each.count
            )
            with_rate = [row for row in mine if row["true_positive_rate"]]
            if with_rate:
                positives = sum(int(row["positives"]) for row in with_rate)
                found = sum(
                    int(row["positives"]) * float(row["true_positive_rate"]) for row in with_rate
                )
                assert each.values["true-positive-rate"] == pytest.approx(found / positives)
    tested = run.test_examples()
    assert report.left_out("sex") == tested["c"]
    assert report.gap("c", "sex", report.scores[0]) is None  # a single group has no gap
    assert all(gap.low <= gap.high and gap.lowest != gap.highest for gap in report.gaps())


# Where they are seen ------------------------------------------------------------------------------


def test_groups_and_gaps_are_data_frames(here: Path) -> None:
    run = api.load(here / "large")
    assert list(run.groups.columns[:7]) == [
        "round",
        "client",
        "model",
        "split",
        "grouping",
        "group",
        "count",
    ]
    assert set(run.groups["group"]) == {"F", "M", ">=80", "<80"}
    assert set(run.groups["round"]) == {1, 2}
    gaps = run.gaps
    everyone = gaps[gaps.client.isna() & (gaps.grouping == "sex") & (gaps.score == "accuracy")]
    (row,) = everyone.to_dict("records")
    assert row["gap"] == pytest.approx(row["high"] - row["low"])
    assert {row["lowest"], row["highest"]} == {"F", "M"}


def test_a_run_without_groups_has_none_and_no_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        fairbloom(
            "run",
            "--clients",
            "3",
            "--rounds",
            "1",
            "--set",
            "device=cpu",
            "--out",
            tmp_path / "run",
        )
        == 0
    )
    run = api.load(tmp_path / "run")
    assert run.by_group() is None
    assert run.groups.empty
    assert run.gaps.empty
    printed = capsys.readouterr().out
    assert "grouping" not in printed
    assert "Gaps" not in printed


def test_show_prints_groups_gaps_and_who_is_left_out(
    here: Path,
    capsys: pytest.CaptureFixture[str],
    subtests: pytest.Subtests,
) -> None:
    capsys.readouterr()
    printed = captured(capsys, "show", here / "large").out
    run = api.load(here / "large")
    report = run.by_group()
    for each in report.of(ALL, "sex"):
        with subtests.test(each=each):
            line = rf"^{run.label} +sex +{each.group} +{each.count} +{each.values['accuracy']:.1f} "
            assert re.search(line, printed, re.MULTILINE)
    gap = report.gap(ALL, "sex", report.scores[0])
    counts = {each.group: each.count for each in report.of(ALL, "sex")}
    ends = " +".join(rf"{end} \({counts[end]} examples\)" for end in (gap.lowest, gap.highest))
    line = rf"^sex +accuracy, % +{gap.size:.1f} +{ends}$"
    assert re.search(line, printed, re.MULTILINE)
    said = f"By sex, {report.left_out('sex')} of {sum(report.tested.values())} test examples are"
    assert said in printed
    about = as_json(capsys, "show", here / "large")
    assert about["groups"] == report.rows()
    assert about["gaps"] == report.gap_rows()


KEYS = ("method", "client", "score")


@pytest.mark.slow
def test_a_comparison_has_gaps_by_method_and_files_of_them(
    here: Path,
    capsys: pytest.CaptureFixture[str],
    subtests: pytest.Subtests,
) -> None:
    words = (
        "compare",
        "--task",
        "csv",
        "--data-dir",
        here / "sites",
        "--methods",
        "fedavg,ditto",
        "--seeds",
        "2",
    )
    out = here / "cmp"
    settings = (
        "--schema",
        here / "by-sex.toml",
        "--set",
        "device=cpu",
        "--jobs",
        "1",
        "--rounds",
        "2",
        "--out",
        out,
    )
    printed = captured(capsys, *words, *settings).out
    assert "Gaps between groups over all clients" in printed
    comparison = api.load(out)
    assert list(comparison.by_group) == ["FedAvg", "Ditto", "Ditto (personal)"]
    report = api.load(out / "runs" / "fedavg-seed1").by_group()
    chosen = [
        row for row in comparison.group_rows() if (row["method"], row["seed"]) == ("FedAvg", 1)
    ]
    assert [row["count"] for row in chosen] == [row["count"] for row in report.rows()]
    personal = api.load(out / "runs" / "ditto-seed0").by_group("personal")
    found = comparison.gap_rows()
    assert [
        row["gap"] for row in found if (row["method"], row["seed"]) == ("Ditto (personal)", 0)
    ] == [row["gap"] for row in personal.gap_rows()]
    assert [row["gap"] for row in table(out / "gaps.csv")] == [str(row["gap"]) for row in found]
    assert len(table(out / "groups.csv")) == len(comparison.group_rows())
    page = Parsed.of((out / REPORT).read_text(encoding="utf-8"))
    for score in report.scores:
        with subtests.test(score=score):
            shown = [row for row in page.rows("gaps") if row["score"] == score.title]
            gaps = [
                row["gap"]
                for row in found
                if [row[key] for key in KEYS] == ["FedAvg", None, score.name]
            ]
            assert [float(row["gap under FedAvg"].partition(" ")[0]) for row in shown] == (
                pytest.approx([np.mean(gaps)] if gaps else [], abs=0.051)
            )
    assert "Accuracy gap by sex" in page.text
    difference = comparison.difference("Ditto (personal)", "group-gap:accuracy")
    rows = {(row["method"], row["measure"]): row["difference"] for row in page.rows("differences")}
    assert rows["Ditto (personal)", "accuracy gap"].startswith(f"{difference.mean:+.1f}")
    assert "†" not in printed  # the terminal has no table of groups that names clients
    with pytest.raises(FairbloomError, match="'group-gap:auc'"):
        comparison.difference("Ditto", "group-gap:auc")
    assert as_json(capsys, "show", out)["gaps"] == comparison.gap_rows()


# Over which clients a score is a mean -------------------------------------------------------------


def test_every_score_says_over_which_clients_it_is_a_mean(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    subtests: pytest.Subtests,
) -> None:
    well = patients(60, target=lambda k: "0")
    write_sites(tmp_path / "sites", a=patients(60), b=patients(60, first=10), well=well)
    words = (
        "run",
        "--task",
        "csv",
        "--data-dir",
        tmp_path / "sites",
        "--rounds",
        "1",
        "--out",
        tmp_path / "run",
    )
    settings = {"scores": "sensitivity,specificity,brier", "device": "cpu"}
    printed = captured(
        capsys, *words, *(word for item in settings.items() for word in ("--set", "=".join(item)))
    ).out
    for score, reason in (
        ("AUC", "one class in its test examples"),
        ("sensitivity (1)", "no positive test example"),
    ):
        with subtests.test(score=score, reason=reason):
            assert (
                f"{score} is the mean of 2 of 3 clients; without a test {score} ({reason}): well"
                in printed
            )
    assert re.search(r"^AUC +2 of 3 ", printed, re.M)
    assert "specificity is the mean" not in printed
    scores = {each["score"]: each for each in as_json(capsys, "show", tmp_path / "run")["scores"]}
    assert scores["auc"]["without"] == {"well": "one class in its test examples"}
    assert (scores["auc"]["clients"], scores["auc"]["of_clients"]) == (2, 3)
    assert (scores["brier"]["clients"], scores["brier"]["without"]) == (3, {})
    final = api.load(tmp_path / "run").final(api.load(tmp_path / "run").scores[2])
    assert scores["auc"]["mean"] == pytest.approx(np.mean(list(final.values())))
    KNOWN.write(tmp_path / "run", Known(("a", "b", "well"), ("a", "b", "well")))  # as devices are
    scores = {each["score"]: each for each in as_json(capsys, "show", tmp_path / "run")["scores"]}
    assert scores["auc"]["without"]["well"].endswith(
        "or too few examples for its device to send it"
    )
    assert fairbloom(*words[:-1], tmp_path / "own", "--set", "personal-lambda=0.1") == 0
    # by global and personal models
    assert capsys.readouterr().out.count("AUC is the mean of 2 of 3 clients") == 1


SCHEMA = """
target = "target"
positive = "ill"
groups = ["sex"]
[fields.age]
type = "number"
[fields.sex]
type = "string"
categories = ["F", "M"]
[fields.target]
type = "string"
categories = ["ill", "well"]
"""


def site(ill: int, well: int) -> str:
    """Return a table in which each sex has as many ill and well patients."""
    rows = [(k % 9, "FM"[k % 2], "ill") for k in range(2 * ill)]
    rows += [((k + 4) % 9, "FM"[k % 2], "well") for k in range(2 * well)]
    return "age,sex,target\n" + "".join(f"{age},{sex},{target}\n" for age, sex, target in rows)


@pytest.fixture
def sites(tmp_path: Path) -> dict[str, Any]:
    """The options of a run on three sites, of which the last tests too few ill patients of a sex to
    report their rate."""
    write_sites(tmp_path / "data", a=site(60, 60), b=site(60, 60), few=site(8, 90))
    return {
        "data_dir": tmp_path / "data",
        "schema": SCHEMA,
        "progress": False,
        "out": tmp_path / "run",
    }


def test_a_rate_that_leaves_a_client_out_says_so(
    sites: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run = api.run("csv", rounds=3, **sites)
    report = run.by_group()
    for group in report.of(ALL, "sex"):
        counts = {each.client: each.count for each in report.groups if each.group == group.group}
        assert group.without == {"true-positive-rate": {"few": counts["few"]}}
        assert group.count == sum(counts.values())
    run.show()
    shown = capsys.readouterr().out
    table = shown[shown.index("Groups over all clients") :].splitlines()[3:5]
    assert [line.count("†") for line in table] == [1, 1]
    assert all(line.rstrip().endswith("†") for line in table)
    words = "examples of a group are none, or too few to be reported (few)."
    assert words in " ".join(shown.split())
    gaps = run.gaps.query("client.isna()").set_index("score")["without"].fillna("").to_dict()
    assert gaps == {"accuracy": "", "selection-rate": "", "true-positive-rate": "few"}


def test_groups_that_leave_nobody_out_have_no_mark(
    sites: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    api.run("csv", rounds=1, settings={"smallest-group": 1}, **sites).show()
    assert "†" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["other", "all clients", "None", "nan", "(without a value)"])
def test_a_group_and_a_client_may_have_any_name(
    sites: dict[str, Any], tmp_path: Path, name: str
) -> None:
    """Rows without a value are no group that a cell can name, and all clients are no client."""
    (tmp_path / "data" / "a.csv").rename(tmp_path / "data" / f"{name}.csv")
    for file in (tmp_path / "data").iterdir():
        lines = file.read_text().replace(",F,", f",{name},").splitlines()
        lines[1:19] = [re.sub(",[^,]+,", ",,", line) for line in lines[1:19]]
        file.write_text("\n".join(lines))
    sites["schema"] = SCHEMA.replace('"F"', f"'{name}'").replace(
        "[fields.age]", 'missing = "fill"\n[fields.age]'
    )
    run = api.run("csv", rounds=1, settings={"smallest-group": 1}, **sites)
    task = load_task(run.settings)
    counts = {
        client: Counter(named(task, "sex", task.splits(client).test)) for client in task.clients
    }
    counts[ALL] = sum(counts.values(), Counter[str | None]())
    assert counts[ALL].keys() == {name, "M", None}
    report = run.by_group()
    for client, expected in counts.items():
        assert {each.group: each.count for each in report.of(client, "sex")} == expected
    assert {gap.client for gap in report.gaps()} == {*counts}
    assert find_two_groups(task.groupings, 2) == (0, 1)
    with pytest.raises(FairbloomError, match="3 groups"):
        find_two_groups({"sex": ("f", name, "m", None)}, 2)
