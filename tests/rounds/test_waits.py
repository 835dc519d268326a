"""Silent, late or absent clients: one that owes a reply is not asked, and the run waits for enough
others."""

import re
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import pytest
from flwr.app import Message
from flwr.app.error import Error

from fairbloom.errors import FairbloomError
from fairbloom.rounds.courier import Courier
from fairbloom.rounds.flower import FlowerClients
from fairbloom.rounds.loop import Rounds
from fairbloom.rounds.quorum import Quorum, QuorumError, quorum_of
from fairbloom.rounds.records import EXPIRED
from fairbloom.rounds.round import Round
from fairbloom.strategies import FedAvg
from tests.federation import (
    BUFFERS,
    Answer,
    MemoryGrid,
    initial_model,
    no_reply,
    quadratics,
    record,
    unpack,
)

SITES = ("site-0", "site-1", "site-2")
# Seconds that clients have to reply, and that messages live.
LIVES = 10.0

Times = tuple[tuple[float, float], ...]


class Day:
    """A clock that only sleeping moves; it also has the time of day."""

    def __init__(self) -> None:
        self.now = 0.0
        self._began = time.time()

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self._began + self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Day:
    clock = Day()
    monkeypatch.setattr("fairbloom.rounds.flower.Quorum", partial(Quorum, clock=clock))
    return clock


class Nodes(MemoryGrid):
    """Nodes that do nothing from one second of a clock to another, and answer one message after the
    other.

    A reply to a message that has outlived its time is lost, as a server loses it; a round takes
    half a second. `asked` has when each message went to a client, by its kind and the client's
    name.
    """

    def __init__(
        self,
        clock: Day,
        asleep: Mapping[str, Times] | None = None,
        away: Mapping[str, Times] | None = None,
        clients: Mapping[str, Answer] | int = 3,
        **others: Any,
    ) -> None:
        answers = quadratics(clients) if isinstance(clients, int) else clients
        super().__init__(answers, **{"registered": answers, **others})
        self.clock = clock
        self.asleep = asleep or {}
        self.away = away or {}
        self.asked: dict[tuple[str, str], list[float]] = {}
        self._waiting: dict[str, Message] = {}

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        messages = list(messages)
        for message in messages:
            message.metadata.created_at = self.clock.time()
            about = message.metadata.message_type, self.nodes[message.metadata.dst_node_id]
            self.asked.setdefault(about, []).append(self.clock.now)
        answers = self._answers  # type: ignore[method-assign]
        self._answers = lambda message: []  # type: ignore[method-assign]
        ids = super().push_messages(messages)
        self._answers = answers  # type: ignore[method-assign]
        self._waiting |= dict(zip(ids, messages, strict=True))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        came = []
        for message_id in [each for each in message_ids if each in self._waiting]:
            message = self._waiting[message_id]
            name = self.nodes[message.metadata.dst_node_id]
            if self.clock.time() >= (message.metadata.created_at + message.metadata.ttl):
                came.append(Message(Error(EXPIRED[0], "dead"), reply_to=message))
            elif not self._is(self.asleep, name) and not self._is(self.away, name):
                came += self._answers(message)
            else:
                continue
            del self._waiting[message_id]
        return came

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        pending = set(self.push_messages(messages))
        replies = list[Message]()
        while pending:
            self.clock.sleep(0.5)
            came = self.pull_messages(pending)
            pending -= {each.metadata.reply_to_message_id for each in came}
            replies += came
        return replies

    def get_nodes(self):  # type: ignore[no-untyped-def]
        return [
            node
            for node in super().get_nodes()
            if not self._is(self.away, self.nodes[node.node_id])
        ]

    def _is(self, when: Mapping[str, Times], name: str) -> bool:
        return any(start <= self.clock.now < end for start, end in when.get(name, ()))


def wanting(
    clock: Day,
    fewest: int,
    patience: float = 3600.0,
    among: tuple[str, ...] = (),
    clients: int = 3,
) -> Quorum:
    quorum = Quorum(patience, among, quadratics(clients), clock=clock)
    quorum.fewest = fewest
    return quorum


def deployed(
    grid: "Nodes | Late", rounds: int = 6, quorum: Quorum | None = None, **options: Any
) -> list[Round]:
    """Run as Fairbloom's own ServerApp does."""
    quorum = quorum or wanting(grid.clock, 2, clients=len(grid.clients))
    method = FedAvg(
        buffers=BUFFERS, min_available_nodes=quorum.fewest, **{"fraction_evaluate": 0.0, **options}
    )
    loop = Rounds(method, FlowerClients(method, grid, LIVES, quorum), rounds, known=grid.clients)
    return list(loop.run(initial_model(), measure=lambda number: [], measure_after=[]))


