"""What data sets say of a method, and the rule: closed forms, and the page's rule by brute force."""

import csv
from collections import Counter
from itertools import combinations, pairwise, product
from math import sqrt
from pathlib import Path
from statistics import mean

import numpy as np
import pytest
from scipy import stats

from docs.held_out import HeldOut
from docs.outcomes import hodges_lehmann, outcomes, power, signed_rank_probabilities
from docs.rule import LABELS, PROPERTIES, Rule, label_of, learn, leave_one_out, mcnemar, wilson

from .pages import ROOT

# The columns of federations.csv without numbers.
TEXTS = ("workload", "data", "model", "score")

TUNED = ROOT / "docs" / "data" / "tuned" / "federations.csv"
TABLE = ROOT / "docs" / "data" / "which-method" / "rule.csv"

# Federations that differ in one property.
STEPS = [{**dict.fromkeys(PROPERTIES, 1.0), "clients": float(k)} for k in range(9)]


@pytest.mark.parametrize("n", [3, 6, 9])
def test_signed_rank_sums_have_scipys_probabilities(n: int) -> None:
    cumulative = np.cumsum(signed_rank_probabilities(n))
    for negative in range(n + 1):  # the smallest ranks are negative
        x = np.arange(1.0, n + 1)
        x[:negative] *= -1.0
        assert cumulative[int(x[x > 0].sum())] == pytest.approx(
            stats.wilcoxon(x, alternative="less", method="exact").pvalue
        )


@pytest.mark.parametrize("n", [5, 12, 20])
def test_an_interval_holds_the_shifts_that_are_not_rejected(n: int) -> None:
    x = np.random.default_rng(n).normal(0.5, 1.0, n)
    estimate, low, high = hodges_lehmann(x)
    assert low < estimate < high
    for shift, side in ((low, "greater"), (high, "less")):
        inside, outside = (
            stats.wilcoxon(x - shift + step, alternative=side, method="exact").pvalue
            for step in ((-1e-9, 1e-9) if side == "greater" else (1e-9, -1e-9))
        )
        assert outside <= 0.05 < inside or inside <= 0.05 < outside


def test_too_few_data_sets_have_no_interval() -> None:
    assert hodges_lehmann([1.0, 2.0, 3.0, 4.0])[1:] == (-np.inf, np.inf)


@pytest.mark.parametrize(
    ("gains", "words"),
    [
        ([0.0] * 20, "equivalent"),
        ([0.02 * k for k in range(-10, 10)], "equivalent"),
        ([0.01 * k for k in range(1, 21)], "better, by less than the bound"),
        ([-5.0 - k for k in range(20)], "worse"),
        ([-4.0, 4.0] * 10, "equivalent"),  # of the middle, not of each data set
        ([-9.0, -2.0, 3.0, 7.0] * 2, "neither"),
    ],
)
def test_a_method_differs_is_equivalent_or_neither(gains: list[float], words: str) -> None:
    (found,) = outcomes({"term": gains}).values()
    assert found.words == words


def test_more_methods_make_each_p_value_larger() -> None:
    x = [0.1 * k for k in range(1, 11)]
    alone = outcomes({"a": x})["a"]
    among = outcomes({"a": x, "b": [-4.0, 4.0] * 5})["a"]
    assert (among.differs, among.equivalent) == (2 * alone.differs, 2 * alone.equivalent)


def test_power_is_that_of_the_data_sets_drawn() -> None:
    found = power({"same": [0.0] * 5, "better": [5.0, 6.0, 7.0, 8.0, 9.0]}, 20, draws=20)
    assert found == {"same": (0.0, 1.0), "better": (1.0, 0.0)}


# The rule -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fair", "local", "label"),
    [(1.0, 0.5, "fedavg"), (1.1, 0.5, "fair"), (2.0, 2.1, "local"), (-3.0, -1.0, "fedavg")],
)
def test_a_gain_up_to_the_bound_is_none(fair: float, local: float, label: str) -> None:
    assert label_of({"fedavg": 0.0, "fair": fair, "local": local}) == label


def test_a_value_at_a_threshold_belongs_below_it() -> None:
    rule = Rule("clients", (2.0, 5.0), LABELS)
    assert [rule.label(each) for each in STEPS[1:7]] == [*LABELS[:1] * 2, *LABELS[1:2] * 3, "local"]
    assert str(rule) == "clients: fedavg up to 2, fair up to 5, local above"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_property_that_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=f"clients = {value}"):
        learn([*STEPS, {**STEPS[0], "clients": value}], [*LABELS[:1]] * 10)
    with pytest.raises(ValueError, match=f"clients = {value}"):
        Rule("clients", (2.0,), LABELS[:2]).label({"clients": value})


