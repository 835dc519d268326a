"""The noise of privacy accounts in results: intervals hold what they say, and nobody is named by
chance."""

import csv
import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fairbloom.experiments import api
from fairbloom.experiments.pages.comparison import client_table, page_of_comparison
from fairbloom.experiments.pages.run import page_of_run
from fairbloom.experiments.render.page import Page, Table
from fairbloom.experiments.results.comparison import Comparison
from fairbloom.experiments.results.differences import difference_of
from fairbloom.experiments.results.noise import Estimate, estimates, is_apart
from fairbloom.experiments.results.run import Run, load, scores_of
from fairbloom.protocol.scores import ACCURACY, LOSS_SCORE, Score
from fairbloom.server.fairness import summarize
from fairbloom.server.run_folder.files import CLIENTS, CONFIG, SCORES
from fairbloom.server.run_folder.tables import format_csv
from fairbloom.server.run_folder.values import RecordedSettings
from fairbloom.text import text_if

from ..made_up import make_comparison, make_run

# Deviations of the noise in accuracies, in points: AZ and DE have no account.
NOISE = {"AL": 2.0, "CT": 5.0}

TRUE = {"AL": 80.0, "AZ": 75.0, "CT": 72.0, "DE": 74.0}

ACCOUNT = {
    "epsilon": 3.0,
    "delta": 1e-5,
    "steps": 90.0,
    "tests": 1.0,
    "sigma": 14.7495,
    "rows": 1437.0,
    "units": 12.0,
    "reports": 0.0,
}


def rewrite(folder: Path, values: Mapping[str, object], noise: Mapping[str, float]) -> None:
    """Replace the accuracies of a made-up run, and add the columns of noise."""
    path = CLIENTS.path_in(folder)
    rows = list(csv.DictReader(path.read_text().splitlines()))
    for row in rows:
        row["test_accuracy_of_global_model"] = str(values[row["client"]])
        row["test_accuracy_deviation"] = str(noise.get(row["client"], 0.0))
    path.write_text(format_csv(tuple(rows[0]), rows))


def deployed(folder: Path, values: Mapping[str, object], noise: Mapping[str, float] = NOISE) -> Run:
    """Return a finished run on devices with these reports of accuracy."""
    make_run(folder, "fedavg", 0, [*values], 2, np.random.default_rng(0), dealt=False)
    rewrite(folder, values, noise)
    return load(folder)


def with_accounts(run: Run, *, simulated: bool = False, **changes: float) -> Run:
    """Return the run with accounts of the clients with noise."""
    clients = {client: {**ACCOUNT, **changes} for client in run.noise() or NOISE}
    content = {"simulated": simulated, "clients": clients}
    (run.folder / "privacy.json").write_text(json.dumps(content))
    return load(run.folder)


def reports(seed: int, true: Mapping[str, float] = TRUE) -> dict[str, float]:
    """Return what the clients report with the noise of a deployment."""
    draws = np.random.default_rng(seed)
    return {
        client: value + NOISE.get(client, 0.0) * draws.standard_normal()
        for client, value in true.items()
    }


def compared(folder: Path, seeds: int, true: Mapping[str, float] = TRUE) -> Comparison:
    """Return the comparison of two methods, which serve all clients alike but for noise."""
    make_comparison(folder, ["fedavg", "term"], range(seeds), [*true], 2, dealt=False)
    for number, run in enumerate(sorted((folder / "runs").iterdir())):
        rewrite(run, reports(number, true), {"c0": 2.0, **NOISE})
    comparison = api.load(folder)
    assert isinstance(comparison, Comparison)
    return comparison


def table_of(page: Page, name: str) -> Table:
    (table,) = [
        block
        for section in page.sections
        for block in section.blocks
        if isinstance(block, Table) and block.name == name
    ]
    return table


def texts_of(table: Table) -> dict[str, list[str]]:
    """Return the texts of each row's cells, by those of its first."""
    return {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}


# Intervals ----------------------------------------------------------------------------------------


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=30), st.booleans())
def test_exact_scores_have_all_measures_and_no_width(values: list[float], higher: bool) -> None:
    by_client = {str(k): value for k, value in enumerate(values)}
    found = estimates(by_client, Score("x", higher), {"another": 1.0})
    expected = summarize(by_client, lower_is_better=not higher)
    assert {name: each.value for name, each in found.items()} == pytest.approx(
        expected, nan_ok=True
    )
    assert all(each[1:] == (0.0, 0.0, 0.0) for each in found.values())


