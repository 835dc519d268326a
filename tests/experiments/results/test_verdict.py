"""The sentences of a verdict: both directions of a score, names, and no finding."""

import dataclasses
import re
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from fairbloom.experiments.results.caveats import SharedData
from fairbloom.experiments.results.comparison import Comparison
from fairbloom.experiments.results.differences import difference_of, differences_of
from fairbloom.experiments.results.measures import measure_title
from fairbloom.experiments.results.verdict import Verdict
from fairbloom.protocol.scores import ACCURACY, Score

from ..helpers import compared_by_hand, compared_by_scores

HOSPITALS = ("Cleveland", "Hungary", "Long Beach", "Switzerland")
MAE = Score("mae", higher_is_better=False)


def made(
    seeds: int,
    score: Score = ACCURACY,
    names: Sequence[str] = HOSPITALS,
    noise: float = 2.0,
    **gains: tuple[float, float],
) -> Comparison:
    """Return a comparison in which methods gain so much for the last client, which is served worst,
    and the others."""
    rng = np.random.default_rng(7)
    worse = -25.0 if score.higher_is_better else 25.0
    sign = score.better(1.0, 0.0)
    by_method: dict[str, list[dict[str, float]]] = {
        "FedAvg": [],
        **{method: [] for method in gains},
    }
    for _ in range(seeds):
        base = {name: 70.0 + worse * (name == names[-1]) + rng.normal(0.0, noise) for name in names}
        by_method["FedAvg"].append(base)
        for method, (last, others) in gains.items():
            by_method[method].append(
                {
                    n: v + sign * (last if n == names[-1] else others) + rng.normal(0, noise)
                    for n, v in base.items()
                }
            )
    return compared_by_hand(score, **by_method)


def words_of(verdict: Verdict) -> int:
    return len(" ".join((verdict.headline, *verdict.sentences)).split())


def test_first_the_baseline_then_who_gains_without_loss() -> None:
    """First among these is the best mean; who pays with the mean is said to do so."""
    comparison = made(20, FedFV=(8.0, -6.0), TERM=(6.0, 0.0), AFL=(6.0, 4.0), DRFA=(-9.0, 0.0))
    verdict = comparison.verdict
    assert verdict.improving == ("AFL", "TERM")
    worst, mean = (comparison.spread("FedAvg", measure)[0] for measure in ("worst_10", "mean"))
    assert (
        f"worst-served client has a test accuracy of {worst:.1f} %; the mean is {mean:.1f} %"
        in verdict.headline
    )
    gain, of_mean = (comparison.difference("AFL", measure) for measure in ("worst_10", "mean"))
    assert f"by {gain.mean:.1f} points ({gain.low:.1f} to {gain.high:.1f})" in verdict.sentences[0]
    assert f"and the mean, by {of_mean.mean:.1f} points" in verdict.sentences[0]
    assert "FedFV improves the worst served but worsens the mean." in verdict.sentences
    assert words_of(verdict) <= 60
    claims = {(each.method, each.measure): each.gain for each in verdict.claims}
    assert claims == {key: each.mean for key, each in comparison.claims.items() if each.significant}


def test_where_nothing_is_separated_no_estimate_is_said(subtests: pytest.Subtests) -> None:
    for comparison in (
        made(4, FedFV=(2.0, 0.0), noise=3.0),
        made(5, FedFV=(3.0, 1.0), TERM=(2.0, -1.0)),
    ):
        with subtests.test(comparison=comparison):
            verdict = comparison.verdict
            assert (verdict.claims, verdict.improving) == ((), ())
            assert "differ" in verdict.sentences[0]
            assert not re.search(r"\d", verdict.sentences[0])
    costly = made(20, FedFV=(8.0, -6.0)).verdict  # a gain that is paid for by the mean is no answer
    assert costly.improving == ()
    assert costly.sentences[0].startswith("No method")


def test_of_equal_methods_nothing_is_said_in_95_percent() -> None:
    """Four hundred comparisons of methods that do not differ; clients are served worst by
    chance."""
    rng = np.random.default_rng(0)
    trials = 400
    claimed = 0
    for _ in range(trials):
        scores = rng.normal(70.0, 5.0, 4) + rng.normal(0.0, 3.0, (3, 5, 4))  # method, seed, client
        of_mean = scores.mean(axis=2)
        of_worst = scores.min(axis=2)
        gains = {
            (k, place): list(m[k] - m[0])
            for k in (1, 2)
            for place, m in enumerate((of_worst, of_mean))
        }
        claimed += any(found.significant for found in differences_of(gains).values())
    assert claimed <= stats.binom.ppf(0.999, trials, 0.05)


def test_of_an_error_the_lower_is_the_better() -> None:
    comparison = made(10, MAE, FedFV=(8.0, 3.0), AdaFed=(-9.0, 0.0), DRFA=(9.0, 0.0))
    verdict = comparison.verdict
    assert verdict.improving == ("FedFV", "DRFA")
    assert "(lower is better)" in verdict.headline
    assert "points" not in str(verdict)
    assert (
        comparison.gains("FedFV", "worst_10")[0] > 0.0 > comparison.gains("AdaFed", "worst_10")[0]
    )


