"""Reports: one file that fetches nothing and runs nothing of others', with the numbers that the
runs recorded.

No number in a table of a run folder keeps its pages from being opened.
"""

import base64
import csv
import hashlib
import io
import itertools
import json
import re
import shutil
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fairbloom.experiments import api
from fairbloom.experiments.render.html import as_script_data
from fairbloom.experiments.results.presentation import write_report
from fairbloom.experiments.results.run import REPORT, load
from fairbloom.experiments.study import find_study
from fairbloom.protocol.scores import ACCURACY, LOSS_SCORE, Score
from fairbloom.server.run_folder.csv_rows import WORDS
from fairbloom.server.run_folder.files import (
    CLIENTS,
    ENVIRONMENT,
    MODEL,
    ROUNDS,
    SCORES,
    SPLIT,
    TableFile,
)
from fairbloom.strategies import find_method
from fairbloom.strategies.registry import source_of
from tests.experiments.made_up import make_comparison, make_run
from tests.simulation.helpers import table as table_of

from ..helpers import as_json, captured, fairbloom
from .parsed import Parsed

FOUR = ["Cleveland", "Hungary", "Long Beach", "Switzerland"]
METHODS = ["fedavg", "qfedavg", "fedfv"]
PAPERS = ("https://doi.org/", "https://arxiv.org/")
EVIL = [
    "</script><script>alert(1)</script>",
    "</script x",
    "<!-- <script>",
    "<img src=x onerror=alert(1)>",
    "a & b",
    "quo\"te' ${x}",
]


