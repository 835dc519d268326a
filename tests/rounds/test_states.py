"""The states that clients keep between rounds: lost ones are noticed, and all begin anew.

The state of a run: complete, plain, and enough to continue to the same bits.
"""

import json
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest

from fairbloom.rounds.cohort import Cohort, Decision, Kept
from fairbloom.rounds.states import MAX_STATE_LOSSES, States
from fairbloom.strategies import SCAFFOLD, FairStrategy, FedAvg, FedDyn
from tests.federation import (
    KINDS,
    OPTIONS,
    QUIET,
    Bowl,
    MemoryGrid,
    arrays,
    assert_resumes,
    error,
    follow,
    keeping,
    metrics,
    no_reply,
    run,
)
from tests.strategies.helpers import ARGUMENTS, CASES, make

METHODS: dict[str, Callable[..., FairStrategy]] = {
    "scaffold": SCAFFOLD,
    "feddyn": lambda **o: FedDyn(alpha=1.0, **o),
}

both = pytest.mark.parametrize("name", METHODS)


def made(name: str, **options: Any) -> FairStrategy:
    return METHODS[name](**{**QUIET, **options})


KEPT: list[tuple[str, dict[str, Any]]] = [
    *(("scaffold", {"weighting": each, "fraction_train": 0.4}) for each in ("examples", "uniform")),
    *(
        (name, {"fraction_train": fraction})
        for name, fraction in (("scaffold", 1.0), ("feddyn", 1.0), ("feddyn", 0.4))
    ),
]


@pytest.mark.parametrize(("name", "options"), KEPT)
def test_what_clients_and_server_keep_agrees_after_each_round(name: str, options: Any) -> None:
    """Also where clients join, and where one takes no step."""
    joined = {4: "site-4", 6: "site-5"}

    def join(number: int, grid: MemoryGrid) -> None:
        grid.nodes = {
            node: site
            for node, site in grid.nodes.items()
            if number > 1 or site not in joined.values()
        }
        grid.nodes |= {1000 + number: joined[number]} if number in joined else {}

    clients = keeping(6)
    clients["site-3"].rates = []
    course = follow(made(name, seed=2, **options), clients, 12, before=join)
    assert max(course.inconsistencies) < 1e-11
    assert not any(finished.lost_states for finished in course.rounds)
    assert any(np.abs(state).max() > 0.1 for state in course.used_states.values())


@pytest.mark.parametrize(
    "fault", [error, no_reply, arrays(w=np.full(3, np.nan)), metrics({"num-examples": 0})]
)
@both
def test_a_reply_that_is_refused_or_lost_leaves_nothing_behind(
    name: str, fault: Callable[..., Any]
) -> None:
    """As if the client had not been asked: it continues from the state of its last used reply."""
    course = follow(
        made(name), keeping(3), 8, faults={("site-1", number): fault for number in (3, 4, 5)}
    )
    asked = [
        course.sent[number]["site-1"] for number in (3, 4, 5, 6) if "site-1" in course.sent[number]
    ]
    assert {config["state-round"] for config in asked} == {2}
    assert all("site-1" not in finished.coefficients for finished in course.rounds[2:5])
    # not asked for a while then
    assert ("site-1" in course.rounds[7].coefficients) == (fault is not no_reply)
    assert not any(finished.lost_states for finished in course.rounds)
    assert course.inconsistencies[-1] < 1e-10


def losing(
    clients: Mapping[str, Bowl], losses: Mapping[int, str]
) -> Callable[[int, MemoryGrid], None]:
    """Return a function that makes clients, named in a text, lose their state before a round."""

    def before(number: int, grid: MemoryGrid) -> None:
        for name in losses.get(number, "").split():
            clients[name].states = {}

    return before


