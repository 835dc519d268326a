"""The sentences of a verdict: both directions of a score, names, and no finding.

Differences over seeds: intervals, Holm's correction, shared data.

The numbers of comparison.csv and differences.csv, recomputed from the runs' clients.csv.
"""

import dataclasses
import math
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import stats

from fairbloom.errors import FairbloomError
from fairbloom.experiments import api
from fairbloom.experiments.arms import Named
from fairbloom.experiments.pages.comparison import brief_sections, method_table
from fairbloom.experiments.render.page import Note
from fairbloom.experiments.results.caveats import SharedData
from fairbloom.experiments.results.comparison import Comparison
from fairbloom.experiments.results.differences import difference_of, differences_of
from fairbloom.experiments.results.measures import find_measure
from fairbloom.experiments.results.verdict import MOST_WORDS, Verdict, verdict_of
from fairbloom.protocol.scores import ACCURACY, Score
from fairbloom.strategies import FedFV
from fairbloom.tables.schema import parse_schema
from fairbloom.tasks.measures import BALANCED_ACCURACY
from fairbloom.tasks.targets import Target
from tests.simulation.helpers import table

from ..helpers import compared_by_hand, compared_by_scores
from ..made_up import make_comparison

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
    worst, mean = (comparison.estimate("FedAvg", measure).value for measure in ("worst_10", "mean"))
    assert verdict.headline == (
        f"FedAvg serves Switzerland worst (in 20 of 20 seeds): its test accuracy is {worst:.1f} %;"
        f" the mean is {mean:.1f} %."
    )
    gain, of_mean = (comparison.difference("FedFV", measure) for measure in ("worst_10", "mean"))
    assert verdict.sentences[0].startswith(
        f"FedFV significantly improves the worst served by {gain.mean:.1f} points"
        f" ({gain.low:.1f} to {gain.high:.1f}), "
    )
    assert any(
        each.startswith(
            f"FedFV significantly worsens the mean by {-of_mean.mean:.1f} points"
            f" ({-of_mean.high:.1f} to {-of_mean.low:.1f})"
        )
        for each in verdict.sentences
    )
    assert "without a significant loss" not in str(verdict)
    assert words_of(verdict) <= MOST_WORDS
    assert {(each.method, each.measure): each.gain for each in verdict.claims} == {
        key: each.mean for key, each in comparison.claims.items() if each.significant
    }


@pytest.mark.parametrize(
    "comparison",
    [
        made(4, FedFV=(2.0, 0.0), noise=3.0),
        made(5, FedFV=(3.0, 1.0), TERM=(2.0, -1.0)),
    ],
)
def test_where_nothing_is_separated_no_estimate_is_said(comparison: Comparison) -> None:
    verdict = comparison.verdict
    assert (verdict.claims, verdict.improving) == ((), ())
    assert "differ" in verdict.sentences[0]
    assert not re.search(r"\d", verdict.sentences[0])


def test_every_claim_has_its_size_the_largest_first() -> None:
    """README's case: the method with the best mean gains less for the worst served."""
    gains = {"FedMGDAPlus": (17.0, 3.0), "QFedAvg": (24.0, -0.3), "FedFV": (9.0, 0.2)}
    comparison = made(20, noise=0.5, **gains)
    sizes = {name: comparison.difference(name, "worst_10") for name in gains}
    first = sizes["QFedAvg"]
    assert comparison.verdict.sentences[0] == (
        f"QFedAvg significantly improves the worst served by {first.mean:.1f} points"
        f" ({first.low:.1f} to {first.high:.1f}), FedMGDAPlus by"
        f" {sizes['FedMGDAPlus'].mean:.1f} and FedFV by {sizes['FedFV'].mean:.1f},"
        " all without a significant loss in the mean."
    )


def test_more_than_five_claims_end_with_a_bound() -> None:
    names = [f"M{k}" for k in range(8)]
    comparison = made(20, noise=0.1, **{name: (2.0 + k, 0.0) for k, name in enumerate(names)})
    least = comparison.difference("M0", "worst_10").mean
    assert f" and 3 more by at least {least:.1f}" in comparison.verdict.sentences[0]