def own(grid: MemoryGrid, rounds: int = 6, **options: Any) -> list[Round]:
    """Run as a user's ServerApp does."""
    finished: list[Round] = []
    method = FedAvg(buffers=BUFFERS, **{"fraction_evaluate": 0.0, **options})
    method.start(grid, record(initial_model()), rounds, LIVES, on_round=finished.append)
    return finished


either = pytest.mark.parametrize("run", [deployed, own])


def all_but(*those: str, until: float, clients: int = 4) -> dict[str, Times]:
    """Return that all clients but those are away, or asleep, from the first second on."""
    return {name: ((0.0, until),) for name in quadratics(clients) if name not in those}


def everyone(*times: tuple[float, float]) -> dict[str, Times]:
    return dict.fromkeys(SITES, times)


def used(rounds: Iterable[Round]) -> list[int]:
    return [len(each.coefficients) for each in rounds]


# Silent clients -----------------------------------------------------------------------------------


@either
def test_a_round_that_all_miss_counts_once(run: Callable[..., list[Round]], clock: Day) -> None:
    rounds = run(Nodes(clock, everyone((1.2, 12.2))))
    assert [each.number for each in rounds] == [1, 2, 3, 4, 5, 6]
    assert used(rounds) == [3, 3, 0, 3, 3, 3]
    assert (rounds[2].missing, rounds[2].participants) == (SITES, ())
    one, other = (
        {**each.arrays} if run is deployed else unpack(each.arrays) for each in rounds[1:3]
    )
    assert {name: array.tobytes() for name, array in one.items()} == {
        n: a.tobytes() for n, a in other.items()
    }


@either
def test_a_silent_client_is_asked_again_after_as_long_again(
    run: Callable[..., list[Round]], clock: Day
) -> None:
    grid = Nodes(clock, {"site-1": ((0.7, 32.0),)})
    rounds = run(grid, rounds=70)
    assert used(rounds[:6]) == [3, 2, 2, 2, 2, 2]
    assert [each.missing for each in rounds[:4]] == [(), ("site-1",), (), ()]
    _, second, third, fourth, *_ = grid.asked["train", "site-1"]
    assert third - second == pytest.approx(2.0 * LIVES, abs=0.6)  # from when the message was made
    assert fourth - third == pytest.approx(3.0 * LIVES, abs=0.6)
    assert used(rounds)[-1] == 3


def test_a_message_lives_twelve_hours_by_default(clock: Day) -> None:
    grid = Nodes(clock, {"site-1": ((0.7, 12 * 3600.0 + 5.0),)})
    method = FedAvg(fraction_evaluate=0.0)
    clients = FlowerClients(method, grid)
    rounds = Rounds(method, clients, 3).run(
        initial_model(), measure=lambda number: [], measure_after=[]
    )
    assert used([next(rounds), next(rounds), next(rounds)]) == [3, 2, 2]
    clock.now = 24 * 3600.0
    assert clients.free() == ["site-0", "site-2"]
    clock.sleep(1.0)
    assert clients.free() == list(SITES)


@either
def test_an_evaluation_that_is_never_answered_is_a_debt(
    run: Callable[..., list[Round]], clock: Day
) -> None:
    grid = Nodes(clock, {"site-2": ((0.7, 11.0),)})
    rounds = run(grid, rounds=15, fraction_evaluate=1.0)
    assert list(rounds[0].evaluations) == ["site-0", "site-1"]
    assert list(rounds[-1].evaluations) == list(SITES)
    first, second, *_ = grid.asked["train", "site-2"]
    assert (first, second) == (0.0, pytest.approx(0.5 + 2.0 * LIVES, abs=1.1))


def test_a_node_that_never_sent_its_name_is_asked_again(clock: Day) -> None:
    name = (grid := Nodes(clock, registered=())).nodes[max(grid.nodes)]
    grid.asleep = {name: ((0.0, 11.0),)}
    rounds = own(grid, rounds=30)
    assert len(rounds[0].participants) == 2
    assert rounds[-1].participants == SITES
    assert grid.asked["query", name] == [0.5, pytest.approx(0.5 + 2.0 * LIVES, abs=0.6)]


