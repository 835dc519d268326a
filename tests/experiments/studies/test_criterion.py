"""The choice among candidates: by measures of validation scores in the score's direction, never by test scores."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from fairbloom.experiments.results.run import Run
from fairbloom.experiments.studies.criterion import GRAMMAR, MEAN, Criterion, judge
from fairbloom.protocol.scores import ACCURACY, Score
from fairbloom.protocol.settings import SettingsError

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

    def final(self, score: object = None, model: str = "global", split: str = "test", *, after: Any = None) -> Scores:
        return self.validation if split == "validation" else self.test


def judged(criterion: Criterion, *candidates: Sequence[MadeRun | None]) -> list[float]:
    return [each.quality for each in judge(criterion, cast("Sequence[Sequence[Run | None]]", candidates))]


def best(criterion: str, *candidates: Sequence[MadeRun | None]) -> int:
    qualities = judged(Criterion.of(criterion), *candidates)
    return qualities.index(max(qualities))


EVEN = [MadeRun({"a": 60.0, "b": 60.0, "c": 60.0})]
UNEVEN = [MadeRun({"a": 20.0, "b": 90.0, "c": 91.0})]


@pytest.mark.parametrize(
    ("criterion", "expected"),
    [("mean", UNEVEN), ("worst", EVEN), ("worst-10", EVEN), ("mean+worst", EVEN), ("20*mean + worst", UNEVEN)],
)
def test_a_criterion_weighs_the_mean_against_the_worst(criterion: str, expected: Sequence[MadeRun]) -> None:
    candidates = [EVEN, UNEVEN]
    assert candidates[best(criterion, *candidates)] is expected


def test_a_mix_is_the_weighted_mean_of_its_measures() -> None:
    criterion = Criterion.of("3*mean+worst_10")
    (only,) = judge(criterion, cast("Any", [[MadeRun({"a": 10.0, "b": 30.0}), MadeRun({"a": 50.0, "b": 70.0})]]))
    assert only.values == pytest.approx([0.75 * 20.0 + 0.25 * 10.0, 0.75 * 60.0 + 0.25 * 50.0])
    assert only.quality == pytest.approx(sum(only.values))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("median", "there is no measure median"),
        ("wors", "did you mean worst?"),
        ("mean+", "'' is no measure"),
        ("mean-worst", "there is no measure mean-worst"),
        ("0*mean+worst", "the weight of mean is 0: leave it out"),
        ("mean+2*mean", "mean is there twice"),
        ("-1*mean", "'-1*mean' is no measure"),
        ("", "'' is no measure"),
    ],
)
def test_what_is_no_criterion_is_refused_by_name(text: str, named: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(f"criterion = {text!r}")) as raised:
        Criterion.of(text)
    assert named in str(raised.value)


def test_the_remedy_for_a_wrong_criterion_is_one() -> None:
    examples = re.findall(r"\S+\+\S+[^,\s]", GRAMMAR)
    assert len(examples) >= 2
    for example in examples:
        assert Criterion.of(example).text == example


def test_the_validation_examples_decide_where_the_test_examples_disagree() -> None:
    fitting = [MadeRun({"a": 50.0, "b": 50.0}, test={"a": 99.0, "b": 99.0})]
    better = [MadeRun({"a": 60.0, "b": 60.0}, test={"a": 1.0, "b": 1.0})]
    assert best("mean", fitting, better) == 1


def test_a_recipe_without_validation_examples_is_decided_by_the_test_examples() -> None:
    runs = [[MadeRun({}, test={"a": score}, share=0.0)] for score in (1.0, 3.0, 2.0)]
    assert best("mean", *runs) == 1


def test_with_an_error_the_lowest_is_best() -> None:
    error = Score("mae", higher_is_better=False)
    runs = [[MadeRun({"a": low, "b": high}, score=error)] for low, high in ((0.1, 0.9), (0.4, 0.5), (0.5, 0.6))]
    assert best("worst", *runs) == 1
    assert best("mean", *runs[1:]) == 0


def test_an_unfinished_candidate_is_not_chosen_and_has_no_fault() -> None:
    ok, unfinished = judge(MEAN, cast("Any", [[MadeRun({"a": 1.0})] * 2, [MadeRun({"a": 99.0}), None]]))
    assert (ok.quality, ok.values) == (2.0, [1.0, 1.0])
    assert (unfinished.quality, unfinished.values, unfinished.fault) == (-math.inf, (), "")


def test_a_candidate_that_lacks_a_client_of_others_is_not_chosen_and_says_so() -> None:
    """Its mean would be that of other clients."""
    whole, lacking = judge(MEAN, cast("Any", [[MadeRun({"a": 1.0, "b": 1.0})], [MadeRun({"a": 99.0})]]))
    assert whole.quality == 1.0
    assert lacking.quality == -math.inf
    assert "lacks the score of b" in lacking.fault


def test_a_candidate_without_a_validation_score_is_not_chosen_and_says_what_to_do() -> None:
    none, some = judge(MEAN, cast("Any", [[MadeRun({}, test={"a": 99.0})], [MadeRun({"a": 1.0})]]))
    assert some.quality > none.quality == -math.inf
    assert "no validation accuracy: give clients more examples" in none.fault
