"""What comparisons show, in sentences: in both directions of a score, with names, and where nothing is shown."""

import dataclasses
from collections.abc import Sequence
from statistics import fmean

import numpy as np
import pytest

from fairbloom.experiments.results.comparison import Comparison
from fairbloom.experiments.results.differences import difference_of
from fairbloom.experiments.results.measured import measure_title
from fairbloom.experiments.results.shared_data import SharedData
from fairbloom.protocol.scores import ACCURACY, Score

from ..helpers import compared_by_hand

HOSPITALS = ("Cleveland", "Hungary", "Long Beach", "Switzerland")
MAE = Score("mae", higher_is_better=False)
SPLIT = SharedData(test_share=0.25)


def made(
    seeds: int,
    score: Score = ACCURACY,
    names: Sequence[str] = HOSPITALS,
    noise: float = 2.0,
    **gains: tuple[float, float],
) -> Comparison:
    """Return a comparison in which methods gain so much for the last client, which is served worst, and the others."""
    rng = np.random.default_rng(7)
    worse = -25.0 if score.higher_is_better else 25.0
    sign = score.better(1.0, 0.0)
    by_method: dict[str, list[dict[str, float]]] = {"FedAvg": [], **{method: [] for method in gains}}
    for _ in range(seeds):
        base = {name: 70.0 + worse * (name == names[-1]) + rng.normal(0.0, noise) for name in names}
        by_method["FedAvg"].append(base)
        for method, (last, others) in gains.items():
            by_method[method].append(
                {n: v + sign * (last if n == names[-1] else others) + rng.normal(0, noise) for n, v in base.items()}
            )
    return compared_by_hand(score, **by_method)


def sharing(comparison: Comparison, shared: SharedData) -> Comparison:
    return dataclasses.replace(comparison, shared=shared)


def test_a_clear_gain_is_said_with_its_interval_its_price_and_the_seeds_that_would_do() -> None:
    comparison = made(20, FedFV=(8.0, -3.0))
    worst = difference_of([mine["Switzerland"] - base["Switzerland"] for mine, base in _pairs(comparison, "FedFV")])
    others = difference_of(
        [fmean(mine[n] - base[n] for n in HOSPITALS[:3]) for mine, base in _pairs(comparison, "FedFV")]
    )
    assert comparison.verdict.headline == (
        f"FedFV lifts the worst-served client (Switzerland) by {worst.mean:.1f} points ({worst.low:.1f} to "
        f"{worst.high:.1f}) and costs the others {-others.mean:.1f} points ({-others.high:.1f} to {-others.low:.1f}) "
        "on average; three seeds of twenty would do."
    )
    assert worst.enough == 3


def _pairs(comparison: Comparison, method: str) -> list[tuple[dict[str, float], dict[str, float]]]:
    values, base = comparison.values[method], comparison.values["FedAvg"]
    return [(dict(mine), dict(of_base)) for mine, of_base in zip(values, base, strict=True)]


def test_of_an_error_the_lower_is_the_better() -> None:
    verdict = made(10, MAE, FedFV=(8.0, -3.0), AdaFed=(-9.0, 0.0)).verdict
    assert verdict.headline.startswith("FedFV lowers the mae of the worst-served client (Switzerland) by ")
    assert "points" not in str(verdict)
    assert " and costs the others " in verdict.headline
    assert any(s.startswith("Clearly worse for the worst-served client: AdaFed by ") for s in verdict.sentences)
    assert "the mean is" in verdict.sentences[0]
    assert "(lower is better)" in verdict.sentences[0]


def test_a_method_that_cannot_be_told_from_the_baseline_is_said_to_be_so_with_the_seeds_that_would_do() -> None:
    comparison = made(4, FedFV=(2.0, 0.0), noise=3.0)
    enough = comparison.difference("FedFV", "worst_10").enough
    verdict = comparison.verdict
    assert verdict.headline == "FedFV cannot be told from FedAvg by the worst-served client (Switzerland)."
    assert enough is not None
    assert enough > 4
    assert any("seeds would tell a difference of this size" in s for s in verdict.sentences)


def test_where_no_number_of_seeds_would_do_that_is_said() -> None:
    verdict = sharing(made(4, FedFV=(2.0, 0.0), noise=5.0), SPLIT).verdict
    expected = "no number of seeds would tell a difference of this size, because all of them split the same data"
    assert any(expected in sentence for sentence in verdict.sentences)


def test_a_gain_that_is_clear_without_the_correction_for_shared_data_may_not_be_so_with_it() -> None:
    comparison = made(20, FedFV=(3.0, 0.0), noise=3.0)
    assert "lifts" in comparison.verdict.headline
    assert "cannot be told" in sharing(comparison, SharedData(test_share=0.5)).verdict.headline