class Watched(Nodes, Courier):
    """Knows which nodes are awake again: those are idle, as their replies came too late."""

    def find_owed(self, message_ids: Iterable[str]) -> list[str]:
        asleep = {node for node, name in self.nodes.items() if self._is(self.asleep, name)}
        return [each for each in message_ids if self.receivers[each] in asleep]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        messages = list(messages)
        ids = super().push_messages(messages)
        nodes = [message.metadata.dst_node_id for message in messages]
        self.receivers = {**getattr(self, "receivers", {}), **dict(zip(ids, nodes, strict=True))}
        return ids


@either
def test_a_client_is_asked_as_soon_as_its_late_reply_is_seen(
    run: Callable[..., list[Round]], clock: Day
) -> None:
    """It slept for 12 s in a round of 10 s, and is asked in the next one that begins after that."""
    grid = Watched(clock, {"site-1": ((0.7, 12.7),)})
    first, missed, *others = run(grid, rounds=9)
    assert (len(first.coefficients), missed.missing) == (3, ("site-1",))
    assert grid.asked["train", "site-1"][2] == pytest.approx(12.7, abs=0.6)
    assert {(each.owing, len(each.coefficients)) for each in others} == {(("site-1",), 2), ((), 3)}
    assert [each.owing for each in others] == sorted((each.owing for each in others), reverse=True)


def test_who_owes_is_logged_when_it_begins_and_when_it_ends(
    clock: Day, said: pytest.LogCaptureFixture
) -> None:
    deployed(Watched(clock, {"site-1": ((0.7, 12.7), (14.0, 26.0))}), rounds=15)
    logged = [text for text in dict.fromkeys(said.messages) if "site-1" in text]
    numbers = [re.findall(r"^round (\d+) (begins without|asks) site-1", text) for text in logged]
    assert [kind for ((_, kind),) in numbers] == ["begins without", "asks"] * 2


def test_clients_that_do_not_train_are_not_said_to_owe(clock: Day) -> None:
    grid = Nodes(clock, {"site-1": ((0.7, 12.7),)})
    options: dict[str, Any] = {"training_clients": ("site-0", "site-2"), "fraction_evaluate": 1.0}
    first, second, *_ = deployed(grid, rounds=3, **options)
    assert list(first.evaluations) == ["site-0", "site-2"]  # site-1 owes its evaluation
    assert list(second.evaluations) == ["site-0", "site-2"]
    assert second.owing == ()


class Late(MemoryGrid):
    """What was held back arrives once the round is over."""

    clock: Day

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        came = super().pull_messages(message_ids)
        self.release()
        return came


@either
def test_late_replies_of_all_pay_their_debts(run: Callable[..., list[Round]], clock: Day) -> None:
    faults = {(site, number): no_reply for site in SITES for number in (2, 4, 5)}
    grid = Late(quadratics(3), faults=faults, registered=SITES)
    grid.clock = clock
    assert used(run(grid, rounds=7)) == [3, 0, 3, 0, 0, 3, 3]


@either
def test_what_all_clients_miss_is_one_round_or_one_evaluation(
    run: Callable[..., list[Round]], clock: Day
) -> None:
    """Who is offline is waited for; the last round is evaluated once they are back; an evaluation
    is no round."""
    assert used(run(Nodes(clock, away=everyone((1.2, 900.0))))) == [3, 3, 0, 3, 3, 3]
    assert clock.now >= 900.0
    clock.now = 0.0
    rounds = run(
        Nodes(clock, everyone((0.7, 15.0))), rounds=2, fraction_evaluate=1.0, evaluate_every=0
    )
    assert used(rounds) == [3, 0]
    assert list(rounds[1].evaluations) == list(SITES)
    clock.now = 0.0
    rounds = run(Nodes(clock, everyone((1.7, 15.0))), fraction_evaluate=1.0)
    assert [len(each.evaluations) for each in rounds] == [3, 0, 3, 3, 3, 3]
    assert used(rounds) == [3, 3, 3, 3, 3, 3]


# The quorum ---------------------------------------------------------------------------------------


def test_half_of_the_clients_are_enough_and_two_of_two() -> None:
    assert [quorum_of(clients) for clients in (1, 2, 3, 4, 5, 19, 20)] == [1, 2, 2, 2, 3, 10, 10]


def test_a_round_with_a_quorum_names_who_is_away(clock: Day) -> None:
    rounds = deployed(Nodes(clock, away=all_but("site-0", "site-2", until=1e9), clients=4), 3)
    assert clock.now < 5.0
    assert [each.offline for each in rounds] == [("site-1", "site-3")] * 3
    assert [list(each.coefficients) for each in rounds] == [["site-0", "site-2"]] * 3


