"""A class attribute that a method cannot have meant for itself is refused by name, and never silently ignored."""

from collections.abc import Callable
from functools import cached_property, wraps
from typing import Any, ClassVar

import pytest

from fairbloom.rounds.method import Method
from fairbloom.strategies import METHODS, FedAvg


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("uses_gram", True),
        ("needs_plain_sgd", True),
        ("layerwise", False),
        ("snapshots", 1),
        ("refused_server_optimizers", frozenset({"avgm"})),
        ("default_wieghting", None),
        ("required", ("gram",)),
    ],
)
@pytest.mark.parametrize("base", [Method, FedAvg])
def test_an_attribute_that_nothing_reads_is_refused(base: type, name: str, value: object) -> None:
    with pytest.raises(TypeError, match=rf"Mine\.{name} = .*requires.*capitals") as error:
        type("Mine", (base,), {name: value})
    assert repr(value) in str(error.value)


@pytest.mark.parametrize(("name", "value"), [("weighting", "uniform"), ("proximal_mu", 0.1), ("seed", 3)])
def test_an_option_as_a_class_attribute_is_refused(name: str, value: object) -> None:
    with pytest.raises(TypeError, match=rf"Mine\.{name} = {value!r}.*constructor"):
        type("Mine", (FedAvg,), {name: value})


def doubled(function: Callable[..., float]) -> Callable[..., float]:
    @wraps(function)
    def twice(*values: Any) -> float:
        return 2.0 * function(*values)

    return twice


def test_constants_of_a_class_of_its_own_stay() -> None:
    class Mine(FedAvg):
        LARGEST = 3.0
        _hidden = True
        label: ClassVar[str] = "mine"
        power, floor, most, least, step = 2.0, 1.0, 5.0, 0.0, 0.1
        cache: ClassVar[dict[str, float]] = {}

        def inner(self) -> float:
            return sum(self.power for _ in range(2))

        @property
        def lowest(self) -> float:
            return self.floor

        @cached_property
        def highest(self) -> float:
            return self.most

        @classmethod
        def smallest(cls) -> float:
            return cls.least

        @doubled
        def stepped(self) -> float:
            return self.step

    class Finer(Mine):
        power = 3.0
        label = "finer"

    assert (Finer().inner(), Finer().stepped()) == (6.0, 0.2)


def test_known_declarations_are_allowed_in_each_method() -> None:
    for method in METHODS.values():
        type("Mine", (method,), {"needs": frozenset({"loss-before"}), "default_weighting": None, "tries": ()})
