"""The grid that looks for replies often: which it returns, and when it ends."""

import re
import time
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from flwr.app import Message, RecordDict
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError

from fairbloom.rounds.quorum import Quorum, QuorumError
from fairbloom.server import polling
from fairbloom.server.polling import PollingGrid


class Slow:
    """Stands for a grid: the reply to message i comes at second i of a clock that only sleeping
    moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.asked = list[set[str]]()
        self.sent = list[str | None]()
        self.offline = dict[int, tuple[float, float]]()
        started = time.time()
        clock = SimpleNamespace(
            monotonic=lambda: self.now, time=lambda: started + self.now, sleep=self.sleep
        )
        monkeypatch.setattr(polling, "time", clock)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str | None]:
        self.sent = [
            None if message.metadata.dst_node_id == 99 else str(message.metadata.dst_node_id)
            for message in messages
        ]
        for message, message_id in zip(messages, self.sent, strict=True):
            message.metadata.__dict__["_message_id"] = message_id or ""
        return self.sent

    def get_node_ids(self) -> list[int]:
        return [node for node in (*range(100), 5000) if not self.is_away(node)]

    def is_away(self, node: int) -> bool:
        start, end = self.offline.get(node, (0.0, 0.0))
        return start <= self.now < end

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Any]:
        """Return replies; asked about a node that is offline give an error, as the SuperLink
        does."""
        self.asked.append(set(message_ids))
        given_up = [
            self.reply("9", message_id)
            for message_id in message_ids
            if self.is_away(int(message_id))
        ]
        came = [message_id for message_id in message_ids if float(message_id) <= self.now]
        return [
            *given_up,
            *(self.reply(message_id) for message_id in came if not self.is_away(int(message_id))),
        ]

    @staticmethod
    def reply(kind: str, message_id: str = "") -> SimpleNamespace:
        """Replies of nodes 7, 8 and 9 are errors."""
        about = SimpleNamespace(reply_to_message_id=message_id or kind)
        return SimpleNamespace(metadata=about, has_content=lambda: kind not in {"7", "8", "9"})


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    return Slow(monkeypatch)


def replies(
    grid: Slow, *nodes: int, timeout: float | None, what: str = "query", min_replies: int = 0
) -> list[str]:
    messages = [Message(RecordDict(), dst_node_id=node, message_type=what) for node in nodes]
    came = PollingGrid(grid, min_replies=min_replies).send_and_receive(messages, timeout=timeout)  # type: ignore[arg-type]
    return [reply.metadata.reply_to_message_id for reply in came]


MINUTE = polling.GRACE_SECONDS

ENDS: list[
    tuple[
        tuple[int, ...],
        float | None,
        dict[int, tuple[float, float]],
        list[str],
        tuple[float, float],
    ]
] = [
    ((1, 3, 2), 60.0, {}, ["1", "2", "3"], (3.0, 3.2)),  # with the last reply
    ((1, 50), 10.0, {}, ["1"], (10.0, 10.01)),  # at the deadline
    ((5000,), None, {}, ["5000"], (5000.0, 5001.0)),  # never, without one
    ((), None, {}, [], (0.0, 0.01)),  # at once, where nothing was sent
    ((1, 99), 60.0, {}, ["1"], (1.0, 2.0)),  # 99 cannot be sent anything
    # a network was away
    ((1, 20), 600.0, {20: (10.0, 8.0 + MINUTE)}, ["1", "20"], (8.0 + MINUTE, 10.0 + MINUTE)),
    # the last: an error
    ((1, 20, 30), 600.0, {20: (10.0, 1e3)}, ["1", "30", "20"], (10.0 + MINUTE, 12.0 + MINUTE)),
    # as long as the slowest of the others took
    ((85, 98), 600.0, {98: (10.0, 20.0)}, ["85", "98"], (98.0, 100.0)),
    # before any has answered
    ((95, 96), 600.0, {95: (10.0, 20.0), 96: (10.0, 20.0)}, ["95", "96"], (96.0, 98.0)),
]
"""Nodes, deadline, the time offline by node; the clients that reply, and when the call ends."""


def test_it_returns_what_has_come_once_no_more_is_awaited(
    slow: Slow, subtests: pytest.Subtests
) -> None:
    for nodes, timeout, offline, came, (first, last) in ENDS:
        with subtests.test(nodes=nodes, timeout=timeout):
            slow.now = 0.0
            slow.offline = offline
            assert replies(slow, *nodes, timeout=timeout) == came
            assert first <= slow.now <= last, nodes


def test_enough_replies_without_errors_end_a_rounds_training(
    slow: Slow, subtests: pytest.Subtests
) -> None:
    assert replies(slow, 1, 2, 50, timeout=60.0, what="train", min_replies=2) == ["1", "2"]
    slow.now = 0.0
    assert replies(slow, 1, 7, 6, 50, timeout=60.0, what="train", min_replies=3) == [
        "1",
        "6",
        "7",
        "50",
    ]
    slow.now = 0.0
    assert replies(slow, 1, 2, timeout=60.0, what="train", min_replies=5) == ["1", "2"]
    for what in ("evaluate", "query"):  # where it is not training, everybody is waited for
        with subtests.test(what=what):
            slow.now = 0.0
            assert replies(slow, 1, 2, 5, timeout=60.0, what=what, min_replies=1) == ["1", "2", "5"]


class Falls(Slow):
    """Fails at the first calls, as a SuperLink that falls and comes back."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *errors: Exception, seconds: float = 0.0
    ) -> None:
        super().__init__(monkeypatch)
        self.errors = list(errors)
        self.seconds = seconds

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str | None]:
        ids = super().push_messages(messages)
        self.fail()
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Any]:
        self.fail()
        return super().pull_messages(message_ids)

    def get_node_ids(self) -> list[int]:
        self.fail()
        return super().get_node_ids()

    get_nodes = get_node_ids

    def fail(self) -> None:
        if self.errors:
            self.now += self.seconds
            raise self.errors.pop(0)


