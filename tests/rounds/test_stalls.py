"""All clients miss a round, or are away: the run waits until enough are free again."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
from flwr.app import Message, MessageType
from flwr.app.error import Error

from fairbloom.flower import set_created_at
from fairbloom.rounds.flower import FlowerClients
from fairbloom.rounds.loop import NothingLearnedError, Rounds
from fairbloom.rounds.quorum import Quorum
from fairbloom.rounds.records import EXPIRED
from fairbloom.rounds.round import Round
from fairbloom.strategies import FedAvg
from tests.federation import BUFFERS, Answer, MemoryGrid, initial_model, no_reply, quadratics, record, unpack

from .test_quorum import Clock

SITES = ("site-0", "site-1", "site-2")
LIVES = 10.0
"""Seconds that clients have to reply, and that messages live."""

Times = tuple[tuple[float, float], ...]


class Nodes(MemoryGrid):
    """Nodes that do nothing from one second of a clock to another, and answer one message after the other.

    A reply to a message that has outlived its time is lost, as a SuperLink loses it. A round takes a second.
    """

    def __init__(
        self,
        clock: Clock,
        asleep: Mapping[str, Times] | None = None,
        away: Mapping[str, Times] | None = None,
        answers: Mapping[str, Answer] | None = None,
    ) -> None:
        super().__init__(answers or quadratics(3), registered=SITES)
        self.clock, self.asleep, self.away = clock, asleep or {}, away or {}
        self._waiting: dict[str, Message] = {}

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        messages = list(messages)
        for message in messages:
            set_created_at(message, self.clock.time())
        answers, self._answers = self._answers, lambda message: []  # type: ignore[method-assign]
        ids = super().push_messages(messages)
        self._answers = answers  # type: ignore[method-assign]
        self._waiting |= dict(zip(ids, messages, strict=True))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        came = []
        for message_id in [each for each in message_ids if each in self._waiting]:
            message = self._waiting[message_id]
            name, dead = self.nodes[message.metadata.dst_node_id], self.clock.time() >= self._dies(message)
            if dead:
                came.append(Message(Error(EXPIRED[0], "dead"), reply_to=message))
            elif not self._is(self.asleep, name) and not self._is(self.away, name):
                came += self._answers(message)
            else:
                continue
            del self._waiting[message_id]
        return came

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        pending, replies = set(self.push_messages(messages)), list[Message]()
        while pending:
            self.clock.sleep(0.5)
            came = self.pull_messages(pending)
            pending -= {each.metadata.reply_to_message_id for each in came}
            replies += came
        return replies

    def get_nodes(self):  # type: ignore[no-untyped-def]
        return [node for node in super().get_nodes() if not self._is(self.away, self.nodes[node.node_id])]

    def _is(self, when: Mapping[str, Times], name: str) -> bool:
        return any(start <= self.clock.now < end for start, end in when.get(name, ()))

    def _dies(self, message: Message) -> float:
        return float(message.metadata.created_at + message.metadata.ttl)


class Day(Clock):
    """A clock that only sleeping moves, and that says the time of day as well."""

    def __init__(self) -> None:
        super().__init__()
        self._began = time.time()

    def time(self) -> float:
        return self._began + self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Day:
    clock = Day()
    for place in ("quorum", "flower", "roster"):
        monkeypatch.setattr(f"fairbloom.rounds.{place}.time", clock)
    return clock


def deployed(
    grid: MemoryGrid, rounds: int = 6, patience: float = 3600.0, fewest: int = 2, **options: Any
) -> list[Round]:
    """Run as Fairbloom's own ServerApp does."""
    quorum = Quorum(patience, known=SITES)
    quorum.fewest = fewest
    method = FedAvg(buffers=BUFFERS, min_available_nodes=fewest, **{"fraction_evaluate": 0.0, **options})
    loop = Rounds(method, FlowerClients(method, grid, LIVES, quorum), rounds, known=SITES)
    return list(loop.run(initial_model(), measure=lambda number: [], measure_after=[]))


