"""Wishes: what the grammar takes and refuses, and what a wish means for scores that are better high or low."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbloom.errors import FairbloomError
from fairbloom.experiments.results.groups import Group, GroupReport
from fairbloom.experiments.studies.wish import GRAMMAR, LEVELS, SPREADS, Measure, Served, Wish
from fairbloom.protocol.scores import ACCURACY, GroupScore, Score
from fairbloom.server.run_folder.groups import Grouped

MAE = Score("mae", higher_is_better=False)
VALUES = Served({"a": 10.0, "b": 30.0, "c": 20.0})

names = st.text("abcxyzÄé-_. 0123456789", min_size=1).map(str.strip).filter(lambda name: name and "  " not in name)
scores = st.sampled_from(["accuracy", "selection-rate", "mae"])
gaps = scores.map(lambda score: f"gap:{score}") | st.tuples(scores, names).map(lambda each: "gap:{}:{}".format(*each))
measures = st.sampled_from([*LEVELS, *SPREADS]) | names.map(lambda name: f"client {name}") | gaps
methods = st.sampled_from(
    ["FedAvg", "fedavg(weighting=uniform)", "qfedavg(q=1, lipschitz=10)", "Local", "Ditto (lam=0.1)"]
)
points = st.floats(0.0, 1e6).map(lambda number: f"{number:.3f}")
constraints = st.tuples(measures, points, st.sampled_from(["point", "points"]), methods)


@given(measure=measures, direction=st.sampled_from(["high", "low"]), costs=st.lists(constraints, max_size=3))
def test_every_sentence_of_the_grammar_is_a_wish(
    measure: str, direction: str, costs: list[tuple[str, str, str, str]]
) -> None:
    clauses = [f"{of} within {number} {word} of {method}" for of, number, word, method in costs]
    wish = Wish.of(", ".join([f"{measure} as {direction} as possible", *clauses]))
    assert (wish.measure.title, wish.high) == (measure, direction == "high")
    assert [(each.measure.title, each.points) for each in wish.constraints] == [(c[0], float(c[1])) for c in costs]
    titles = [each.method.label.replace(" ", "").casefold() for each in wish.constraints]
    assert titles == [method.replace(" ", "").casefold() for *_, method in costs]


@given(measure=measures, bounded=st.sampled_from(SPREADS) | gaps, number=points)
def test_a_difference_may_be_bounded_itself(measure: str, bounded: str, number: str) -> None:
    wish = Wish.of(f"{measure} as high as possible, {bounded} at most {number} points")
    (constraint,) = wish.constraints
    assert (constraint.measure.title, constraint.points, constraint.method) == (bounded, float(number), None)


def test_no_hospital_may_lose_more_than_some_points() -> None:
    wish = Wish.of("mean as high as possible, no hospital loses more than 2 points")
    (constraint,) = wish.constraints
    assert (constraint.points, constraint.method) == (2.0, None)
    base = [Served({"a": 50.0, "b": 60.0}), Served({"a": 52.0})]
    mine = [Served({"a": 49.0, "b": 63.0}), Served({"a": 48.0})]
    assert constraint.excess(mine, base, ACCURACY) == pytest.approx(2.5 - 2.0)  # a loses 1 and 4
    assert constraint.excess(base, base, ACCURACY) == -2.0
    assert constraint.excess(mine, base, MAE) == pytest.approx(3.0 - 2.0)  # b's error is 3 larger


def test_that_no_client_loses_is_a_wish_by_itself() -> None:
    wish = Wish.of("no client loses more than 0.5 points against qfedavg(q=1)")
    assert (wish.measure, wish.high) == (Measure("worst"), None)
    assert wish.constraints[0].method is not None
    for score in (ACCURACY, MAE):
        wish.check(score)


@pytest.mark.parametrize(
    "text",
    [
        "no hospital loses",
        "no hospital loses more than two points",
        "mean as high as possible, no hospital loses more than 2",
        "mean as high as possible, mean at most 3 points",
        "mean as high as possible, client a at most 3 points",
        "mean as high as possible, gap:accuracy at most x points",
        "mean as high as possible, gap:accuracy at least 3 points",
        "gap: as low as possible",
        "gap:accuracy: as low as possible",
        "gap:true positive rate as low as possible",
        "",
        ",",
        "worst",
        "be fair",
        "worst as good as possible",
        "worst as high",
        "worst_10 as high as possible",
        "worst-20 as high as possible",
        "client as high as possible",
        "mean within 1 point of FedAvg",
        "worst as high as possible; mean within 1 point of FedAvg",
        "worst as high as possible, mean within -1 points of FedAvg",
        "worst as high as possible, mean within 1,5 points of FedAvg",
        "worst as high as possible, mean within nan points of FedAvg",
        "worst as high as possible, mean within 1 % of FedAvg",
        "worst as high as possible, mean within a point of FedAvg",
        "worst as high as possible, median within 1 point of FedAvg",
        "worst as high as possible, mean as high as possible",
        "worst as high as possible, mean within 1 point of",
        "worst as high as possible, mean within 1 point of qfedavg(q=1",
    ],
)
def test_anything_else_is_refused_with_the_grammar(text: str) -> None:
    with pytest.raises(FairbloomError) as refused:
        Wish.of(text)
    assert repr(text) in str(refused.value)
    assert GRAMMAR in str(refused.value)


@given(st.text(max_size=60))
def test_any_text_is_a_wish_or_refused_in_words(text: str) -> None:
    try:
        wish = Wish.of(text)
    except FairbloomError:
        return
    assert re.search(r"as\s+(high|low)\s+as\s+possible", text, re.IGNORECASE)
    assert wish.text == text


def test_a_method_that_there_is_not_is_named() -> None:
    with pytest.raises(FairbloomError, match=r"fedavgg.*did you mean fedavg"):
        Wish.of("worst as high as possible, mean within 1 point of fedavgg")


def test_a_name_in_quotation_marks_may_have_commas_and_words_of_the_grammar() -> None:
    wish = Wish.of('client "North, as low as possible" as high as possible')
    assert wish.clients == ("North, as low as possible",)


@pytest.mark.parametrize("measure", [*LEVELS, "client a"])
def test_a_wish_for_worse_service_is_refused_and_its_remedy_is_not(measure: str) -> None:
    for score, sensible, senseless in ((ACCURACY, "high", "low"), (MAE, "low", "high")):
        Wish.of(f"{measure} as {sensible} as possible").check(score)
        with pytest.raises(FairbloomError, match=score.name) as refused:
            Wish.of(f"{measure} as {senseless} as possible").check(score)
        remedy = str(refused.value).rpartition("write ")[2]
        Wish.of(remedy).check(score)


@pytest.mark.parametrize("measure", [*SPREADS, "gap:accuracy", "gap:mae:a"])
@pytest.mark.parametrize("score", [ACCURACY, MAE])
def test_differences_between_clients_are_wished_low_whatever_the_score(measure: str, score: Score) -> None:
    Wish.of(f"{measure} as low as possible").check(score)
    with pytest.raises(FairbloomError, match=f"{measure} as low as possible"):
        Wish.of(f"{measure} as high as possible").check(score)


def test_measures_are_those_of_the_tables_and_the_worst_client_is_the_worst_served() -> None:
    assert Measure("worst").of(VALUES, ACCURACY) == 10.0
    assert Measure("worst").of(VALUES, MAE) == 30.0
    assert Measure("worst-10").of(VALUES, MAE) == 30.0
    assert Measure("mean").of(VALUES, ACCURACY) == 20.0
    assert Measure("gap").of(VALUES, ACCURACY) == 20.0
    assert Measure("client", "c").of(VALUES, ACCURACY) == 20.0
    with pytest.raises(FairbloomError, match="client d"):
        Measure("client", "d").of(VALUES, ACCURACY)


def women_and_men(client: str, women: float, men: float, count: int) -> list[Group]:
    both = (("F", women, count), ("M", men, 10))
    return [Group(client, "sex", sex, of, {"accuracy": of}, {"accuracy": value}) for sex, value, of in both]


def test_a_gap_is_that_of_the_groups_over_all_clients_or_inside_one() -> None:
    """Of a's 30 women 40 % are right and of b's 10 women 80 %, which is 50 % of all of them; of the men 60 %."""
    groups = (*women_and_men("a", 40.0, 60.0, 30), *women_and_men("b", 80.0, 60.0, 10))
    accuracy = GroupScore("accuracy", percent=True)
    served = Served(VALUES.scores, GroupReport(Grouped({"sex": ("F", "M")}, (accuracy,)), groups, {}))
    assert Wish.of("gap:accuracy as low as possible").measure.of(served, MAE) == pytest.approx(10.0)
    assert Wish.of("gap:accuracy:a as low as possible").measure.of(served, MAE) == pytest.approx(20.0)
    assert Wish.of("GAP:Accuracy:'b' as low as possible").measure.of(served, MAE) == pytest.approx(20.0)
    for wrong in ("gap:accuracy:c", "gap:mae"):
        with pytest.raises(FairbloomError, match=f"about {wrong}, and .* of fewer than two groups"):
            Wish.of(f"{wrong} as low as possible").measure.of(served, MAE)
    with pytest.raises(FairbloomError, match="of fewer than two groups"):
        Wish.of("gap:accuracy as low as possible").measure.of(VALUES, MAE)


def test_gaps_between_groups_need_groups_and_a_score_of_theirs() -> None:
    there = (GroupScore("accuracy", percent=True), GroupScore("selection-rate", percent=True))
    for text in ("gap:selection-rate:a as low as possible", "mean as high as possible, gap:accuracy at most 3 points"):
        Wish.of(text).check_groups(there)
        with pytest.raises(FairbloomError, match=r"is about gap:.*, and the task has no groups .* by csv\.group, "):
            Wish.of(text).check_groups(())
    with pytest.raises(FairbloomError, match=r"selektion-rate: did you mean selection-rate.*one of accuracy, "):
        Wish.of("gap:selektion-rate as low as possible").check_groups(there)
    Wish.of("gap as low as possible").check_groups(())


def test_a_wish_knows_what_its_measure_is_in() -> None:
    rate = GroupScore("selection-rate", percent=True)
    assert Wish.of("gap:selection-rate:a as low as possible").measured_in(MAE, (rate,)) == rate
    assert Wish.of("mean as high as possible, gap:selection-rate at most 3 points").measured_in(MAE, (rate,)) == MAE


def test_better_is_up_for_accuracies_and_down_for_errors_and_differences() -> None:
    assert Measure("mean").better(3.0, 1.0, ACCURACY) == 2.0
    assert Measure("mean").better(3.0, 1.0, MAE) == -2.0
    assert Measure("gap").better(3.0, 1.0, ACCURACY) == Measure("gap").better(3.0, 1.0, MAE) == -2.0
