"""What comparisons show, in sentences: in both directions of a score, with names, and where nothing is shown."""

import dataclasses
import re
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


def test_a_clear_gain_has_its_interval_its_price_and_enough_seeds() -> None:
    comparison = made(20, FedFV=(8.0, -3.0))
    worst = difference_of([mine["Switzerland"] - base["Switzerland"] for mine, base in _pairs(comparison, "FedFV")])
    others = difference_of(
        [fmean(mine[n] - base[n] for n in HOSPITALS[:3]) for mine, base in _pairs(comparison, "FedFV")]
    )
    assert comparison.verdict.headline == (
        f"FedFV lifts the worst-served client (Switzerland) by {worst.mean:.1f} points ({worst.low:.1f} to "
        f"{worst.high:.1f}) and costs the others {-others.mean:.1f} points on average (not tested)."
    )
    assert worst.enough == 3
    assert "Three seeds would have been enough." in comparison.verdict.sentences


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


def test_without_a_significant_difference_the_needed_seeds_are_named() -> None:
    comparison = made(4, FedFV=(2.0, 0.0), noise=3.0)
    enough = comparison.difference("FedFV", "worst_10").enough
    verdict = comparison.verdict
    assert verdict.headline == (
        "FedFV and FedAvg do not differ significantly for the worst-served client (Switzerland)."
    )
    assert enough is not None
    assert enough > 4
    assert any("seeds would be enough to detect a difference of this size" in s for s in verdict.sentences)


def test_where_no_number_of_seeds_would_do_that_is_said() -> None:
    verdict = sharing(made(4, FedFV=(2.0, 0.0), noise=5.0), SPLIT).verdict
    assert "no number of seeds would be enough to detect a difference of this size" in str(verdict)
    assert "because all of them split the same data" in str(verdict)


def test_a_gain_that_is_clear_without_the_correction_for_shared_data_may_not_be_so_with_it() -> None:
    comparison = made(20, FedFV=(3.0, 0.0), noise=3.0)
    assert "lifts" in comparison.verdict.headline
    assert "do not differ significantly" in sharing(comparison, SharedData(test_share=0.5)).verdict.headline


def test_a_single_seed_is_said_to_tell_nothing() -> None:
    verdict = made(1, FedFV=(8.0, -3.0)).verdict
    assert verdict.headline == "A single seed does not show which method is better: compare with 5 seeds or more."
    assert "With this seed FedFV does best for the worst-served client (Switzerland)" in str(verdict)
    assert "No method" not in str(verdict)
    assert "no method does better than FedAvg" in str(made(1, FedFV=(-8.0, -3.0)).verdict)


def test_a_single_method_has_nothing_to_be_compared_with() -> None:
    verdict = made(3).verdict
    assert verdict.headline == "There is nothing to compare FedAvg with: no other method was run."


def test_equal_models_are_no_claim() -> None:
    values = made(5).values["FedAvg"]
    verdict = compared_by_hand(FedAvg=values, TERM=values).verdict
    assert "do not differ significantly" in verdict.headline
    assert "the same score under TERM and FedAvg, so nothing is tested there." in str(verdict)
    shifted = [{name: value + 1.0 for name, value in by_client.items()} for by_client in values]
    constant = compared_by_hand(FedAvg=values, FedFV=shifted).verdict
    assert "do not differ significantly" in constant.headline
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


def test_the_verdict_claims_by_the_worst_served_alone() -> None:
    """The others, and with them the mean, are far better with every seed, which would be clear if it was tested."""
    comparison = made(10, FedFV=(0.0, 30.0), TERM=(0.0, -15.0))
    assert comparison.difference("FedFV", "mean").clear
    assert comparison.verdict.headline.startswith("No method differs significantly from FedAvg for the worst-served")
    (by_mean,) = [sentence for sentence in comparison.verdict.sentences if "by the mean" in sentence]
    expected = (
        r"Not tested: by the mean over clients, FedFV is 2\d\.\d points better and TERM is 1\d\.\d points worse\."
    )
    assert re.fullmatch(expected, by_mean)
    assert not re.search("[Cc]lear|lifts", str(comparison.verdict))


def test_a_row_that_cannot_differ_costs_the_others_no_power() -> None:
    alone = made(6, FedFV=(8.0, -3.0))
    base, fair = alone.values["FedAvg"], alone.values["FedFV"]
    both = compared_by_hand(FedAvg=base, Ditto=base, FedFV=fair)
    assert both.difference("FedFV", "worst_10") == alone.difference("FedFV", "worst_10")
    assert both.difference("Ditto", "worst_10").p_value == 1.0
    assert both.verdict.headline == alone.verdict.headline


