from collections.abc import Callable
from typing import Annotated, Any, Unpack

import numpy as np
import pytest

from fairbloom.protocol.settings import SETTINGS
from fairbloom.rounds import ranges
from fairbloom.rounds.options import OPTIONS
from fairbloom.strategies import METHODS, FedAvg, Options
from tests.strategies.helpers import ARGUMENTS, make

NAN, INF = float("nan"), float("inf")
NOT_NUMBERS = [NAN, INF, -INF, None, "0.5", True, [0.5], 1j]

OWN: dict[str, dict[str, tuple[str, list[Any], list[Any]]]] = {
    "fedavg": {},
    "fedprox": {"mu": ("at least 0", [0, 0.0, 1e-30, 1e30], [-1e-30, -1.0])},
    "fedavgn": {
        "server_lr": ("above 0", [1e-30, 1, 1e30], [0.0, -1.0]),
        "decay": ("[0, 1]", [0, 0.5, 1], [-1e-9, 1.0000001]),
    },
    "qfedavg": {
        "q": ("at least 0", [0, 0.5, 15], [-1e-30, -1]),
        "lipschitz": ("above 0", [1e-30, 1, 1e30], [0, -1.0]),
    },
    "fedmgda": {
        "epsilon": ("at least 0", [0, 0.1, 1, 5], [-1e-30, -1]),
        "server_lr": ("above 0", [1e-30, 1], [0.0, -1.0]),
        "decay": ("[0, 1]", [0, 0.5, 1], [-0.1, 1.1]),
    },
    "fedmgdaplus": {
        "epsilon": ("at least 0", [0, 0.1, 1, 5], [-1e-30, -1]),
        "server_lr": ("above 0", [1e-30, 1], [0.0, -1.0]),
        "decay": ("[0, 1]", [0, 0.5, 1], [-0.1, 1.1]),
    },
    "qfedsgd": {
        "q": ("at least 0", [0, 0.5, 15], [-1e-30, -1]),
        "lipschitz": ("above 0", [1e-30, 1, 1e30], [0, -1.0]),
    },
    "term": {"tilt": ("float", [-1e30, -1, 0, 0.5, 1e30], [])},
    "afl": {"gamma": ("at least 0", [0, 0.1, 1e30], [-1e-30, -1])},
    "drfa": {
        "gamma": ("at least 0", [0, 0.1, 1e30], [-1e-30, -1]),
        "local_steps": ("int at least 1", [1, 10], [0, -1, 0.5, 1.0]),
    },
    "deltafl": {"theta": ("(0, 1]", [1e-30, 0.5, 1], [0, -0.1, 1.0000001])},
    "propfair": {
        "baseline": ("above 0", [1e-30, 1, 1e30], [0, -1.0]),
        "epsilon": ("above 0", [1e-30, 1, 1e30], [0, -1.0]),
    },
    "gifair": {"strength": ("[0, 1)", [0, 0.5, 0.999999], [-0.1, 1.0, 1.1])},
    "vred": {"beta": ("at least 0", [0, 0.1, 1e30], [-1e-30, -1])},
    "semivred": {"beta": ("at least 0", [0, 0.1, 1e30], [-1e-30, -1])},
    "fairfed": {"beta": ("at least 0", [0, 0.1, 1e30], [-1e-30, -1])},
    "eagle": {"lam": ("at least 0", [0, 0.1, 1e30], [-1e-30, -1])},
    "aaggff": {
        "rule": ("ons or ftrl", ["ons", "ftrl"], ["ONS", "", 1]),
        "cdf": (
            "weibull, exponential, frechet, normal, gumbel or logistic",
            ["weibull", "exponential", "frechet", "normal", "gumbel", "logistic"],
            ["Normal", "", 0],
        ),
    },
    "fedfa": {
        "alpha": ("at least 0", [0, 0.1, 1e30], [-1e-30, -1]),
        "beta": ("at least 0", [0, 0.1, 1e30], [-1e-30, -1]),
        "server_momentum": ("[0, 1)", [0, 0.5, 0.999999], [-0.1, 1.0]),
        "client_momentum": ("[0, 1)", [0, 0.5, 0.999999], [-0.1, 1.0]),
    },
    "mgdaprox": {
        "mu": ("at least 0", [0, 0.0, 1e-30, 1e30], [-1e-30, -1.0]),
        "epsilon": ("at least 0", [0, 0.1, 1, 5], [-1e-30, -1]),
        "server_lr": ("above 0", [1e-30, 1], [0.0, -1.0]),
        "decay": ("[0, 1]", [0, 0.5, 1], [-0.1, 1.1]),
    },
    "adafed": {
        "gamma": ("at least 0", [0, 0.1, 1e30], [-1e-30, -1]),
        "server_lr": ("above 0", [1e-30, 1, 1e30], [0, -1.0]),
    },
    "fedlf": {
        "history": ("bool", [True, False], [0, 1, "true"]),
        "guidance": ("scaled or gradient", ["scaled", "gradient"], ["Scaled", "", 1]),
        "server_lr": ("above 0", [1e-30, 1, 1e30], [0, -1.0]),
        "groups": ("mapping", [None, "", {}, {"w": 1}, "w=1 v=2"], [1, ["w"]]),
    },
    "fedmdfg": {
        "angle": ("(0, 90)", [1e-9, 11.25, 89.9], [0, 90, -1.0]),
        "history": ("bool", [True, False], [0, 1, "true"]),
        "guidance": ("scaled or gradient", ["scaled", "gradient"], ["Scaled", "", 1]),
        "server_lr": ("above 0", [1e-30, 1, 1e30], [0, -1.0]),
    },
    "scaffold": {"server_lr": ("above 0", [1e-30, 1, 1e30], [0, -1.0])},
    "feddyn": {"alpha": ("above 0", [1e-30, 0.01, 1e30], [0, -1.0])},
    "ditto": {
        "lam": ("at least 0", [0, 0.1, 1e30], [-1e-30, -1]),
        "personal_epochs": ("int at least 1", [1, 10], [0, -1, 0.5, 1.0]),
    },
    "local": {},
    "fcfl": {
        "budget": ("at least 0", [0, 0.05, 1], [-1e-30, -1]),
        "budgets": ("at least 0", [None, "", {}, "a=0 b=1.5", {"a": 0, "b": 1.5}], []),
        "stage1_rounds": ("int at least 0", [0, 800], [-1, 0.5, 1.0]),
        "delta": ("above 0", [1e-30, 0.5, 1e30], [0, -1.0]),
        "delta_decay": ("(0, 1]", [1e-30, 0.01, 1], [0, -0.1, 1.1]),
        "delta_factor": ("at least 0", [0, 0.1, 1e30], [-1e-30, -1]),
        "delta_min": ("at least 0", [0, 1e-4, 1e30], [-1e-30, -1]),
        "disparity": ("demographic-parity or equal-opportunity", ["equal-opportunity"], ["parity", "", 1]),
    },
    "fedfv": {
        "alpha": ("[0, 1]", [0, 0.1, 1.0], [-0.1, 1.1]),
        "tau": ("int at least 0", [0, 1, 100], [-1, 0.5, 1.0]),
        "order": ("loss, random or reverse", ["loss", "random", "reverse"], ["Loss", "", 1]),
    },
}
COMMON: dict[str, tuple[str, list[Any], list[Any]]] = {
    "fraction_train": ("(0, 1]", [1e-9, 0.5, 1], [0.0, -0.1, 1.1]),
    "fraction_evaluate": ("[0, 1]", [0, 0.5, 1], [-0.1, 1.1]),
    "min_train_nodes": ("int at least 1", [1, 5], [0, -1, 1.0]),
    "min_evaluate_nodes": ("int at least 0", [0, 5], [-1, 1.0]),
    "min_available_nodes": ("int at least 1", [1, 5], [0, -1, 1.0]),
    "proximal_mu": ("at least 0", [0.0, 1e30], [-1e-30]),
    "personal_lambda": ("at least 0", [0.0, 1e30], [-1e-30]),
    "seed": ("int at least 0", [0, 2**63], [-1, 0.5]),
    "evaluate_every": ("int at least 0", [0, 3], [-1, 0.5]),
}
CHECKS = [
    (method, parameter, *check)
    for method in METHODS
    for parameter, check in {**OWN.get(method, {}), **COMMON}.items()
    if parameter not in METHODS[method].own_terms
]


