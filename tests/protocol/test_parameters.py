"""What the error of an impossible value advises, followed where it can be."""

import re
import shlex
from typing import Any

import pytest

from fairbloom.errors import did_you_mean
from fairbloom.protocol.parameters import parameters_of, split_pairs
from fairbloom.protocol.settings import SETTINGS, SettingsError, Value, parse_assignments
from fairbloom.strategies import METHODS
from fairbloom.text import quote

ADVICE: list[tuple[str, Any, str, Value | None]] = [
    (
        "learning-rate",
        "0.1, 0.01",
        "fairbloom search --grid learning-rate=0.1,0.01 tries each; allowed is float",
        None,
    ),
    (
        "learning-rate",
        [0.1, 0.01],
        "fairbloom search --grid learning-rate=VALUE,VALUE tries each; allowed is float",
        None,
    ),
    (
        "num-rounds",
        "10,20",
        "fairbloom search --grid num-rounds=10,20 tries each; allowed is int",
        None,
    ),
    (
        "seed",
        "0,1,2",
        "a run takes one value; fairbloom compare --seeds 3 runs 3 of them; allowed is int",
        None,
    ),
    (
        "weighting",
        "examples,uniform",
        "fairbloom search --grid weighting=examples,uniform tries each",
        None,
    ),
    ("fraction", "0,5", "write decimals with a point, 0.5; allowed is float", 0.5),
    ("fraction", "0.5", "leave quotes out, 0.5; allowed is float", 0.5),
    ("num-rounds", 1e3, "write 1000; allowed is int", 1000),
    ("model", 7, "put it in quotes, as in --set 'model=\"7\"'; allowed is str", "7"),
    ("pooled", "True", "write true or false; allowed is bool", True),
    (
        "engine",
        "LOOP",
        "did you mean loop (upper and lower case matter)? allowed is auto, ",
        "loop",
    ),
    ("engine", "Lop", "did you mean loop? allowed is auto, ", "loop"),
]


@pytest.mark.parametrize(("key", "value", "advice", "remedy"), ADVICE)
def test_a_likely_mistake_is_answered_with_what_to_write(
    key: Any, value: Any, advice: Any, remedy: Any
) -> None:
    with pytest.raises(
        SettingsError, match=rf"^{re.escape(f'{key} = {quote(value)}: ')}.*{re.escape(advice)}"
    ) as refusal:
        SETTINGS[key].checked(value)
    if remedy is not None:
        assert SETTINGS[key].checked(remedy) == remedy
    if quoted := re.search(r"--set '(.+)';", str(refusal.value)):
        assert parse_assignments([quoted[1]]) == {key: remedy}


@pytest.mark.parametrize(("value", "taken"), [(7, "7"), (0.25, "0.25"), ("a,7", "a,7")])
def test_names_of_clients_may_be_numbers(value: Any, taken: str) -> None:
    assert SETTINGS["training-clients"].checked(value) == taken


@pytest.mark.parametrize(
    ("key", "value", "range"),
    [
        ("num-rounds", 1.5, "int"),
        *(
            ("learning-rate", value, "float above 0$")
            for value in ("much", "0.1,much", "-1,-2", "", ",", None, [], [0.1], {"a": 1})
        ),
    ],
)
def test_what_may_be_anything_is_answered_with_the_range_alone(
    key: str, value: Any, range: str
) -> None:
    words = rf"^{key} = {re.escape(quote(value))}: allowed is {range}"
    with pytest.raises(SettingsError, match=words):
        SETTINGS[key].checked(value)


@pytest.mark.parametrize("text", ["site-a=", "=3", "site-a", "a=1 a=2"])
def test_pairs_state_a_value_for_each_name_once(text: str) -> None:
    assert split_pairs("a=1 b=2", "c=3") == {"a": "1", "b": "2"}
    with pytest.raises(ValueError, match=r"write it as c=3|give each name one value"):
        split_pairs(text, "c=3")


@pytest.mark.parametrize("key", ["prior", "fcfl.budgets"])
@pytest.mark.parametrize("wrong", [3, True, "site-a", "site a=3"])
def test_the_pairs_of_an_error_can_be_pasted_in_a_shell(key: str, wrong: Any) -> None:
    """A name with a space keeps its quotes."""
    settings = {**SETTINGS, **{each.key: each for each in parameters_of("fcfl", METHODS["fcfl"])}}
    with pytest.raises(SettingsError, match=rf"^{key} = {wrong!r}: allowed is") as error:
        settings[key].checked(wrong)
    (word,) = shlex.split(f"{key}={str(error.value).rpartition(' as in ')[2]}")
    (text,) = parse_assignments([word]).values()
    assert {*split_pairs(str(settings[key].checked(text)), "a=1")} == {"site a", "site-b"}


@pytest.mark.parametrize(
    ("name", "choices", "words"),
    [
        # one that only differs by its case
        *(
            (name, ["dose", "age"], "did you mean age (upper and lower case matter)? ")
            for name in ("Age", "AGE", "aGe")
        ),
        *((name, ["dose", "age"], "did you mean age? ") for name in ("Ages", "AGEs", "aGes")),
        ("weight", ["dose", "age"], ""),
        # both of two that are equally near
        ("fedv", ["fedfv", "fedav", "ditto"], "did you mean fedfv or fedav? "),
        ("fedvf", ["fedfv", "fedav"], "did you mean fedfv? "),  # the same letters
    ],
)
def test_the_nearest_names_are_suggested(name: str, choices: list[str], words: str) -> None:
    assert did_you_mean(name, choices) == words
