"""How many clients must be online, for how long a run waits for them, and what it says meanwhile."""

import re

import pytest

from fairbloom.errors import FairbloomError
from fairbloom.rounds.flower import FlowerClients
from fairbloom.rounds.loop import Rounds
from fairbloom.rounds.quorum import Quorum, QuorumError, quorum_of
from fairbloom.rounds.round import Round
from fairbloom.strategies import FedAvg
from tests.federation import BUFFERS, MemoryGrid, initial_model, quadratics


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for place in ("quorum", "flower"):
        monkeypatch.setattr(f"fairbloom.rounds.{place}.time", clock)
    return clock


class Away(MemoryGrid):
    """Some of its nodes are offline in between: by client, from which second of the clock to which."""

    def __init__(self, clock: Clock, away: dict[str, tuple[float, float]], clients: int = 4) -> None:
        super().__init__(quadratics(clients), registered=[f"site-{k}" for k in range(clients)])
        self.clock, self.away = clock, away

    def get_nodes(self):  # type: ignore[no-untyped-def]
        def there(name: str) -> bool:
            start, end = self.away.get(name, (0.0, 0.0))
            return not start <= self.clock.now < end

        return [node for node in super().get_nodes() if there(self.nodes[node.node_id])]


def run(grid: MemoryGrid, quorum: Quorum, rounds: int = 3, **options: object) -> list[Round]:
    method = FedAvg(buffers=BUFFERS, min_available_nodes=quorum.fewest, **options)  # type: ignore[arg-type]
    loop = Rounds(method, FlowerClients(method, grid, 5.0, quorum), rounds, known=[f"site-{k}" for k in range(4)])
    return list(loop.run(initial_model(), measure=lambda number: [], measure_after=[]))


def wanting(fewest: int, patience: float = 3600.0, among: tuple[str, ...] = ()) -> Quorum:
    quorum = Quorum(patience, among, [f"site-{k}" for k in range(4)])
    quorum.fewest = fewest
    return quorum


def test_half_of_the_clients_are_enough_and_two_of_two() -> None:
    for clients, fewest in [(1, 1), (2, 2), (3, 2), (4, 2), (5, 3), (19, 10), (20, 10)]:
        assert quorum_of(clients) == fewest


def test_a_round_waits_for_its_quorum_beyond_the_timeout(clock: Clock) -> None:
    rounds = run(Away(clock, {f"site-{k}": (0.0, 300.0) for k in (1, 2, 3)}), wanting(2))
    assert [len(each.participants) for each in rounds] == [4, 4, 4]
    assert clock.now >= 300.0


def test_a_round_with_a_quorum_names_who_is_away(clock: Clock) -> None:
    rounds = run(Away(clock, {"site-1": (0.0, 1e9), "site-3": (0.0, 1e9)}), wanting(2))
    assert clock.now < 5.0
    assert [each.offline for each in rounds] == [("site-1", "site-3")] * 3
    assert [list(each.coefficients) for each in rounds] == [["site-0", "site-2"]] * 3


def test_a_wait_is_logged_after_ten_seconds_with_names(clock: Clock, said: pytest.LogCaptureFixture) -> None:
    run(Away(clock, {"site-1": (0.0, 12.0), "site-2": (0.0, 12.0), "site-3": (0.0, 12.0)}), wanting(2))
    messages = dict.fromkeys(record.getMessage() for record in said.records)
    assert [words for words in messages if "online" in words] == [
        "1 of 2 clients is online that this run needs (min-clients); awaited: site-1, site-2, site-3, and "
        "min-clients = 1 would go on without them; this run waits for 3590 s more (patience)",
        "enough clients are online after 12 s, and the run goes on",
    ]


def test_a_wait_of_less_than_ten_seconds_is_not_said(clock: Clock, said: pytest.LogCaptureFixture) -> None:
    run(Away(clock, {f"site-{k}": (0.0, 9.0) for k in range(4)}), wanting(2))
    assert not [record for record in said.records if "online" in record.getMessage()]


def test_the_remedy_that_the_wait_names_helps(clock: Clock, said: pytest.LogCaptureFixture) -> None:
    away = {f"site-{k}": (0.0, 1e9) for k in (1, 2, 3)}
    with pytest.raises(QuorumError) as ended:
        run(Away(clock, away), wanting(2, patience=100.0))
    found = re.search(r"min-clients = (\d+) would go on", str(ended.value))
    assert found is not None
    rounds = run(Away(clock, away), wanting(int(found[1])))
    assert [list(each.coefficients) for each in rounds] == [["site-0"]] * 3


def test_the_end_of_patience_ends_the_run_and_names_the_awaited(clock: Clock) -> None:
    with pytest.raises(
        QuorumError, match=r"after 100.4 s \(patience\) 1 of 2 clients is online .*site-1, site-2, site-3"
    ) as ended:
        run(Away(clock, {f"site-{k}": (0.0, 1e9) for k in (1, 2, 3)}), wanting(2, patience=100.4))
    assert isinstance(ended.value, FairbloomError)
    assert "\n" not in str(ended.value)
    assert 100.4 <= clock.now < 102.0


def test_each_wait_has_the_whole_patience(clock: Clock) -> None:
    quorum = wanting(2, patience=10.0)
    for _ in range(5):
        assert not quorum.holds(["site-0"])
        clock.sleep(9.0)
        assert not quorum.holds(["site-0"])
        assert quorum.holds(["site-0", "site-1"])


def test_where_some_clients_train_these_are_the_ones_that_count(clock: Clock) -> None:
    among = ("site-0", "site-1", "site-2")
    away = {"site-1": (0.0, 200.0), "site-2": (0.0, 300.0)}
    rounds = run(Away(clock, away), wanting(2, among=among), training_clients=among)
    assert rounds[0].participants == ("site-0", "site-1")
    assert clock.now >= 200.0
    assert rounds[0].offline == ("site-2",)


def test_a_client_that_owes_a_reply_counts_as_online(clock: Clock) -> None:
    grid = Away(clock, {"site-2": (0.0, 1e9), "site-3": (0.0, 1e9)})
    answers = dict(grid.clients)
    grid.clients = {**answers, "site-1": lambda message: None}
    rounds = run(grid, wanting(2), fraction_evaluate=0.0)
    assert [each.missing for each in rounds] == [("site-1",), (), ()]
    assert [list(each.coefficients) for each in rounds] == [["site-0"]] * 3
    assert clock.now < 10.0


def test_a_node_without_a_name_counts_by_its_number(clock: Clock) -> None:
    quorum = Quorum()
    quorum.fewest = 2
    quorum.met({"site-0": 5})
    assert not quorum.holds_by_nodes([5])
    assert quorum.holds_by_nodes([5, 77])


def test_of_many_absent_clients_twenty_are_named(clock: Clock) -> None:
    quorum = Quorum(0.0, known=[f"site-{k:03d}" for k in range(100)])
    quorum.fewest = 50
    with pytest.raises(QuorumError, match=r"site-018, site-019 and 80 more") as ended:
        quorum.holds([])
    assert "site-020" not in str(ended.value)
    assert "min-clients = 0" not in str(ended.value)
