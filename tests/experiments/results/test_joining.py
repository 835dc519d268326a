"""Whether joining pays: against training alone, by the intervals of the t test, client by client."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
from scipy import stats

from fairbloom.experiments import api
from fairbloom.experiments.pages.comparison import joining_section, page_of_comparison
from fairbloom.experiments.results.caveats import SharedData
from fairbloom.experiments.results.comparison import Comparison
from fairbloom.experiments.results.joining import (
    describe_clients,
    describe_mean,
    joining_of,
    outcome_of,
)
from fairbloom.protocol.scores import ACCURACY, Score
from fairbloom.tasks.measures import AUC

from ..helpers import compared_by_scores

MAE = Score("mae", higher_is_better=False)
NOISE = (-1.0, 2.0, 0.5, -1.5, 0.0)
# What clients gain by joining with FedAvg; FedFV gives each twice as much.
GAINS = {"a": 6.0, "b": -6.0, "c": 0.1}


def compared(
    score: Score = ACCURACY, seeds: int = 5, auc: float = 0.0, alone: str = "Local"
) -> Comparison:
    """Return a comparison in which clients gain GAINS by joining, and a's AUC rises by `auc`, b's
    falls by as much."""
    sign = score.better(1.0, 0.0)
    finals: dict[str, list[dict[str, dict[str, float]]]] = {"FedAvg": [], "FedFV": [], alone: []}
    for each in NOISE[:seeds]:
        for method, times in (("FedAvg", 1.0), ("FedFV", 2.0), (alone, 0.0)):
            moved = {name: 60.0 + sign * times * (by + each) for name, by in GAINS.items()}
            aucs = {name: 0.7 + times * by for name, by in {"a": auc, "b": -auc}.items()}
            noisy = {name: value + 0.001 * times * each for name, value in aucs.items()}
            finals[method].append({score.name: moved, "auc": noisy})
    comparison = compared_by_scores(finals, score, AUC)
    vars(comparison)["trained_alone"] = (alone,) if alone == "Local" else ()
    return comparison


def interval(values: Sequence[float], family: int = 1) -> tuple[float, float, float]:
    """Return the mean of values with its interval at 95 %, by Bonferroni for a family."""
    mean = float(np.mean(values))
    reach = stats.t.isf(0.025 / family, len(values) - 1) * stats.sem(values)
    return mean, mean - reach, mean + reach


@pytest.mark.parametrize("score", [ACCURACY, MAE])
def test_intervals_are_those_of_the_t_test(score: Score) -> None:
    first, second = joining_of(compared(score))
    assert (first.method, second.method) == ("FedAvg", "FedFV")
    mean = [sum(GAINS.values()) / 3 + each for each in NOISE]
    found = (first.mean.mean, first.mean.low, first.mean.high)
    assert found == pytest.approx(interval(mean, family=2))
    assert second.mean.mean == pytest.approx(2 * first.mean.mean)
    for client, gain in GAINS.items():
        of = first.clients[client]
        expected = interval([gain + each for each in NOISE])
        assert (of.mean, of.low, of.high) == pytest.approx(expected)
    assert [outcome_of(first.clients[client]) for client in GAINS] == [
        "gains",
        "loses",
        "cannot be told",
    ]


def test_seeds_that_share_rows_have_wider_intervals() -> None:
    plain = compared()
    shared = replace(plain, shared=SharedData(test_share=0.25))
    vars(shared)["trained_alone"] = ("Local",)
    narrow, wide = (joining_of(of)[0].mean for of in (plain, shared))
    times = (1 / 5 + 0.25) ** 0.5 / (1 / 5) ** 0.5
    assert wide.high - wide.low == pytest.approx(times * (narrow.high - narrow.low))


@pytest.mark.parametrize(
    ("auc", "said"),
    [
        (0.0, "gains: a; loses: b; cannot be told: c."),
        (-0.1, "gains: a (but loses 0.1 of AUC); loses: b (but gains 0.1 of AUC); cannot"),
        (0.1, "gains: a; loses: b; cannot be told: c."),
    ],
)
def test_each_client_is_named_with_scores_that_go_another_way(auc: float, said: str) -> None:
    comparison = compared(auc=auc)
    sentence = describe_clients(joining_of(comparison)[:1], comparison)[0]
    assert sentence.startswith(f"By client under FedAvg: {said}")
    assert sentence.endswith("the others together: --set training-clients=a,c.")


def test_methods_that_do_the_same_share_a_sentence() -> None:
    comparison = compared()
    first, second = joining_of(comparison)
    same = replace(second, clients=first.clients)
    assert describe_clients([first, same], comparison)[0].startswith(
        "By client under FedAvg, FedFV: g"
    )
    nothing = replace(first, clients={"c": first.clients["c"]})
    assert describe_clients([nothing], comparison) == ["By client under FedAvg: cannot be told: c."]
    many = {f"client {k}": first.clients["c"] for k in range(900)}
    (long,) = describe_clients(
        [replace(first, clients={**many, "b": first.clients["b"]})], comparison
    )
    assert long.endswith(" and 888 more.")
    every = replace(first, clients={"b": first.clients["b"]})
    assert describe_clients([every], comparison) == ["By client under FedAvg: loses: b."]
    nobody = [replace(first, clients={})]
    assert describe_clients(nobody, comparison) == []
    vars(comparison)["joining"] = nobody
    section = joining_section(comparison)
    assert section is not None
    assert [block.kind for block in section.blocks] == ["table"]


@pytest.mark.parametrize(
    ("shift", "said"),
    [
        (8.0, "Joining (FedAvg) is better than training alone (Local): +8.0 points ("),
        (-8.0, "Joining (FedAvg) is worse than training alone (Local): -8.0 points ("),
        (
            0.0,
            "Joining (FedAvg) is not shown to be better than training alone (Local): +0.0 points (",
        ),
    ],
)
def test_the_mean_is_one_sentence(shift: float, said: str) -> None:
    comparison = compared()
    joined = joining_of(comparison)[0]
    move = shift - joined.mean.mean
    moved = replace(
        joined,
        mean=replace(
            joined.mean, mean=shift, low=joined.mean.low + move, high=joined.mean.high + move
        ),
    )
    sentence = describe_mean(moved, comparison)
    assert sentence.startswith(said)
    assert sentence.endswith("of test accuracy, mean over clients.")
    assert page_of_comparison(comparison).headline == describe_mean(joined, comparison)


@pytest.mark.parametrize(
    ("seeds", "said"), [(1, "One seed does not show"), (2, "Two seeds do not")]
)
def test_few_seeds_say_that_they_do_not_show_it(seeds: int, said: str) -> None:
    comparison = compared(seeds=seeds)
    joined = joining_of(comparison)[0]
    assert describe_mean(joined, comparison).startswith(said)
    assert {outcome_of(joined.clients[client]) for client in GAINS} == {"cannot be told"}


def validated(best: str, missing: str = "") -> Comparison:
    """Return a comparison whose validation scores choose a method; one lacks those of a seed."""
    plain = compared()
    third = plain.finals[plain.finals["method"] == "FedFV"].assign(method="TERM")
    comparison = replace(plain, finals=pandas.concat([plain.finals, third]))
    scores = {method: 59.0 if method == best else 50.0 for method in comparison.methods}
    runs = {
        method: [
            SimpleNamespace(
                final=lambda model, split, score=score, lacks=(method, seed) == (missing, 2): (
                    {} if lacks else {"a": score}
                )
            )
            for seed in range(5)
        ]
        for method, score in scores.items()
    }
    nothing = dict.fromkeys(scores, [{}] * 5)
    vars(comparison).update(runs=runs, trained_alone=("Local",), held_out=nothing, noise=nothing)
    return comparison


@pytest.mark.parametrize(
    ("best", "missing", "chosen"),
    [
        ("TERM", "", ["FedAvg", "TERM"]),
        ("FedFV", "", ["FedAvg", "FedFV"]),
        ("FedAvg", "", ["FedAvg"]),
        ("Local", "", ["FedAvg"]),  # which is no common model
        ("TERM", "FedFV", ["FedAvg", "FedFV", "TERM"]),
    ],
)
def test_validation_scores_choose_what_is_shown(best: str, missing: str, chosen: list[str]) -> None:
    found = joining_of(validated(best, missing))
    assert [joined.method for joined in found] == chosen
    mean = [sum(GAINS.values()) / 3 + each for each in NOISE]
    expected = interval(mean, family=len(chosen))
    assert (found[0].mean.mean, found[0].mean.low, found[0].mean.high) == pytest.approx(expected)


def test_without_a_common_model_there_is_nothing_to_join() -> None:
    of = [{"accuracy": {"a": 60.0 + each, "b": 70.0}} for each in NOISE]
    comparison = compared_by_scores(
        {"FedAvg": of, "FedFV (personal)": of}, ACCURACY, personal=["FedFV (personal)"]
    )
    vars(comparison)["trained_alone"] = ("FedAvg",)
    assert comparison.joining == []
    assert joining_section(comparison) is None
    assert page_of_comparison(comparison).headline == comparison.verdict.headline


def test_without_training_alone_the_page_says_how_to_ask() -> None:
    comparison = compared(alone="Locally")
    assert comparison.joining == []
    assert "add local to --methods" in joining_section(comparison).blocks[0].sentences[0]
    assert page_of_comparison(comparison).headline == comparison.verdict.headline


@pytest.mark.slow
def test_training_alone_is_added_in_the_same_folder(tmp_path: object) -> None:
    words = {"out": tmp_path, "seeds": 3, "rounds": 2, "clients": 4, "progress": False}
    assert api.compare("digits", methods="fedavg", **words).joining == []
    again = api.compare("digits", methods="fedavg,local", **words)
    (joined,) = again.joining
    gains = [
        np.mean(list(base.values())) - np.mean(list(alone.values()))
        for base, alone in zip(again.values["FedAvg"], again.values["Local"], strict=True)
    ]
    assert joined.mean.mean == pytest.approx(np.mean(gains))
    assert joined.clients == {}  # each seed deals the digits anew