def test_the_correction_for_shared_data_decides_what_is_claimed() -> None:
    comparison = made(20, FedFV=(3.0, 0.0), noise=3.0)
    assert comparison.verdict.improving == ("FedFV",)
    assert (
        dataclasses.replace(comparison, shared=SharedData(test_share=0.5)).verdict.improving == ()
    )


def test_one_or_two_seeds_or_one_method_claim_nothing(subtests: pytest.Subtests) -> None:
    for comparison, said in (
        (made(1, FedFV=(8.0, -3.0)), "A single seed does not show"),
        (made(2, noise=0.1, FedFV=(8.0, -3.0)), "Two seeds do not show"),
        (made(3), "No other method was run"),
    ):
        with subtests.test(comparison=comparison, said=said):
            verdict = comparison.verdict
            assert verdict.sentences[0].startswith(said)
            assert verdict.claims == ()
            assert " points" not in str(verdict)


def test_equal_models_are_no_claim() -> None:
    values = made(5).values["FedAvg"]
    verdict = compared_by_hand(FedAvg=values, TERM=values).verdict
    assert verdict.claims == ()
    assert "TERM equals FedAvg with every seed." in verdict.sentences
    shifted = [{name: value + 1.0 for name, value in by_client.items()} for by_client in values]
    assert compared_by_hand(FedAvg=values, FedFV=shifted).verdict.claims == ()


def test_what_could_mislead_is_said() -> None:
    comparison = made(5, FedFV=(8.0, 0.0))
    tested = comparison.finals["client"].map({**dict.fromkeys(HOSPITALS, 40), "Hungary": 9})
    comparison = dataclasses.replace(comparison, finals=comparison.finals.assign(tested=tested))
    assert comparison.verdict.sentences[-2:] == (
        "There are only 4 clients.",
        "1 of 4 clients is tested on fewer than 10 examples.",
    )
    many = made(5, names=[f"speaker-{k}" for k in range(30)], FedFV=(8.0, 0.0)).verdict
    assert "client" not in " ".join(many.sentences)
    assert "the worst-served 10 % of clients have" in many.headline


def test_a_verdict_has_sixty_words_and_loses_none() -> None:
    names = [f"a method with a long name number {k}" for k in range(8)]
    comparison = made(
        8, **{name: (8.0, (-3.0, 0.0, 3.0, -9.0)[k % 4]) for k, name in enumerate(names)}
    )
    verdict = dataclasses.replace(comparison, failed={"AFL": "failed with 1 of 8 seeds"}).verdict
    assert words_of(verdict) <= 60
    assert any("AFL failed with 1 of 8 seeds" in each for each in verdict.further)


def test_a_row_that_cannot_differ_costs_no_power() -> None:
    alone = made(6, FedFV=(8.0, -3.0))
    base = alone.values["FedAvg"]
    fair = alone.values["FedFV"]
    both = compared_by_hand(FedAvg=base, Ditto=base, FedFV=fair)
    assert both.difference("FedFV", "worst_10") == alone.difference("FedFV", "worst_10")
    assert both.difference("Ditto", "worst_10").p_value == 1.0
    assert both.verdict.claims == alone.verdict.claims
    finals = {"FedAvg": base, "Ditto (lam=1)": base, "Ditto (lam=1, personal)": fair}
    by_score = {
        method: [{"accuracy": values} for values in by_seed] for method, by_seed in finals.items()
    }
    comparison = compared_by_scores(by_score, ACCURACY, personal=("Ditto (lam=1, personal)",))
    assert "Look at Ditto (lam=1, personal)." in comparison.verdict.sentences
    assert comparison.verdict.claims[0].method == "Ditto (lam=1, personal)"


def test_an_interval_is_that_of_the_test() -> None:
    """It is not cut where a percentage ends, and what rounds to zero has no minus."""
    base = [{"a": 30.0, "b": 90.0}] * 3
    comparison = compared_by_hand(
        FedAvg=base, FedFV=[{"a": value, "b": 90.0} for value in (40.0, 85.0, 60.0)]
    )
    found = comparison.difference("FedFV", "worst_10")
    expected = difference_of([10.0, 55.0, 30.0])
    assert (found.low, found.high) == (expected.low, expected.high)
    assert found.high > 70.0
    tiny = compared_by_hand(
        FedAvg=base, FedFV=[{"a": 30.0 - x, "b": 90.0} for x in (0.03, 0.01, 0.02)]
    )
    assert "-0.0 " not in str(tiny.verdict)


def test_the_worst_tenth_of_few_is_called_the_worst_client(subtests: pytest.Subtests) -> None:
    for measure, clients, title in (
        ("worst_10", 10, "worst client"),
        ("worst_10", 11, "worst 10 %"),
        ("best_10", 4, "best client"),
        ("worst_20", 5, "worst client"),
        ("worst_20", 6, "worst 20 %"),
        ("worst", 100, "worst client"),
        ("mean", 4, "mean"),
        ("client:Long Beach", 4, "Long Beach"),
        ("group-gap:true-positive-rate", 4, "true positive rate gap"),
        ("group-gap:auc:porto", 4, "AUC gap, porto"),
    ):
        with subtests.test(measure=measure, clients=clients):
            assert measure_title(measure, clients) == title
