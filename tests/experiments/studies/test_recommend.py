"""Recommendations from the command line, on real runs: what is answered, by which data, and what it holds."""

import csv
import io
import json
import math
import os
import shlex
import signal
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import t

from fairbloom import load, load_comparison, recommend
from fairbloom.errors import FairbloomError
from fairbloom.experiments.recipes.commands import deploy_command, run_command
from fairbloom.experiments.results import recommendation
from fairbloom.experiments.results.comparison import Comparison
from fairbloom.experiments.results.differences import difference_of
from fairbloom.experiments.studies import candidates, pool, recommender
from fairbloom.experiments.studies.candidates import candidates_for
from fairbloom.experiments.studies.pool import Workers
from fairbloom.experiments.studies.recommend import parse_budget
from fairbloom.experiments.studies.recommender import is_better
from fairbloom.protocol.scores import ACCURACY
from fairbloom.protocol.settings import parse_assignments
from fairbloom.server.fairness import summarize
from fairbloom.server.run_folder.files import is_finished
from fairbloom.server.settings import Settings, check_used
from fairbloom.strategies import METHODS
from fairbloom.tasks.measures import AUC
from tests.simulation.test_fair_groups import write_sites
from tests.strategies.newly_added import NewlyAdded

from ..helpers import fairbloom, start

WISH = "worst as high as possible"
ONE_CLASS = ("--clients", 5, "--rounds", 6, "--partition", "classes", "--set", "classes-per-client=2")
SMALL = (*ONE_CLASS, "--jobs", 2, "--set", "device=cpu", "--set", "learning-rate=0.05")
SEARCH_SPACE = candidates.search_space
ALL = SEARCH_SPACE(about_gaps=False)
KEYS = ["method", "parameters", "settings", "gain", "price", "command"]


def try_only(patch: pytest.MonkeyPatch, *space: tuple[str, Mapping[str, Any]]) -> None:
    """Let these be the candidates."""
    patch.setattr(candidates, "search_space", lambda about_gaps: list(space))


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few candidates and seeds, so that no search is ended by the clock, whatever else the machine does."""
    try_only(monkeypatch, *ALL[:3], ("qfedavg", {"qfedavg.q": 1.0}))
    monkeypatch.setattr("fairbloom.experiments.studies.recommend.SEEDS", ((1, 1), (2, 2), (4, 4)))
    monkeypatch.setattr(recommender, "MOST_FRESH", 4)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def last_scores(folder: Path, model: str) -> dict[str, float]:
    """Return the test score of each client after the last round, read from the file."""
    table = rows(folder / "clients.csv")
    last = max(int(row["round"]) for row in table)
    return {row["client"]: float(row[f"test_accuracy_of_{model}_model"]) for row in table if int(row["round"]) == last}


def printed(capsys: pytest.CaptureFixture[str], *words: object, wish: str = WISH) -> dict[str, Any]:
    capsys.readouterr()
    assert fairbloom("recommend", "--wish", wish, "--budget", "30m", *words, "--json") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recommended") / "out"


@pytest.fixture
def found(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Clients of two classes each, for whom models of their own are far better; later calls read what the first ran."""
    return printed(capsys, *SMALL, "--out", folder)


@pytest.mark.slow
def test_json_is_one_object_of_the_documented_keys_and_numbers(found: Mapping[str, Any]) -> None:
    assert list(found) == KEYS
    assert list(found["gain"]) == ["measure", "mean", "low", "high", "against"]
    assert all(math.isfinite(found["gain"][key]) for key in ("mean", "low", "high"))
    assert (found["gain"]["measure"], found["gain"]["against"]) == ("worst", "FedAvg")
    assert found["method"] == found["settings"]["method"] == "local"
    assert found["gain"]["mean"] > 10.0


