"""A method that reads values it has not declared is an error, and so is an option as a class
attribute."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Annotated, Any, Unpack, get_args, get_type_hints

import pytest

from fairbloom.errors import FairbloomError
from fairbloom.protocol import options
from fairbloom.protocol.parameters import Default, Meaning, Neutral, Range
from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.terms import RULES, Terms
from fairbloom.rounds.method import Cohort, FloatArray, MethodError
from fairbloom.rounds.options import Options, OptionsWithoutPrior
from fairbloom.strategies import FairStrategy, FedAvg
from tests.federation import OPTIONS, run


def reading(read: str) -> type[FairStrategy]:
    """Return a method that reads something of a cohort without having asked for it."""

    def weigh(self: FairStrategy, cohort: Cohort) -> FloatArray:
        eval(f"cohort.{read}", {}, {"cohort": cohort})  # noqa: S307 (an expression of these tests)
        return cohort.prior

    return type("Reading", (FairStrategy,), {"weigh": weigh})


def test_a_roster_that_was_not_asked_for_is_an_error(subtests: pytest.Subtests) -> None:
    for read in ("['site-1']", ".get('site-1')", ".values().__iter__().__next__()", ".__len__()"):
        with subtests.test(read=read):
            method = reading(f"roster{read}")(**OPTIONS)
            with pytest.raises(
                MethodError, match=r'cohort\.roster.*requires = frozenset\(\{"roster"\}\)'
            ):
                run(method, rounds=1)
            assert "roster" not in method.state_dict()
    with pytest.raises(MethodError, match=r"loss-before.*needs = frozenset"):
        run(reading("losses")(**OPTIONS), rounds=1)


def test_a_constructor_without_its_bases_one_is_refused() -> None:
    def construct(self: FairStrategy, strength: float = 0.5) -> None:
        self.strength = strength  # type: ignore[attr-defined]

    with pytest.raises(FairbloomError, match=r"Mine.*super\(\)\.__init__"):
        type("Mine", (FedAvg,), {"__init__": construct})()


class Strength(Options, total=False):
    strength: float
    power: Annotated[float, Range("[0, 1]"), Default(0.5)]


def test_options_of_a_users_typeddict_need_no_default() -> None:
    class Mine(FedAvg):
        def __init__(self, power: float = 0.25, **options: Unpack[Strength]) -> None:  # type: ignore[misc]
            self.strength = options.pop("strength", power)
            super().__init__(**options)

    assert [Mine().strength, Mine(strength=2.0).strength] == [0.25, 2.0]


def test_wrong_declarations_are_refused(subtests: pytest.Subtests) -> None:
    for name, value in (("weighting", "uniform"), ("proximal_mu", 0.1), ("seed", 3)):
        with subtests.test(name=name, value=value):
            with pytest.raises(TypeError, match=rf"Mine\.{name} = {value!r}.*constructor"):
                type("Mine", (FedAvg,), {name: value})
    with pytest.raises(TypeError, match="requires has 'grams'"):
        type("Mine", (FedAvg,), {"requires": frozenset({"grams"})})


def choosing(*drawn: str) -> type[FairStrategy]:
    def choose(
        self: FairStrategy, names: Sequence[str], wanted: int, server_round: int
    ) -> list[str]:
        return [*drawn]

    members: dict[str, Any] = {"choose": choose}
    return type("Choosing", (FedAvg,), members)


def test_an_empty_draw_and_a_stranger_are_errors_by_name() -> None:
    with pytest.raises(
        MethodError,
        match=r"Choosing\.choose, in round 1, drew 'stranger', .* not one of the 6 available clients",
    ):
        run(choosing("site-1", "stranger")(**OPTIONS), rounds=1)
    with pytest.raises(MethodError, match=r"Choosing\.choose, in round 1, drew none of 6 clients"):
        run(choosing()(**OPTIONS), rounds=1)
    assert run(choosing("site-4", "site-1")(**OPTIONS), rounds=1)[1][0].participants == (
        "site-1",
        "site-4",
    )


DECLARED = {
    name: given
    for name, given in get_type_hints(OptionsWithoutPrior, include_extras=True).items()
    if any(isinstance(each, Meaning) for each in get_args(given))
}


@pytest.mark.parametrize("name", DECLARED)
def test_an_option_is_declared_once(name: str) -> None:
    """The options of methods, the settings and the terms add only its name to the declaration."""
    (alias,) = [
        each
        for each in vars(options).values()
        if set(get_args(each)[1:]) and set(get_args(each)) <= set(get_args(DECLARED[name]))
    ]
    hints = get_type_hints(RunSettings, include_extras=True)
    assert hints[name] == alias
    assert RunSettings.model_fields[name].default == options.default_of(alias)
    neutral = [each.value for each in get_args(alias) if isinstance(each, Neutral)]
    assert [each.default for each in fields(Terms) if each.name == name] == neutral
    asked = [rule for rule in RULES if name in rule.names]
    assert len(asked) == len(neutral)
