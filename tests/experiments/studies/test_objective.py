"""Objectives: what the grammar takes and refuses, and which candidate is best by validation scores."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbloom.errors import FairbloomError
from fairbloom.experiments.results.groups import Group, GroupReport
from fairbloom.experiments.results.run import Run
from fairbloom.experiments.studies.objective import (
    GRAMMAR,
    LEVELS,
    SPREADS,
    ClientScores,
    Measure,
    Objective,
    Rating,
    choose,
    judge,
    serve,
)
from fairbloom.protocol.scores import ACCURACY, GroupScore, Score
from fairbloom.protocol.settings import SettingsError
from fairbloom.server.run_folder.groups import Grouped

MAE = Score("mae", higher_is_better=False)
IN_GROUPS = [GroupScore("accuracy", percent=True), GroupScore("mae", percent=True)]
VALUES = ClientScores({"a": 10.0, "b": 30.0, "c": 20.0})

names = st.text("abcxyzÄé-_. 0123456789", min_size=1).map(str.strip).filter(lambda name: name and "  " not in name)
scores = st.sampled_from(["accuracy", "selection-rate", "mae"])
gaps = scores.map(lambda score: f"group-gap:{score}") | st.tuples(scores, names).map(
    lambda each: "group-gap:{}:{}".format(*each)
)
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
    wish = Objective.of(", ".join([f"{measure} as {direction} as possible", *clauses]))
    assert (wish.goal.title, wish.high) == (measure, direction == "high")
    assert [(each.measure and each.measure.title, each.points) for each in wish.constraints] == [
        (c[0], float(c[1])) for c in costs
    ]
    titles = [each.method.label.replace(" ", "").casefold() for each in wish.constraints]
    assert titles == [method.replace(" ", "").casefold() for *_, method in costs]


@given(measure=measures, bounded=st.sampled_from(SPREADS) | gaps, number=points)
def test_a_difference_may_be_bounded_itself(measure: str, bounded: str, number: str) -> None:
    wish = Objective.of(f"{measure} as high as possible, {bounded} at most {number} points")
    (constraint,) = wish.constraints
    assert constraint.measure is not None
    assert (constraint.measure.title, constraint.points, constraint.method) == (bounded, float(number), None)


def test_no_hospital_may_lose_more_than_some_points() -> None:
    wish = Objective.of("mean as high as possible, no hospital loses more than 2 points")
    (constraint,) = wish.constraints
    assert (constraint.points, constraint.method) == (2.0, None)
    base = [ClientScores({"a": 50.0, "b": 60.0}), ClientScores({"a": 52.0})]
    mine = [ClientScores({"a": 49.0, "b": 63.0}), ClientScores({"a": 48.0})]
    assert constraint.excess(mine, base, ACCURACY) == pytest.approx(2.5 - 2.0)  # a loses 1 and 4
    assert constraint.excess(base, base, ACCURACY) == -2.0
    assert constraint.excess(mine, base, MAE) == pytest.approx(3.0 - 2.0)  # b's error is 3 larger


def test_that_no_client_loses_is_a_wish_by_itself() -> None:
    wish = Objective.of("no client loses more than 0.5 points against qfedavg(q=1)")
    assert (wish.goal.first, wish.high) == (Measure("worst"), None)
    assert wish.constraints[0].method is not None
    for score in (ACCURACY, MAE):
        wish.check(score, (), ())


@pytest.mark.parametrize(
    "text",
    [
        "no hospital loses",
        "no hospital loses more than two points",
        "mean as high as possible, no hospital loses more than 2",
        "mean as high as possible, mean at most 3 points",
        "mean as high as possible, client a at most 3 points",
        "mean as high as possible, group-gap:accuracy at most x points",
        "mean as high as possible, group-gap:accuracy at least 3 points",
        "group-gap: as low as possible",
        "group-gap:accuracy: as low as possible",
        "group-gap:true positive rate as low as possible",
        "",
        ",",
        "be fair",
        "worst as good as possible",
        "worst as high",
        "worst-15 as high as possible",
        "worst+gap",
        "median",
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
        Objective.of(text)
    assert repr(text) in str(refused.value)
    assert GRAMMAR in str(refused.value)


@given(st.text(max_size=60))
def test_any_text_is_a_wish_or_refused_in_words(text: str) -> None:
    try:
        wish = Objective.of(text)
    except FairbloomError:
        return
    assert wish.text == text


def test_a_method_that_there_is_not_is_named() -> None:
    with pytest.raises(FairbloomError, match=r"fedavgg.*did you mean FedAvg"):
        Objective.of("worst as high as possible, mean within 1 point of fedavgg")


def test_a_name_in_quotation_marks_may_have_commas_and_words_of_the_grammar() -> None:
    wish = Objective.of('client "North, as low as possible" as high as possible')
    assert wish.goal.first == Measure("client", "North, as low as possible")


@pytest.mark.parametrize("measure", [*LEVELS, "client a"])
def test_a_wish_for_worse_service_is_refused_and_its_remedy_is_not(measure: str) -> None:
    for score, sensible, senseless in ((ACCURACY, "high", "low"), (MAE, "low", "high")):
        Objective.of(f"{measure} as {sensible} as possible").check(score, "abc", IN_GROUPS)
        with pytest.raises(FairbloomError, match=score.name) as refused:
            Objective.of(f"{measure} as {senseless} as possible").check(score, "abc", IN_GROUPS)
        remedy = str(refused.value).rpartition("write ")[2]
        Objective.of(remedy).check(score, "a", ())


@pytest.mark.parametrize("measure", [*SPREADS, "group-gap:accuracy", "group-gap:mae:a"])
@pytest.mark.parametrize("score", [ACCURACY, MAE])
def test_differences_between_clients_are_wished_low_whatever_the_score(measure: str, score: Score) -> None:
    Objective.of(f"{measure} as low as possible").check(score, "abc", IN_GROUPS)
    with pytest.raises(FairbloomError, match=f"{measure} as low as possible"):
        Objective.of(f"{measure} as high as possible").check(score, "abc", IN_GROUPS)


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
    served = ClientScores(VALUES.scores, GroupReport(Grouped({"sex": ("F", "M")}, (accuracy,)), groups, {}))
    assert Objective.of("group-gap:accuracy as low as possible").goal.of(served, MAE) == pytest.approx(10.0)
    assert Objective.of("group-gap:accuracy:a as low as possible").goal.of(served, MAE) == pytest.approx(20.0)
    assert Objective.of("GROUP-GAP:Accuracy:'b' as low as possible").goal.of(served, MAE) == pytest.approx(20.0)
    for wrong in ("group-gap:accuracy:c", "group-gap:mae"):
        with pytest.raises(FairbloomError, match=f"about {wrong}, and .* of fewer than two groups"):
            Objective.of(f"{wrong} as low as possible").goal.of(served, MAE)
    with pytest.raises(FairbloomError, match="of fewer than two groups"):
        Objective.of("group-gap:accuracy as low as possible").goal.of(VALUES, MAE)


def test_gaps_between_groups_need_groups_and_a_score_of_theirs() -> None:
    there = (GroupScore("accuracy", percent=True), GroupScore("selection-rate", percent=True))
    for text in (
        "group-gap:selection-rate:a as low as possible",
        "mean as high as possible, group-gap:accuracy at most 3 points",
    ):
        Objective.of(text).check(ACCURACY, "a", there)
        with pytest.raises(
            FairbloomError, match=r"is about group-gap:.*, and the task has no groups .* by csv\.group, "
        ):
            Objective.of(text).check(ACCURACY, "a", ())
    with pytest.raises(FairbloomError, match=r"selektion-rate: did you mean selection-rate.*one of accuracy, "):
        Objective.of("group-gap:selektion-rate as low as possible").check(ACCURACY, "a", there)
    Objective.of("gap as low as possible").check(ACCURACY, "a", ())


def test_a_wish_knows_what_its_measure_is_in() -> None:
    rate = GroupScore("selection-rate", percent=True)
    assert Objective.of("group-gap:selection-rate:a as low as possible").measured_in(MAE, (rate,)) == rate
    bounded = Objective.of("mean as high as possible, group-gap:selection-rate at most 3 points")
    assert bounded.measured_in(MAE, (rate,)) == MAE


def test_better_is_up_for_accuracies_and_down_for_errors_and_differences() -> None:
    assert Measure("mean").better(3.0, 1.0, ACCURACY) == 2.0
    assert Measure("mean").better(3.0, 1.0, MAE) == -2.0
    assert Measure("gap").better(3.0, 1.0, ACCURACY) == Measure("gap").better(3.0, 1.0, MAE) == -2.0


def test_a_client_that_there_is_not_is_named() -> None:
    with pytest.raises(FairbloomError, match=r"criterion = .*no client 'd'.*there are a, b, c"):
        Objective.of("client d as high as possible", "criterion").check(ACCURACY, "abc", ())


# The choice among candidates ----------------------------------------------------------------------------------------

Scores = Mapping[str, float]


@dataclass
class MadeRun:
    """What the choice asks of a run."""

    validation: Scores
    test: Scores = field(default_factory=dict)
    score: Score = ACCURACY
    share: float = 0.2
    folder: Path = Path("made")
    serves: str = "global"

    @property
    def settings(self) -> Mapping[str, float]:
        return {"validation-share": self.share}

    def final(
        self,
        score: object = None,
        model: str = "global",
        split: str = "test",
        *,
        after: Any = None,
        hostile: bool = False,
    ) -> Scores:
        return self.validation if split == "validation" else self.test


def judged(criterion: str, *candidates: Sequence[MadeRun | None]) -> list[Rating]:
    """Return what candidates are worth, each with one run a seed."""
    served = {
        i: serve(cast("Sequence[Run | None]", runs), "global", None, with_groups=False)
        for i, runs in enumerate(candidates)
    }
    score = next(run.score for runs in candidates for run in runs if run)
    return list(judge(Objective.of(criterion, "criterion"), served, score).values())


def best(criterion: str, *candidates: Sequence[MadeRun | None]) -> int | None:
    return choose(dict(enumerate(judged(criterion, *candidates))))


EVEN = [MadeRun({"a": 60.0, "b": 60.0, "c": 60.0})]
UNEVEN = [MadeRun({"a": 20.0, "b": 90.0, "c": 91.0})]


@pytest.mark.parametrize(
    ("criterion", "expected"),
    [
        ("mean", 1),
        ("worst", 0),
        ("worst-10", 0),
        ("mean+worst", 0),
        ("20*mean + worst", 1),
        ("gap", 0),
        ("client b", 1),
    ],
)
def test_a_goal_weighs_the_mean_against_the_worst(criterion: str, expected: int) -> None:
    assert best(criterion, EVEN, UNEVEN) == expected


def test_a_constraint_keeps_out_who_misses_it() -> None:
    assert best("mean, gap at most 20 points", EVEN, UNEVEN) == 0
    assert best("mean, gap at most 80 points", EVEN, UNEVEN) == 1
    assert best("mean, std at most 0 points", UNEVEN) is None


def test_a_mix_is_the_weighted_mean_of_its_measures() -> None:
    (only,) = judged("3*mean+worst_10", [MadeRun({"a": 10.0, "b": 30.0}), MadeRun({"a": 50.0, "b": 70.0})])
    assert only.values == pytest.approx([0.75 * 20.0 + 0.25 * 10.0, 0.75 * 60.0 + 0.25 * 50.0])
    assert only.merit == pytest.approx(sum(only.values) / 2.0)
    assert Objective.of("3*mean+worst_10").goal.heading == "0.75 mean + 0.25 worst 10 %"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("median", "there is no measure 'median'"),
        ("wors", "did you mean worst?"),
        ("mean+", "there is no measure ''"),
        ("mean-worst", "there is no measure 'mean-worst'"),
        ("0*mean+worst", "the weight of mean is 0: leave it out"),
        ("mean+2*mean", "mean is there twice"),
        ("-1*mean", "there is no measure '-1*mean'"),
        ("mean+gap", "'gap' cannot be part of a sum"),
        ("", "there is no measure ''"),
    ],
)
def test_what_is_no_goal_is_refused_by_name(text: str, named: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(f"criterion = {text!r}")) as raised:
        Objective.of(text, "criterion")
    assert named in str(raised.value)


def test_the_remedy_for_a_wrong_goal_is_one() -> None:
    examples = re.findall(r"\S+\+\S+[^,\s]", GRAMMAR)
    assert len(examples) >= 2
    for example in examples:
        assert Objective.of(example).goal.title == example


def test_validation_examples_decide_where_test_examples_disagree() -> None:
    fitting = [MadeRun({"a": 50.0, "b": 50.0}, test={"a": 99.0, "b": 99.0})]
    better = [MadeRun({"a": 60.0, "b": 60.0}, test={"a": 1.0, "b": 1.0})]
    assert best("mean", fitting, better) == 1


def test_without_validation_examples_test_examples_decide() -> None:
    runs = [[MadeRun({}, test={"a": score}, share=0.0)] for score in (1.0, 3.0, 2.0)]
    assert best("mean", *runs) == 1


def test_with_an_error_the_lowest_is_best() -> None:
    error = Score("mae", higher_is_better=False)
    runs = [[MadeRun({"a": low, "b": high}, score=error)] for low, high in ((0.1, 0.9), (0.4, 0.5), (0.5, 0.6))]
    assert best("worst", *runs) == 1
    assert best("mean", *runs[1:]) == 0


def test_an_unfinished_candidate_is_not_chosen_and_has_no_fault() -> None:
    ok, unfinished = judged("mean", [MadeRun({"a": 1.0})] * 2, [MadeRun({"a": 99.0}), None])
    assert (ok.merit, ok.values) == (1.0, [1.0, 1.0])
    assert (unfinished.merit, unfinished.values, unfinished.fault) == (-math.inf, (), "")


def test_a_candidate_that_lacks_a_client_is_not_chosen_and_says_so() -> None:
    """Its mean would be that of other clients."""
    whole, lacking = judged("mean", [MadeRun({"a": 1.0, "b": 1.0})], [MadeRun({"a": 99.0})])
    assert whole.merit == 1.0
    assert lacking.merit == -math.inf
    assert "lacks the validation accuracy of b" in lacking.fault


def test_a_candidate_without_a_validation_score_says_what_to_do() -> None:
    none, some = judged("mean", [MadeRun({}, test={"a": 99.0})], [MadeRun({"a": 1.0})])
    assert some.merit > none.merit == -math.inf
    assert "no validation accuracy: give clients more examples" in none.fault