def page_of(folder: Path) -> Parsed:
    """Return the report that is written of what a folder holds."""
    write_report(api.load(folder), folder / REPORT)
    return Parsed.of((folder / REPORT).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of three methods on four hospitals, whose names are the same with all three
    seeds."""
    folder = tmp_path_factory.mktemp("hospitals")
    make_comparison(folder, METHODS, range(3), FOUR, 12, personal=["fedfv"], dealt=False)
    return folder


@pytest.fixture(scope="module")
def report(hospitals: Path) -> Parsed:
    return page_of(hospitals)


def rows_of(folder: Path, method: str, seed: int, file: str = CLIENTS.name) -> list[dict[str, str]]:
    return table_of(folder / "runs" / f"{method}-seed{seed}" / file)


def finals_of(
    folder: Path, method: str, seed: int, column: str = "test_accuracy_of_global_model"
) -> dict[str, float]:
    rows = rows_of(folder, method, seed)
    last = max(int(row["round"]) for row in rows)
    return {row["client"]: float(row[column]) for row in rows if int(row["round"]) == last}


def numbers_of(text: str) -> list[float]:
    """Return the numbers of a cell: a difference, and the ends of its interval."""
    return [float(number) for number in re.findall(r"[+-]?\d+\.?\d*", text)]


# It fetches nothing -------------------------------------------------------------------------------


def test_it_names_no_address_but_itself_data_and_papers(report: Parsed) -> None:
    addresses = [
        about[name]
        for _, about in report.tags
        for name in ("href", "src", "action", "poster")
        if name in about
    ]
    assert addresses
    assert not [a for a in addresses if not a.startswith(("#", "data:", *PAPERS))]
    assert not {"link", "img", "iframe", "object", "embed", "form", "base", "video"} & {
        tag for tag, _ in report.tags
    }
    assert not [style for style in report.styles if re.search(r"@import|url\(", style)]


def test_its_policy_comes_first_and_allows_its_own_scripts_alone(report: Parsed) -> None:
    (policy,) = [
        about["content"]
        for tag, about in report.tags
        if about.get("http-equiv") == "Content-Security-Policy"
    ]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    digests = [
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        for script in report.scripts
    ]
    assert rules.pop("script-src").split() == [f"'sha256-{digest}'" for digest in digests]
    assert rules == {
        "default-src": "'none'",
        "style-src": "'unsafe-inline'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    assert not [
        about
        for _, about in report.tags
        if any(name.startswith("on") or name == "style" for name in about)
    ]
    names = [tag for tag, _ in report.tags]
    first = next(
        place for place, (_, about) in enumerate(report.tags) if about.get("content") == policy
    )
    assert first < min(names.index(tag) for tag in ("style", "script", "title"))


def test_names_are_text_wherever_they_stand(tmp_path: Path) -> None:
    make_comparison(tmp_path, METHODS[:2], range(2), EVIL, 3)
    study = find_study(tmp_path)
    arms = [replace(arm, label=f"{arm.label}<script>alert(2)</script>") for arm in study.arms]
    replace(study, arms=arms, baseline=arms[0].label).write(tmp_path)
    page = page_of(tmp_path)
    assert len(page.scripts) == 2, "the library and the page's own"
    assert not [script for script in page.scripts if "alert(" in script]
    assert "img" not in {tag for tag, _ in page.tags}
    assert {row[0] for row in page.tables["clients"][1:]} == set(EVIL)
    assert page.tables["clients"][0][1:] == [arm.label for arm in arms]
    assert {name for name in EVIL if name in page.text} == set(EVIL)
    run = tmp_path / "runs" / "fedavg-seed0"
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(
        config.replace('method = "fedavg"', "method = '<script>alert(3)</script>'").replace(
            '"digits"', "'<b>x</b>'"
        )
    )
    page = page_of(run)
    assert len(page.scripts) == 2
    assert "b" not in {tag for tag, _ in page.tags}
    assert "<script>alert(3)</script>" in page.text
    assert {row["client"] for row in page.chart("clients")["data"]["values"]} == set(EVIL)


def test_data_in_a_script_have_nothing_that_could_end_it() -> None:
    data = as_script_data({name: name for name in (*EVIL, "\u2028")})
    assert not set("<>&\u2028") & set(data)
    assert json.loads(data) == {name: name for name in (*EVIL, "\u2028")}


# Its numbers are the runs' ------------------------------------------------------------------------


def test_each_client_has_the_mean_of_its_last_scores(
    hospitals: Path, report: Parsed, subtests: pytest.Subtests
) -> None:
    columns = {find_method(method).__name__: (method, "global") for method in METHODS}
    columns["FedFV (personal)"] = ("fedfv", "personal")
    for row, (heading, (method, model)) in itertools.product(
        report.rows("clients"), columns.items()
    ):
        with subtests.test(row=row, heading=heading):
            scores = [
                finals_of(hospitals, method, seed, f"test_accuracy_of_{model}_model")
                for seed in range(3)
            ]
            mean = statistics.fmean(of_seed[row["client"]] for of_seed in scores)
            assert float(row[heading]) == pytest.approx(mean, abs=0.051)
    base = [float(row["FedAvg"]) for row in report.rows("clients")]
    assert base == sorted(base), "the worst served under the baseline first"


@pytest.mark.parametrize("method", METHODS[1:])
def test_differences_are_those_of_the_comparison(
    hospitals: Path, report: Parsed, method: str
) -> None:
    comparison = api.load(hospitals)
    found = {(row["method"], row["measure"]): row for row in report.rows("differences")}
    row = found[find_method(method).__name__, "worst client"]
    expected = comparison.difference(find_method(method).__name__, "worst_10")
    assert numbers_of(row["difference"]) == pytest.approx(
        [expected.mean, expected.low, expected.high], abs=0.051
    )
    assert (int(row["seeds better"]), int(row["seeds worse"])) == (
        expected.better,
        expected.worse,
    )


def test_curves_are_means_over_the_seeds_within_what_these_span(
    hospitals: Path,
    report: Parsed,
    subtests: pytest.Subtests,
) -> None:
    drawn = report.chart("rounds-mean")["data"]["values"]
    assert {row["method"] for row in drawn} == {"FedAvg", "QFedAvg", "FedFV"}
    for row in drawn:
        with subtests.test(row=row):
            if row["method"] != "QFedAvg":
                continue
            values = [
                float(each["test_accuracy_of_global_model_mean"])
                for seed in range(3)
                for each in rows_of(hospitals, "qfedavg", seed, ROUNDS.name)
                if int(each["round"]) == row["round"]
            ]
            assert (row["value"], row["low"], row["high"]) == pytest.approx(
                (statistics.fmean(values), min(values), max(values)), rel=1e-4
            )


def test_the_papers_of_the_methods_are_named(report: Parsed) -> None:
    assert "Cite the methods that you use." in report.text
    for method in map(find_method, METHODS):
        assert f"{method.__name__}: {source_of(method)}" in report.text


def test_the_front_has_the_methods_that_none_beats(report: Parsed) -> None:
    places = {
        row["method"]: (float(row["mean"]), float(row["worst client"]))
        for row in report.rows("methods")
    }
    beaten = {
        method
        for method, (mean, worst) in places.items()
        if any(m >= mean and w >= worst and (m, w) != (mean, worst) for m, w in places.values())
    }
    assert 0 < len(beaten) < len(places)
    front = ", ".join(method for method in places if method not in beaten)
    assert f"is better in the mean and in the worst client: {front}." in report.text


def test_the_verdict_comes_first(hospitals: Path, report: Parsed) -> None:
    verdict = api.load(hospitals).verdict
    text = " ".join(report.text.split())
    assert text.index(verdict.headline) < text.index(
        "Each client under each method", text.index(verdict.headline)
    )
    assert all(sentence in text for sentence in verdict.sentences)


def test_dealt_clients_are_shown_by_the_first_seed(tmp_path: Path) -> None:
    make_comparison(tmp_path, METHODS, range(3), [f"client-{i}" for i in range(4)], 5)
    page = page_of(tmp_path)
    assert {row["client"]: float(row["QFedAvg"]) for row in page.rows("clients")} == pytest.approx(
        finals_of(tmp_path, "qfedavg", 0), abs=0.051
    )
    assert "first seed" in page.text
    first = load(tmp_path / "runs" / "fedavg-seed0")
    SPLIT.write(first.folder, replace(first.split(), marks=("", "rotated", "", "rotated")))
    shown = {"client-0", "client-1 (rotated)", "client-2", "client-3 (rotated)"}
    assert {row["client"] for row in page_of(tmp_path).rows("clients")} == shown
    drawn = page_of(first.folder).chart("clients")
    assert {*drawn["layer"][0]["encoding"]["y"]["sort"]} == shown
    assert {row["client"] for row in drawn["data"]["values"]} == shown


# Many clients -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_ten_methods_and_a_hundred_clients_stay_small(tmp_path: Path) -> None:
    methods = [
        "fedavg",
        "qfedavg",
        "fedmgdaplus",
        "fedfv",
        "term",
        "afl",
        "propfair",
        "gifair",
        "adafed",
        "fedprox",
    ]
    make_comparison(tmp_path, methods, range(2), [f"client-{i:03}" for i in range(100)], 80)
    page = page_of(tmp_path)
    assert (tmp_path / REPORT).stat().st_size < 5_000_000
    rounds = {row["round"] for row in page.chart("rounds-mean-1")["data"]["values"]}
    assert len(rounds) <= 60
    assert {80} < rounds, "the last round is there"
    shown = [float(row["FedAvg"]) for row in page.rows("clients")]
    values = sorted(finals_of(tmp_path, "fedavg", 0).values())
    assert shown == pytest.approx([*values[:20], *values[-10:]], abs=0.051)
    spans = [row for row in page.chart("clients-1")["data"]["values"] if row["method"] == "QFedAvg"]
    assert len(spans) == 100


# Others than four hospitals under accuracy --------------------------------------------------------


def test_a_single_seed_has_no_intervals_and_says_so(tmp_path: Path) -> None:
    make_comparison(tmp_path, METHODS[:2], range(1), FOUR[:2], 4, dealt=False)
    page = page_of(tmp_path)
    assert sorted(row["client"] for row in page.rows("clients")) == FOUR[:2]
    assert "worst 10 %" not in page.text, "a tenth of few clients is one client"
    assert "single seed" in page.text
    assert {len(numbers_of(row["difference"])) for row in page.rows("differences")} == {1}
    assert (
        "NaN" not in (tmp_path / REPORT).read_text().partition("<main")[2].partition("<script>")[0]
    )


def test_where_lower_is_better_the_worst_has_the_highest(tmp_path: Path) -> None:
    make_comparison(
        tmp_path,
        METHODS,
        range(2),
        FOUR,
        4,
        score=Score("mae", higher_is_better=False),
        dealt=False,
    )
    page = page_of(tmp_path)
    base = [float(row["FedAvg"]) for row in page.rows("clients")]
    assert base == sorted(base, reverse=True)


def test_a_run_with_personal_models(hospitals: Path) -> None:
    page = page_of(hospitals / "runs" / "fedfv-seed0")
    assert {
        row["client"]: float(row["FedFV (personal)"]) for row in page.rows("clients")
    } == pytest.approx(
        finals_of(hospitals, "fedfv", 0, "test_accuracy_of_personal_model"), abs=0.051
    )
    assert "one seed" in page.text


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    make_run(tmp_path / "run", "fedfv", 0, FOUR, 6, np.random.default_rng(0))
    return tmp_path / "run"


def test_an_interrupted_run_is_reported_as_far_as_it_is_written(run_folder: Path) -> None:
    MODEL.path_in(run_folder).unlink()
    for table in (ROUNDS, CLIENTS):
        lines = table.path_in(run_folder).read_text().splitlines(keepends=True)
        count = 1 + (3 if table is ROUNDS else 3 * len(FOUR))
        table.path_in(run_folder).write_text("".join(lines[:count]) + lines[count][:9])
    page = page_of(run_folder)
    assert "interrupted after round 3 of 6" in page.text
    last = [row for row in table_of(CLIENTS.path_in(run_folder)) if row["round"] == "3"]
    assert {row["client"]: float(row["FedFV"]) for row in page.rows("clients")} == pytest.approx(
        {row["client"]: float(row["test_accuracy_of_global_model"]) for row in last}, abs=0.051
    )


def test_a_run_before_its_first_evaluation(run_folder: Path) -> None:
    for entry in (MODEL, ROUNDS, CLIENTS, SPLIT):
        entry.path_in(run_folder).unlink()
    page = page_of(run_folder)
    assert "has not been evaluated yet" in page.text
    assert not [name for name in page.data if name.startswith("spec-")]


def test_a_run_that_could_not_be_evaluated_at_its_end(run_folder: Path) -> None:
    lines = CLIENTS.path_in(run_folder).read_text().splitlines(keepends=True)
    CLIENTS.path_in(run_folder).write_text("".join(lines[: 1 + 2 * len(FOUR)]))
    page = page_of(run_folder)
    assert "was last evaluated after round 2 of 6" in page.text
    assert "has not been evaluated yet" not in page.text


def test_files_that_a_run_may_lack(run_folder: Path) -> None:
    for entry in (ENVIRONMENT, SPLIT, SCORES):
        entry.path_in(run_folder).unlink()
    page = page_of(run_folder)
    assert {row["client"]: row["test examples"] for row in page.rows("clients")} == dict.fromkeys(
        FOUR, "37"
    )


def test_absences_and_reasons_are_counted(run_folder: Path) -> None:
    rows = table_of(ROUNDS.path_in(run_folder))
    rows[1]["refused"] = "'Long Beach': <b>its loss</b> is not finite"
    rows[2]["refused"] = "'Long Beach': <b>its loss</b> is not finite | Hungary: too long"
    rows[3]["missing"] = "Hungary Cleveland"
    rows[4]["offline"] = "'Long Beach' Cleveland"
    with ROUNDS.path_in(run_folder).open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    page = page_of(run_folder)
    assert {
        row["client"]: (row["refused"], row["missing"], row["offline"])
        for row in page.rows("absences")
    } == {
        "Long Beach": ("2", "–", "1"),
        "Hungary": ("1", "1", "–"),
        "Cleveland": ("–", "1", "1"),
    }
    assert {(row["client"], row["reason"]): row["rounds"] for row in page.rows("refusals")} == {
        ("Long Beach", "<b>its loss</b> is not finite"): "2",
        ("Hungary", "too long"): "1",
    }


# The command --------------------------------------------------------------------------------------


def test_an_unfinished_comparison_is_refused(
    hospitals: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(hospitals, tmp_path / "part")
    MODEL.path_in(tmp_path / "part" / "runs" / "fedfv-seed1").unlink()
    assert "8 of 9 runs" in captured(capsys, "report", tmp_path / "part", code=2).err


# Read by everyone ---------------------------------------------------------------------------------


def test_charts_are_described_and_tables_have_headings(report: Parsed) -> None:
    plots = [about for tag, about in report.tags if about.get("role") == "img"]
    assert plots
    assert all(len(about["aria-label"]) > 20 for about in plots)
    tables = [tag for tag, _ in report.tags if tag in ("table", "caption")]
    assert tables == ["table", "caption"] * (len(tables) // 2)
    assert {"row", "col"} == {about.get("scope") for tag, about in report.tags if tag == "th"}
    levels = [int(tag[1]) for tag, _ in report.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(later - earlier <= 1 for earlier, later in itertools.pairwise(levels))
    assert json.dumps(report.data, allow_nan=False), "all numbers are finite"


def test_methods_whose_labels_differ_in_a_sign_have_a_chart_each(tmp_path: Path) -> None:
    make_comparison(tmp_path, ["fedavg", "term"], range(2), FOUR, 3, dealt=False)
    study = find_study(tmp_path)
    base, term = study.arms
    arms = [
        base,
        *(
            replace(term, label=f"TERM (tilt={sign}{tilt})")
            for tilt in (1, 2, 3)
            for sign in ("", "-")
        ),
    ]
    replace(study, arms=arms).write(tmp_path)
    page = page_of(tmp_path)
    identifiers = [about["id"] for _, about in page.tags if "id" in about]
    assert len(identifiers) == len(set(identifiers))
    assert {f"spec-rounds-mean-{place}" for place in range(1, len(arms))} <= page.data.keys()


EXTREMES = ("inf", "-inf", "nan", "1.7976931348623157e308", "-1.7976931348623157e308")
EXTREMES += ("1e200", "1e100", "-1", "0", "5e-324", "9007199254740992")

FILES = (CLIENTS, ROUNDS)

NAMES = ("a", "b", "c", "d")


def put(folder: Path, file: TableFile, number: str, *, last: bool) -> None:
    """Write a number into all cells of numbers, or into those of the last row alone."""
    path = file.path_in(folder)
    head, *rows = csv.reader(io.StringIO(path.read_text(encoding="utf-8")))
    kept = {"round", *WORDS}
    for row in rows[-1:] if last else rows:
        row[:] = [cell if name in kept else number for name, cell in zip(head, row, strict=True)]
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows([head, *rows])
    path.write_text(written.getvalue(), encoding="utf-8")


def open_pages(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Open what a folder holds in all ways; return the text."""
    capsys.readouterr()
    text = captured(capsys, "show", folder).out
    assert fairbloom("report", folder) == 0
    assert (folder / REPORT).exists()
    as_json(capsys, "show", folder)
    return text


@pytest.mark.parametrize(
    "score",
    [
        LOSS_SCORE,
        pytest.param(ACCURACY, marks=pytest.mark.slow),
        pytest.param(Score("r2"), marks=pytest.mark.slow),
    ],
    ids=lambda each: each.name,
)
def test_every_page_of_a_run_opens(
    score: Score,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    subtests: pytest.Subtests,
) -> None:
    made = tmp_path / "made"
    make_run(made, "fedavg", 0, NAMES, 4, np.random.default_rng(0), score)
    for number, last in itertools.product(EXTREMES, (True, False)):
        with subtests.test(number=number, last=last):
            folder = tmp_path / f"{number}-{last}" / "run"
            shutil.copytree(made, folder)
            for file in FILES:
                put(folder, file, number, last=last)
            if last:
                assert load(folder).final().keys() >= {"a", "b", "c"}
            assert "inf" not in open_pages(folder, capsys).replace(str(folder), "")


@pytest.mark.slow
def test_the_page_of_a_comparison_opens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests
) -> None:
    made = tmp_path / "made"
    make_comparison(
        made, ["fedavg", "fedfv"], range(3), NAMES, 4, personal=["fedfv"], score=LOSS_SCORE
    )
    for number in EXTREMES:
        with subtests.test(number=number):
            folder = tmp_path / number / "compared"
            shutil.copytree(made, folder)
            for run in (folder / "runs").iterdir():
                for file in FILES:
                    put(run, file, number, last=True)
            open_pages(folder, capsys)


def test_a_score_that_is_impossible_is_a_dash(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    make_run(folder, "fedavg", 0, NAMES, 4, np.random.default_rng(0))
    put(folder, CLIENTS, "5700", last=True)
    assert load(folder).final().keys() == {"a", "b", "c"}
    assert "Left out, without a test accuracy: d." in open_pages(folder, capsys)