REFUSED = ObjectPushError("an object", 1, "a session")
HANDSHAKE = httpx.ConnectError("[SSL: UNEXPECTED_EOF_WHILE_READING]")
PATIENT_TRIES = int(polling.PATIENCE_SECONDS / polling.LONGEST_SECONDS)
"""How often a call may fail that answers at once."""


def answer(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "https://server:8000/v1/runtime/pull-messages")
    return httpx.HTTPStatusError(
        f"status {status}", request=request, response=httpx.Response(status, request=request)
    )


PASSING = [REFUSED, HANDSHAKE, httpx.ReadTimeout("slow"), answer(500), answer(503)]
FOR_GOOD = [*map(answer, (400, 401, 403, 404, 409)), ZeroDivisionError(), ValueError("no")]
"""What passes with time, and what does not, as where the task of this process was given to another
one."""


def test_what_passes_within_ten_minutes_is_outlived(
    monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """The minutes count, not the tries."""
    for error in PASSING:
        with subtests.test(error=error):
            falls = Falls(monkeypatch, *[error] * PATIENT_TRIES)
            assert sorted(replies(falls, 1, 2, timeout=60.0)) == ["1", "2"]
            falls = Falls(monkeypatch, *[error] * (PATIENT_TRIES + 1))
            with pytest.raises(type(error), match=re.escape(str(error))):
                replies(falls, 1, timeout=60.0)
            assert falls.now == polling.PATIENCE_SECONDS == 600.0
    falls = Falls(monkeypatch, *[HANDSHAKE] * 100, seconds=250.0)
    with pytest.raises(httpx.ConnectError):
        replies(falls, 1, timeout=60.0)
    assert len(falls.errors) == 100 - 4  # at 250, 501, 752 and 1003 s
    grid: Any = PollingGrid(falls)  # type: ignore[arg-type]
    for call in (lambda: list(grid.pull_messages({"1"})), grid.get_node_ids, grid.get_nodes):
        with subtests.test(call=call):
            falls.errors = [HANDSHAKE]
            assert call()
            assert falls.errors == []


def test_what_time_does_not_cure_ends_the_run_at_once(
    monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    for error in FOR_GOOD:
        with subtests.test(error=error):
            falls = Falls(monkeypatch, error)
            with pytest.raises(type(error)) as raised:
                replies(falls, 1, timeout=60.0)
            assert raised.value is error
            assert falls.now == 0.0
            falls.errors = [HANDSHAKE, HANDSHAKE, error]
            with pytest.raises(type(error)):
                PollingGrid(falls).get_nodes()  # type: ignore[arg-type]
            assert falls.now == 2.0


def test_a_lost_superlink_and_its_return_are_one_log_line_each(
    monkeypatch: pytest.MonkeyPatch, said: pytest.LogCaptureFixture
) -> None:
    replies(Falls(monkeypatch, *[HANDSHAKE] * 30, answer(500), answer(500)), 1, timeout=60.0)
    assert [*dict.fromkeys(said.messages)] == [
        f"the SuperLink fails this run, which waits for it up to 10 minutes: {HANDSHAKE}",
        "the SuperLink works again after 32 s, and the run continues",
    ]


def test_messages_that_outlived_their_time_on_the_way_live_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grid = Falls(monkeypatch, HANDSHAKE, HANDSHAKE, seconds=7.0)
    message = Message(RecordDict(), dst_node_id=18, message_type="train", ttl=10.0)
    lives: list[float] = []
    push = grid.push_messages
    grid.push_messages = lambda messages: (lives.append(message.metadata.ttl), push(messages))[1]  # type: ignore[method-assign]
    came = [*PollingGrid(grid).send_and_receive([message], timeout=4.0)]  # type: ignore[arg-type]
    assert lives == [10.0, 10.0, pytest.approx(16.0 + 10.0, abs=1.0)]
    assert len(came) == 1  # at second 18: the deadline counts from when the message was taken


def test_a_node_that_goes_again_has_its_minute_again(slow: Slow, subtests: pytest.Subtests) -> None:
    absences = polling.Absences()
    minute = polling.GRACE_SECONDS
    for now, online, late in (
        (0.0, {1}, set()),
        (50.0, {1, 2}, set()),
        (90.0, {1}, set()),
        (90.0 + minute, {1}, {2}),
    ):
        with subtests.test(now=now, online=online):
            assert absences.find_late({1, 2}, online, now) == late


# While too few clients are online -----------------------------------------------------------------


def with_quorum(
    slow: Slow,
    monkeypatch: pytest.MonkeyPatch,
    fewest: int,
    patience: float,
    *nodes: int,
    **options: Any,
) -> list[str]:
    """Return the clients that replied; online clients that are not among these nodes do not count."""
    monkeypatch.setattr("fairbloom.rounds.quorum.time", polling.time)
    monkeypatch.setattr(
        slow, "get_node_ids", lambda: [node for node in nodes if not slow.is_away(node)]
    )
    quorum = Quorum(patience)
    quorum.fewest = fewest
    quorum.observe({f"client-{node}": node for node in nodes})
    timeout = options.get("timeout", 600.0)
    min_replies = options.get("min_replies", 0)
    what = options.get("what", "train")
    ttl = options.get("ttl", timeout)
    messages = [
        Message(RecordDict(), dst_node_id=node, message_type=what, ttl=ttl) for node in nodes
    ]
    for message in messages:
        message.metadata.__dict__["_created_at"] = polling.time.time()
    enrolled = options.get("enrolled", tuple)
    grid: Any = PollingGrid(slow, min_replies=min_replies, quorum=quorum, enrolled=enrolled)  # type: ignore[arg-type]
    return [
        str(reply.metadata.reply_to_message_id)
        for reply in grid.send_and_receive(messages, timeout=timeout)
    ]


@pytest.mark.parametrize("what", ["train", "evaluate", "query"])
def test_a_client_revoked_at_work_is_struck_off_at_once(
    slow: Slow, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    slow.offline = {50: (10.0, 1e9)}

    def enrolled(names: Iterable[str]) -> list[str]:
        return [name for name in names if name != "client-50"]

    assert with_quorum(slow, monkeypatch, 1, 3600.0, 1, 2, 50, what=what, enrolled=enrolled)[
        :2
    ] == ["1", "2"]
    assert 10.0 <= slow.now < 12.0


QUORUM: list[
    tuple[int, tuple[int, ...], dict[int, tuple[float, float]], dict[str, Any], list[str], float]
] = [
    (
        2,
        (1, 20, 21, 22),
        dict.fromkeys((20, 21, 22), (10.0, 310.0)),
        {},
        ["1", "20", "21", "22"],
        310.0,
    ),
    (2, (1, 20), {20: (10.0, 310.0)}, {"what": "evaluate"}, ["1", "20"], 310.0),
    # neither the deadline nor enough replies end the round while too few are online
    (
        *(2, (1, 20, 21, 22), dict.fromkeys((20, 21, 22), (0.5, 1000.0))),
        *({"timeout": 100.0, "min_replies": 1, "ttl": 5000.0}, ["1", "20", "21", "22"], 1000.0),
    ),
    # the deadline counts the seconds with enough clients alone
    (
        *(2, (1, 21, 22, 2000), dict.fromkeys((2000, 21, 22), (10.0, 60.0))),
        *({"timeout": 100.0, "ttl": 5000.0}, ["1", "21", "22"], 148.0),
    ),
    # a link that breaks unseen before the deadline: for a minute a node is taken for online that
    # says nothing
    (
        *(2, (1, 200, 201, 202), dict.fromkeys((200, 201, 202), (50.0, 190.0))),
        *({"timeout": 20.0}, ["1", "200", "201", "202"], 202.0),
    ),
    # those who are silent and stay online cost the deadline, and a minute where the others are too
    # few
    (2, (1, 2000, 2001), {}, {"timeout": 20.0}, ["1"], 20.0 + MINUTE),
    (2, (1, 2, 2000, 2001), {}, {"timeout": 20.0}, ["1", "2"], 20.0),
    # a query does not wait for other clients
    (2, (20, 21), {21: (0.0, 1e9)}, {"timeout": 30.0, "what": "query"}, ["20"], 30.0),
]
"""The quorum, the nodes, who is offline, options; the clients that reply, and when the call ends.
"""


def test_while_too_few_are_online_a_round_waits(
    slow: Slow,
    monkeypatch: pytest.MonkeyPatch,
    subtests: pytest.Subtests,
) -> None:
    for fewest, nodes, offline, options, came, ends in QUORUM:
        with subtests.test(fewest=fewest, nodes=nodes):
            slow.now = 0.0
            slow.offline = offline
            with monkeypatch.context() as patch:
                assert sorted(with_quorum(slow, patch, fewest, 3600.0, *nodes, **options)) == came
            assert ends <= slow.now < ends + 4.0, nodes


def test_expired_messages_are_sent_again_for_the_time_left(
    slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow.offline = dict.fromkeys((20, 21), (0.5, 300.0))
    lives = list[list[tuple[int, float]]]()
    push = slow.push_messages

    def pushed(messages: Iterable[Message]) -> Iterable[str | None]:
        messages = list(messages)
        lives.append([(message.metadata.dst_node_id, message.metadata.ttl) for message in messages])
        return push(messages)

    monkeypatch.setattr(slow, "push_messages", pushed)
    came = with_quorum(slow, monkeypatch, 2, 3600.0, 1, 20, 21, timeout=100.0)
    assert sorted(came) == ["1", "20", "21"]
    assert len(lives) == 2
    assert [node for node, _ in lives[1]] == [1, 20, 21]
    assert all(95.0 < life <= 100.0 for _, life in lives[1])


def test_a_run_whose_patience_ends_in_a_round_ends(
    slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow.offline = dict.fromkeys((20, 21, 22), (10.0, 1000000000.0))
    with pytest.raises(QuorumError, match="awaited: client-20, client-21, client-22"):
        with_quorum(slow, monkeypatch, 2, 500.0, 1, 20, 21, 22)
    assert 510.0 <= slow.now < 513.0


def test_waits_grow_with_the_round_and_end_at_a_second(
    slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = list[float]()
    monkeypatch.setattr(polling.time, "sleep", lambda s: (waits.append(s), slow.sleep(s)))
    replies(slow, 100, timeout=None)
    assert waits[0] == polling.SHORTEST_SECONDS
    assert waits == sorted(waits)
    assert waits[-1] == polling.LONGEST_SECONDS
