"""A method with a misspelt hook is refused, and a user's own functions are not."""

import re
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from fairbloom.rounds.hooks import DECLARATIONS, ELSEWHERE, FUNCTIONS, is_near
from fairbloom.rounds.method import DeclarationError
from fairbloom.strategies import METHODS, FairStrategy, FedAvg
from tests.checkout import ROOT

COHORT: Any = lambda self, cohort: cohort.prior  # noqa: E731
PROBED: Any = lambda self, past, cohort, probed: {}  # noqa: E731
TWO: Any = lambda self, cohort, coefficients: {}  # noqa: E731


def define(base: type = FedAvg, **names: Any) -> type:
    return type("Mine", (base,), names)


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("wiegh", COHORT, "write weigh if you mean it"),
        ("weight", COHORT, "write weigh if you mean it"),
        ("lern", PROBED, "write learn if you mean it"),
        ("chose", PROBED, "write choose if you mean it"),
        ("term", lambda *given: None, "write terms if you mean it"),
        ("recall", PROBED, "write recalls if you mean it"),
        ("ownMetrics", TWO, "write own_metrics if you mean it"),
        ("agregate_train", TWO, "write aggregate_train if you mean it"),
        ("pased", property(lambda self: True), "write paced if you mean it"),
        ("need", frozenset({"loss-before"}), "write needs if you mean it"),
        ("require", frozenset({"gram"}), "write requires if you mean it"),
        ("report", ("spread",), "write reports if you mean it"),
        ("defualt_weighting", "uniform", "write default_weighting if you mean it"),
        ("remember", TWO, "return what to remember from weigh, as in Decision"),
        ("remembers", COHORT, "return what to remember from weigh, as in Decision"),
    ],
)
def test_a_misspelt_hook_is_refused_with_its_name(name: str, value: Any, remedy: str) -> None:
    with pytest.raises(DeclarationError) as raised:
        define(**{name: value})
    assert f"Mine.{name}: nothing calls it: " in str(raised.value)
    assert remedy in str(raised.value)


def test_both_remedies_can_be_followed() -> None:
    with pytest.raises(DeclarationError, match=r"write weigh if .* begin its name with _"):
        define(weight=COHORT)
    define(weigh=COHORT)
    define(_weight=COHORT)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("weight", lambda self, loss, norm: loss),  # another number of arguments
        ("weights", lambda self: None),
        ("rescale", COHORT),
        ("measure", COHORT),
        ("reports_of", lambda self, cohort, coefficients: {}),
        ("need", 3),  # another kind
        ("need", lambda self: 3),
        ("Term", type("Term", (), {"__init__": lambda self, server_round, value: None})),
        ("_wiegh", COHORT),
        ("clear", lambda self: None),
    ],
)
def test_names_of_a_users_own_are_not_refused(name: str, value: Any) -> None:
    define(**{name: value})


def test_a_function_beside_the_hook_is_not_refused() -> None:
    both = define(weigh=COHORT, weight=COHORT)
    define(both, weight=COHORT)


def test_a_function_that_the_class_uses_is_not_refused() -> None:
    def noted(function: Any) -> Any:
        return wraps(function)(lambda *given: function(*given))

    class Uses(FedAvg):
        """One function is used in a comprehension, one by a wrapped and one by a static one."""

        @property
        def ratio(self) -> Any:
            return [self.weight(each) for each in ()]

        def weight(self, loss: float) -> float:
            return loss

        @noted
        def total(self) -> Any:
            return self.send()

        def send(self) -> dict[str, Any]:
            return {}

        @staticmethod
        def first(one: Any) -> Any:
            return one.remember()

        def remember(self) -> None:
            """Of its own."""

    class Below(FedAvg):
        def total(self) -> Any:
            return self.recall(1, 2, 3)  # type: ignore[attr-defined]

    define(Below, recall=PROBED)
    with pytest.raises(DeclarationError, match=r"Mine\.recall:"):
        define(recall=PROBED)
    assert Uses.weight


@pytest.mark.parametrize("name", METHODS)
def test_no_method_of_ours_has_a_name_near_a_hook(name: str) -> None:
    """Whether it is used or not."""
    hooks = (*FUNCTIONS, *DECLARATIONS, *ELSEWHERE)
    public = {
        each for base in METHODS[name].__mro__ for each in vars(base) if not each.startswith("_")
    }
    assert {
        each for each in public - {*hooks} if any(is_near(each, hook) for hook in hooks)
    } == set()


def test_hooks_are_those_of_the_page_and_of_flower() -> None:
    text = Path(ROOT, "docs", "your-method.md").read_text()
    table = text.partition("## All that a method may say")[2]
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    names = {name for cell in cells for name in re.findall(r"`(\w+)", cell)} - {"past"}
    flowers = {name for name in FUNCTIONS if name.startswith(("configure", "aggregate", "start"))}
    assert {*FUNCTIONS, *DECLARATIONS} == names | flowers | {"largest_loss"}
    assert [name for name in (*FUNCTIONS, *DECLARATIONS) if not hasattr(FairStrategy, name)] == []