@pytest.mark.parametrize(
    ("score", "reference", "said"),
    [
        (ACCURACY, {"Davos": 59.2}, "37.8 %, below always guessing its larger class (59.2 %);"),
        (ACCURACY, {"Davos": 37.7}, "37.8 %;"),
        (ACCURACY, {"Sion": 99.0}, "37.8 %;"),
        (BALANCED_ACCURACY, {"Davos": 50.0}, "37.8 %, below guessing (50.0 %);"),
        (MAE, {"Sion": 60.0}, "(lower is better), worse than predicting the mean (60.0);"),
        (MAE, {"Sion": 75.0}, "(lower is better);"),
    ],
)
def test_the_worst_client_below_its_reference_is_said_to_be(
    score: Score, reference: dict[str, float], said: str
) -> None:
    comparison = compared_by_hand(score, FedAvg=[{"Davos": 37.8, "Sion": 70.0}] * 10)
    vars(comparison)["references"] = reference
    assert said in comparison.verdict.headline


@pytest.mark.parametrize(
    ("by_client", "said"),
    [
        ({"a": [50.0, 60.0, 40.0], "b": [80.0, 55.0, 80.0]}, "a worst (in 2 of 3 seeds): 50.0 %"),
        ({"a": [50.0], "b": [80.0]}, "a worst: 50.0 %"),
        ({"a": [60.0, 50.0, 60.0], "b": [61.0, 70.0, 1.0]}, "b worst: 44.0 %"),
        # a client without a score in most seeds is no client of the comparison
        (
            {"a": [50.0, 50.0, 50.0], "b": [80.0] * 3, "c": [1.0]},
            "a worst (in 3 of 3 seeds): 50.0 %",
        ),
        ({"a": [1.0, 2.0], "b": [2.0, 1.0]}, ""),
        ({"aarhus": [58.0, 57.0, 57.0], "coimbra": [59.0, 58.0, 46.5]}, "coimbra worst: 54.5 %"),
    ],
)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_worst_client_has_the_worst_mean(
    by_client: dict[str, list[float]], said: str, sign: float
) -> None:
    """It is named with its own mean, and in how many seeds it is the worst if no other is so in
    more; of an error, the highest is the worst."""
    base = [
        {name: sign * each[seed] for name, each in by_client.items() if seed < len(each)}
        for seed in range(len(by_client["a" if "a" in by_client else "aarhus"]))
    ]
    score = ACCURACY if sign > 0.0 else dataclasses.replace(ACCURACY, higher_is_better=False)
    comparison = compared_by_hand(score, FedAvg=base)
    headline = comparison.verdict.headline.replace("its test accuracy is ", "").replace(": -", ": ")
    expected = (
        f"FedAvg serves {said}" if said else "Under FedAvg the worst-served client has a test"
    )
    assert headline.startswith(expected)
    vars(comparison)["shared"] = SharedData(clients_differ=True)
    assert verdict_of(comparison).headline.startswith("Under FedAvg the worst-served client has")


@pytest.mark.parametrize(("shift", "common"), [(0.0, ()), (0.5, ("Ditto",))])
def test_a_common_model_has_a_row_if_it_is_its_own(shift: float, common: tuple[str, ...]) -> None:
    """Ditto's is FedAvg's by construction; with a personal lambda, FedFV's is not."""
    base = [{"accuracy": values} for values in made(4).values["FedAvg"]]
    moved = [
        [{"accuracy": {name: value + by for name, value in of["accuracy"].items()}} for of in base]
        for by in (shift, 1.0)
    ]
    finals = {"Ditto": moved[0], "FedAvg": base, "Ditto (personal)": moved[1]}
    comparison = compared_by_scores(finals, ACCURACY, personal=("Ditto (personal)",))
    assert comparison.shown == ("FedAvg", *common, "Ditto (personal)")
    assert {method for method, _ in comparison.claims} == {*common, "Ditto (personal)"}


@pytest.mark.slow
@pytest.mark.parametrize("baseline", ["fedavg", "fedavg(personal-parameters=head)"])
def test_a_head_that_is_not_trained_has_no_row(baseline: str, tmp_path: Path) -> None:
    found = api.compare(
        "digits",
        methods="fedavg,fedavg(personal-parameters=head)",
        baseline=baseline,
        out=tmp_path,
        seeds=1,
        **{"model": "mlp", "rounds": 2, "clients": 3, "jobs": 1},
    )
    (own,) = {*found.methods} - {"FedAvg"}
    (run,) = found.runs["FedAvg (personal-parameters=head)"]
    assert found.values[own] == [run.final()] == [run.final(model="personal")]


INCOME = """
target = "income"
[fields.x]
type = "number"
[fields.income]
type = "number"
unit = "EUR"
center = 15000
scale = 1000
"""