def test_every_method_has_its_parameters_checked() -> None:
    assert set(OWN) == set(METHODS)
    for name, parameters in OWN.items():
        annotated = METHODS[name].__init__.__annotations__
        assert set(parameters) == set(annotated) - {"options", "return"}


@pytest.mark.parametrize("name", METHODS)
def test_a_term_that_the_method_sets_is_refused_as_an_option(name: str) -> None:
    expected = {"fedprox": {"proximal_mu"}, "mgdaprox": {"proximal_mu"}, "ditto": {"personal_lambda"}}
    assert METHODS[name].own_terms == expected.get(name, {"personal_lambda"} if name == "local" else set())
    for term in METHODS[name].own_terms:
        with pytest.raises(ValueError, match=f"sets {term} by its own parameter, got 0.5"):
            make(name, ARGUMENTS[name][0], **{term: 0.5})


def test_fedfa_needs_one_of_its_two_weights() -> None:
    for alpha, beta in [(0.0, 0.0), (0, 0)]:
        with pytest.raises(ValueError, match=rf"alpha \+ beta must be greater than 0, got alpha = {alpha}"):
            METHODS["fedfa"](alpha=alpha, beta=beta)
    for alpha, beta in [(1e-30, 0.0), (0.0, 1e-30)]:
        METHODS["fedfa"](alpha=alpha, beta=beta)


