"""Conditions at a setting's declaration, and faults that are written for their reader."""

import pickle
from typing import Any

import pytest
from hypothesis import given, strategies as st

from fairbloom.errors import FairbloomError
from fairbloom.protocol.conditions import (
    AtMost,
    Below,
    Condition,
    Fault,
    IdleIf,
    NotWith,
    find_fault,
)
from fairbloom.protocol.parameters import OptionError, key_of
from fairbloom.server.settings import Settings
from fairbloom.strategies import FedAvg

CASES: list[tuple[Condition, Any, Any, str]] = [
    (IdleIf("other", 0, "raise {other}", " of it"), 0, 1, "one = 5 has no effect of it: raise b"),
    (NotWith("other", (1, 2), "no: leave {setting} out"), 2, 3, "one = 5: no: leave one out"),
    (AtMost("other"), 4, 5, "one = 5 is more than b = 4: lower it"),
    (AtMost("other"), 4, 0, "one = 5 is more than b = 4: lower it"),
    (AtMost("other"), ("x",), (), "one = 5 is more than the number of b = 1: lower it"),
    (AtMost("other"), ("x",), tuple("vwxyz"), "one = 5 is more than the number of b = 1: lower it"),
    (Below("other"), 5, 6, "one = 5 must be less than b = 5: lower it"),
]


def said(mark: Condition, value: Any, other: Any) -> str:
    """Return the fault of a setting `one` beside another, which its reader calls `b`."""
    fault = find_fault({"one": (mark,)}, {"one": value}, {"one": value, "other": other})
    return "" if fault is None else fault.written({"one": "one", "other": "b"}.__getitem__)


@pytest.mark.parametrize(("mark", "refused", "allowed", "words"), CASES)
def test_a_condition_refuses_only_what_it_says(
    mark: Condition, refused: Any, allowed: Any, words: str
) -> None:
    assert said(mark, 5, refused) == words
    assert said(mark, 5, allowed) == ""


def test_a_single_round_may_be_all_of_the_warmup() -> None:
    assert said(Below("other"), 1, 1) == ""
    assert said(Below("other"), 2, 1)


def test_a_default_is_never_at_fault() -> None:
    marks = {"one": (IdleIf("other", 0, "raise it"),)}
    assert find_fault(marks, {}, {"one": 5, "other": 0}) is None
    assert find_fault(marks, {"one": 5}, {"one": 5, "other": 0}) is not None


def test_a_setting_that_is_not_there_is_not_judged() -> None:
    """A method has not all settings of a run."""
    assert find_fault({"one": (IdleIf("other", 0, "raise it"),)}, {"one": 5}, {"one": 5}) is None


def test_the_first_declared_fault_is_said() -> None:
    marks = {name: (IdleIf("other", 0, "raise it"),) for name in ("one", "two")}
    values = {"two": 2, "one": 1, "other": 0}
    found = find_fault(marks, {"two": 2, "one": 1}, values)
    assert found is not None
    assert found.setting == "one"


@given(value=st.text("{}a_!:x", max_size=8), why=st.text("{}a_!:x", max_size=8))
def test_what_a_user_wrote_stays_as_it_is(value: str, why: str) -> None:
    fault = Fault("an_option", value, "{setting} = {value!r}: {why}; see {other_one}", {"why": why})
    assert fault.written(key_of) == f"an-option = {value!r}: {why}; see other-one"
    assert str(fault) == f"an_option = {value!r}: {why}; see other_one"


# An option's value that is refused, and what follows its name.
OPTIONS: list[tuple[dict[str, Any], str, str]] = [
    ({"head_epochs": 2}, "head_epochs", "set personal_steps to"),
    ({"enrolled_sizes": "a_b=0"}, "enrolled_sizes['a_b'] = 0", "int at least 1"),
    ({"enrolled_sizes": "{"}, "enrolled_sizes", "does not state a value"),
    ({"server_optimizer": "adam"}, "server_optimizer", "needs server_optimizer_lr"),
    ({"server_optimizer_beta1": 0.5}, "server_optimizer_beta1", "with server_optimizer = 'none'"),
]


@pytest.mark.parametrize(("given", "name", "words"), OPTIONS)
def test_a_fault_calls_an_option_as_its_reader_does(
    given: dict[str, Any], name: str, words: str
) -> None:
    with pytest.raises(FairbloomError) as in_python:
        FedAvg(**given)
    with pytest.raises(FairbloomError) as of_a_run:
        Settings.of({key_of(each): value for each, value in given.items()}).strategy()
    for text, spell in ((str(in_python.value), str), (str(of_a_run.value), key_of)):
        option, _, rest = name.partition("[")
        assert text.startswith(f"{spell(option)}{name[len(option) :]}")
        assert rest in text
        assert all(spell(word) in text for word in words.split() if "_" in word)
        assert "a-b" not in text


def test_a_fault_comes_back_from_another_process() -> None:
    error = OptionError(Fault("an_option", 1, "{setting} = {value}"))
    back = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert str(back) == str(error) == "an_option = 1"
    assert back.fault == error.fault