def test_an_income_is_written_alike_in_sentences_and_tables() -> None:
    euros = next(iter(Target.of(parse_schema(INCOME)).scores()))
    base = [{"a": 19615.0 + k, "b": 14000.0 + 9 * k} for k in range(6)]
    less = [{"a": v["a"] - 1350.0 - k, "b": v["b"] - 360.0 + k} for k, v in enumerate(base)]
    comparison = compared_by_hand(euros, FedAvg=base, FedFV=less)
    mine, other = ([cell.text for cell in row] for row in method_table(comparison).rows)
    assert [*mine[1:5], other[-1]] == [
        *("16,800", "2800", "19,600", "14,000", "* +1350 (1350 to 1350)")
    ]
    assert "error, EUR, lower" in method_table(comparison).caption
    assert re.search(
        r"is 19,600 EUR \(lower is better\); the mean is 16,800 EUR\. .*improves the worst served by"
        r" 1350 EUR \(1350 to 1350\)",
        str(comparison.verdict),
    )


def test_a_tiny_claim_has_a_size_that_is_not_zero() -> None:
    error = [{"a": 6.0 + k, "b": 5.0 + k} for k in range(5)]
    less = [{"a": v["a"] - 0.01 - 0.001 * k, "b": v["b"]} for k, v in enumerate(error)]
    assert "Uniform significantly improves the worst served by 0.012 (" in str(
        compared_by_hand(MAE, FedAvg=error, Uniform=less).verdict
    )
    percent = [{name: value / 5.0 for name, value in values.items()} for values in error]
    more = [{**v, "b": v["b"] + 0.01 + 0.001 * k} for k, v in enumerate(percent)]
    assert "by 0.012 points (" in str(
        compared_by_hand(ACCURACY, FedAvg=percent, Uniform=more).verdict
    )


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
        claimed += any(found.significant for found in differences_of(gains, {}).values())
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


@pytest.mark.parametrize(
    ("comparison", "said"),
    [
        (made(1, FedFV=(8.0, -3.0)), "A single seed does not show"),
        (made(2, noise=0.1, FedFV=(8.0, -3.0)), "Two seeds do not show"),
        (made(3), "No other method was run"),
    ],
)
def test_one_or_two_seeds_or_one_method_claim_nothing(comparison: Comparison, said: str) -> None:
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
    assert comparison.verdict.headline.endswith(
        "1 of 4 clients is tested on fewer than 10 examples: one example moves the accuracy of such"
        " a client by 11 points or more."
    )
    assert str(comparison.verdict).count("fewer than 10 examples") == 1
    many = made(5, names=[f"speaker-{k}" for k in range(30)], FedFV=(8.0, 0.0)).verdict
    assert "client" not in " ".join(many.sentences)
    assert "the worst-served 10 % of clients have" in many.headline


def test_clients_that_no_measure_includes_are_named() -> None:
    comparison = made(5, FedFV=(8.0, 0.0))
    lacks = (comparison.finals["method"] == "FedFV") & (comparison.finals["seed"] == 2)
    for names in (HOSPITALS[1:2], HOSPITALS[1:]):
        values = comparison.finals["value"].mask(
            comparison.finals["client"].isin(names) & (lacks | (len(names) > 1))
        )
        left = dataclasses.replace(comparison, finals=comparison.finals.assign(value=values))
        said = f"Left out, without a test accuracy: {', '.join(sorted(names))}."
        assert said in left.verdict.headline
    assert "Only one client has a score" in str(left.verdict)
    assert "Left out" not in comparison.verdict.headline


def test_a_verdict_has_eighty_words_and_loses_none() -> None:
    names = [f"a method with a long name number {k}" for k in range(8)]
    comparison = made(
        8, **{name: (8.0, (-3.0, 0.0, 3.0, -9.0)[k % 4]) for k, name in enumerate(names)}
    )
    verdict = dataclasses.replace(comparison, failed={"AFL": "failed with 1 of 8 seeds"}).verdict
    assert words_of(verdict) <= MOST_WORDS
    assert any("AFL failed with 1 of 8 seeds" in each for each in verdict.further)
    assert brief_sections(comparison)[1].blocks == [Note(comparison.verdict.further)]


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
    assert comparison.verdict.claims[0].method == "Ditto (lam=1, personal)"


def test_an_interval_is_that_of_the_test() -> None:
    """It is not cut where a percentage ends, and what rounds to zero has no minus."""
    base = [{"a": 30.0, "b": 90.0}] * 3
    found = compared_by_hand(
        FedAvg=base, FedFV=[{"a": value, "b": 90.0} for value in (40.0, 85.0, 60.0)]
    ).difference("FedFV", "worst_10")
    expected = difference_of([10.0, 55.0, 30.0])
    assert (found.low, found.high) == (expected.low, expected.high)
    assert found.high > 70.0
    assert "-0.0 " not in str(
        compared_by_hand(
            FedAvg=base, FedFV=[{"a": 30.0 - x, "b": 90.0} for x in (0.03, 0.01, 0.02)]
        ).verdict
    )