def test_gain_and_price_are_those_of_the_fresh_runs(found: Mapping[str, Any], folder: Path) -> None:
    record = json.loads((folder / "recommendation.json").read_text())
    seeds = record["fresh_seeds"]
    assert seeds == [1000, 1001, 1002, 1003]
    pairs = []
    for seed in seeds:
        (mine,) = folder.glob(f"runs/fresh-local-*-seed{seed}")
        fedavg = folder.glob(f"runs/fresh-fedavg-*-seed{seed}")
        (theirs,) = (path for path in fedavg if not load(path).settings["weighting"])
        pairs.append((last_scores(mine, "personal"), last_scores(theirs, "global")))
    gains = [min(mine.values()) - min(theirs.values()) for mine, theirs in pairs]
    mean, half = statistics.fmean(gains), t.ppf(0.975, 3) * statistics.stdev(gains) * math.sqrt(1 / 4 + 1 / 10)
    failing = t.ppf(0.975, 4) * statistics.stdev([*gains, 0.0]) * math.sqrt(1 / 5 + 1 / 10)
    low = min(mean - half, statistics.fmean([*gains, 0.0]) - failing)
    gain, price = found["gain"], found["price"]
    assert (gain["mean"], gain["low"], gain["high"]) == pytest.approx((mean, low, mean + half))
    means = [statistics.fmean(mine.values()) - statistics.fmean(theirs.values()) for mine, theirs in pairs]
    assert price["mean"] == pytest.approx(statistics.fmean(means))
    worse = [mine[client] < theirs[client] for mine, theirs in pairs for client in theirs]
    assert price["percent_worse_off"] == pytest.approx(100.0 * sum(worse) / len(worse))


def test_fresh_seeds_are_none_that_were_searched_with_and_compare_as_a_comparison(
    found: Mapping[str, Any], folder: Path
) -> None:
    searched = {path.name.rpartition("seed")[2] for path in folder.glob("runs/search-*")}
    fresh = {path.name.rpartition("seed")[2] for path in folder.glob("runs/fresh-*")}
    assert searched
    assert fresh
    assert searched.isdisjoint(fresh)
    compared = load_comparison(folder)
    assert compared.gain("Local", "worst")[0] == pytest.approx(found["gain"]["mean"])


def test_candidates_are_chosen_by_validation_examples_of_the_model_that_serves(
    found: Mapping[str, Any], folder: Path
) -> None:
    tried = {row["method"]: row for row in rows(folder / "tried.csv")}
    assert set(tried) == {"FedAvg", "FedAvg (weighting=uniform)", "Local", "QFedAvg (q=1, lipschitz=20)"}
    assert (tried["Local"]["rounds"], tried["Local"]["seeds"]) == ("6", "4")
    worst = []
    for seed in range(4):
        (path,) = folder.glob(f"runs/search-local-*-seed{seed}")
        run = load(path)
        assert float(run.settings["validation-share"]) == 0.2
        values = run.final(model="personal", split="validation")
        worst.append(summarize(values)["worst"])
    assert float(tried["Local"]["value"]) == pytest.approx(statistics.fmean(worst))