@pytest.mark.parametrize("clients", [2, 4, 20])
@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize("apart", [0.0, 3.0])
@pytest.mark.parametrize("score", [ACCURACY, LOSS_SCORE])
def test_intervals_hold_the_measures_without_noise(
    clients: int, equal: bool, apart: float, score: Score
) -> None:
    """Also where all clients are served alike, which is the worst case, and far apart."""
    draws = np.random.default_rng(clients)
    names = [f"c{k}" for k in range(clients)]
    deviations = np.ones(clients) if equal else np.linspace(0.0, 2.0, clients)
    true = dict(zip(names, apart * draws.standard_normal(clients), strict=True))
    noise = dict(zip(names, deviations, strict=True))
    expected = summarize(true, lower_is_better=not score.higher_is_better)
    held = dict.fromkeys(("mean", "worst_10", "best_10", "gap"), 0)
    for _ in range(2000):
        noisy = {name: true[name] + noise[name] * draws.standard_normal() for name in names}
        for name, (value, below, above, _) in estimates(noisy, score, noise).items():
            held[name] += value - below <= expected[name] <= value + above
    assert min(held.values()) >= 0.94 * 2000  # 95 %, less two errors of 2,000 draws


def test_an_interval_reaches_further_where_noise_flatters() -> None:
    values, noise = dict.fromkeys("abcd", 1.0), dict.fromkeys("abcd", 1.0)
    for score, sign in ((ACCURACY, 1), (LOSS_SCORE, -1)):
        found = estimates(values, score, noise)
        assert sign * (found["worst_10"].above - found["worst_10"].below) > 0.4
        assert found["worst_10"][1:3] == found["best_10"][2:0:-1]
    assert found["mean"] == pytest.approx((1.0, 0.98, 0.98, 0.0))
    assert found["gap"].bias == pytest.approx(2.0 * found["worst_10"].bias)
    twenty = dict.fromkeys(map(str, range(20)), 1.0)
    assert estimates(twenty, ACCURACY, twenty)["worst_10"].below == pytest.approx(1.96 / 2**0.5)
    assert Estimate(81.25, 4.0, 5.0).written(ACCURACY) == "81.2 % (77.2 % to 86.2 %)"
    assert Estimate(81.25).written(ACCURACY) == "81.2 %"


def test_clients_alike_are_named_once_in_a_hundred_at_most() -> None:
    draws = np.random.default_rng(1)
    for clients in (2, 4, 20):
        noise = {str(k): 1.0 + k % 2 for k in range(clients)}
        named = 0
        for _ in range(3000):
            values = {name: sigma * draws.standard_normal() for name, sigma in noise.items()}
            worst, best = min(values, key=values.__getitem__), max(values, key=values.__getitem__)
            named += is_apart(worst, values, noise) or is_apart(best, values, noise)
        assert named <= 0.013 * 3000


def test_a_client_is_apart_beyond_the_noise_of_both() -> None:
    values = {"a": 0.0, "b": 10.0}
    assert is_apart("a", values, {"a": 2.0, "b": 2.0})
    assert not is_apart("a", values, {"a": 2.0, "b": 4.0})
    assert not is_apart("a", values, {"a": 4.0, "b": 2.0})
    assert not is_apart("a", {**values, "c": 1.0}, {"a": 2.0, "b": 2.0})
    assert is_apart("a", {"a": 1.0, "b": 1.0}, {})  # exact scores are what they are


# A run --------------------------------------------------------------------------------------------


def test_two_deployments_do_not_contradict_each_other(tmp_path: Path) -> None:
    """The same deployment twice with other noise, twenty times."""
    alike = dict.fromkeys(TRUE, 75.0)
    for pair in range(20):
        true = TRUE if pair % 2 else alike
        named = {"worst": set[str](), "best": set[str]()}
        for number in (2 * pair, 2 * pair + 1):
            run = deployed(tmp_path / f"{number}", reports(number, true), {**NOISE, "DE": 0.0})
            headline = page_of_run(run).headline
            for end, clients in named.items():
                clients.update(client for client in TRUE if f"{client} is served {end}" in headline)
            assert ", from" not in headline
        assert all(len(clients) <= 1 for clients in named.values())
        assert not named["worst"] & named["best"]