@pytest.mark.parametrize(
    ("measure", "clients", "title"),
    [
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
    ],
)
def test_the_worst_tenth_of_few_is_called_the_worst_client(
    measure: str, clients: int, title: str
) -> None:
    assert find_measure(measure).title(clients) == title


FIVE = (8.0, 7.0, 9.0, 12.0, 3.0)


def test_a_difference_is_that_of_the_paired_t_test() -> None:
    found = difference_of(FIVE)
    by_scipy = stats.ttest_1samp(FIVE, 0.0)
    interval = by_scipy.confidence_interval(0.95)
    assert found.mean == pytest.approx(7.8)
    assert found.error == pytest.approx(stats.sem(FIVE))
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.p_value == pytest.approx(by_scipy.pvalue)
    assert (found.better, found.worse, found.seeds, found.significant) == (5, 0, 5, True)


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ([4.0], math.nan),
        ([0.0] * 3, 0.0),
        ([6.25, 6.25 + 6.25e-15, 6.25], 0.0),
        ([-1 / 3, -1 / 3 - 1e-15 / 3, -1 / 3], 0.0),
    ],
)
def test_one_seed_or_differences_that_do_not_vary_claim_nothing(
    values: list[float], error: float
) -> None:
    found = difference_of(values)
    assert (found.mean, found.seeds) == (pytest.approx(values[0]), len(values))
    assert (found.better, found.worse) == tuple(
        sum(sign * each > 0.0 for each in values) for sign in (1, -1)
    )
    assert [found.error, found.low, found.high] == pytest.approx(
        [error, math.nan, math.nan], nan_ok=True
    )
    assert (found.p_value, found.significant) == (1.0, False)


@given(st.lists(st.floats(-100.0, 100.0), min_size=2, max_size=20), st.floats(0.0, 2.0))
def test_a_difference_is_as_sure_as_its_mirror_image(
    differences: Sequence[float], test_share: float
) -> None:
    found = difference_of(differences, test_share=test_share)
    mirrored = difference_of([-each for each in differences], test_share=test_share)
    assert found.p_value == pytest.approx(mirrored.p_value)
    assert (found.better, found.worse) == (mirrored.worse, mirrored.better)
    assert found.significant == (
        found.low > 0.0 or found.high < 0.0
    ) or found.p_value == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("differences", "test_share"), [([], 0.0), ([1.0, math.nan], 0.0), ([1.0, 2.0], -0.5)]
)
def test_what_is_no_difference_is_refused(differences: list[float], test_share: float) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (its type is the promise)
        difference_of(differences, test_share=test_share)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("fedfv", "FedFV (alpha=0.2)"),
        ("FedFV (alpha=0.2)", "FedFV (alpha=0.2)"),
        ("fedfv(alpha=0.2)", "FedFV (alpha=0.2)"),
        (FedFV, "FedFV (alpha=0.2)"),
        ("fairbloom.strategies.afl:AFL", "AFL"),
        ("ditto (personal)", "Ditto (personal)"),
        ("qfedavg(q=5)", "QFedAvg (q=5)"),
        ("qfedavg", None),  # there are two
        ("fedfv(alpha=0.1)", None),
        ("nothing", None),
    ],
)
def test_a_method_is_found_as_compare_takes_it(name: Named, label: str | None) -> None:
    labels = ("FedFV (alpha=0.2)", "AFL", "Ditto", "Ditto (personal)", "QFedAvg (q=1)")
    labels = (*labels, "QFedAvg (q=5)")
    moved = {each: [{"a": 10.0 + k + s} for s in range(3)] for k, each in enumerate(labels, 1)}
    comparison = compared_by_hand(FedAvg=[{"a": 10.0}] * 3, **moved)
    if label is None:
        with pytest.raises(FairbloomError, match=r"are FedFV \(alpha=0.2\), AFL, Ditto"):
            comparison.difference(name, "mean")
    else:
        assert comparison.difference(name, "mean") == comparison.difference(label, "mean")


METHODS = {"FedAvg": "fedavg", "FedFV": "fedfv", "TERM": "term"}
SEEDS = range(4)
CLIENTS = [f"client-{k}" for k in range(23)]
ROUNDS = 3
# test by training examples: the seeds split the rows of the same clients' files, a fifth for the
# test
SHARE = 0.25

