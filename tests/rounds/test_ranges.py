import inspect
import math
from typing import Annotated, Any, Unpack

import numpy as np
import pytest

from fairbloom.protocol.parameters import parameters_of
from fairbloom.protocol.settings import SETTINGS
from fairbloom.rounds import ranges
from fairbloom.rounds.options import OPTIONS
from fairbloom.strategies import METHODS, FedAvg, FedFa, Options
from tests.strategies.helpers import ARGUMENTS, make

NAN = float("nan")
INF = float("inf")


def just_outside(parameter: ranges.Parameter) -> list[Any]:
    """Return values of another type, and those next to the ends of the range."""
    if parameter.kind is bool:
        return [0, 1, "true", None]
    if parameter.kind is str:
        return [None, 1] + (
            ["", "No such word"] if isinstance(parameter.allowed, ranges.Choices) else []
        )
    outside: list[Any] = [NAN, -INF, None, "0.5", True, [0.5], 1j]
    if not isinstance(parameter.allowed, ranges.Range):
        return [*outside, INF]
    interval = parameter.allowed.interval
    low, high = parameter.allowed.ends
    if parameter.kind is int:
        return [*outside, INF, int(low) - 1, 0.5]
    below = math.nextafter(low, -INF) if interval[0] == "[" else low
    above = math.nextafter(high, INF) if interval[-1] == "]" else high
    return [*outside, below, *({above} - {INF} if interval[-1] == "]" else {above})]


def inside(parameter: ranges.Parameter) -> list[Any]:
    """Return all words, and those ends of the range that belong to it."""
    if isinstance(parameter.allowed, ranges.Choices):
        return list(parameter.allowed.words)
    if not isinstance(parameter.allowed, ranges.Range):
        return [True, False] if parameter.kind is bool else []
    interval = parameter.allowed.interval
    low, high = parameter.allowed.ends
    return [parameter.kind(low)] * (interval[0] == "[") + [high] * (interval[-1] == "]")


@pytest.mark.parametrize(("name", "method"), METHODS.items())
def test_a_term_that_the_method_sets_is_refused_as_an_option(name: str, method: type) -> None:
    for term in method.own_terms:
        with pytest.raises(ValueError, match=f"{term} by its own parameter, got 0.5"):
            make(name, ARGUMENTS[name][0], **{term: 0.5})


def test_fedfa_needs_one_of_its_two_weights() -> None:
    with pytest.raises(ValueError, match=r"alpha \+ beta must be greater than 0, got alpha = 0"):
        FedFa(alpha=0.0, beta=0.0)
    assert FedFa(alpha=1e-30, beta=0.0).alpha == FedFa(alpha=0.0, beta=1e-30).beta


def test_values_outside_a_declared_range_are_refused_by_name(subtests: pytest.Subtests) -> None:
    for name, method in METHODS.items():
        with subtests.test(name=name, method=method):
            own = [
                each
                for each in parameters_of(name, method)
                if not isinstance(each.allowed, ranges.Pairs)
            ]
            common = [
                each
                for key, each in OPTIONS.items()
                if name == "fedavg" and not key.endswith("_key")
            ]
            for parameter in [*own, *common]:
                argument = parameter.name.replace("-", "_")
                for value in inside(parameter):
                    assert parameter.checked(value) == value, (name, argument)
                    if parameter in own:
                        make(name, {**ARGUMENTS[name][0], argument: value})
                declared = inspect.signature(method).parameters.get(argument)
                may_be_none = declared is not None and declared.default is None
                for value in just_outside(parameter):
                    if value is None and may_be_none:
                        continue
                    with pytest.raises(ValueError, match=argument) as refused:
                        pytest.fail(
                            f"{name} takes {argument} ="
                            f" {make(name, {**ARGUMENTS[name][0], argument: value})}"
                        )
                    assert repr(value) in str(refused.value)
                    assert parameter.range in str(refused.value)


@pytest.mark.parametrize("number", [np.float32(1), 1])
def test_checks_return_plain_numbers(number: Any) -> None:
    assert type(ranges.within("(0, 1]", x=number)) is float
    assert type(ranges.whole(0, x=np.int64(3))) is int


# Annotations of user-defined methods --------------------------------------------------------------


class Ranged(FedAvg):
    """Parameters with a range, without one, and of a type that no run config carries."""

    def __init__(
        self,
        first: Annotated[float, ranges.Range("(0, 1]")] = 0.5,
        plain: float = 1.0,
        *,
        count: int = 1,
        loud: bool = False,
        word: str = "",
        other: tuple[int, ...] = (),
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        self.given = (first, plain, count, loud, word, other)


def test_a_users_method_gets_its_parameters_in_their_types() -> None:
    made = Ranged(1, 2, count=np.int64(3), loud=True, word="x", other=(4,), seed=5)
    assert made.given == (1.0, 2.0, 3, True, "x", (4,))
    assert [type(value) for value in made.given] == [float, float, int, bool, str, tuple]
    assert made.seed == 5
    assert Ranged().given == (0.5, 1.0, 1, False, "", ())


@pytest.mark.parametrize(
    ("key", "value"), {"first": 0, "plain": INF, "count": 1.0, "loud": 1, "word": None}.items()
)
def test_what_an_annotation_does_not_allow_is_refused(key: str, value: int | float | None) -> None:
    with pytest.raises(ValueError, match=rf"{key} = {value}: .*allowed is"):
        Ranged(**{key: value})
    with pytest.raises(ValueError, match="allowed is float"):
        Ranged(plain=10**400)
    with pytest.raises(ValueError, match="first = 2: allowed is"):
        Ranged(2)
    with pytest.raises(TypeError, match="positional arguments"):
        Ranged(1, 2, 3)  # type: ignore[misc]
    with pytest.raises(TypeError, match="unheard_of"):
        Ranged(unheard_of=1)  # type: ignore[call-arg]


def test_a_subclass_may_narrow_the_range_of_its_base() -> None:
    class Narrow(Ranged):
        def __init__(self, *, first: Annotated[float, ranges.Range("(0, 0.5]")] = 0.1) -> None:
            super().__init__(first * 4)

    assert Narrow(first=0.25).given[0] == 1.0
    with pytest.raises(ValueError, match=r"first = 0.6: allowed is"):
        Narrow(first=0.6)
    with pytest.raises(ValueError, match=r"first = 2.0: allowed is"):
        Narrow(first=0.5)


@pytest.mark.parametrize(
    "name", ["max_growth", "loss_limit", "update_limit", "unused_rounds", "evaluate_every"]
)
def test_common_options_have_their_settings_ranges_and_marks(name: str) -> None:
    assert OPTIONS[name] is not None
    setting = SETTINGS[name.replace("_", "-")]
    assert (OPTIONS[name].range, OPTIONS[name].default) == (setting.range, setting.default)
    assert OPTIONS[name].marks == setting.marks
    assert getattr(FedAvg(), name) == setting.default
    # 0 switches it off in a strategy
    assert OPTIONS["fraction_evaluate"].range != SETTINGS["fraction-evaluate"].range
    assert OPTIONS.keys() < Options.__optional_keys__