def test_a_row_that_cannot_differ_points_to_its_personal_models() -> None:
    values = made(6, FedFV=(8.0, -3.0)).values
    finals = {"FedAvg": values["FedAvg"], "Ditto (lam=1)": values["FedAvg"], "Ditto (lam=1, personal)": values["FedFV"]}
    comparison = dataclasses.replace(compared_by_hand(**finals), personal=("Ditto (lam=1, personal)",))
    assert "Look at the personal models instead: Ditto (lam=1, personal)." in comparison.verdict.sentences
    assert comparison.verdict.headline.startswith("Ditto (lam=1, personal) lifts the worst-served client")


def test_two_seeds_claim_nothing_and_have_no_interval() -> None:
    verdict = made(2, noise=0.1, FedFV=(8.0, -3.0)).verdict
    assert verdict.headline == "Two seeds do not show which method is better: compare with 5 seeds or more."
    assert "With these seeds FedFV does best for the worst-served client (Switzerland)" in str(verdict)
    assert not re.search(r"\(-?\d|enough|lifts", str(verdict))


def test_an_interval_ends_where_a_percentage_can_lie() -> None:
    base = [{"a": 30.0, "b": 90.0}] * 3
    comparison = compared_by_hand(FedAvg=base, FedFV=[{"a": value, "b": 90.0} for value in (40.0, 85.0, 60.0)])
    found = comparison.difference("FedFV", "worst_10")
    assert (found.low, found.high) == (pytest.approx(-24.3, abs=0.1), 70.0)
    assert "31.7 points (-24.3 to 70.0)" in str(comparison.verdict)
    error = Score("error", higher_is_better=False, percent=True)
    worse = compared_by_hand(error, FedAvg=base, FedFV=[{"a": 30.0, "b": value} for value in (40.0, 85.0, 60.0)])
    found = worse.difference("FedFV", "client:b")
    assert (found.low, found.high) == (-10.0, pytest.approx(84.4, abs=0.1))  # no error is above 100 %
    assert worse.difference("FedFV", "std").low >= -100.0


def test_a_client_with_few_test_rows_does_not_decide_the_headline() -> None:
    """Switzerland, with two test rows, has 0 % under every method; the tables and worst_10 keep it."""
    comparison = made(10, names=HOSPITALS[:3], FedFV=(20.0, 0.0))
    with_tiny = compared_by_hand(
        **{m: [{**each, "Switzerland": 0.0} for each in by_seed] for m, by_seed in comparison.values.items()}
    )
    tested = tuple({**dict.fromkeys(HOSPITALS[:3], 10), "Switzerland": 2} for _ in with_tiny.seeds)
    found = dataclasses.replace(with_tiny, tested=tested)
    assert "do not differ significantly" in with_tiny.verdict.headline
    assert found.verdict.headline == comparison.verdict.headline
    assert found.verdict.headline.startswith("FedFV lifts the worst-served client (Long Beach) by ")
    assert "tested on fewer than 10 examples are in the tables, but do not count here" in str(found.verdict)
    assert found.measures("FedFV")[0]["worst_10"] == 0.0
    assert found.rows() == with_tiny.rows()
    assert found.difference_rows() == with_tiny.difference_rows()


def test_fewer_than_two_clients_with_ten_test_rows_decide_nothing() -> None:
    comparison = made(5, names=("a", "b"), FedFV=(20.0, 20.0))
    for tested in ({"a": 1, "b": 1}, {"a": 100, "b": 9}):
        verdict = dataclasses.replace(comparison, tested=(tested,) * 5).verdict
        assert verdict.headline == (
            "Which method serves the worst-served client best cannot be decided: fewer than two clients are tested on "
            "10 examples or more. Collect more rows, or raise test-share."
        )
    enough = dataclasses.replace(comparison, tested=({"a": 10, "b": 10},) * 5)
    assert enough.verdict == comparison.verdict


def test_seeds_with_too_few_clients_do_not_count() -> None:
    comparison = made(5, names=("a", "b"), FedFV=(20.0, 20.0))
    tested = ({"a": 10, "b": 3}, *({"a": 10, "b": 10},) * 4)
    verdict = dataclasses.replace(comparison, tested=tested).verdict
    assert "lifts the worst-served client" in verdict.headline
    assert "Nor do one of the five seeds, with which fewer than two clients are left." in verdict.sentences


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