# Measures of the scores of clients, the worst served first.
RECOMPUTED = {
    "mean": lambda x: x.mean(),
    "std": lambda x: x.std(),
    "var": lambda x: x.var(),
    "worst": lambda x: x[0],
    "best": lambda x: x[-1],
    "worst_5": lambda x: x[:2].mean(),  # two of 23 clients
    "worst_10": lambda x: x[:3].mean(),
    "worst_20": lambda x: x[:5].mean(),
    "worst_30": lambda x: x[:7].mean(),
    "best_5": lambda x: x[-2:].mean(),
    "best_10": lambda x: x[-3:].mean(),
    "best_20": lambda x: x[-5:].mean(),
    "best_30": lambda x: x[-7:].mean(),
    "gap": lambda x: abs(x[-1] - x[0]),
    "jain": lambda x: x.sum() ** 2 / (len(x) * (x**2).sum()),
    "gini": lambda x: np.abs(x[:, None] - x).sum() / (2 * len(x) ** 2 * x.mean()),
    "entropy": lambda x: stats.entropy(x),
    "cosine": lambda x: x.sum() / math.sqrt(len(x) * (x**2).sum()),
}


@pytest.mark.parametrize(
    "score", [ACCURACY, Score("mae", higher_is_better=False)], ids=lambda score: score.name
)
def test_numbers_of_a_comparison_are_those_of_its_runs(score: Score, tmp_path: Path) -> None:
    make_comparison(
        tmp_path, list(METHODS.values()), SEEDS, CLIENTS, ROUNDS, score=score, dealt=False
    )
    found = api.load(tmp_path)
    sign = 1.0 if score.higher_is_better else -1.0
    served = {}
    for method, name in METHODS.items():
        for seed in SEEDS:
            (folder,) = (tmp_path / "runs").glob(f"{name}*seed{seed}")
            rows = [row for row in table(folder / "clients.csv") if row["round"] == str(ROUNDS)]
            served[method, seed] = {row["client"]: float(row[score.column()]) for row in rows}

    def measured(method: str, seed: int, measure: str) -> float:
        if measure.startswith("client:"):
            return served[method, seed][measure.removeprefix("client:")]
        return float(
            RECOMPUTED[measure](sign * np.sort(sign * np.array([*served[method, seed].values()])))
        )

    assert [
        row
        for row in found.rows()
        if {key: row[key] for key in RECOMPUTED}
        != pytest.approx({key: measured(row["method"], row["seed"], key) for key in RECOMPUTED})
    ] == []

    good_low = {"std", "var", "gap", "gini"}
    good_high = {"jain", "entropy", "cosine"}
    rows = found.difference_rows()
    against = [row for row in rows if row["measure"].startswith(("suffering", "well_performing"))]
    assert len(against) == 4 * (len(METHODS) - 1)  # computed again in test_papers_measures
    rows = [row for row in rows if row not in against]
    assert {row["measure"] for row in rows} == {
        *RECOMPUTED,
        *(f"client:{client}" for client in CLIENTS),
    }
    raw = {}
    for row in rows:
        method = row["method"]
        measure = row["measure"]
        x = (-1.0 if measure in good_low else 1.0 if measure in good_high else sign) * np.array(
            [measured(method, s, measure) - measured("FedAvg", s, measure) for s in SEEDS]
        )
        error = x.std(ddof=1) * math.sqrt(1 / len(x) + SHARE)
        reach = stats.t.ppf(0.975, len(x) - 1) * error
        expected = [
            fmean(x),
            error,
            x.mean() - reach,
            x.mean() + reach,
            (x > 0).sum(),
            (x < 0).sum(),
            len(x),
        ]
        names = ("mean", "error", "low", "high", "better", "worse", "seeds")
        assert [row[name] for name in names] == pytest.approx(expected), (method, measure)
        if measure in ("worst_10", "mean"):
            raw[method, measure] = 2 * stats.t.sf(abs(x.mean()) / error, len(x) - 1)
        else:
            assert row["p_value"] is None
    # by Holm: the smallest of four counts four times, the next three times, and none is smaller
    largest = 0.0
    for place, (key, p) in enumerate(sorted(raw.items(), key=lambda item: item[1])):
        largest = max(largest, min(1.0, (len(raw) - place) * p))
        (row,) = (row for row in rows if (row["method"], row["measure"]) == key)
        assert row["p_value"] == pytest.approx(largest)