def test_a_page_ranks_no_noise(tmp_path: Path) -> None:
    page = page_of_run(deployed(tmp_path / "run", {"AL": 80, "AZ": 75, "CT": 71, "DE": 74}))
    assert page.headline == (
        "FedAvg serves its clients with a mean test accuracy of 75.0 % (72.4 % to 77.6 %); who is"
        " served worst cannot be told from the noise."
    )
    clients = table_of(page, "clients")
    assert "worst" not in clients.caption
    assert [row[:2] for row in map(list, texts_of(clients).items())] == [
        ["AL", ["80.0 ±3.9", "37"]],
        ["AZ", ["75.0", "37"]],
        ["CT", ["71.0 ±9.8", "37"]],
        ["DE", ["74.0", "37"]],
    ]
    ((_, mean, std, worst, best, gap),) = texts_of(table_of(page, "measures")).values()
    assert (mean, std, gap) == ("75.0 (72.4 to 77.6)", "cannot be told", "cannot be told")
    assert (worst[:12], best[-6:]) == ("71.0 (61.2 t", " 89.8)")
    assert "noise of privacy accounts" in str([section.blocks for section in page.sections])


def test_who_is_served_worst_or_best_beyond_noise_is_named(tmp_path: Path) -> None:
    run = deployed(tmp_path / "worst", {"AL": 80, "AZ": 79, "CT": 30, "DE": 78})
    assert page_of_run(run).headline.endswith("; CT is served worst.")
    run = deployed(tmp_path / "both", {"AL": 99, "AZ": 79, "CT": 30, "DE": 78})
    page = page_of_run(run)
    assert page.headline.endswith("; CT is served worst and AL is served best.")
    assert texts_of(table_of(page, "measures"))["accuracy, %"][-1].startswith("69.0 (")


def test_a_noisy_share_may_leave_its_range(tmp_path: Path) -> None:
    """Without these reports a mean would be biased."""
    run = deployed(tmp_path / "run", {"AL": 103, "AZ": 101, "CT": -2, "DE": 74})
    assert run.final() == {"AL": 103, "CT": -2, "DE": 74}  # AZ has no account
    assert run.noise() == NOISE
    assert run.noise(LOSS_SCORE) == {}


def test_json_has_the_intervals_of_noisy_measures(tmp_path: Path) -> None:
    noisy = deployed(tmp_path / "noisy", TRUE).summary
    assert noisy["intervals"]["mean"] == pytest.approx((72.611, 77.889), abs=1e-3)
    assert noisy.keys() >= {"worst_10", "gap"}
    assert not noisy.keys() & {"std", "gini", "worst_20"}
    exact = deployed(tmp_path / "exact", TRUE, {}).summary
    assert exact["intervals"] == {}
    assert "std" in exact


def test_a_simulation_is_exact_beside_the_report_of_devices(tmp_path: Path) -> None:
    deployed(tmp_path / "run", TRUE)
    path = CLIENTS.path_in(tmp_path / "run")
    first, *rows = path.read_text().splitlines()
    lines = [f"{first},reported_test_accuracy", *(f"{row},66.5" for row in rows)]
    path.write_text("\n".join([*lines, ""]))
    settings = CONFIG.read(tmp_path / "run").settings
    simulated = RecordedSettings({**settings, "privacy.mode": "simulated"})
    CONFIG.write(tmp_path / "run", simulated)
    run = load(tmp_path / "run")
    assert (run.noise(), run.noise(simulated=True)) == ({}, NOISE)
    page = page_of_run(run)
    assert "from 72.0 % (CT) to 80.0 % (AL)" in page.headline
    clients = table_of(page, "clients")
    assert clients.headings[2] == "as devices report it"
    assert next(iter(texts_of(clients).items())) == ("CT", ["72.0", "66.5 ±9.8", "37"])
    assert texts_of(table_of(page, "measures"))["accuracy, %"][2] == "2.9"


def test_a_report_held_back_is_no_small_client(tmp_path: Path) -> None:
    run = with_accounts(deployed(tmp_path / "run", {**TRUE, "AL": "", "AZ": ""}))
    (scored,) = scores_of(run)
    assert scored.lacking["AL"] == "held back, as no test report is left in the privacy account"
    assert scored.lacking["AZ"] == "it has no finite value there"
    (scored,) = scores_of(with_accounts(run, reports=1.0))
    assert scored.lacking["AL"] == scored.lacking["AZ"]