@pytest.mark.parametrize(("method", "parameter", "text", "good", "bad"), CHECKS)
def test_values_outside_the_range_are_refused_by_name(
    method: str, parameter: str, text: str, good: list[Any], bad: list[Any]
) -> None:
    for value in good:
        make(method, {**ARGUMENTS[method][0], parameter: value})
    for value in [*bad, *(each for each in NOT_NUMBERS if repr(each) not in map(repr, good))]:
        with pytest.raises(ValueError, match=parameter) as refused:
            make(method, {**ARGUMENTS[method][0], parameter: value})
        assert repr(value) in str(refused.value)
        if value in bad:
            assert text in str(refused.value)


@pytest.mark.parametrize(
    ("check", "text"),
    [
        (lambda x: ranges.at_least(0, x=x), "at least 0"),
        (lambda x: ranges.above(0, x=x), "above 0"),
        (lambda x: ranges.within("[0, 1]", x=x), "[0, 1]"),
        (lambda x: ranges.whole(2, x=x), "int at least 2"),
    ],
    ids=["at_least", "above", "within", "whole"],
)
def test_nan_is_refused_with_the_range_too(check: Callable[[object], object], text: str) -> None:
    for value in NOT_NUMBERS:
        with pytest.raises(ValueError, match=r"x = .*[:;] allowed is") as refused:
            check(value)
        assert text in str(refused.value)
        assert repr(value) in str(refused.value)


def test_checks_return_plain_numbers() -> None:
    for value in (ranges.at_least(0, x=np.float32(1)), ranges.above(0, x=1), ranges.within("[0, 1]", x=1)):
        assert type(value) is float
    assert type(ranges.whole(0, x=np.int64(3))) is int
    assert ranges.finite(x=-2) == -2.0


@pytest.mark.parametrize(
    ("interval", "inside", "outside"),
    [("[0, 1]", [0, 1], [-1e-12]), ("(0, 1]", [1e-12, 1], [0]), ("[0, 1)", [0], [1]), ("(0, 1)", [0.5], [0, 1])],
)
def test_ends_of_an_interval_belong_to_it_as_written(interval: str, inside: list[float], outside: list[float]) -> None:
    assert [ranges.within(interval, x=value) for value in inside] == inside
    for value in outside:
        with pytest.raises(ValueError, match=r"x = .*: allowed is"):
            ranges.within(interval, x=value)


# Annotations of user-defined methods -------------------------------------------------------------------------------


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
    ("given", "words"),
    [
        ({"first": 0}, "first = 0: allowed is float in (0, 1]"),
        ({"plain": NAN}, "plain = nan: allowed is float"),
        ({"plain": INF}, "plain = inf: allowed is float"),
        ({"plain": 10**400}, "allowed is float"),
        ({"count": 1.0}, "count = 1.0: write 1; allowed is int"),
        ({"loud": 1}, "loud = 1: allowed is bool"),
        ({"word": None}, "word = None: allowed is str"),
    ],
)
def test_what_an_annotation_does_not_allow_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match="allowed is") as refused:
        Ranged(**given)
    assert words in str(refused.value)


def test_a_positional_argument_is_checked_too() -> None:
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


def test_annotations_that_cannot_be_evaluated_are_not_checked() -> None:
    class Late(FedAvg):
        def __init__(self, *, share: "Unknown" = 0.5, **options: Unpack[Options]) -> None:  # type: ignore[name-defined]  # noqa: F821
            super().__init__(**options)
            self.share = share

    assert Late(share=7).share == 7


def test_common_options_have_their_settings_ranges_and_marks() -> None:
    for name in ("max_growth", "loss_limit", "update_limit", "unused_rounds", "evaluate_every"):
        assert OPTIONS[name] is not None
        setting = SETTINGS[name.replace("_", "-")]
        assert (OPTIONS[name].range, OPTIONS[name].default) == (setting.range, setting.default)
        assert OPTIONS[name].marks == setting.marks
        assert getattr(FedAvg(), name) == setting.default
    assert OPTIONS["fraction_evaluate"].range != SETTINGS["fraction-evaluate"].range  # 0 switches it off in a strategy
    assert OPTIONS.keys() < Options.__optional_keys__
