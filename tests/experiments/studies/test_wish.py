"""Wishes: what the grammar takes and refuses, and what a wish means for scores that are better high or low."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbloom.errors import FairbloomError
from fairbloom.experiments.studies.wish import GRAMMAR, LEVELS, SPREADS, Measure, Wish
from fairbloom.protocol.scores import ACCURACY, Score

MAE = Score("mae", higher_is_better=False)
VALUES = {"a": 10.0, "b": 30.0, "c": 20.0}

names = st.text("abcxyzÄé-_. 0123456789", min_size=1).map(str.strip).filter(lambda name: name and "  " not in name)
measures = st.sampled_from([*LEVELS, *SPREADS]) | names.map(lambda name: f"client {name}")
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


@pytest.mark.parametrize(
    "text",
    [
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


@pytest.mark.parametrize("measure", SPREADS)
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


def test_better_is_up_for_accuracies_and_down_for_errors_and_differences() -> None:
    assert Measure("mean").better(3.0, 1.0, ACCURACY) == 2.0
    assert Measure("mean").better(3.0, 1.0, MAE) == -2.0
    assert Measure("gap").better(3.0, 1.0, ACCURACY) == Measure("gap").better(3.0, 1.0, MAE) == -2.0
