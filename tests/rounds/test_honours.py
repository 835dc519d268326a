"""A client declares the terms of local work that it supports; else its replies are refused.

A method that reads values it has not declared is an error, and so is an option as a class
attribute.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, MessageType

from fairbloom.errors import FairbloomError
from fairbloom.protocol.terms import WORK, Terms
from fairbloom.rounds.method import Cohort, FloatArray, MethodError
from fairbloom.strategies import METHODS, FairStrategy, FedAvg, FedFV, FedProx
from tests.federation import (
    BUFFERS,
    OPTIONS,
    Answer,
    MemoryGrid,
    about_itself,
    error,
    quadratics,
    run,
)
from tests.strategies.helpers import ARGUMENTS, make

SENT = {name: [*work] for name in METHODS if (work := make(name, ARGUMENTS[name][0]).terms(1).work)}
"""The terms of each method that clients must act on; test_messages.py has them to the letter."""


def client(
    name: str,
    *,
    on_query: Sequence[str] | None = (),
    on_train: Sequence[str] = (),
    asked: list[str] | None = None,
) -> Answer:
    """Return a client that declares to support these terms; with `on_query` None it answers QUERY
    with an error."""
    honest = quadratics(4)[name]

    def answer(message: Message) -> Message | None:
        kind = message.metadata.message_type
        if kind == MessageType.QUERY and asked is not None:
            asked.append(name)
        if kind == MessageType.QUERY and on_query is None:
            return error(message, message)[0]
        reply = honest(message)
        for where, honours in ((MessageType.QUERY, on_query), (MessageType.TRAIN, on_train)):
            if kind == where:
                about = {**reply.content.config_records.get("client", ConfigRecord())}
                about.pop("honours", None)
                reply.content["client"] = ConfigRecord(
                    about | ({"honours": list(honours)} if honours else {})
                )
        return reply

    return answer


@pytest.mark.parametrize(("name", "terms"), SENT.items())
def test_a_client_without_a_methods_terms_is_refused_with_remedy(
    name: str, terms: list[str]
) -> None:
    clients: dict[str, Answer] = dict(quadratics(3))
    method = partial(make, name, ARGUMENTS[name][0], buffers=BUFFERS, unused_rounds=0)
    _, (finished,) = run(method(), {**clients, "site-1": client("site-1")}, rounds=1)
    assert set(finished.refused) == {"site-1"} & set(finished.participants)
    assert set(finished.coefficients) == {"site-0", "site-2"}
    for words in ("docs/flower.md", "'honours'", *terms):
        assert all(words in reason for reason in finished.refused.values())
    honouring = client("site-1", on_query=terms)
    _, (finished,) = run(method(), {**clients, "site-1": honouring}, rounds=1)
    assert finished.refused == {}


def test_that_is_about_all_terms_and_about_no_other_key() -> None:
    of_options = {"client-rule", "personal-parameters", "head-epochs", "fine-tune-epochs"}
    of_options.add("wire-dtype")
    assert {key for keys in SENT.values() for key in keys} | of_options == set(WORK)
    assert Terms(server_round=3, measure=("loss-before",), others={"lr": 0.1}).work == {}


def test_a_common_option_asks_as_a_methods_own_term_does() -> None:
    grid = MemoryGrid(
        {**dict(quadratics(2)), "site-2": client("site-2", on_query=["personal-lambda"])}
    )
    _, (finished,) = run(
        FedFV(proximal_mu=0.5, personal_lambda=1.0, buffers=BUFFERS), grid, rounds=1
    )
    assert set(finished.refused) == {"site-2"}
    reason = finished.refused["site-2"]
    assert "proximal-mu = 0.5" in reason
    assert "personal-lambda" not in reason


@pytest.mark.parametrize(
    ("last", "refused"), [(client("site-2", on_query=None), 1), (quadratics(3)["site-2"], 0)]
)
def test_a_node_that_answers_no_query_may_say_it_in_its_replies(last: Any, refused: int) -> None:
    telling = {
        name: client(name, on_query=None, on_train=["proximal-mu"]) for name in ("site-0", "site-1")
    }
    _, rounds = run(
        FedProx(mu=0.1, buffers=BUFFERS), MemoryGrid({**telling, "site-2": last}), rounds=2
    )
    for finished in rounds:
        assert len(finished.coefficients) == 3 - refused
        assert len(finished.refused) == refused


def test_a_named_node_is_asked_once_if_its_reply_says_nothing() -> None:
    asked: list[str] = []
    says = {
        "site-0": {"on_query": ["proximal-mu"]},
        "site-1": {"on_train": ["proximal-mu"]},
        "site-2": {},
    }
    clients = {name: client(name, asked=asked, **how) for name, how in says.items()}
    _, rounds = run(
        FedProx(mu=0.1, buffers=BUFFERS), MemoryGrid(clients, registered=clients), rounds=3
    )
    assert [set(finished.refused) for finished in rounds] == [{"site-2"}] * 3
    assert sorted(asked) == ["site-0", "site-2"]
    asked.clear()
    run(FedAvg(buffers=BUFFERS), MemoryGrid(clients, registered=clients), rounds=2)
    assert asked == []  # a method without terms asks no client


def test_a_client_without_the_users_rule_is_refused_by_its_key() -> None:
    clients = {**quadratics(3), "site-1": client("site-1")}
    ruled = FedAvg(buffers=BUFFERS, client_rule="mine:Rule", unused_rounds=0)
    _, (finished,) = run(ruled, MemoryGrid(clients), rounds=1)
    assert "client-rule" in finished.refused["site-1"]


@pytest.mark.parametrize("honours", ["proximal-mu", 7, [1, 2], b"proximal-mu"])
def test_an_answer_of_another_kind_honours_nothing(honours: Any) -> None:
    odd = about_itself(quadratics(1)["site-0"], name="site-0", honours=honours)
    _, (finished,) = run(
        FedProx(mu=0.1, buffers=BUFFERS, unused_rounds=0), {"site-0": odd}, rounds=1
    )
    assert set(finished.refused) == {"site-0"}


def reading(read: str) -> type[FairStrategy]:
    """Return a method that reads something of a cohort without having asked for it."""

    def weigh(self: FairStrategy, cohort: Cohort) -> FloatArray:
        eval(f"cohort.{read}", {}, {"cohort": cohort})  # noqa: S307 (an expression of these tests)
        return cohort.prior

    return type("Reading", (FairStrategy,), {"weigh": weigh})


@pytest.mark.parametrize(
    "read", ["['site-1']", ".get('site-1')", ".values().__iter__().__next__()", ".__len__()"]
)
def test_a_roster_that_was_not_asked_for_is_an_error(read: str) -> None:
    method = reading(f"roster{read}")(**OPTIONS)
    with pytest.raises(MethodError, match=r'cohort\.roster.*requires = frozenset\(\{"roster"\}\)'):
        run(method, rounds=1)
    assert "roster" not in method.state_dict()
    with pytest.raises(MethodError, match=r"loss-before.*needs = frozenset"):
        run(reading("losses")(**OPTIONS), rounds=1)


def test_a_constructor_without_its_bases_one_is_refused() -> None:
    def construct(self: FairStrategy, strength: float = 0.5) -> None:
        self.strength = strength  # type: ignore[attr-defined]

    with pytest.raises(FairbloomError, match=r"Mine.*super\(\)\.__init__"):
        type("Mine", (FedAvg,), {"__init__": construct})()


@pytest.mark.parametrize(
    ("name", "value"), [("weighting", "uniform"), ("proximal_mu", 0.1), ("seed", 3)]
)
def test_wrong_declarations_are_refused(name: str, value: str | float | int) -> None:
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
        match=r"Choosing\.choose, in round 1, drew 'stranger', .* none of the 6 clients",
    ):
        run(choosing("site-1", "stranger")(**OPTIONS), rounds=1)
    with pytest.raises(MethodError, match=r"Choosing\.choose, in round 1, drew none of 6 clients"):
        run(choosing()(**OPTIONS), rounds=1)
    assert run(choosing("site-4", "site-1")(**OPTIONS), rounds=1)[1][0].participants == (
        "site-1",
        "site-4",
    )
