"""All clients miss a round, or are away: the round counts once, and the run waits until enough are free again."""

import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
from flwr.app import Message, MessageType
from flwr.app.error import Error

from fairbloom.flower import set_created_at
from fairbloom.rounds.flower import EXPIRED, FlowerClients
from fairbloom.rounds.loop import NothingLearnedError, Rounds
from fairbloom.rounds.quorum import Quorum, QuorumError
from fairbloom.rounds.round import Round
from fairbloom.strategies import FedAvg
from tests.strategies.helpers import BUFFERS, Answer, MemoryGrid, initial_model, no_reply, quadratics, record, unpack

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
    for seconds in (11.0, 300.0):
        clock.now = 0.0
        rounds = run(Nodes(clock, everyone((1.2, 1.2 + seconds))))
        assert [each.number for each in rounds] == [1, 2, 3, 4, 5, 6]
        assert used(rounds) == [3, 3, 0, 3, 3, 3]
        assert rounds[2].missing == SITES
        assert rounds[2].participants == ()
        assert unpack_bits(rounds[2]) == unpack_bits(rounds[1])
    clock.now = 0.0
    assert used(run(Nodes(clock, everyone((0.2, 100.0))))) == [0, 3, 3, 3, 3, 3]


@either
def test_the_round_goes_on_without_one_that_is_late(run: Callable[..., list[Round]], clock: Day) -> None:
    rounds = run(Nodes(clock, {"site-1": ((0.7, 1e9),)}))
    assert used(rounds) == [3, 2, 2, 2, 2, 2]
    assert [each.missing for each in rounds] == [(), ("site-1",), (), (), (), ()]
    assert clock.now < 30.0


def test_a_deployed_run_waits_for_as_many_as_it_needs(clock: Day) -> None:
    asleep = {"site-0": ((0.7, 20.0),), "site-1": ((0.7, 500.0),), "site-2": ((0.7, 800.0),)}
    grid = Nodes(clock, asleep)
    assert used(deployed(grid)) == [3, 0, 2, 2, 2, 2]
    assert 500.0 <= clock.now < 520.0
    assert [name for name, _ in grid.sent_to(MessageType.QUERY)].count("site-1") > 1  # a question is asked again


@either
def test_clients_that_come_back_together_all_take_part(run: Callable[..., list[Round]], clock: Day) -> None:
    asleep = {"site-0": ((0.7, 30.0),), "site-1": ((0.7, 30.4),), "site-2": ((0.7, 30.4),)}
    assert used(run(Nodes(clock, asleep))) == [3, 0, 3, 3, 3, 3]


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
    assert not grid.sent_to(MessageType.QUERY)


@either
def test_an_error_pays_a_debt_and_is_named(
    run: Callable[..., list[Round]], clock: Day, said: pytest.LogCaptureFixture
) -> None:
    def answer(name: str) -> Answer:
        client = quadratics(3)[name]

        def fails(message: Message) -> Message:
            if message.metadata.message_type == MessageType.QUERY:
                return Message(Error(2, "the mod expects one ArrayRecord"), reply_to=message)
            return client(message)

        return fails

    rounds = run(Nodes(clock, everyone((0.7, 20.0)), answers={name: answer(name) for name in SITES}))
    assert used(rounds) == [3, 0, 3, 3, 3, 3]
    assert "client site-0 owed a reply and answers with error 2: the mod expects one ArrayRecord" in said.text


@either
def test_clients_that_are_all_offline_are_waited_for(run: Callable[..., list[Round]], clock: Day) -> None:
    rounds = run(Nodes(clock, away=everyone((1.2, 900.0))))
    assert used(rounds) == [3, 3, 0, 3, 3, 3]
    assert clock.now >= 900.0


@either
def test_at_the_end_of_patience_the_run_names_the_awaited(run: Callable[..., list[Round]], clock: Day) -> None:
    with pytest.raises(QuorumError) as ended:
        run(Nodes(clock, everyone((0.7, 1e9))))
    words = str(ended.value)
    assert re.search(r"after 3600 s \(patience\) 0 of \d clients that this run needs", words)
    assert "owe no earlier reply; awaited: site-0, site-1, site-2. The same command continues this run" in words
    assert 3600.0 <= clock.now < 3640.0


def test_the_setting_that_the_error_names_helps(clock: Day) -> None:
    asleep = {"site-0": ((0.7, 20.0),), "site-1": ((0.7, 1e9),), "site-2": ((0.7, 1e9),)}
    with pytest.raises(QuorumError) as ended:
        deployed(Nodes(clock, asleep), patience=100.0)
    found = re.search(r"awaited: site-1, site-2\..* min-clients = (\d) would go on without them", str(ended.value))
    assert found is not None
    clock.now = 0.0
    assert used(deployed(Nodes(clock, asleep), fewest=int(found[1]))) == [3, 0, 1, 1, 1, 1]


@either
def test_clients_that_miss_each_round_end_the_run(run: Callable[..., list[Round]], clock: Day) -> None:
    def query_alone(name: str) -> Answer:
        client = quadratics(3)[name]
        return lambda message: client(message) if message.metadata.message_type == MessageType.QUERY else None

    with pytest.raises(NothingLearnedError, match="in round 3, 3 of 3 clients did not answer in time"):
        run(MemoryGrid({name: query_alone(name) for name in SITES}, registered=SITES))


@either
def test_a_last_round_that_all_miss_is_evaluated_later(run: Callable[..., list[Round]], clock: Day) -> None:
    rounds = run(Nodes(clock, everyone((0.7, 50.0))), rounds=2, fraction_evaluate=1.0, evaluate_every=0)
    assert used(rounds) == [3, 0]
    assert list(rounds[1].evaluations) == list(SITES)


@either
def test_an_evaluation_that_all_miss_is_not_a_round(run: Callable[..., list[Round]], clock: Day) -> None:
    rounds = run(Nodes(clock, everyone((1.7, 50.0))), fraction_evaluate=1.0)
    assert [len(each.evaluations) for each in rounds] == [3, 0, 3, 3, 3, 3]
    assert used(rounds) == [3, 3, 3, 3, 3, 3]


def unpack_bits(finished: Round) -> dict[str, bytes]:
    arrays = unpack(finished.arrays) if not isinstance(finished.arrays, dict) else finished.arrays
    return {name: array.tobytes() for name, array in arrays.items()}