@both
def test_a_lost_state_is_refused_by_name_and_all_begin_anew(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    clients = keeping(4)
    with caplog.at_level(logging.WARNING, "flwr"):
        course = follow(made(name), clients, 8, before=losing(clients, {5: "site-2"}))
    lost = course.rounds[4]
    assert set(lost.refused) == {"site-2"}
    assert "state of round 0" in lost.refused["site-2"]
    assert "that of round 4" in lost.refused["site-2"]
    assert set(lost.coefficients) == {"site-0", "site-1", "site-3"}
    assert [finished.lost_states for finished in course.rounds] == [()] * 4 + [("site-2",)] + [
        ()
    ] * 3
    assert any("site-2 lost the state" in record.getMessage() for record in caplog.records)
    assert {config["state-round"] for config in course.sent[6].values()} == {0}
    assert 6 not in course.controlled
    assert {config["state-round"] for config in course.sent[7].values()} == {6}
    assert course.rounds[5].refused == course.rounds[6].refused == {}
    assert max(course.inconsistencies) < 1e-10
    # as a new run from that round's model
    anew = follow(made(name), keeping(4), 3, first=course.models[5])
    assert [model.tobytes() for model in course.models[6:]] == [
        model.tobytes() for model in anew.models[1:]
    ]
    assert course.states[4]["kept"] == []
    assert course.states[4]["states"] == {"rounds": {}, "losses": {"site-2": 1}}


@pytest.mark.parametrize("value", [None, float("nan"), [2, 2]])
@both
def test_a_reply_without_its_state_round_is_refused(
    name: str, value: float | list[int] | None
) -> None:
    course = follow(
        made(name), keeping(3), 5, faults={("site-1", 3): metrics({"state-round": value})}
    )
    assert set(course.rounds[2].refused) == {"site-1"}
    assert "'state-round'" in course.rounds[2].refused["site-1"]
    assert course.sent[4]["site-1"]["state-round"] == 2
    assert not any(finished.lost_states for finished in course.rounds)
    assert course.inconsistencies[-1] < 1e-10
    # it is no number of a round
    assert all("state-round" not in finished.metrics for finished in course.rounds)


@both
def test_where_all_lose_theirs_the_round_is_skipped(name: str) -> None:
    """As where a server goes back further than clients keep states."""
    clients = keeping(3)
    course = follow(made(name), clients, 6, before=losing(clients, {4: "site-0 site-1 site-2"}))
    assert course.rounds[3].lost_states == tuple(clients)
    assert course.rounds[3].coefficients == {}
    assert course.models[3].tobytes() == course.models[4].tobytes()
    assert course.rounds[4].refused == {}
    assert course.inconsistencies[-1] < 1e-10


@both
def test_who_loses_it_twice_is_refused_also_after_a_kill(
    name: str, subtests: pytest.Subtests
) -> None:
    clients = keeping(3)
    killed = follow(made(name), clients, 4, before=losing(clients, {3: "site-1"}))
    state = json.loads(json.dumps(killed.states[3]["states"]))
    assert state == {"rounds": dict.fromkeys(clients, 4), "losses": {"site-1": 1}}
    assert vars(States(**state)) == state
    lost = losing(clients, {5: "site-1", 7: "site-1"})
    resumed = follow(
        made(name), clients, 7, first=killed.models[-1], resume=killed.states[3], before=lost
    )
    assert resumed.rounds[0].lost_states == ("site-1",)
    for finished in resumed.rounds[1:]:
        with subtests.test(finished=finished):
            assert "2 times: give it a folder that stays (state-dir" in finished.refused["site-1"]
            assert set(finished.coefficients) == {"site-0", "site-2"}
    assert resumed.inconsistencies[-1] < 1e-10
    assert MAX_STATE_LOSSES == 2


class Counting(FedAvg):
    """Keeps a momentum row, and remembers the rounds of each client."""

    def weigh(self, cohort: Cohort) -> Decision:
        c = np.concatenate([cohort.prior, [0.5] * len(cohort.memory)])
        seen = cohort.past.memory.get("seen", {})
        now = {name: [*seen.get(name, []), cohort.round] for name in cohort.names}
        return Decision(c, {"seen": seen | now}, {Kept("momentum", cohort.round): c})


@pytest.mark.parametrize(
    "cases",
    [[(name, ARGUMENTS[name][0]) for name in KINDS], pytest.param(CASES, marks=pytest.mark.slow)],
)
def test_a_run_resumed_from_its_state_ends_with_the_same_bits(
    cases: list[tuple[str, dict[str, Any]]],
) -> None:
    for name, arguments in cases:
        assert_resumes(partial(make, name, arguments, **OPTIONS))


def test_a_state_does_not_change_while_the_run_goes_on() -> None:
    assert_resumes(lambda: Counting(**OPTIONS), 5, (2, 5))
    states: list[dict[str, Any]] = []
    strategy = Counting(**OPTIONS)
    run(strategy, rounds=5, evaluate_fn=lambda number, arrays: states.append(strategy.state_dict()))
    assert [sum(map(len, state["memory"].get("seen", {}).values())) for state in states] == [
        0,
        4,
        8,
        12,
        16,
        20,
    ]