def test_a_single_seed_is_said_to_tell_nothing() -> None:
    verdict = made(1, FedFV=(8.0, -3.0)).verdict
    assert verdict.headline == "A single seed does not tell one method from another: compare with 5 seeds or more."
    assert "With this seed FedFV does best for the worst-served client (Switzerland)" in str(verdict)
    assert "No method" not in str(verdict)
    assert "no method does better than FedAvg" in str(made(1, FedFV=(-8.0, -3.0)).verdict)


def test_a_single_method_has_nothing_to_be_compared_with() -> None:
    verdict = made(3).verdict
    assert verdict.headline == "There is nothing to compare FedAvg with: no other method was run."


def test_equal_models_are_no_claim() -> None:
    values = made(5).values["FedAvg"]
    verdict = compared_by_hand(FedAvg=values, TERM=values).verdict
    assert "cannot be told" in verdict.headline
    assert "the same score under TERM and FedAvg" in str(verdict)
    shifted = [{name: value + 1.0 for name, value in by_client.items()} for by_client in values]
    constant = compared_by_hand(FedAvg=values, FedFV=shifted).verdict
    assert "cannot be told" in constant.headline
    assert "it is the same with every seed" in str(constant)


def test_two_clients_of_which_one_is_the_others() -> None:
    verdict = made(5, names=("a", "b"), FedFV=(20.0, -10.0)).verdict
    assert verdict.headline.startswith("FedFV lifts the worst-served client (b) by ")
    assert "costs the others" in verdict.headline


def test_a_single_client_has_no_others() -> None:
    verdict = made(5, names=("a",), FedFV=(20.0, 0.0)).verdict
    assert verdict.headline.startswith("FedFV lifts the worst-served client (a) by ")
    assert "others" not in verdict.headline


def test_many_clients_are_a_tenth_without_names() -> None:
    names = [f"speaker-{k}" for k in range(30)]
    verdict = made(10, names=names, FedFV=(20.0, 20.0)).verdict
    assert verdict.headline.startswith("FedFV lifts the worst-served 10 % of the clients by ")
    assert ", and the others gain " in verdict.headline


def test_clients_that_a_seed_deals_have_no_names() -> None:
    verdict = sharing(made(10, FedFV=(8.0, -3.0)), SharedData(dealt=True)).verdict
    assert verdict.headline.startswith("FedFV lifts the worst-served client by ")


def test_clients_that_take_turns_as_the_worst_are_named_up_to_three() -> None:
    base = [{"a": 50.0, "b": 60.0, "c": 90.0}, {"a": 60.0, "b": 50.0, "c": 90.0}, {"a": 50.0, "b": 60.0, "c": 90.0}]
    better = [{name: value + gain for name, value in one.items()} for one, gain in zip(base, (5, 6, 5.5), strict=True)]
    assert "(a or b)" in compared_by_hand(FedAvg=base, FedFV=better).verdict.headline


def test_several_methods_are_corrected_for_each_other() -> None:
    """An interval above zero is not enough with two methods, and the verdict says why."""
    gains = [0.8, 1.0, 2.2, 3.0]
    base = [{"a": 50.0, "b": 80.0}] * 4
    fair = [{"a": 50.0 + gain, "b": 80.0} for gain in gains]
    noise = [{"a": 50.0 + gain, "b": 80.0} for gain in (1.0, -1.2, 0.9, -0.8)]
    alone, both = compared_by_hand(FedAvg=base, FedFV=fair), compared_by_hand(FedAvg=base, FedFV=fair, TERM=noise)
    assert alone.difference("FedFV", "worst").low == both.difference("FedFV", "worst").low
    assert alone.difference("FedFV", "worst").clear
    assert not both.difference("FedFV", "worst").clear
    assert "with two methods one is so more often by chance" in str(both.verdict)


def test_other_scores_than_accuracy_have_their_name_and_no_points() -> None:
    verdict = made(10, Score("r2"), FedFV=(8.0, -3.0)).verdict
    assert verdict.headline.startswith("FedFV lifts the r2 of the worst-served client (Switzerland) by ")
    assert "points" not in str(verdict)


@pytest.mark.parametrize(
    ("measure", "clients", "title"),
    [
        ("worst_10", 4, "worst client"),
        ("worst_10", 10, "worst client"),
        ("worst_10", 11, "worst 10 %"),
        ("best_10", 4, "best client"),
        ("worst_20", 5, "worst client"),
        ("worst_20", 6, "worst 20 %"),
        ("worst", 100, "worst client"),
        ("mean", 4, "mean"),
        ("client:Long Beach", 4, "Long Beach"),
    ],
)
def test_the_worst_tenth_of_few_clients_is_called_the_worst_client(measure: str, clients: int, title: str) -> None:
    assert measure_title(measure, clients) == title