def test_no_test_example_of_the_search_has_a_say(
    found: Mapping[str, Any], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With all test scores of the search turned round, the answer is the same."""
    tables = {path: path.read_text() for path in folder.glob("runs/search-*/clients.csv")}
    for path in tables:
        header, *lines = csv.reader(io.StringIO(tables[path]))
        tested = [place for place, column in enumerate(header) if column.startswith("test_accuracy")]
        with path.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(header)
            for line in lines:
                turned = [str(100.0 - float(cell)) if i in tested and cell else cell for i, cell in enumerate(line)]
                writer.writerow(turned)
    try:
        assert printed(capsys, *SMALL, "--out", folder) == found
    finally:
        for path, text in tables.items():
            path.write_text(text)


def test_the_same_command_runs_nothing_again(
    found: Mapping[str, Any], folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "ProcessPoolExecutor", None)
    assert printed(capsys, *SMALL, "--out", folder) == found


def test_the_command_runs_with_the_same_settings(
    found: Mapping[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    program, *words = shlex.split(found["command"])
    assert program == "fairbloom"
    assert fairbloom(*words, "--out", "run") == 0
    settings = load(tmp_path / "run").settings
    expected = Settings.of(found["settings"]).run_config()
    free = {"out", "seed", "fraction", "score"}
    assert {k: v for k, v in settings.items() if k not in free} == {k: v for k, v in expected.items() if k not in free}
    assert found["settings"].items() >= found["parameters"].items()


def test_the_command_for_deployed_clients_has_settings_that_they_take(found: Mapping[str, Any], folder: Path) -> None:
    program, group, submit, *words = shlex.split(json.loads((folder / "recommendation.json").read_text())["deploy"])
    assert (program, group, submit) == ("fairbloom", "deploy", "submit")
    given = parse_assignments(words[1::2])
    assert given == {key: value for key, value in found["settings"].items() if key != "device"}
    check_used(given, [str(given["method"])], "digits", deployed=True)
    Settings.of(given)


def test_without_json_it_is_said_in_words_with_what_was_tried_and_both_commands(
    found: Mapping[str, Any], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fairbloom("recommend", "--wish", WISH, "--budget", "30m", *SMALL, "--out", folder) == 0
    said = capsys.readouterr().out
    assert said.startswith("Take Local. Against FedAvg, the worst client gains ")
    for words in (found["command"], "fairbloom deploy submit --set", "personal models", "QFedAvg", "misses by"):
        assert words in said


def test_a_notebook_shows_the_answer(found: Mapping[str, Any], folder: Path) -> None:
    there = recommend(
        wish=WISH,
        budget="30m",
        clients=5,
        rounds=6,
        partition="classes",
        out=folder,
        jobs=2,
        settings={"classes-per-client": 2, "device": "cpu", "learning-rate": 0.05},
    )
    assert there.as_json == found
    html = there._repr_html_()
    assert "<table>" in html
    assert "Take Local" in html
    assert "Local" in repr(there)


@pytest.mark.slow
def test_a_constraint_keeps_out_who_misses_it_and_its_method_is_among_the_candidates(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wish = f"{WISH}, best-10 within 0.5 points of fedprox(mu=0.2)"
    limited = printed(capsys, *SMALL, "--out", folder.parent / "limited", wish=wish)
    record = json.loads((folder.parent / "limited" / "recommendation.json").read_text())
    tried = {each["method"]: each for each in record["tried"]}
    assert "FedProx (mu=0.2)" in tried
    assert tried[record["tried"][0]["method"]]["misses"] >= 0.0
    if limited["method"] != "fedavg":
        compared = load_comparison(folder.parent / "limited")
        label = next(each for each in compared.methods if each.lower().startswith(limited["method"]))
        cost = statistics.fmean(
            theirs["best_10"] - mine["best_10"]
            for mine, theirs in zip(compared.measures(label), compared.measures("FedProx (mu=0.2)"), strict=True)
        )
        assert cost <= 0.5


def test_the_baseline_is_the_answer_where_nobody_is_told_from_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Clients that are as large as each other, where equal weights are the same model."""
    words = ("--clients", 3, "--rounds", 3, "--partition", "iid", "--set", "device=cpu", "--jobs", 2, "--out", tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        try_only(patch, *ALL[:2])
        found = printed(capsys, *words, wish="mean as high as possible")
    assert (found["method"], found["parameters"]) == ("fedavg", {})
    assert found["gain"] == {"measure": "mean", "mean": 0.0, "low": 0.0, "high": 0.0, "against": "FedAvg"}
    assert found["price"]["percent_worse_off"] == 0.0
    assert shlex.split(found["command"])[:4] == ["fairbloom", "run", "--method", "fedavg"]


@pytest.mark.slow
def test_a_budget_for_nothing_says_so_and_stays_with_the_baseline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fairbloom.experiments.studies.recommend.SEARCH_SHARE", 0.0)
        words = (*SMALL, "--out", tmp_path / "out")
        assert fairbloom("recommend", "--wish", WISH, "--budget", "1s", *words) == 0
        said = capsys.readouterr().out
    assert "Stay with FedAvg" in said
    assert "raise it by --budget" in said
    record = json.loads((tmp_path / "out" / "recommendation.json").read_text())
    assert record["gain"]["low"] == record["gain"]["high"] == 0.0
    assert len(record["untried"]) == 4
    assert printed(capsys, *words)["method"] == "local"


def test_candidates_that_refuse_the_settings_are_left_out_with_their_reasons(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairbloom.experiments.studies.recommend.SEARCH_SHARE", 0.0)
    try_only(monkeypatch, *candidates.search_space(False), ("fedfa", {}))
    for setting, refusing, reason in (
        ("server-optimizer=avgm", ["FedFa"], "FedFa could not be judged: FedFa has a momentum of its own"),
        (
            "control-variates=true",
            ["Local", "QFedAvg (q=1, lipschitz=20)", "FedFa"],
            "Local could not be judged: control-variates = ",
        ),
    ):
        out = tmp_path / setting
        words = ("--wish", WISH, "--budget", "1s", *SMALL, "--set", setting, "--out", out)
        assert fairbloom("recommend", *words) == 0
        assert reason in " ".join(capsys.readouterr().out.split())
        record = json.loads((out / "recommendation.json").read_text())
        assert [*record["failed"]] == refusing
        assert {"FedAvg", "FedAvg (weighting=uniform)"} <= {*record["untried"]}
        assert {*record["untried"]}.isdisjoint(refusing)


def test_where_many_could_not_be_judged_the_reasons_are_in_the_folder_alone() -> None:
    failed = dict.fromkeys(("Local", "FedFa", "FedLF", "AFL"), "it lacks clients")
    gain, price = recommendation.Improvement("worst", 0.0, 0.0, 0.0, "FedAvg"), recommendation.Cost()
    found = recommendation.Recommendation("", "FedAvg", "fedavg", {}, {}, gain, price, "", failed=failed)
    said = " ".join(found.sentences)
    assert "4 could not be judged (recommendation.json says why): Local, FedFa, FedLF, AFL." in said
    assert "it lacks clients" not in said
    assert found.record["failed"] == failed


def test_what_clients_of_files_predict_decides_which_wish_is_for_better_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fairbloom.experiments.studies.recommend.SEARCH_SHARE", 0.0)
    for name in ("north", "south"):
        rows = "".join(f"{k},{'yes' if k % 3 else 'no'},{k / 7}\n" for k in range(30))
        (tmp_path / f"{name}.csv").write_text(f"age,ill,cost\n{rows}")
    words = ("recommend", "--task", "csv", "--data-dir", tmp_path, "--budget", "1s", "--rounds", 2)
    for target, high, low in (("ill", 0, 2), ("cost", 2, 0)):
        for wish, ends in (("worst as high as possible", high), ("worst as low as possible", low)):
            out = ("--set", f"csv.target={target}", "--out", tmp_path / target / wish)
            assert fairbloom(*words, "--wish", wish, *out) == ends, (target, wish, capsys.readouterr())


def test_differences_that_never_vary_tell_by_their_sign() -> None:
    """As where a client's own model is always right, and the common one never."""
    assert is_better(difference_of([100.0] * 6))
    assert not is_better(difference_of([100.0] * 5))
    assert not is_better(difference_of([-100.0] * 6))
    assert not is_better(difference_of([0.0] * 20))
    assert is_better(difference_of([9.0, 10.0, 11.0]))
    assert not is_better(difference_of([-9.0, -10.0, -11.0]))


@pytest.mark.slow
def test_one_client_is_no_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--clients", 1, "--rounds", 3, "--partition", "iid", "--set", "device=cpu", "--jobs", 2, "--out", tmp_path)
    found = printed(capsys, *words)
    assert math.isfinite(found["gain"]["low"])


def write_hospitals(folder: Path, count: int, patients: int) -> Path:
    folder.mkdir()
    for k in range(count):
        lines = [f"{age},{(age * 7 + k) % 5},{age * 0.5 + 10 * k}" for age in range(patients)]
        (folder / f"site-{k}.csv").write_text("\n".join(["age,dose,target", *lines, ""]))
    return folder


@pytest.mark.slow
def test_two_hospitals_of_five_rows_have_an_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_hospitals(tmp_path / "data", 2, 5)
    words = ("--task", "csv", "--data-dir", data, "--rounds", 3, "--set", "csv.kind=regression", "--jobs", 2)
    found = printed(capsys, *words, "--out", tmp_path / "out", wish="worst as low as possible")
    assert math.isfinite(found["gain"]["low"])
    assert str(data) in found["command"]


def test_two_rows_are_too_few_and_the_words_say_which_setting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_hospitals(tmp_path / "data", 2, 2)
    words = ("--task", "csv", "--data-dir", data, "--rounds", 3, "--set", "csv.kind=regression")
    wish = ("--wish", "worst as low as possible", "--out", tmp_path / "out")
    assert fairbloom("recommend", *wish, *words) == 2
    said = capsys.readouterr().err
    assert "site-0" in said
    assert "Traceback" not in said
    assert not (tmp_path / "out").exists()


# Wishes about groups --------------------------------------------------------------------------------------------------


def gap_of(folder: Path, split: str) -> float:
    """Return the gap of the true positive rates over all clients, from the file's counts; NaN where it has none."""
    table = [row for row in rows(folder / "groups.csv") if (row["split"], row["model"]) == (split, "global")]
    last = max(int(row["round"]) for row in table)
    found: dict[str, list[tuple[int, float]]] = {"female": [], "male": []}
    for row in table:
        if int(row["round"]) == last and row["positives"]:
            found[row["group"]].append((int(row["positives"]), float(row["true_positive_rate"])))
    if not all(found.values()):
        return math.nan
    rates = [sum(of * rate for of, rate in each) / sum(of for of, _ in each) for each in found.values()]
    return abs(rates[0] - rates[1])


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sites(tmp_path_factory.mktemp("sites") / "data", 0)


@pytest.fixture
def of_groups(sites: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[object, ...]:
    """The words for sites that miss ill women more often; the candidates are FedAvg and methods for that."""
    try_only(monkeypatch, *ALL[:2], ("fcfl", {"fcfl.budget": 0.05}), ("fairfed", {"fairfed.beta": 0.2}))
    words = ("--task", "csv", "--data-dir", sites, "--rounds", 15, "--jobs", 2, "--set", "device=cpu")
    return (*words, "--set", "csv.group=sex", "--set", "learning-rate=0.1")


GAP_WISH = "group-gap:true-positive-rate as low as possible, mean within 5 points of FedAvg"


@pytest.mark.slow
def test_a_gap_between_groups_is_made_small_by_methods_for_it_on_validation_and_shown_on_test_examples(
    of_groups: tuple[object, ...], sites: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = sites.parent / "gap"
    found = printed(capsys, *of_groups, "--out", out, wish=GAP_WISH)
    assert found["method"] == "fairfed"
    record = json.loads((out / "recommendation.json").read_text())
    assert record["failed"] == {}
    tried = {row["method"]: row for row in rows(out / "tried.csv")}
    assert {label.partition(" ")[0] for label in tried} == {"FedAvg", "FairFed", "FCFL"}
    searched = [load(path) for path in out.glob("runs/search-fedavg-*")]
    values = [gap_of(run.folder, "validation") for run in searched if not run.settings["weighting"]]
    assert len(values) == int(tried["FedAvg"]["seeds"]) == 4
    assert float(tried["FedAvg"]["value"]) == pytest.approx(statistics.fmean(values))
    gains, costs = [], []
    for seed in record["fresh_seeds"]:
        runs = [load(path) for path in out.glob(f"runs/fresh-*-seed{seed}")]
        (mine,) = (run for run in runs if run.settings["method"] == "fairfed")
        (base,) = (run for run in runs if run.settings["method"] == "fedavg" and not run.settings["weighting"])
        gains.append(gap_of(base.folder, "test") - gap_of(mine.folder, "test"))
        costs.append(statistics.fmean(base.final().values()) - statistics.fmean(mine.final().values()))
    assert found["gain"]["measure"] == "group-gap:true-positive-rate"
    assert found["gain"]["mean"] == pytest.approx(statistics.fmean(gains))
    assert found["gain"]["low"] > 0.0
    assert statistics.fmean(costs) <= 5.0
    bounded = "mean as high as possible, group-gap:true-positive-rate at most 8 points"
    assert fairbloom("recommend", "--wish", bounded, "--budget", "30m", *of_groups, "--out", out) == 0  # by these runs
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("Take FairFed (beta=0.2). Against FedAvg, the mean over the clients gains ")
    assert "FedAvg misses a constraint, which FairFed (beta=0.2) keeps." in said
    misses = {row["method"]: float(row["misses"]) for row in rows(out / "tried.csv")}
    assert misses["FedAvg"] == pytest.approx(statistics.fmean(values) - 8.0)
    assert misses["FairFed (beta=0.2)"] == 0.0


@pytest.mark.slow
def test_seeds_with_too_few_examples_for_a_gap_do_not_count(
    of_groups: tuple[object, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed(capsys, *of_groups, "--set", "smallest-group=19", "--out", tmp_path, wish=GAP_WISH)
    record = json.loads((tmp_path / "recommendation.json").read_text())

    def gaps_of(kind: str, split: str) -> dict[int, float]:
        runs = [load(path) for path in tmp_path.glob(f"runs/{kind}-fedavg-*")]
        gaps = {int(run.settings["seed"]): gap_of(run.folder, split) for run in runs if not run.settings["weighting"]}
        return {seed: gap for seed, gap in sorted(gaps.items()) if not math.isnan(gap)}

    searched, fresh = gaps_of("search", "validation"), gaps_of("fresh", "test")
    assert 0 < len(searched) < 4  # else this test would show nothing
    assert 1 < len(fresh) < 4
    tried = {row["method"]: row for row in rows(tmp_path / "tried.csv")}
    assert float(tried["FedAvg"]["value"]) == pytest.approx(statistics.fmean(searched.values()))
    assert record["fresh_seeds"] == [*fresh]
    assert any(f"With {4 - len(fresh)} of 4 fresh seeds too few test" in note for note in record["notes"])
    assert not any("a higher --budget" in note for note in record["notes"])


def test_groups_with_too_few_examples_for_a_gap_are_said_with_what_helps(
    of_groups: tuple[object, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--wish", GAP_WISH, "--budget", "30m", *of_groups, "--rounds", 1, "--out", tmp_path / "out")
    assert fairbloom("recommend", *words, "--set", "smallest-group=200") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert (
        "group-gap:true-positive-rate, and the clients report the true-positive-rate of fewer than two groups" in said
    )
    assert "lower smallest-group" in said
    assert "Traceback" not in said


def test_methods_that_know_two_groups_alone_are_left_out_by_name_where_there_are_three(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    try_only(monkeypatch, *ALL[:2], ("fairfed", {"fairfed.beta": 0.05}), ("fcfl", {"fcfl.budget": 0.05}))
    (tmp_path / "data").mkdir()
    for name, shift in (("north", 0), ("south", 3)):
        cells = (f"{'abc'[k % 3]},{k % 7},{'yes' if (k + shift) % 7 > 3 else 'no'}\n" for k in range(150))
        (tmp_path / "data" / f"{name}.csv").write_text(f"ward,dose,target\n{''.join(cells)}")
    words = ("--task", "csv", "--data-dir", tmp_path / "data", "--rounds", 2, "--jobs", 2, "--set", "device=cpu")
    wish = "group-gap:accuracy as low as possible"
    printed(capsys, *words, "--set", "csv.group=ward", "--out", tmp_path / "out", wish=wish)
    failed = json.loads((tmp_path / "out" / "recommendation.json").read_text())["failed"]
    assert {label.partition(" ")[0] for label in failed} == {"FairFed", "FCFL"}
    assert all("there are 3 groups by 'ward' (a, b, c)" in reason for reason in failed.values())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--wish", "fair please"), "MEASURE as high|low as possible"),
        (("--wish", "worst as low as possible"), "worst as high as possible"),
        (("--wish", "client client-9 as high as possible"), "client-9"),
        (("--wish", f"{WISH}, client berlin within 1 point of FedAvg"), "berlin"),
        (("--wish", f"{WISH}, mean within 1 point of fedavgg"), "did you mean FedAvg"),
        (
            ("--wish", "group-gap:accuracy as low as possible"),
            "has no groups of examples: name a column by csv.group",
        ),
        (
            ("--wish", f"{WISH}, group-gap:accuracy at most 3 points"),
            "is about group-gap:accuracy, and the task has no groups",
        ),
        (("--wish", f"{WISH}, mean at most 3 points"), "mean is no DIFFERENCE"),
        (("--wish", WISH, "--budget", "soon"), "10m, 90s"),
        (("--wish", WISH, "--budget", "0m"), "10m, 90s"),
        (("--wish", WISH, "--budget", "-5m"), "10m, 90s"),
        (("--wish", WISH, "--set", "method=fedfv"), "method = 'fedfv'"),
        (("--wish", WISH, "--set", "seed=3"), "use --seed"),
        (("--wish", f"{WISH}, mean within 1 point of fedfa", "--set", "server-optimizer=avgm"), "refuses"),
        (("--wish", WISH, "--set", "validation-share=0"), "leave it out"),
        (("--wish", WISH, "--set", "learning-rat=3"), "learning-rate"),
        (("--wish", WISH, "--set", "adult.groups=described"), "adult.groups has no effect"),
        (("--wish", WISH, "--task", "digit"), "did you mean digits"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert fairbloom("recommend", *words, "--clients", 3, "--out", tmp_path / "out") == 2
    told = " ".join(capsys.readouterr().err.split())
    assert said in told
    assert "Traceback" not in told
    assert not (tmp_path / "out").exists()


def test_help_states_the_grammar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    assert fairbloom("recommend", "--help") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "MEASURE within N points of METHOD" in said
    assert "worst-10, worst-20, worst-30" in said
    assert "std, gap, client NAME or group-gap:SCORE[:NAME]" in said
    assert "DIFFERENCE at most N points" in said


@pytest.mark.parametrize(
    ("text", "seconds"), [("10m", 600.0), ("90s", 90.0), ("1h", 3600.0), ("1h30m", 5400.0), (" 2M ", 120.0)]
)
def test_a_budget_is_a_time(text: str, seconds: float) -> None:
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "m", "1.5h", "10m 5", "s10", "0s", "ten minutes", "٣m"])
def test_anything_else_is_no_budget(text: str) -> None:
    with pytest.raises(FairbloomError, match="write a time as 10m"):
        parse_budget(text)


def test_runs_are_ended_at_a_time_and_continue(tmp_path: Path) -> None:
    runs = {
        ("FedAvg", seed): Settings.of(
            {"clients": 3, "num-rounds": 3, "device": "cpu", "seed": seed, "out": str(tmp_path / str(seed))}
        )
        for seed in range(2)
    }
    done: list[str] = []
    with Workers(1, 40, lambda: done.append("run")) as workers:
        with pytest.raises(TimeoutError):
            workers.run(runs, until=time.monotonic())
        workers.run(runs)
    assert len(done) == 2
    assert all(is_finished(tmp_path / str(seed)) for seed in range(2))


@pytest.mark.slow
def test_ctrl_c_ends_it_and_the_same_command_goes_on_for_seconds_and_prints_json_alone(tmp_path: Path) -> None:
    """In processes of its own and with all candidates: the second has a few seconds, whatever it gets done in them."""
    words = ("recommend", "--wish", WISH, *SMALL, "--out", tmp_path, "--json")
    process = start(*words, "--budget", "30m", start_new_session=True)
    while process.poll() is None and not list(tmp_path.rglob("model.safetensors")):
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGINT)
    out, told = process.communicate()
    assert (process.returncode, out) == (130, "")
    assert "the same command begins again; a run continues" in told
    assert "Traceback" not in told
    finished = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("model.safetensors")}
    whole = {path for path in finished if load(path.parent).settings["num-rounds"] == 6}
    out, told = start(*words, "--budget", "6s").communicate()
    assert list(json.loads(out)) == KEYS
    assert "Traceback" not in told
    assert {path: path.stat().st_mtime_ns for path in whole} == {path: finished[path] for path in whole}


def test_commands_are_quoted_for_a_shell_and_read_back_as_they_were() -> None:
    config = {
        "task": "csv",
        "data-dir": "/data/it's here",
        "num-rounds": 5,
        "csv.target": "1",
        "csv.classes": "no, yes",
        "verify-data": False,
        "method": "qfedavg",
        "qfedavg.q": 0.1,
        "engine": "loop",
    }
    program, command, *words = shlex.split(run_command(config))
    assert (program, command) == ("fairbloom", "run")
    pairs = dict(zip(words[::2], words[1::2], strict=True))
    assert pairs["--data-dir"] == "/data/it's here"
    assert pairs["--rounds"] == "5"
    sets = parse_assignments(value for option, value in zip(words[::2], words[1::2], strict=True) if option == "--set")
    assert sets == {key: config[key] for key in ("csv.target", "csv.classes", "verify-data", "qfedavg.q")}
    submitted = shlex.split(deploy_command(config))
    assert submitted[:3] == ["fairbloom", "deploy", "submit"]
    sets = parse_assignments(submitted[4::2])
    assert "data-dir" not in sets
    assert "engine" not in sets
    assert sets["method"] == "qfedavg"


def test_a_parameter_that_is_set_is_not_varied(monkeypatch: pytest.MonkeyPatch) -> None:
    varied = tuple(("qfedavg", {"qfedavg.q": q}) for q in (1.0, 5.0))
    try_only(monkeypatch, ("fedavg", {}), *varied)
    among = candidates_for({"qfedavg.q": 2.0, "learning-rate": 0.5}, [])
    assert [each.label for each in among] == ["FedAvg", "QFedAvg (lipschitz=2)"]


def test_every_candidate_can_be_run_and_the_baseline_and_equal_weights_are_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(candidates, "search_space", SEARCH_SPACE)
    among = candidates_for({}, [])
    assert [each.label for each in among[:2]] == ["FedAvg", "FedAvg (weighting=uniform)"]
    assert {"local", "ditto", "fedlf", "fedmdfg"} <= {each.method for each in among}
    assert len(among) == len(ALL)
    page = Path(__file__).parents[3] / "docs" / "recommend.md"
    assert f"so there are {len(ALL)}," in page.read_text()
    for each in among:
        Settings.of(each.config).strategy()


@pytest.mark.parametrize(
    ("tries", "tried"),
    [
        (None, [{"newlyadded.sharpness": 0.25}]),
        (({"sharpness": 0.1}, {"sharpness": 0.4}), [{"newlyadded.sharpness": 0.1}, {"newlyadded.sharpness": 0.4}]),
        (({"shape": "square"},), [{"newlyadded.sharpness": 0.25, "newlyadded.shape": "square"}]),
        ((), []),
    ],
)
def test_a_new_built_in_method_becomes_a_candidate(
    tries: Any, tried: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "search_space", SEARCH_SPACE)
    monkeypatch.setitem(METHODS, "newlyadded", NewlyAdded)
    if tries is not None:
        monkeypatch.setattr(NewlyAdded, "tries", tries)
    among = candidates_for({}, [])
    found = [each for each in among if each.method == "newlyadded"]
    assert [dict(each.given) for each in found] == tried
    assert len(among) == len(ALL) + len(tried)
    for each in found:
        Settings.of(each.config).strategy()


def test_methods_that_are_fair_to_groups_are_tried_exactly_where_the_wish_is_about_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(candidates, "search_space", SEARCH_SPACE)
    assert {"fcfl", "fairfed"}.isdisjoint(each.method for each in candidates_for({}, []))
    about = candidates_for({"num-rounds": 30}, [], ["selection-rate"])
    assert [each.method for each in about[:6]] == ["fedavg", "fedavg", "fairfed", "fcfl", "fairfed", "fcfl"]
    assert len(about) == len(ALL) + 4
    assert {each.config.get("fcfl.disparity") for each in about if each.method == "fcfl"} == {None}
    assert {each.config["fcfl.stage1-rounds"] for each in about if each.method == "fcfl"} == {15}
    of_opportunity = candidates_for({}, [], ["true-positive-rate"])
    disparities = {each.config.get("fcfl.disparity") for each in of_opportunity if each.method == "fcfl"}
    assert disparities == {"equal-opportunity"}
    for each in (*about, *of_opportunity):
        Settings.of(each.config).strategy()


def test_a_client_that_loses_by_another_score_counts_among_the_losing() -> None:
    """It gains by the accuracy, by which the wish goes, and loses by the AUC with every seed."""
    finals = {
        label: [{"accuracy": {"a": 60.0 + shift, "b": 70.0}, "auc": {"a": 0.7 - shift / 50.0, "b": 0.8}}] * 4
        for label, shift in (("FedAvg", 0.0), ("Local", 5.0))
    }
    answered = object.__new__(recommender.Recommender)  # without its runs
    vars(answered)["comparison"] = Comparison(finals, "FedAvg", (ACCURACY, AUC), (0, 1, 2, 3))
    assert {client: move.score.name for client, move in answered.masked_losses("Local").items()} == {"a": "auc"}
    assert answered.masked_losses("Local")["a"].gain == pytest.approx(-0.1)
    assert answered.masked_losses("FedAvg") == {}
    price = recommendation.Cost(losing={"a": -0.1, "b": -3.0}, losing_by={"a": "auc"})
    gain = recommendation.Improvement("worst", 1.0, 0.5, 1.5, "FedAvg")
    found = recommendation.Recommendation("", "Local", "local", {}, {}, gain, price, "")
    assert "Who pays, in points: b -3." in found.sentences
    assert found.as_json["price"]["losing"] == {"a": -0.1, "b": -3.0}