@pytest.mark.parametrize("simulated", [True, False])
def test_accounts_report_no_other_scores(tmp_path: Path, simulated: bool) -> None:
    """Of a simulation, which is exact, another reason holds; so it does without an account."""
    run = with_accounts(deployed(tmp_path / "run", TRUE), simulated=simulated)
    path = CLIENTS.path_in(run.folder)
    rows = list(csv.DictReader(path.read_text().splitlines()))
    for row in rows:
        row["test_auc_of_global_model"] = text_if(row["client"] == "DE", "0.5")
        row["test_auc_of_personal_model"] = ""
    path.write_text(format_csv(tuple(rows[0]), rows))
    SCORES.write(run.folder, [ACCURACY, Score("auc")])
    _, auc = scores_of(load(run.folder))
    undefined = "one class in its test examples"
    accounts = undefined if simulated else "privacy accounts report only accuracy and loss"
    assert (auc.lacking["AL"], auc.lacking["AZ"]) == (accounts, undefined)


def test_accounts_are_shown_with_their_noise(tmp_path: Path) -> None:
    table = table_of(page_of_run(with_accounts(deployed(tmp_path / "run", TRUE))), "privacy")
    # four numbers are trained: σ √4 / n
    expected = ["3", "1e-05", "1,437", "14.749", "12", "0", "450", "0.021"]
    assert texts_of(table) == {"AL": expected, "CT": expected}
    assert "Without an account: AZ, DE." in table.note
    assert "a stricter ε counts for less" in table.note


# A comparison -------------------------------------------------------------------------------------


def test_a_comparison_names_nobody_by_noise(tmp_path: Path) -> None:
    comparison = compared(tmp_path / "one", 1)
    headline = comparison.verdict.headline
    assert headline.startswith("Under FedAvg the worst-served client has a test accuracy of ")
    assert headline.count(" % to ") == 2
    page = page_of_comparison(comparison)
    assert "Pareto" not in str(page.sections)
    assert "noise of privacy accounts" in str(comparison.caveats)
    methods = texts_of(table_of(page, "methods"))
    assert methods["TERM"][1] == "–"
    assert all(" to " in methods["TERM"][k] for k in (0, 2, 3, 4, 5))
    table = client_table(comparison)
    assert "worst" not in table.caption
    assert list(texts_of(table)) == [*TRUE]
    assert [text.endswith(" ±3.9") for text in texts_of(table)["AL"]] == [True, True]
    assert "±" not in str(texts_of(table)["AZ"])
    assert comparison.against_baseline("TERM", "suffering_change") == []
    assert not comparison.differences("std")


def test_a_comparison_names_who_is_worst_beyond_noise(tmp_path: Path) -> None:
    comparison = compared(tmp_path / "four", 4, {**TRUE, "CT": 40.0})
    assert comparison.verdict.headline.startswith("FedAvg serves CT worst: its test accuracy is ")
    assert "seeds)" not in comparison.verdict.headline  # no rank in each seed
    noise = comparison.noise_of_means("FedAvg")
    assert noise == pytest.approx({"AL": 1.0, "CT": 2.5})
    assert texts_of(client_table(comparison))["CT"][0].endswith(" ±4.9")
    for reference, is_below in ((43.0, False), (60.0, True)):
        other = dataclasses.replace(comparison)
        vars(other)["references"] = {"CT": reference}
        assert (", below always guessing" in other.verdict.headline) == is_below


def test_gains_of_few_seeds_have_the_interval_of_noise(tmp_path: Path) -> None:
    comparison = compared(tmp_path / "one", 1)
    gain = comparison.difference("TERM", "client:AL")
    assert (gain.high - gain.low) / 2.0 == pytest.approx(1.96 * 2.0 * math.sqrt(2.0))
    assert math.isnan(comparison.difference("TERM", "client:AZ").low)
    worst = comparison.difference("TERM", "worst_10")
    assert worst.low < 0.0 < worst.high
    assert not worst.significant


def test_gains_of_the_worst_served_must_exceed_the_bias_of_noise(tmp_path: Path) -> None:
    comparison = compared(tmp_path / "three", 3)
    bias = comparison.estimate("TERM", "worst_10").bias
    assert bias > 1.0
    for measure, shift in (("worst_10", bias), ("mean", 0.0)):
        gains = comparison.gains("TERM", measure)
        exact = difference_of(gains, test_share=comparison.shared.test_share)
        found = comparison.difference("TERM", measure)
        assert (found.high - exact.high, exact.low - found.low) == pytest.approx((shift, shift))
    assert difference_of([2.0, 2.1, 2.2]).significant
    assert difference_of([2.0, 2.1, 2.2], shift=1.5).significant
    assert difference_of([2.0, 2.1, 2.2], shift=2.2).p_value == 1.0
