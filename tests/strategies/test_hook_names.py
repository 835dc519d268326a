"""A hook's name that is nearly right is refused: nothing would call it, and nobody would say so."""

from typing import Any

import pytest

from fairbloom.rounds.method import DeclarationError
from fairbloom.strategies import FairStrategy, FedAvg


def declare(base: type[FairStrategy] = FairStrategy, **body: Any) -> type[FairStrategy]:
    return type("Mine", (base,), body)


def hook(*_: Any) -> None:
    """A function of a class."""


@pytest.mark.parametrize(
    ("name", "meant"),
    [("wiegh", "weigh"), ("lern", "learn"), ("chose", "choose"), ("term", "terms")],
)
def test_a_near_miss_of_a_hook_is_refused_by_name(name: str, meant: str) -> None:
    with pytest.raises(DeclarationError, match=rf"Mine\.{name}: .*did you mean {meant}\?.* _"):
        declare(FedAvg, **{name: hook})
    declare(FedAvg, **{meant: hook})
    declare(FedAvg, **{f"_{name}": hook})


@pytest.mark.parametrize("name", ["need", "report", "require"])
def test_a_near_miss_of_a_declaration_is_refused(name: str) -> None:
    with pytest.raises(DeclarationError, match=rf"did you mean {name}s\?"):
        declare(FedAvg, **{name: frozenset()})


def test_remember_is_refused_with_what_takes_its_place() -> None:
    with pytest.raises(DeclarationError, match=r"Mine\.remember: nothing calls it.*Decision"):
        declare(FedAvg, remember=hook)


@pytest.mark.parametrize(
    "helpers",
    [
        {"weigh": hook, "weight": hook},  # a helper beside the hook
        {"weights": hook, "learning_rate": 0.1, "rescale": hook, "measure": hook},
        {"aggregate_train": hook},  # a hook of Flower's
    ],
)
def test_helpers_with_names_of_their_own_are_allowed(helpers: dict[str, Any]) -> None:
    made = declare(FedAvg, **helpers)
    declare(made, **helpers)
