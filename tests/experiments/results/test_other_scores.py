"""What other scores say against the one that fairness goes by, in verdicts by several scores."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from fairbloom.experiments.results.comparison import Comparison
from fairbloom.experiments.results.shared_data import SharedData
from fairbloom.protocol.scores import ACCURACY, F1, LOSS_SCORE, Score
from fairbloom.tasks.measures import AUC, BALANCED_ACCURACY

CLIENTS = ("cleveland", "hungarian", "long-beach")

Gains = Mapping[str, Mapping[str, float]]
"""By score and client, how much higher the number is under the method."""


def compared(
    scores: Sequence[Score], gains: Gains, seeds: int = 10, lacking: Mapping[str, Mapping[str, int]] | None = None
) -> Comparison:
    """Return FedAvg and Local, which differ by these numbers; a client may lack a score from some seed on."""
    rng = np.random.default_rng(3)
    level = {score.name: 60.0 if score.percent else 0.6 for score in scores}
    finals: dict[str, list[dict[str, dict[str, float]]]] = {"FedAvg": [], "Local": []}
    for seed in range(seeds):
        base, mine = dict[str, dict[str, float]](), dict[str, dict[str, float]]()
        for score in scores:
            noise = {client: 0.01 * level[score.name] * rng.normal() for client in CLIENTS}
            there = [c for c in CLIENTS if seed < ((lacking or {}).get(score.name, {}).get(c, seeds))]
            base[score.name] = {c: level[score.name] + noise[c] for c in there}
            mine[score.name] = {
                c: base[score.name][c] + gains[score.name].get(c, 0.0) + 0.1 * noise[CLIENTS[0]] for c in there
            }
        finals["FedAvg"].append(base)
        finals["Local"].append(mine)
    return Comparison(finals, "FedAvg", tuple(scores), tuple(range(seeds)))


THREE = (ACCURACY, BALANCED_ACCURACY, AUC)
HEART: Gains = {
    "accuracy": {"cleveland": 2.0, "hungarian": 2.0, "long-beach": 11.6},
    "balanced-accuracy": {"cleveland": 2.0, "hungarian": 2.0, "long-beach": -10.1},
    "auc": {"cleveland": 0.02, "hungarian": 0.02, "long-beach": -0.133},
}


def test_the_verdict_says_which_client_loses_by_other_scores() -> None:
    verdict = compared(THREE, HEART).verdict
    (said,) = [each for each in verdict.sentences if "long-beach" in each and "but" in each]
    assert "Local is better by 11.6 points of accuracy (10 of 10 seeds), but worse by 10.1 points of" in said
    assert "balanced-accuracy" in said
    assert "0.133 of auc" in said


def test_by_another_score_the_same_is_said_the_other_way_round() -> None:
    verdict = compared((BALANCED_ACCURACY, ACCURACY, AUC), HEART).verdict
    (said,) = [each for each in verdict.sentences if each.startswith("For long-beach")]
    assert "Local is worse by 10.1 points of balanced-accuracy (10 of 10 seeds), but better by 11.6 points" in said
    assert "auc" not in said


@pytest.mark.parametrize("first", [ACCURACY, BALANCED_ACCURACY, AUC, F1, LOSS_SCORE])
def test_scores_that_agree_leave_nothing_to_say(first: Score) -> None:
    scores = (first, *(each for each in (*THREE, F1, LOSS_SCORE) if each != first))
    gains = {
        each.name: dict.fromkeys(CLIENTS, (5.0 if each.percent else 0.05) * each.better(1.0, 0.0)) for each in scores
    }
    comparison = compared(scores, gains)
    assert comparison.contradictions == []
    assert not any("but" in each for each in comparison.verdict.sentences)


def test_where_lower_is_better_a_fall_is_a_gain() -> None:
    gains = {"loss": {"long-beach": -0.1}, "accuracy": {"long-beach": -8.0}}
    found = compared((LOSS_SCORE, ACCURACY), gains).contradictions[0]
    assert found.client == "long-beach"
    assert found.sentence.startswith("For long-beach Local is better by 0.1 of loss (10 of 10 seeds), but worse by 8.0")


def test_a_claim_on_a_client_needs_three_seeds_with_both_scores() -> None:
    for seeds, expected in ((2, 0), (3, 1)):
        comparison = compared(
            THREE, HEART, lacking={"balanced-accuracy": {"long-beach": seeds}, "auc": {"long-beach": 0}}
        )
        assert len(comparison.contradictions) == expected
    assert compared(THREE, HEART, seeds=2).contradictions == []


def test_of_many_contradictions_three_are_written_and_the_others_counted() -> None:
    finals = {
        method: [
            {
                "accuracy": {f"c{k}": 50.0 + sign * 5.0 for k in range(5)},
                "auc": {f"c{k}": 0.5 - sign * 0.1 for k in range(5)},
            }
            for _ in range(3)
        ]
        for method, sign in (("FedAvg", 0.0), ("Local", 1.0))
    }
    sentences = Comparison(finals, "FedAvg", (ACCURACY, AUC), (0, 1, 2)).verdict.sentences
    assert sum(each.startswith("For c") for each in sentences) == 3
    assert sentences[-1].startswith("2 more cases")


def test_clients_that_are_others_with_each_seed_are_not_claimed_about() -> None:
    comparison = compared(THREE, HEART)
    dealt = Comparison(comparison.finals, "FedAvg", THREE, comparison.seeds, shared=SharedData(dealt=True))
    assert dealt.contradictions == []


@pytest.mark.parametrize("score", [AUC, BALANCED_ACCURACY, F1, LOSS_SCORE])
def test_a_verdict_by_any_score_names_it_and_its_unit(score: Score) -> None:
    sign = score.better(1.0, 0.0)
    size = 8.0 if score.percent else 0.08
    gains = {score.name: dict.fromkeys(CLIENTS, sign * size), "accuracy": {}}
    comparison = compared((score, ACCURACY), gains, lacking={score.name: {"hungarian": 4}})
    verdict = comparison.verdict
    assert score.name in str(verdict)
    assert verdict.headline.startswith(f"Local {'lifts' if score.higher_is_better else 'lowers'} the {score.name} of")
    assert ("points" in verdict.headline) is score.percent
    assert {row["measure"] for row in comparison.difference_rows()} >= {f"client:{client}" for client in CLIENTS}
    lost = compared((score, ACCURACY), {score.name: dict.fromkeys(CLIENTS, -sign * size), "accuracy": {}}).verdict
    assert "lifts" not in lost.headline
    assert "lowers" not in lost.headline