def own(grid: MemoryGrid, rounds: int = 6, **options: Any) -> list[Round]:
    """Run as a user's ServerApp does."""
    finished: list[Round] = []
    method = FedAvg(buffers=BUFFERS, **{"fraction_evaluate": 0.0, **options})
    method.start(grid, record(initial_model()), rounds, LIVES, on_round=finished.append)
    return finished


either = pytest.mark.parametrize("run", [deployed, own])


def everyone(*times: tuple[float, float]) -> dict[str, Times]:
    return dict.fromkeys(SITES, times)


def used(rounds: Iterable[Round]) -> list[int]:
    return [len(each.coefficients) for each in rounds]


@either
def test_a_round_that_all_miss_counts_once(run: Callable[..., list[Round]], clock: Day) -> None:
    rounds = run(Nodes(clock, everyone((1.2, 12.2))))
    assert [each.number for each in rounds] == [1, 2, 3, 4, 5, 6]
    assert used(rounds) == [3, 3, 0, 3, 3, 3]
    assert rounds[2].missing == SITES
    assert rounds[2].participants == ()
    assert unpack_bits(rounds[2]) == unpack_bits(rounds[1])


@either
def test_the_round_goes_on_without_one_that_is_late(run: Callable[..., list[Round]], clock: Day) -> None:
    rounds = run(Nodes(clock, {"site-1": ((0.7, 1e9),)}))
    assert used(rounds) == [3, 2, 2, 2, 2, 2]
    assert [each.missing for each in rounds] == [(), ("site-1",), (), (), (), ()]
    assert clock.now < 30.0


class Late(MemoryGrid):
    """What was held back arrives once the round is over."""

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        came = super().pull_messages(message_ids)
        self.release()
        return came


@either
def test_late_replies_of_all_pay_their_debts(run: Callable[..., list[Round]], clock: Day) -> None:
    grid = Late(quadratics(3), faults={(site, number): no_reply for site in SITES for number in (2, 4, 5)})
    grid.registered = SITES
    assert used(run(grid, rounds=7)) == [3, 0, 3, 0, 0, 3, 3]


@either
def test_clients_that_are_all_offline_are_waited_for(run: Callable[..., list[Round]], clock: Day) -> None:
    rounds = run(Nodes(clock, away=everyone((1.2, 900.0))))
    assert used(rounds) == [3, 3, 0, 3, 3, 3]
    assert clock.now >= 900.0


@either
def test_clients_that_miss_each_round_end_the_run(run: Callable[..., list[Round]], clock: Day) -> None:
    def query_alone(name: str) -> Answer:
        client = quadratics(3)[name]
        return lambda message: client(message) if message.metadata.message_type == MessageType.QUERY else None

    with pytest.raises(NothingLearnedError, match="in round 3, 3 of 3 clients did not answer in time"):
        run(MemoryGrid({name: query_alone(name) for name in SITES}, registered=SITES))


@either
def test_a_last_round_that_all_miss_is_evaluated_later(run: Callable[..., list[Round]], clock: Day) -> None:
    rounds = run(Nodes(clock, everyone((0.7, 15.0))), rounds=2, fraction_evaluate=1.0, evaluate_every=0)
    assert used(rounds) == [3, 0]
    assert list(rounds[1].evaluations) == list(SITES)


@either
def test_an_evaluation_that_all_miss_is_not_a_round(run: Callable[..., list[Round]], clock: Day) -> None:
    rounds = run(Nodes(clock, everyone((1.7, 15.0))), fraction_evaluate=1.0)
    assert [len(each.evaluations) for each in rounds] == [3, 0, 3, 3, 3, 3]
    assert used(rounds) == [3, 3, 3, 3, 3, 3]


def unpack_bits(finished: Round) -> dict[str, bytes]:
    arrays = unpack(finished.arrays) if not isinstance(finished.arrays, dict) else finished.arrays
    return {name: array.tobytes() for name, array in arrays.items()}
