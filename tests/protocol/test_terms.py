"""The terms of a client's work, on the wire and back."""

import math
from contextlib import nullcontext
from dataclasses import fields, replace
from typing import Any

import pytest
from flwr.app import ConfigRecord
from hypothesis import given, strategies as st

from fairbloom.errors import ReportableError
from fairbloom.protocol.parameters import Range
from fairbloom.protocol.rules import check_rule
from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.terms import _FIELDS, ALLOWED, Terms

NAMES = [each.name.replace("_", "-") for each in fields(Terms)]

strengths = st.floats(0.0, 1e6)
steps = st.integers(1, 1000)
numbers = st.integers(-(2**62), 2**62)
words = st.text(min_size=1, max_size=8)

terms = st.builds(
    Terms,
    server_round=steps,
    measure=st.lists(words, max_size=3).map(tuple),
    proximal_mu=strengths,
    personal_lambda=st.none() | strengths,
    personal_epochs=st.none() | steps,
    local_only=st.booleans(),
    client_momentum=st.none() | st.floats(0.0, 1.0, exclude_max=True),
    full_batch_step=st.booleans(),
    local_steps=st.none() | steps,
    snapshot_step=st.none() | steps,
    loss_transform=st.sampled_from(("", "propfair", "cubed")),
    propfair_baseline=st.none() | st.floats(1e-9, 1e6),
    propfair_epsilon=st.none() | st.floats(1e-9, 1e6),
    disparity=st.sampled_from(("", "demographic-parity", "equal-opportunity")),
    disparity_sharpness=st.none() | st.floats(1e-9, 1e6),
    control_variates=st.booleans(),
    dynamic_alpha=st.none() | strengths,
    state_round=st.none() | st.integers(0, 1000),
    baseline_patience=st.none() | steps,
    baseline_tolerance=st.none() | strengths,
    baseline_epochs=st.none() | steps,
    others=st.dictionaries(
        words.filter(lambda word: word not in NAMES),
        st.booleans() | numbers | strengths | words | st.lists(words, max_size=2),
        max_size=3,
    ),
)


@given(terms)
def test_terms_come_back_from_the_wire_as_they_were(sent: Terms) -> None:
    config = sent.to_config()
    assert Terms.of(config) == sent
    assert Terms.of(ConfigRecord(config)) == sent


@pytest.mark.parametrize(
    ("asked", "settings", "words"),
    [
        ({"control_variates": True}, {}, None),
        ({"client_momentum": 0.9}, {}, None),
        ({"control_variates": True}, {"client-rule": "a:B"}, "and client-rule = 'a:B' ask for a"),
        ({"control_variates": True, "dynamic_alpha": 0.1}, {}, "ask for a rule of local work each"),
        ({"control_variates": True}, {"momentum": 0.9}, "leave out momentum = 0.9"),
        ({"control_variates": True, "client_momentum": 0.9}, {}, "leave out client-momentum = 0.9"),
        ({"client_rule": "a:B"}, {"client-rule": "a:C"}, "the run's settings name 'a:C'"),
    ],
)
def test_one_rule_at_most_corrects_steps_of_plain_sgd(
    asked: dict[str, Any], settings: dict[str, Any], words: str | None
) -> None:
    sent = Terms(server_round=1, **asked)
    with pytest.raises(ReportableError, match=words) if words else nullcontext():
        check_rule(RunSettings.of(settings), sent)


@given(terms)
def test_wire_names_have_hyphens_and_defaults_are_not_sent(sent: Terms) -> None:
    config = {key: value for key, value in sent.to_config().items() if key not in sent.others}
    plain = Terms(server_round=1)
    changed = {
        name for name in NAMES if getattr(sent, attribute(name)) != getattr(plain, attribute(name))
    }
    assert set(config) == (changed - {"others"}) | {"server-round"}
    assert all(value == as_list(getattr(sent, attribute(key))) for key, value in config.items())


@given(terms, st.dictionaries(words, st.integers(0, 1000), max_size=3))
def test_each_client_is_sent_the_round_of_its_own_state(
    sent: Terms, rounds: dict[str, int]
) -> None:
    of_all = replace(sent, state_rounds=rounds)
    assert of_all.to_config() == sent.to_config()
    for name, number in rounds.items():
        assert of_all.of_client(name) == replace(sent, state_round=number)
        assert of_all.of_client(name).to_config() == {**sent.to_config(), "state-round": number}
    assert of_all.of_client("a stranger, whose name is longer") == sent


def test_a_client_may_be_asked_for_fewer_metrics_than_others() -> None:
    of_all = Terms(server_round=1, measure=("loss-before", "loss-after"), measures={"a": ()})
    assert of_all.to_config() == replace(of_all, measures={}).to_config()
    assert of_all.of_client("a") == Terms(server_round=1)
    assert of_all.of_client("b") == replace(of_all, measures={})


def attribute(key: str) -> str:
    return key.replace("-", "_")


def as_list(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def test_what_another_app_tells_comes_back_among_the_others() -> None:
    config = {"server-round": 2, "lr": 0.1, "others": "mine", "local_steps": 3, "__class__": "x"}
    received = Terms.of(config)
    assert received == Terms(
        server_round=2, others={"lr": 0.1, "others": "mine", "local_steps": 3, "__class__": "x"}
    )
    assert received.to_config() == config


def test_a_servers_word_outweighs_what_is_told_with_it() -> None:
    assert Terms(
        server_round=3,
        proximal_mu=0.5,
        others={"server-round": 1, "proximal-mu": 9.0, "measure": ["x"]},
    ).to_config() == {"server-round": 3, "proximal-mu": 0.5}


def test_a_message_without_a_round_is_no_terms() -> None:
    with pytest.raises(TypeError, match="server_round"):
        Terms.of({"measure": []})


@pytest.mark.parametrize("key", ALLOWED)
def test_a_term_outside_its_range_is_refused(key: str) -> None:
    """NaN and infinity, a number below or above the range, another type or another word."""
    assert set(ALLOWED) == {*_FIELDS, "server-round"}
    allowed = ALLOWED[key]
    wrong: list[Any] = [[1], math.nan] if allowed.kind is not float else [[1.0], "1"]
    if isinstance(allowed.allowed, Range):
        wrong += [math.nan, math.inf, -math.inf, allowed.allowed.ends[0] - 1]
        if math.isfinite(allowed.allowed.ends[1]):
            wrong.append(allowed.allowed.ends[1] + 1)
    for value in wrong:
        with pytest.raises(ReportableError, match=f"the server asks for {key} = "):
            Terms.of({"server-round": 1, key: value})
