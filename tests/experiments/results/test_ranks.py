"""Ranks of methods over several tasks: Friedman's test and Nemenyi's critical difference."""

import dataclasses
import json
from pathlib import Path

import pytest
from scipy import stats

from fairbloom.errors import FairbloomError
from fairbloom.experiments.results.comparison import Comparison
from fairbloom.experiments.results.ranks import Ranks, critical_difference, fewest_tasks, name_tasks, ranks_of
from fairbloom.experiments.views.figures import charts_of
from fairbloom.experiments.views.report.of_comparisons import rank_table
from fairbloom.protocol.scores import ACCURACY, Score

from ..helpers import compared_by_hand, fairbloom


def task(*worst: float, score: Score = ACCURACY) -> Comparison:
    """Return the comparison of FedAvg, FedFV, TERM and DRFA with one seed, in which one client has these scores."""
    names = ("FedAvg", "FedFV", "TERM", "DRFA")[: len(worst)]
    return compared_by_hand(score, **{name: [{"a": value}] for name, value in zip(names, worst, strict=True)})


def same_order(tasks: int) -> Ranks:
    return ranks_of({f"task {k}": task(10.0, 40.0, 20.0, 30.0) for k in range(tasks)})


def test_ranks_are_averaged_over_tasks_and_equal_methods_share_a_rank() -> None:
    found = ranks_of({"one": task(10.0, 40.0, 20.0, 30.0), "two": task(10.0, 30.0, 20.0, 30.0)})
    assert found.by_task["two"] == {"FedAvg": 4.0, "FedFV": 1.5, "TERM": 3.0, "DRFA": 1.5}
    assert found.average == {"FedFV": 1.25, "DRFA": 1.75, "TERM": 3.0, "FedAvg": 4.0}
    assert next(iter(found.average)) == "FedFV"
    assert found.title == "worst client"


def test_the_lowest_error_ranks_first() -> None:
    mae = Score("mae", higher_is_better=False)
    found = ranks_of({"one": task(1.0, 4.0, 2.0, score=mae), "two": task(1.0, 4.0, 2.0, score=mae)})
    assert list(found.average) == ["FedAvg", "TERM", "FedFV"]


def test_the_critical_difference_is_demsars() -> None:
    """Demšar 2006, section 3.2.2: with 4 classifiers and 14 data sets, q = 2.569 and CD = 1.25."""
    assert critical_difference(4, 14) == pytest.approx(1.25, abs=0.005)


def test_friedmans_test_is_scipys() -> None:
    tasks = [task(1.0, 2.0, 3.0), task(2.0, 1.0, 3.0), task(1.0, 3.0, 2.0), task(1.0, 2.0, 4.0)]
    found = ranks_of({str(k): each for k, each in enumerate(tasks)})
    columns = [[each.values[method][0]["a"] for each in tasks] for method in ("FedAvg", "FedFV", "TERM")]
    assert found.p_value == pytest.approx(stats.friedmanchisquare(*columns).pvalue)


def test_too_few_tasks_are_said_in_words_and_as_many_as_are_named_do() -> None:
    needed = fewest_tasks(4)
    few, enough = same_order(needed - 1), same_order(needed)
    assert few.sentences == [
        f"{needed - 1} tasks are too few to distinguish any two of 4 methods by their ranks: at least {needed} are "
        "needed, with the same order in each."
    ]
    assert not any("too few" in sentence for sentence in enough.sentences)
    assert "FedFV ranks better than FedAvg" in enough.sentences[0]
    assert enough.average["FedAvg"] - enough.average["FedFV"] >= enough.critical_difference
    assert few.average["FedAvg"] - few.average["FedFV"] < few.critical_difference


def test_groups_have_the_methods_that_are_not_told_apart() -> None:
    found = dataclasses.replace(same_order(3), critical_difference=1.5)
    assert found.groups == [("FedFV", "DRFA"), ("DRFA", "TERM"), ("TERM", "FedAvg")]
    assert dataclasses.replace(found, critical_difference=0.5).groups == []


def test_methods_that_serve_equally_are_not_told_apart() -> None:
    found = ranks_of({str(k): task(1.0, 1.0, 1.0) for k in range(12)})
    assert found.p_value == 1.0
    assert "do not differ significantly" in found.sentences[0]


def test_methods_that_a_task_lacks_are_left_out_by_name() -> None:
    found = ranks_of({"one": task(1.0, 2.0, 3.0, 4.0), "two": task(1.0, 2.0, 3.0)})
    assert found.left_out == ("DRFA",)
    assert found.sentences[0] == "Left out, because some tasks lack them: DRFA."


def test_fewer_than_three_methods_or_two_tasks_are_refused() -> None:
    with pytest.raises(
        FairbloomError, match="ranks need 3 methods or more that all comparisons have, got FedAvg, FedF"
    ):
        ranks_of({"one": task(1.0, 2.0), "two": task(1.0, 2.0)})
    with pytest.raises(FairbloomError, match="ranks need 2 comparisons or more, got 1"):
        ranks_of({"one": task(1.0, 2.0, 3.0)})


def test_tasks_have_the_names_of_folders_or_their_paths_where_two_are_the_same() -> None:
    one, two = (dataclasses.replace(task(1.0), folder=Path(place)) for place in ("a/cmp", "b/cmp"))
    assert list(name_tasks([one, two])) == ["a/cmp", "b/cmp"]
    assert list(name_tasks([one])) == ["cmp"]


def test_ranks_are_a_table_and_a_figure() -> None:
    found = same_order(3)
    ranked = rank_table(found)
    assert list(ranked.headings) == ["method", "mean rank", "task 0", "task 1", "task 2"]
    assert [cell.text for cell in ranked.rows[0]] == ["FedFV", "1.00", "1", "1", "1"]
    (chart,) = charts_of(found).charts
    drawn = [(row["method"], row["rank"]) for row in chart.spec["data"]["values"]]
    assert drawn == list(found.average.items())


@pytest.mark.slow
def test_show_ranks_several_comparisons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, clients in (("five", 5), ("six", 6)):
        words = ("--methods", "fedavg,fedfv,qfedavg", "--seeds", 1, "--clients", clients, "--rounds", 1, "--jobs", 1)
        assert fairbloom("compare", *words, "--out", name) == 0
    capsys.readouterr()
    assert fairbloom("show", "five", "six", "--figure", "ranks") == 0
    said = capsys.readouterr().out
    assert "Ranks over 2 tasks" in said
    assert "2 tasks are too few to distinguish any two of 3 methods" in said
    assert Path("ranks.svg").exists()
    assert fairbloom("show", "five", "six", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["by_task"]) == {"five", "six"}
    assert found["sentences"]
