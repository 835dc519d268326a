"""The measures in which papers make their claims, against independent computations.

Sentences on clients that gain by the score of fairness and lose by another.

Gaps between groups in comparisons: rows, tables and sentences agree with the formulas.
"""

import dataclasses
import itertools
import math
import re
import shutil
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from fairbloom import compare
from fairbloom.experiments.pages.comparison import brief_sections, method_table
from fairbloom.experiments.recipe import load_recipe
from fairbloom.experiments.render.page import Note, Table
from fairbloom.experiments.results.caveats import SharedData
from fairbloom.experiments.results.comparison import Comparison
from fairbloom.experiments.results.group_scores import Group, GroupReport
from fairbloom.experiments.results.reproduction import measures_of
from fairbloom.experiments.results.verdict import find_contradictions
from fairbloom.protocol.scores import ACCURACY, F1, LOSS_SCORE, GroupScore, Score
from fairbloom.server.fairness import against_baseline
from fairbloom.server.run_folder.files import PRIVACY
from fairbloom.server.run_folder.group_rows import Grouped
from fairbloom.tasks.measures import AUC, BALANCED_ACCURACY
from tests.originals import needs
from tests.simulation.helpers import table

from ..helpers import compared_by_hand, compared_by_scores


@pytest.fixture(scope="module")
def compared_measures(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """Return a comparison of two methods on digits with two seeds."""
    return compare(
        methods=["fedavg", "fedmgdaplus"],
        task="digits",
        seeds=2,
        settings={"num-rounds": 3, "clients": 6, "partition": "shards"},
        out=tmp_path_factory.mktemp("measures") / "compared",
        progress=False,
    )


def test_measures_of_training_are_those_of_the_tables(compared_measures: Comparison) -> None:
    """Two of three rounds are before the last third; the loss is of the last round alone."""
    for run in itertools.chain(*compared_measures.runs.values()):
        last = [row for row in table(run.folder / "clients.csv") if row["round"] == "3"]
        losses = [float(row["train_loss_of_global_model"]) for row in last]
        changed = replace(run)
        changed.rounds["percent_of_participants_improved"] = [10.0, 20.0, 60.0]
        found = measures_of(changed, ["improved", "improved_last_third", "train_loss"], "global")
        assert found == pytest.approx(
            {"improved": 30.0, "improved_last_third": 60.0}
            | {"train_loss": statistics.fmean(losses)}
        )


def improving(comparison: Comparison, *percents: Sequence[float], method: str = "") -> Comparison:
    """Return a comparison in whose runs these percentages of participants improved, by round.

    `method` is the name of the second method in its settings, by default its own.
    """
    cells = iter(percents)
    runs = {label: [replace(run) for run in of] for label, of in comparison.runs.items()}
    for run in itertools.chain(*runs.values()):
        run.rounds["percent_of_participants_improved"] = next(cells)
    if method:
        _, label = runs
        runs[label] = [
            replace(run, settings={**run.settings, "method": method}) for run in runs[label]
        ]
    return replace(comparison, runs=runs)


def improved_cells(comparison: Comparison) -> list[str]:
    """Return the cells of the column in the table of methods; [] without it."""
    found = method_table(comparison)
    if "improved, %" not in found.headings:
        return []
    place = found.headings.index("improved, %")
    return [row[place].text for row in found.rows]


PERCENTS = ([0.0, 50.0, 100.0], [30.0, math.nan, 60.0], [100.0] * 3, [90.0, 95.0, 100.0])


def test_improved_is_the_mean_over_evaluated_rounds(compared_measures: Comparison) -> None:
    found = improving(compared_measures, *PERCENTS)
    assert [row["improved"] for row in found.rows()] == pytest.approx([50.0, 45.0, 100.0, 95.0])
    assert improved_cells(found) == ["47.5", "97.5"]


def test_comparison_csv_has_the_column_improved(compared_measures: Comparison) -> None:
    rows = table(compared_measures.folder / "comparison.csv")
    runs = itertools.chain(*compared_measures.runs.values())
    of_rounds = [table(run.folder / "rounds.csv") for run in runs]
    means = [
        statistics.fmean(float(row["percent_of_participants_improved"]) for row in of_run)
        for of_run in of_rounds
    ]
    assert [float(row["improved"]) for row in rows] == pytest.approx(means)


def test_a_seed_without_losses_hides_the_method(compared_measures: Comparison) -> None:
    found = improving(compared_measures, *PERCENTS[:3], [math.nan] * 3)
    assert [row["improved"] for row in found.rows()] == [50.0, 45.0, None, None]
    assert improved_cells(found) == ["47.5", "–"]


def test_improved_needs_a_common_model(compared_measures: Comparison) -> None:
    """A model that nobody trains has the same loss after each round."""
    assert improved_cells(improving(compared_measures, *PERCENTS, method="local")) == ["47.5", "–"]


def test_one_privacy_account_hides_improved(compared_measures: Comparison, tmp_path: Path) -> None:
    first, *others = compared_measures.runs[compared_measures.baseline]
    shutil.copytree(first.folder, tmp_path / "run")
    PRIVACY.write(tmp_path / "run", {"simulated": True, "clients": {"client-0": {}}})
    private = [replace(first, folder=tmp_path / "run"), *others]
    found = replace(
        compared_measures, runs={**compared_measures.runs, compared_measures.baseline: private}
    )
    assert improved_cells(found) == []
    assert all("improved" not in row for row in found.rows())


def test_shares_of_suffering_clients_are_counted_by_hand(compared_measures: Comparison) -> None:
    clients = table(compared_measures.folder / "clients.csv")
    column = "test_accuracy" if "test_accuracy" in clients[0] else "accuracy"
    scores = {(r["method"], r["seed"], r["client"]): float(r[column]) for r in clients}
    base, other = compared_measures.methods
    shares = []
    changes = []
    for seed in ("0", "1"):
        names = {client for method, of, client in scores if (method, of) == (base, seed)}
        mean = statistics.fmean(scores[base, seed, name] for name in names)
        low = [name for name in names if scores[base, seed, name] < mean]
        gains = [scores[other, seed, name] - scores[base, seed, name] for name in low]
        shares.append(100 * sum(gain > 0 for gain in gains) / len(gains))
        changes.append(statistics.fmean(gains))
    found = {row["measure"]: row for row in table(compared_measures.folder / "differences.csv")}
    assert float(found["suffering_share"]["mean"]) == pytest.approx(statistics.fmean(shares))
    assert float(found["suffering_change"]["mean"]) == pytest.approx(statistics.fmean(changes))
    assert found["suffering_share"]["better"] == ""


def test_rounds_csv_has_conflicts_and_stationarity(compared_measures: Comparison) -> None:
    fedavg, fedmgda = (runs[0].rounds for runs in compared_measures.runs.values())
    assert not {"conflicts", "stationarity"} & {*fedavg}
    assert fedmgda["conflicts"].between(0.0, 1.0).all()
    assert fedmgda["stationarity"].between(0.0, 1.0).all()


@pytest.mark.parametrize("lower", [False, True])
def test_changes_against_a_baseline_by_hand(lower: bool) -> None:
    sign = -1.0 if lower else 1.0
    base = {"a": sign * 10.0, "b": sign * 20.0, "c": sign * 60.0}
    assert against_baseline(
        {"a": sign * 15.0, "b": sign * 19.0, "c": sign * 50.0}, base, lower_is_better=lower
    ) == pytest.approx(
        {
            "suffering_share": 50.0,
            "suffering_change": 2.0,
            "well_performing_share": 100.0,
            "well_performing_change": -10.0,
            "mean_change": -2.0,
        }
    )


def test_equally_served_clients_do_not_suffer() -> None:
    found = against_baseline({"a": 1.0, "b": 1.0}, {"a": 0.1, "b": 0.1})
    assert np.isnan(found["suffering_share"])
    assert found["well_performing_change"] == pytest.approx(0.9)


def test_table_2_compares_with_the_first_row() -> None:
    recipe = load_recipe("semivred-table2")
    assert recipe.rows[0].label == "FedAvg"
    row = next(row for row in recipe.rows if row.label == "Semi-VRed")
    means = [number.mean for number in recipe.published(row).values()]
    assert means == [65.40, 1.47, 53.17, -0.42, 0.64]


CLIENTS = ("cleveland", "hungarian", "long-beach")

# By score and client, how much higher the number is under the method.
Gains = Mapping[str, Mapping[str, float]]


def compared(
    scores: Sequence[Score],
    gains: Gains,
    seeds: int = 10,
    lacking: Mapping[str, Mapping[str, int]] | None = None,
) -> Comparison:
    """Return FedAvg and Local, which differ by these numbers; a client may lack a score from some
    seed on."""
    rng = np.random.default_rng(3)
    level = {score.name: 60.0 if score.percent else 0.6 for score in scores}
    finals: dict[str, list[dict[str, dict[str, float]]]] = {"FedAvg": [], "Local": []}
    for seed in range(seeds):
        base = dict[str, dict[str, float]]()
        mine = dict[str, dict[str, float]]()
        for score in scores:
            noise = {client: 0.01 * level[score.name] * rng.normal() for client in CLIENTS}
            there = [
                c for c in CLIENTS if seed < ((lacking or {}).get(score.name, {}).get(c, seeds))
            ]
            base[score.name] = {c: level[score.name] + noise[c] for c in there}
            mine[score.name] = {
                c: base[score.name][c] + gains[score.name].get(c, 0.0) + 0.1 * noise[CLIENTS[0]]
                for c in there
            }
        finals["FedAvg"].append(base)
        finals["Local"].append(mine)
    return compared_by_scores(finals, *scores)


THREE = (ACCURACY, BALANCED_ACCURACY, AUC)
HEART: Gains = {
    "accuracy": {"cleveland": 2.0, "hungarian": 2.0, "long-beach": 11.6},
    "balanced-accuracy": {"cleveland": 2.0, "hungarian": 2.0, "long-beach": -10.1},
    "auc": {"cleveland": 0.02, "hungarian": 0.02, "long-beach": -0.133},
}


LOSES = r"under Local long-beach loses 10\.1 points of balanced accuracy and 0\.133 of AUC"
BELOW = r"long-beach remains at \d+\.\d %, below always guessing its larger class \(78\.0 %\)"
ONLY_ACCURACY: Gains = {"accuracy": HEART["accuracy"]}


@pytest.mark.parametrize(
    ("scores", "gains", "larger", "said"),
    [
        (THREE, HEART, {}, f"in the mean, but {LOSES}"),
        (THREE, HEART, {"long-beach": 78.0}, f"but {LOSES}, and {BELOW}"),
        ((ACCURACY,), ONLY_ACCURACY, {"long-beach": 78.0}, f"but under Local {BELOW}"),
        ((ACCURACY,), ONLY_ACCURACY, {"long-beach": 70.0}, "in the mean"),
        (
            (BALANCED_ACCURACY,),
            {BALANCED_ACCURACY.name: HEART["accuracy"]},
            {"hungarian": 78.0},
            r"in the mean, but under Local hungarian remains at .+, below guessing \(78\.0 %\)",
        ),
        (  # a client that loses has no gain that could remain below; a loss has no costs
            (ACCURACY, AUC),
            {"accuracy": {"cleveland": 20.0, "hungarian": -9.0}, "auc": {"hungarian": -0.2}},
            {"hungarian": 78.0},
            r"points \(.+\), but under Local hungarian loses 0\.2 of AUC",
        ),
        (
            (ACCURACY, LOSS_SCORE),
            {**ONLY_ACCURACY, "loss": {"hungarian": 9.0}},
            {"cleveland": 1.0},
            "but under Local hungarian loses 9 of loss",
        ),
    ],
)
def test_a_claimed_gain_says_what_it_costs(
    scores: Sequence[Score], gains: Gains, larger: Mapping[str, float], said: str
) -> None:
    comparison = compared(scores, gains)
    vars(comparison)["references"] = larger
    claims = [
        each
        for each in (*comparison.verdict.sentences, *comparison.verdict.further)
        if each.startswith("Local significantly")
    ]
    assert re.search(rf"{said}\.$", claims[0])
    assert all((" but " in each) is ("but" in said and "improves" in each) for each in claims)
    assert "but loses" not in str(comparison.verdict)  # it is said once


@needs("heart-disease/processed.va.data")
def test_hospitals_gains_by_accuracy_say_what_they_cost(tmp_path: Path) -> None:
    """Long Beach's AUC falls under Local: by SciPy, beyond its interval."""
    found = compare(
        "heart-disease",
        methods="fedavg,local,ditto",
        seeds=5,
        rounds=10,
        out=tmp_path,
        settings={"score": "accuracy", "heart-disease.split": 1},
    )
    aucs = found.clients[found.clients["client"] == "long-beach"].set_index("method")["auc"]
    assert stats.ttest_rel(aucs["Local"], aucs["FedAvg"]).confidence_interval(0.95).high < 0.0
    claim = r"Local significantly improves .+ under Local long-beach loses \S+ of AUC and .+ under"
    below = r" Ditto \(personal\) .*long-beach remains at .+, below always guessing .+\(77\.8 %\)"
    assert re.search(claim + below, str(found.verdict))


@pytest.mark.parametrize("first", [ACCURACY, BALANCED_ACCURACY, AUC, F1, LOSS_SCORE])
def test_scores_that_agree_and_losses_are_no_contradiction(first: Score) -> None:
    scores = (first, *(each for each in (*THREE, F1, LOSS_SCORE) if each != first))
    gains = {
        s.name: dict.fromkeys(CLIENTS, (5.0 if s.percent else 0.05) * s.better(1.0, 0.0))
        for s in scores
    }
    assert find_contradictions(compared(scores, gains), ["Local"]) == []
    # long-beach loses by the first
    assert find_contradictions(compared((BALANCED_ACCURACY, ACCURACY, AUC), HEART), ["Local"]) == []


def test_where_lower_is_better_a_fall_is_a_gain() -> None:
    said, *_ = find_contradictions(
        compared((LOSS_SCORE, AUC), {"loss": {"long-beach": -0.1}, "auc": {"long-beach": -0.2}}),
        ["Local"],
    )
    assert said == "long-beach gains 0.1 of loss under Local, but loses 0.2 of AUC."


@pytest.mark.parametrize(("seeds", "expected"), [(2, 0), (3, 1)])
def test_a_contradiction_needs_three_seeds_with_both_scores(seeds: int, expected: int) -> None:
    lacking = {"balanced-accuracy": {"long-beach": seeds}, "auc": {"long-beach": 0}}
    assert len(find_contradictions(compared(THREE, HEART, lacking=lacking), ["Local"])) == expected
    assert find_contradictions(compared(THREE, HEART, seeds=2), ["Local"]) == []


def test_of_many_contradictions_three_are_said() -> None:
    finals = {
        method: [
            {
                "accuracy": {f"c{k}": 50.0 + sign * (5.0 + seed) for k in range(5)},
                "auc": {f"c{k}": 0.5 - sign * (0.1 + 0.01 * seed) for k in range(5)},
            }
            for seed in range(3)
        ]
        for method, sign in (("FedAvg", 0.0), ("Local", 1.0))
    }
    assert "but under Local c0 loses 0.11 of AUC, c1 loses 0.11 of AUC and 3 more." in str(
        compared_by_scores(finals, ACCURACY, AUC).verdict
    )


def test_a_loss_within_its_interval_is_no_contradiction() -> None:
    """HI gains for sure, and its AUC falls by chance in most seeds."""
    finals = {
        "FedAvg": [{"accuracy": {"HI": 60.0 + k}, "auc": {"HI": 0.7}} for k in range(5)],
        "Local": [
            {"accuracy": {"HI": 63.0 + 1.1 * k}, "auc": {"HI": 0.7 + each}}
            for k, each in enumerate((-0.0004, 0.0003, -0.0002, -0.0001, -0.0001))
        ],
    }
    assert find_contradictions(compared_by_scores(finals, ACCURACY, AUC), ["Local"]) == []


def test_of_clients_that_differ_by_seed_nothing_is_said() -> None:
    dealt = replace(compared(THREE, HEART), shared=SharedData(clients_differ=True))
    assert find_contradictions(dealt, ["Local"]) == []


@pytest.mark.parametrize("score", [AUC, BALANCED_ACCURACY, F1, LOSS_SCORE])
def test_a_verdict_by_any_score_names_it_and_its_unit(score: Score) -> None:
    names = {"auc": "AUC", "balanced-accuracy": "balanced accuracy", "f1": "f1", "loss": "loss"}
    size = score.better(8.0 if score.percent else 0.08, 0.0)
    gains = {score.name: dict.fromkeys(CLIENTS, size), "accuracy": {}}
    comparison = compared((score, ACCURACY), gains, lacking={score.name: {"hungarian": 4}})
    verdict = comparison.verdict
    assert f"test {names[score.name]} " in verdict.headline
    assert verdict.improving == ("Local",)
    assert ("points" in verdict.sentences[0]) is score.percent
    assert {row["measure"] for row in comparison.difference_rows()} >= {
        f"client:{client}" for client in CLIENTS
    }


# The 97.5th percentile of Student's t with two degrees of freedom.
T = 4.302652729911275

RATE = GroupScore("selection-rate", percent=True)
ERROR = GroupScore("mae", higher_is_better=False)


def report(gap: float, score: GroupScore = RATE) -> GroupReport:
    """Return what one client reports of two groups that are so far apart; with NaN it reports but
    one of them."""
    groups = [Group("a", "sex", "F", 10, {score.name: 10}, {score.name: 40.0})]
    if math.isfinite(gap):
        groups.append(Group("a", "sex", "M", 14, {score.name: 12}, {score.name: 40.0 + gap}))
    return GroupReport(Grouped({"sex": ("F", "M")}, (score,)), tuple(groups), {"a": 24})


# The lowest and the highest group of `report`, with the examples of its score.
ENDS = ("F (10 examples)", "M (12 examples)")


def compared_gaps(score: GroupScore = RATE, **gaps: Sequence[float]) -> Comparison:
    """Return a comparison in which methods differ in nothing but the gaps between groups, one a
    seed."""
    scores = {method: [{"a": 70.0, "b": 80.0}] * len(each) for method, each in gaps.items()}
    by_group = {method: [report(gap, score) for gap in each] for method, each in gaps.items()}
    return dataclasses.replace(compared_by_hand(**scores), by_group=by_group)


BY_HAND = compared_gaps(
    FedAvg=[30.0, 32.0, 34.0], FairFed=[10.0, 13.0, 12.0], FedFV=[31.0, 30.0, 36.0]
)
NARROWER = {"FairFed": np.array([20.0, 19.0, 22.0]), "FedFV": np.array([-1.0, 2.0, -2.0])}


@pytest.mark.parametrize(("method", "each"), NARROWER.items())
def test_a_narrower_gap_is_better_with_the_interval_of_others(method: str, each: object) -> None:
    rows = {(row["method"], row["measure"]): row for row in BY_HAND.difference_rows()}
    mean = each.mean()
    error = each.std(ddof=1) / math.sqrt(3.0)
    row = rows[method, "group-gap:selection-rate"]
    assert (row["better"], row["worse"], row["seeds"]) == (
        (each > 0).sum(),
        (each < 0).sum(),
        3,
    )
    assert [row[key] for key in ("mean", "error", "low", "high")] == pytest.approx(
        (mean, error, mean - T * error, mean + T * error)
    )
    assert row["p_value"] is None  # the one family of tests is of the worst served and the mean
    assert rows["FairFed", "group-gap:selection-rate:a"]["mean"] == pytest.approx(
        NARROWER["FairFed"].mean()
    )
    assert ("FairFed", "group-gap:selection-rate:b") not in rows  # who reports no groups


def test_of_dealt_clients_only_gaps_over_all_have_rows() -> None:
    dealt = dataclasses.replace(
        BY_HAND, shared=dataclasses.replace(BY_HAND.shared, clients_differ=True)
    )
    measures = {row["measure"] for row in dealt.difference_rows()}
    assert {measure for measure in measures if measure.startswith("group-gap:")} == {
        "group-gap:selection-rate"
    }


def gap_rows(comparison: Comparison) -> list[list[str]]:
    """Return the texts of the table of gaps in the terminal; [] without one."""
    return [
        [cell.text for cell in row]
        for section in brief_sections(comparison)
        for block in section.blocks
        if isinstance(block, Table) and block.name == "gaps"
        for row in block.rows
    ]


@pytest.mark.parametrize(
    ("comparison", "row"),
    [
        (BY_HAND, ["sex", "selection rate, %", "32.0 ±2.0", *ENDS, "11.7", "FairFed"]),
        (
            compared_gaps(FedAvg=[30.0, 32.0], FairFed=[31.0, 33.0]),
            ["sex", "selection rate, %", "31.0 ±1.4", *ENDS, "31.0", "FedAvg"],
        ),
        (compared_gaps(FedAvg=[30.0]), ["sex", "selection rate, %", "30.0", *ENDS]),
        (  # the group that is lowest over the seeds
            compared_gaps(FedAvg=[30.0, -60.0]),
            ["sex", "selection rate, %", "45.0 ±21.2", *ENDS[::-1]],
        ),
        (  # a gap with other seeds than the baseline's is not compared
            compared_gaps(
                FedAvg=[30.0, math.nan], FairFed=[math.nan, 13.0], FedFV=[29.0, math.nan]
            ),
            ["sex", "selection rate, %", "30.0", *ENDS, "29.0", "FedFV"],
        ),
        (
            compared_gaps(ERROR, FedAvg=[0.30, 0.32, 0.34], FairFed=[0.10, 0.13, 0.12]),
            ["sex", ERROR.title, "0.320 ±0.020", *ENDS, "0.117", "FairFed"],
        ),
    ],
)
def test_the_terminal_has_a_row_for_each_gap(comparison: Comparison, row: list[str]) -> None:
    assert gap_rows(comparison) == [row]


def test_a_gap_counts_with_the_seeds_that_have_it() -> None:
    some = compared_gaps(FedAvg=[30.0, math.nan, 34.0], FairFed=[10.0, 13.0, 12.0])
    assert some.difference("FairFed", "group-gap:selection-rate").seeds == 2
    none = compared_gaps(FedAvg=[30.0, math.nan], FairFed=[math.nan, 13.0])
    assert none.gaps_compared == {}
    assert not any(row["measure"].startswith("group-gap:") for row in none.difference_rows())


def test_a_grouping_without_a_gap_is_named() -> None:
    """Of two groups, one is too small to be reported: the table of gaps has no row for it."""
    small = compared_gaps(FedAvg=[math.nan], FairFed=[math.nan])
    sentence = "No gap by sex: over all clients, fewer than two groups have enough test examples"
    assert any(sentence in text for text in texts_of(small))
    assert not any("No gap" in text for text in texts_of(BY_HAND))


def texts_of(comparison: Comparison) -> list[str]:
    """Return the sentences below the tables of a comparison in the terminal."""
    blocks = [block for section in brief_sections(comparison) for block in section.blocks]
    return [text for block in blocks if isinstance(block, Note) for text in block.sentences]


def test_without_groups_or_methods_no_gaps_are_compared() -> None:
    assert compared_gaps(FedAvg=[30.0, 32.0]).difference_rows() == []
    without = dataclasses.replace(BY_HAND, by_group={})
    assert gap_rows(without) == []
    assert without.verdict == BY_HAND.verdict
    assert without.difference_rows() == [
        row for row in BY_HAND.difference_rows() if not row["measure"].startswith("group-gap:")
    ]
