"""A client that never answers costs a round its time once: it is asked again after a pause, which doubles."""

import time
from collections.abc import Iterable
from typing import Any

import pytest
from flwr.app import Message, MessageType
from flwr.app.error import Error

from fairbloom.rounds.flower import FlowerClients
from fairbloom.rounds.loop import Rounds
from fairbloom.rounds.records import EXPIRED
from fairbloom.rounds.round import Round
from fairbloom.strategies import FedAvg
from tests.federation import BUFFERS, Answer, Fault, MemoryGrid, initial_model, no_reply, quadratics, record

SITES = ("site-0", "site-1", "site-2")
FLOWERS_OWN = 12 * 3600.0
"""Seconds that a message lives where nobody says how long."""


class Clock:
    """The time of day, which a test moves on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead, self._now = 0.0, time.time
        monkeypatch.setattr("fairbloom.rounds.roster.time.time", self)

    def __call__(self) -> float:
        return self._now() + self.ahead


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class Silent(MemoryGrid):
    """Never says that a message was lost: asked for late replies, it has none. Dates messages by the test's clock."""

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        messages = list(messages)
        for message in messages:
            message.metadata.__dict__["_created_at"] = time.time()
        return super().push_messages(messages)


class Bare(Silent):
    """Cannot be asked for late replies at all."""

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return Silent.pull_messages(self, self.push_messages(messages))


def run(
    grid: MemoryGrid, clock: Clock, ahead: Iterable[float], timeout: float | None = 100.0, **options: Any
) -> list[Round]:
    """Run as many rounds as `ahead` has numbers; each says how far the clock is ahead in its round."""
    hours = list(ahead)
    method = FedAvg(**{"buffers": BUFFERS, "fraction_evaluate": 0.0, **options})
    loop = Rounds(method, FlowerClients(method, grid, timeout), len(hours))
    finished: list[Round] = []
    clock.ahead = hours[0]
    for each in loop.run(initial_model(), measure=lambda number: [], measure_after=[]):
        finished.append(each)
        clock.ahead = hours[min(each.number, len(hours) - 1)]
    return finished


def asked(rounds: Iterable[Round], site: str = "site-2") -> list[bool]:
    return [site in each.participants for each in rounds]


def test_a_silent_client_is_left_out_as_long_again(clock: Clock) -> None:
    for kind, timeout, lives in ((Silent, 100.0, 100.0), (Bare, 67.5, 67.5), (Silent, None, FLOWERS_OWN)):
        grid = kind(quadratics(3), faults={("site-2", 1): no_reply})
        rounds = run(grid, clock, [0.0, lives + 1.0, 2.0 * lives - 30.0, 2.0 * lives + 1.0, 2.0 * lives + 1.0], timeout)
        assert asked(rounds) == [True, False, False, True, True]
        assert [each.missing for each in rounds] == [("site-2",), (), (), (), ()]
        assert list(rounds[3].coefficients) == list(SITES)


def test_a_debt_counts_from_when_its_message_was_made(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    grid, method = MemoryGrid(quadratics(3), faults={("site-2", 1): no_reply}), FedAvg()
    clients = FlowerClients(method, grid, 100.0)
    names, terms, _ = Rounds(method, clients, 3).ask(1, {}, [])
    clients.train(names, initial_model(), terms)
    (message,) = [sent for name, sent in grid.sent_to(MessageType.TRAIN) if name == "site-2"]
    ends = message.metadata.created_at + 2.0 * message.metadata.ttl
    assert message.metadata.ttl == 100.0
    for now, free in ((ends - 0.001, ["site-0", "site-1"]), (ends, list(SITES))):
        monkeypatch.setattr("fairbloom.rounds.roster.time.time", lambda now=now: now)
        assert clients.free() == free


class Expiring(Silent):
    """Says of each message that nobody answered that it is dead, as a SuperLink does when it is asked."""

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        ids = set(message_ids)
        dead = [sent for sent in self.sent if sent.metadata.message_id in ids and sent.metadata.message_type == "train"]
        came = super().pull_messages(ids)
        answered = {reply.metadata.reply_to_message_id for reply in came}
        unanswered = [sent for sent in dead if sent.metadata.message_id not in answered]
        return came + [Message(Error(EXPIRED[0], "dead"), reply_to=sent) for sent in unanswered]


def test_the_grids_word_that_a_message_is_dead_is_no_answer(clock: Clock) -> None:
    rounds = run(Expiring(quadratics(3), faults={("site-2", 1): no_reply}), clock, [0.0, 50.0, 101.0, 201.0])
    assert asked(rounds) == [True, False, False, True]
    assert [each.missing for each in rounds] == [("site-2",), (), (), ()]


def test_an_evaluation_that_is_never_answered_is_a_debt_as_well(clock: Clock) -> None:
    client = quadratics(3)["site-2"]

    def mute(message: Message) -> Message | None:
        first = message.metadata.message_type == MessageType.EVALUATE and not evaluations
        evaluations.extend([message] if message.metadata.message_type == MessageType.EVALUATE else [])
        return None if first else client(message)

    evaluations: list[Message] = []
    clients: dict[str, Answer] = {**quadratics(3), "site-2": mute}
    rounds = run(Silent(clients), clock, [0.0, 101.0, 201.0], fraction_evaluate=1.0)
    assert asked(rounds) == [True, False, True]
    assert [list(each.evaluations) for each in rounds] == [["site-0", "site-1"], ["site-0", "site-1"], list(SITES)]


def test_a_node_that_never_told_its_name_is_asked_for_it_again(clock: Clock) -> None:
    client = quadratics(3)["site-2"]

    def shy(message: Message) -> Message | None:
        if message.metadata.message_type == MessageType.QUERY:
            queries.append(message)
        return None if len(queries) == 1 else client(message)

    queries: list[Message] = []
    clients: dict[str, Answer] = {**quadratics(3), "site-2": shy}
    rounds = run(Silent(clients), clock, [0.0, 101.0, 201.0, 201.0])
    assert asked(rounds) == [False, False, True, True]
    assert len(queries) == 2


def test_a_reply_after_its_message_is_dead_is_not_used(clock: Clock) -> None:
    def both(sent: Message, reply: Message) -> list[Message]:
        (late,) = grid.held
        return [late, reply]

    faults: dict[tuple[str, int], Fault] = {("site-2", 1): no_reply}
    grid = Silent(quadratics(3), faults={**faults, ("site-2", 2): both})
    late = run(grid, clock, [0.0, 201.0, 201.0])
    never = run(Silent(quadratics(3), faults=faults), clock, [0.0, 201.0, 201.0])
    assert late[1].refused == {"site-2": "it answers no message of this round"}
    assert asked(late) == [True, True, True]
    for one, other in zip(late, never, strict=True):
        assert one.coefficients == other.coefficients
        assert {k: a.tobytes() for k, a in one.arrays.items()} == {k: a.tobytes() for k, a in other.arrays.items()}


def test_a_client_that_owes_a_reply_is_not_asked_again() -> None:
    grid = MemoryGrid(quadratics(6), faults={("site-2", 1): no_reply})

    def on_round(finished: Round) -> None:
        rounds.append(finished)
        if finished.number == 2:
            grid.release()

    rounds: list[Round] = []
    FedAvg(fraction_evaluate=0.0).start(grid, record(initial_model()), num_rounds=3, on_round=on_round)
    assert asked(rounds) == [True, False, True]