@pytest.mark.parametrize("cuts", [(), (3,), (3, 6)])
def test_a_planted_rule_is_found_with_as_few_thresholds(cuts: tuple[int, ...]) -> None:
    known = [LABELS[sum(k >= cut for cut in cuts)] for k in range(9)]
    rule = learn(STEPS, known)
    assert rule.thresholds == tuple(cut - 0.5 for cut in cuts)
    assert rule.hits(STEPS, known) == 9
    if not cuts:
        assert (str(rule), leave_one_out(STEPS, known)) == ("always fedavg", known)


def test_mcnemar_and_wilson_are_their_closed_forms() -> None:
    assert mcnemar([True] * 6 + [False], [False] * 7) == 2 / 2**6
    assert mcnemar([True, False], [True, False]) == 1.0
    z = float(stats.norm.ppf(0.975))
    middle = (0.6 + z * z / 40) / (1 + z * z / 20)
    reach = z * sqrt(0.6 * 0.4 / 20 + z * z / 1600) / (1 + z * z / 20)
    assert wilson(12, 20) == pytest.approx((middle - reach, middle + reach))


def test_the_pages_rule_is_that_of_brute_force() -> None:
    """Every property, pair of thresholds and choice of labels, on the data's own properties."""
    about = {f"`{row['workload']}`": properties_of(row) for row in read(TUNED)}
    rows = read(TABLE)
    for row in rows:
        gains = {"fedavg": 0.0, "fair": float(row["fair method"]), "local": float(row["Local"])}
        best = max(gains, key=lambda label: gains[label])
        assert row["label"] == (best if gains[best] > 1.0 else "fedavg")
        assert row["rule says"] == brute_force(
            [(about[each[""]], each["label"]) for each in rows if each is not row], about[row[""]]
        )


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return [*csv.DictReader(file)]


def properties_of(row: dict[str, str]) -> dict[str, float]:
    """Return the properties in the order of PROPERTIES."""
    number = {key: float(value) for key, value in row.items() if key not in TEXTS}
    error = number["validation"] if row["score"] == "mae" else 100.0 - number["validation"]
    values = (
        *(number["cosine"], number["spread"] / error, number["largest"] / number["smallest"]),
        *(number["clients"], number["smallest"]),
    )
    return dict(zip(PROPERTIES, values, strict=True))


def brute_force(others: list[tuple[dict[str, float], str]], asked: dict[str, float]) -> str:
    """Return the label of the first rule with most hits and fewest thresholds."""
    found: dict[tuple[int, int], str] = {}
    for name in PROPERTIES:
        middles = [(a + b) / 2 for a, b in pairwise(sorted({each[name] for each, _ in others}))]
        for count in range(3):
            for cuts in combinations(middles, count):
                inside = Counter((sum(p[name] > cut for cut in cuts), x) for p, x in others)
                place = sum(asked[name] > cut for cut in cuts)
                for labels in product(LABELS, repeat=count + 1):
                    hits = sum(inside[each] for each in enumerate(labels))
                    found.setdefault((-hits, count), labels[place])
    return found[min(found)]


# Clients that were not there ----------------------------------------------------------------------


def test_gains_of_clients_not_in_training_are_by_hand() -> None:
    rows = [
        {"workload": w, "method": m, "worst_10": str(a), "held_out_worst_10": str(b)}
        for w, m, a, b in [
            *[("radon", "fedavg", 1.0, 2.0), ("radon", "fedavg", 3.0, 2.0)],
            *[("radon", "term", 1.9, 2.2), ("radon", "fedfv", 2.1, 1.8), ("radon", "ditto", 0, 0)],
            *[("use", "fedavg", 50.0, 40.0), ("use", "term", 52.0, 41.0), ("use", "fedfv", 54, 39)],
            *[("use", "afl", 99.0, 99.0)],  # it did not run on all
        ]
    ]
    found = HeldOut(rows, {"term", "fedfv", "afl"}, {"radon"})
    for mine, expected in zip(
        found.gains.values(), [[mean([2.5, -2.5]), 3.0], [mean([-5.0, 5.0]), 0.0]], strict=True
    ):
        assert mine == pytest.approx(expected)
    assert found.table[2] == ["`use`", "50.0 %", "+3.00", "40.0 %", "+0.00"]
    (sentence,) = found.sentences
    assert "on 2 federations" in sentence
    assert HeldOut([], {"term"}, {""}).sentences == []
