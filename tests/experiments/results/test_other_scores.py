"""Sentences on clients that gain by the score of fairness and lose by another."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from fairbloom.experiments.results.caveats import SharedData
from fairbloom.experiments.results.comparison import Comparison
from fairbloom.experiments.results.verdict import find_contradictions
from fairbloom.protocol.scores import ACCURACY, F1, LOSS_SCORE, Score
from fairbloom.tasks.measures import AUC, BALANCED_ACCURACY

from ..helpers import compared_by_scores

CLIENTS = ("cleveland", "hungarian", "long-beach")

Gains = Mapping[str, Mapping[str, float]]
"""By score and client, how much higher the number is under the method."""


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


def test_who_gains_while_auc_or_balanced_accuracy_falls_is_named() -> None:
    comparison = compared(THREE, HEART)
    (said,) = find_contradictions(comparison)
    assert (
        said
        == "long-beach gains 11.6 points of accuracy under Local, but loses 10.1 points of balanced"
        " accuracy and 0.133 of AUC."
    )
    assert said in comparison.verdict.sentences


@pytest.mark.parametrize("first", [ACCURACY, BALANCED_ACCURACY, AUC, F1, LOSS_SCORE])
def test_scores_that_agree_and_losses_are_no_contradiction(first: Score) -> None:
    scores = (first, *(each for each in (*THREE, F1, LOSS_SCORE) if each != first))
    gains = {
        s.name: dict.fromkeys(CLIENTS, (5.0 if s.percent else 0.05) * s.better(1.0, 0.0))
        for s in scores
    }
    assert find_contradictions(compared(scores, gains)) == []
    # long-beach loses by the first
    assert find_contradictions(compared((BALANCED_ACCURACY, ACCURACY, AUC), HEART)) == []
    of_loss = {"accuracy": {"hungarian": 9.0}, "loss": {"hungarian": 9.0}}
    assert find_contradictions(compared((ACCURACY, LOSS_SCORE), of_loss)) == []


def test_where_lower_is_better_a_fall_is_a_gain() -> None:
    gains = {"loss": {"long-beach": -0.1}, "auc": {"long-beach": -0.2}}
    said, *_ = find_contradictions(compared((LOSS_SCORE, AUC), gains))
    assert said.startswith("long-beach gains 0.1 of loss")


@pytest.mark.parametrize(("seeds", "expected"), [(2, 0), (3, 1)])
def test_a_contradiction_needs_three_seeds_with_both_scores(seeds: int, expected: int) -> None:
    lacking = {"balanced-accuracy": {"long-beach": seeds}, "auc": {"long-beach": 0}}
    assert len(find_contradictions(compared(THREE, HEART, lacking=lacking))) == expected
    assert find_contradictions(compared(THREE, HEART, seeds=2)) == []


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
    verdict = compared_by_scores(finals, ACCURACY, AUC).verdict
    assert sum("but loses" in each for each in (*verdict.sentences, *verdict.further)) == 3


def test_a_loss_within_its_interval_is_no_contradiction() -> None:
    """HI gains for sure, and its AUC falls by chance in most seeds."""
    drift = (-0.0004, 0.0003, -0.0002, -0.0001, -0.0001)
    finals = {
        "FedAvg": [{"accuracy": {"HI": 60.0 + k}, "auc": {"HI": 0.7}} for k in range(5)],
        "Local": [
            {"accuracy": {"HI": 63.0 + 1.1 * k}, "auc": {"HI": 0.7 + each}}
            for k, each in enumerate(drift)
        ],
    }
    assert find_contradictions(compared_by_scores(finals, ACCURACY, AUC)) == []


def test_of_clients_that_differ_by_seed_nothing_is_said() -> None:
    dealt = replace(compared(THREE, HEART), shared=SharedData(clients_differ=True))
    assert find_contradictions(dealt) == []


def test_a_verdict_by_any_score_names_it_and_its_unit(subtests: pytest.Subtests) -> None:
    names = {"auc": "AUC", "balanced-accuracy": "balanced accuracy", "f1": "f1", "loss": "loss"}
    for score in (AUC, BALANCED_ACCURACY, F1, LOSS_SCORE):
        with subtests.test(score=score):
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