def test_a_wait_is_logged_after_ten_seconds_with_names(
    clock: Day, said: pytest.LogCaptureFixture
) -> None:
    deployed(Nodes(clock, away=all_but(until=9.0), clients=4), 1)
    assert not [each for each in said.records if "online" in each.getMessage()]
    clock.now = 0.0
    deployed(Nodes(clock, away=all_but("site-0", until=12.0), clients=4), 1)
    waits, ends = dict.fromkeys(
        each.getMessage() for each in said.records if "online" in each.getMessage()
    )
    assert [
        words
        for words in (
            "1 of 2",
            "min-clients",
            "site-1, site-2, site-3",
            "3590 s",
            "wait-for-clients",
        )
        if words not in waits
    ] == []
    assert "12 s" in ends


def test_the_end_of_patience_names_the_awaited_and_a_remedy(
    clock: Day, said: pytest.LogCaptureFixture
) -> None:
    away = all_but("site-0", until=1e9)
    with pytest.raises(
        QuorumError, match=r"100.4 s \(wait-for-clients\) 1 of 2 .*site-1, site-2, site-3"
    ) as ended:
        deployed(
            Nodes(clock, away=away, clients=4), quorum=wanting(clock, 2, patience=100.4, clients=4)
        )
    assert isinstance(ended.value, FairbloomError)
    assert "\n" not in str(ended.value)
    assert 100.4 <= clock.now < 102.0
    (fewest,) = re.findall(r"min-clients = (\d+) would go on", str(ended.value))
    rounds = deployed(Nodes(clock, away=away, clients=4), 3, wanting(clock, int(fewest)))
    assert [list(each.coefficients) for each in rounds] == [["site-0"]] * 3


def test_each_wait_has_the_whole_patience(clock: Day, subtests: pytest.Subtests) -> None:
    quorum = wanting(clock, 2, patience=10.0)
    for _ in range(5):
        with subtests.test():
            assert not quorum.is_met(["site-0"])
            clock.sleep(9.0)
            assert not quorum.is_met(["site-0"])
            assert quorum.is_met(["site-0", "site-1"])


def test_each_long_wait_is_logged(clock: Day, said: pytest.LogCaptureFixture) -> None:
    quorum = wanting(clock, 2, patience=100.0)
    for seconds in (11.0, 12.0):
        assert not quorum.is_met(["site-0"])
        clock.sleep(seconds)
        assert not quorum.is_met(["site-0"])
        assert quorum.is_met(["site-0", "site-1"])
    waits = [text for text in dict.fromkeys(said.messages) if "this run waits for" in text]
    assert [re.findall(r"for (\d+) s more", text) for text in waits] == [["89"], ["88"]]


def test_where_some_clients_train_these_are_the_ones_that_count(clock: Day) -> None:
    away = {"site-1": ((0.0, 200.0),), "site-2": ((0.0, 300.0),)}
    first, *_ = deployed(
        Nodes(clock, away=away, clients=4),
        3,
        wanting(clock, 2, among=SITES),
        training_clients=SITES,
    )
    assert (first.participants, first.offline) == (("site-0", "site-1"), ("site-2",))
    assert clock.now >= 200.0


def test_a_client_that_owes_a_reply_counts_as_online(clock: Day) -> None:
    rounds = deployed(Nodes(clock, {"site-1": ((0.0, 1e9),)}, away={"site-2": ((0.0, 1e9),)}), 3)
    assert [each.missing for each in rounds] == [("site-1",), (), ()]
    assert [list(each.coefficients) for each in rounds] == [["site-0"]] * 3
    assert clock.now < 15.0


def test_a_node_without_a_name_counts_by_its_number(clock: Day) -> None:
    quorum = wanting(clock, 2)
    quorum.observe({"site-0": 5})
    assert not quorum.is_met(quorum.named([5]))
    assert quorum.is_met(quorum.named([5, 77]))


def test_of_many_absent_clients_three_are_named(clock: Day) -> None:
    quorum = Quorum(0.0, clock=clock, known=[f"site-{k:03d}" for k in range(100)])
    quorum.fewest = 50
    with pytest.raises(QuorumError, match=r"site-001, site-002 and 97 more") as ended:
        quorum.is_met([])
    assert "site-003" not in str(ended.value)
    assert "min-clients = 0" not in str(ended.value)
