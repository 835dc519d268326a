"""Whom a run on deployed clients waits for when it begins and when it resumes, and when it goes on
without them.

The grid that looks for replies often: which it returns, and when it ends.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import tomli_w
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError

from fairbloom.client.app import app
from fairbloom.errors import FairbloomError
from fairbloom.flower import SimulationError, node_info
from fairbloom.protocol.error_codes import ErrorCode
from fairbloom.rounds.courier import courier_of
from fairbloom.rounds.flower import FlowerClients
from fairbloom.rounds.quorum import Quorum, QuorumError
from fairbloom.server import polling, waiting
from fairbloom.server.app import main
from fairbloom.server.polling import PollingGrid
from fairbloom.server.progress import describe_progress
from fairbloom.server.run_folder.attendance import read_attendance
from fairbloom.server.run_folder.files import ROUNDS
from fairbloom.server.run_folder.flower import RunFolder
from fairbloom.server.settings import Settings
from fairbloom.server.waiting import ask_sizes, check_sizes, drop_revoked, wait_for_clients
from fairbloom.simulation.grid import SERVER, InProcessGrid
from fairbloom.strategies import FedAvg
from tests.federation import initial_model, record
from tests.rounds.test_waits import Day as Clock, Nodes, Times

NEVER = 1e9
NAMES = tuple(f"site-{k}" for k in range(4))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("fairbloom.rounds.flower.Quorum", partial(Quorum, clock=clock))
    return clock


def until(second: float, *names: str) -> dict[str, Times]:
    return dict.fromkeys(names, ((0.0, second),))


def arrive(clock: Clock, away: Mapping[str, Times], *, clients: int = 4, **given: Any) -> Quorum:
    given = {"expected": clients, "began": (), "min_clients": 0} | given
    quorum = Quorum(given.pop("patience", 3600.0), clock=clock)
    there = FlowerClients(FedAvg(), Nodes(clock, away=away, clients=clients), 5.0, quorum)
    wait_for_clients(there, quorum, **given)
    return quorum


NEW_IN_TURN = until(8.0, "site-1") | until(16.0, "site-2") | until(NEVER, "site-3")
FIRST_LATE = until(500.0, "site-0") | until(700.0, "site-1") | until(NEVER, "site-2", "site-3")

# Who is away until when, and what the run says; when it goes on, and the fewest clients that its
# rounds need.
ARRIVALS: list[tuple[Mapping[str, Times], dict[str, Any], float, int]] = [
    # a new run waits for all clients as long as its patience lasts, and goes on without the late
    # ones
    (until(3000.0, "site-3"), {}, 3000.0, 2),
    (until(NEVER, "site-3"), {"patience": 0.0}, 0.0, 2),
    (until(NEVER, "site-3"), {"patience": 100.0}, 100.0, 2),
    # without a known number: ten seconds after the last client has come
    (NEW_IN_TURN, {"expected": 0}, 26.0, 2),
    (FIRST_LATE, {"expected": 0}, 510.0, 1),
    (FIRST_LATE, {"expected": 0, "min_clients": 2}, 710.0, 2),
    # a resumed run waits for those it began with by name, whoever else is there, and for no more
    (
        until(360.0, "site-4"),
        {"clients": 5, "expected": 3, "began": ("site-0", "site-1", "site-4")},
        360.0,
        2,
    ),
    (until(NEVER, "site-3"), {"began": NAMES[:3]}, 0.0, 2),
    (until(NEVER, *NAMES[1:]), {"began": NAMES, "patience": 50.0, "min_clients": 1}, 50.0, 1),
]

# The same with too few clients: when the run ends, and its error.
TOO_FEW: list[tuple[Mapping[str, Times], dict[str, Any], float, str]] = [
    (
        *(
            until(NEVER, *(f"site-{k}" for k in range(1, 20))),
            {"clients": 20, "patience": 200.0},
            200.0,
        ),
        r"1 of 20 clients is online; awaited: others, and at least 10 are needed",
    ),
    (until(NEVER, *NAMES), {"expected": 0, "patience": 60.0}, 60.0, "0 of 1 clients are online"),
    (
        *(until(NEVER, *NAMES[1:]), {"began": NAMES, "patience": 50.0}, 50.0),
        (
            r"awaited: site-1, site-2, site-3.*at least 2 are needed \(min-clients\).*or lower"
            r" min-clients"
        ),
    ),
]


def test_the_grid_is_told_for_whom_a_run_waits(clock: Clock) -> None:
    """At the start, and later; the text is empty once the wait is over, in whatever way."""
    said = list[str]()
    quorum = Quorum(100.0, on_wait=said.append, clock=clock)
    nodes = Nodes(clock, away=until(3.0, "site-1") | until(NEVER, "site-3"), clients=4)
    clients = FlowerClients(FedAvg(), nodes, 5.0, quorum)
    wait_for_clients(clients, quorum, expected=4, began=(), min_clients=0)
    assert re.match("2 of 4 clients .*; awaited: .* has waited for 0 s$", said[0])
    assert re.match("3 of 4 clients .* has waited for 100 s$", said[-2])
    assert said[-1] == ""
    said.clear()
    for online in ("site-0", "site-1"), ("site-0",), ("site-0", "site-2"), ("site-0", "site-2"):
        assert quorum.is_met(online) == (len(online) == 2)
    assert len(said) == 2
    assert "awaited: site-1, site-2" in said[0]
    assert said[1] == ""


@pytest.mark.parametrize(("away", "given", "at", "fewest"), ARRIVALS)
def test_a_run_waits_for_its_clients_and_no_longer(
    clock: Clock,
    away: dict[str, tuple[tuple[float, ...], ...]],
    given: dict[str, Any],
    at: float,
    fewest: int,
) -> None:
    clock.now = 0.0
    assert arrive(clock, away, **given).fewest == fewest, given
    assert at <= clock.now < at + 2.0, given


@pytest.mark.parametrize(("away", "given", "at", "words"), TOO_FEW)
def test_a_run_ends_where_too_few_clients_come(
    clock: Clock,
    away: dict[str, tuple[tuple[float, ...], ...]],
    given: dict[str, Any],
    at: float,
    words: str,
) -> None:
    clock.now = 0.0
    with pytest.raises(QuorumError, match=words) as ended:
        arrive(clock, away, **given)
    assert isinstance(ended.value, FairbloomError)
    assert at <= clock.now < at + 2.0, given


def enroll(folder: Path, monkeypatch: pytest.MonkeyPatch, roll: dict[str, bool]) -> None:
    """Write the files of a federation's clients, each of which is revoked or not."""
    for name, gone in roll.items():
        revoked = "2026-01-01T00:00:00+00:00" if gone else ""
        (folder / f"{name}.toml").write_text(tomli_w.dumps({"name": name, "revoked": revoked}))
    monkeypatch.setenv(waiting.CLIENTS_FOLDER, str(folder))


def test_a_federations_awaited_clients_are_named_at_the_start(
    clock: Clock, said: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enroll(tmp_path, monkeypatch, dict.fromkeys(NAMES, False) | {"gone": True})
    arrive(clock, until(11.0, "site-2") | until(NEVER, "site-3"), patience=50.0)
    waiting, going_on = (words for words in dict.fromkeys(said.messages) if "awaited" in words)
    assert waiting.startswith("2 of 4 clients are online; awaited: site-2, site-3. ")
    assert going_on.endswith("3 of 4 clients are online; awaited: site-3")


def test_revoked_clients_are_neither_awaited_nor_counted(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enroll(tmp_path, monkeypatch, dict.fromkeys(NAMES, True) | {NAMES[0]: False})
    (tmp_path / "torn.toml").write_text("revoked = ")
    assert drop_revoked([*NAMES, "torn", "unknown"]) == [NAMES[0], "torn", "unknown"]
    with monkeypatch.context() as patch:
        patch.delenv(waiting.CLIENTS_FOLDER)
        assert drop_revoked(NAMES) == list(NAMES)  # without a federation no client is revoked
    quorum = arrive(clock, until(NEVER, *NAMES[1:]), began=NAMES)
    assert clock.now == 0.0
    assert quorum.fewest == 1


class Revoking(InProcessGrid):
    """Its last client is revoked after two rounds, and then no longer online."""

    registry: Path
    gone = "client-3"

    def get_nodes(self) -> list[Any]:
        names = drop_revoked(f"client-{i}" for i in range(4))
        numbered = enumerate(self.contexts)
        return [node_info(each, name) for i, each in numbered if (name := f"client-{i}") in names]

    def save(self, last: int) -> None:
        """Note that rounds up to `last` are saved."""
        if last == 2:
            (self.registry / f"{self.gone}.toml").write_text('revoked = "2026"')


def test_a_client_revoked_in_mid_run_is_named_in_each_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once in the log, in the table and the status, also after the run's process began anew."""
    registry = tmp_path / "registry"
    registry.mkdir()
    enroll(registry, monkeypatch, {f"client-{i}": False for i in range(4)})
    out = tmp_path / "run"
    grid = type("Revoked", (Revoking,), {"registry": registry})
    word = "the operator has revoked client-3: the run goes on without it"
    submitted(out, grid, **{"num-rounds": 4})
    assert caplog.messages.count(word) == 1
    caplog.clear()
    rows = submitted(out, grid, **{"num-rounds": 5})
    assert caplog.messages.count(word) == 1
    assert [row["revoked"] for row in rows] == ["", "", *["client-3"] * 3]
    assert {row["offline"] + row["missing"] + row["refused"] for row in rows} == {""}
    assert [row["participants"] for row in rows] == [*"44333"]
    assert describe_progress(out)["revoked"] == "client-3"
    (client,) = read_attendance(out)[-1:]
    assert str(client) == "client-3 took part in 2 of 5 rounds (revoked in 3)"


def test_a_client_that_is_enrolled_again_is_no_longer_revoked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "registry").mkdir()
    enroll(tmp_path / "registry", monkeypatch, {f"client-{i}": False for i in range(4)})
    grid = type("Revoked", (Revoking,), {"registry": tmp_path / "registry"})
    submitted(tmp_path / "run", grid, **{"num-rounds": 3})
    enroll(tmp_path / "registry", monkeypatch, {"client-3": False})
    rows = submitted(tmp_path / "run", grid, **{"num-rounds": 4})
    assert [row["revoked"] for row in rows] == ["", "", "client-3", ""]
    assert [row["participants"] for row in rows] == [*"4434"]


def test_a_run_that_waits_awaits_no_revoked_client(clock: Clock) -> None:
    def enrolled(names: Iterable[str]) -> list[str]:
        return [name for name in names if name != "site-1"]

    quorum = Quorum(0.0, clock=clock, known=NAMES, enrolled=enrolled)
    quorum.fewest = 3
    with pytest.raises(QuorumError, match=r"awaited: site-2, site-3\."):
        quorum.is_met(["site-0"])


def test_more_enrolled_clients_than_expected_are_not_awaited(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enroll(tmp_path, monkeypatch, dict.fromkeys((*NAMES, "spare"), False))
    arrive(clock, {})
    assert clock.now == 0.0


# Flower's simulation ------------------------------------------------------------------------------


class InMemoryGrid(Nodes):
    """Has the name by which Flower's own is recognised; its nodes are there a moment after the
    server."""


@pytest.mark.parametrize(
    ("began", "remedy"), [((), "clients = 4"), ((*NAMES, "site-9"), "a run of 4 clients")]
)
def test_in_a_simulation_too_few_nodes_end_the_run_at_once(
    clock: Clock, began: tuple[str, ...], remedy: str
) -> None:
    clock.now = 0.0
    quorum = Quorum(3600.0, clock=clock)
    wanted = len(began) or 20
    there = FlowerClients(
        FedAvg(), InMemoryGrid(clock, away=until(0.4, *NAMES), clients=4), 5.0, quorum
    )
    with pytest.raises(
        SimulationError,
        match=f"4 of {wanted} .*--federation-config num-supernodes={wanted}.*{remedy}",
    ):
        wait_for_clients(there, quorum, expected=20, began=began, min_clients=0)
    assert 1.0 < clock.now < 5.0  # more may come a moment later


def test_in_a_simulation_a_users_strategy_does_not_wait_for_more(clock: Clock) -> None:
    with pytest.raises(SimulationError, match=r"4 of 20 .*num-supernodes=20.*min_available_nodes"):
        FedAvg(min_available_nodes=20).start(
            InMemoryGrid(clock, clients=4), record(initial_model()), num_rounds=1
        )
    assert clock.now < 5.0


@pytest.mark.parametrize("option", ["min_available_nodes", "min_train_nodes", "min_evaluate_nodes"])
def test_in_one_process_a_users_strategy_does_not_wait_for_more(
    clock: Clock, tmp_path: Path, option: str
) -> None:
    given: dict[str, Any] = {option: 20}
    for start in (FedAvg(**given).start, partial(RunFolder(tmp_path).start, FedAvg(**given))):
        with pytest.raises(SimulationError, match=r"4 of 20 .*give InProcessGrid clients=20, or"):
            start(InProcessGrid(ClientApp(), {}, 4), record(initial_model()), num_rounds=1)
    assert clock.now < 5.0


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("fedvf", "method = 'fedvf': unknown method"),
        ("fedfv", "choose another folder (out)"),
    ],
)
def test_a_simulation_logs_a_refusal_at_once(
    tmp_path: Path, said: pytest.LogCaptureFixture, method: str, words: str
) -> None:
    (tmp_path / "mine.txt").touch()
    context = Context(
        run_id=1,
        node_id=1,
        node_config={},
        state=RecordDict(),
        run_config={"method": method, "clients": 4, "out": str(tmp_path)},
    )
    with pytest.raises(FairbloomError, match=re.escape(words)):
        main(type("Simulated", (InProcessGrid,), {"simulated": True})(app, {}, 4), context)
    assert words in said.messages[-1]


# How many examples clients say they have ----------------------------------------------------------


class Claiming(InProcessGrid):
    """One of its clients says that it has 2⁵³ − 1 examples, in its replies to these messages."""

    kinds: tuple[str, ...] = ("query",)

    def _answer(self, message: Message) -> Message:
        reply = super()._answer(message)
        kind = message.metadata.message_type
        if message.metadata.dst_node_id == SERVER + 1 and kind in self.kinds:
            content = reply.content
            record = (
                content.config_records["client"]
                if kind == "query"
                else content.metric_records["metrics"]
            )
            record["num-examples"] = 2**53 - 1
            reply.content = content
        return reply


class ClaimingLater(Claiming):
    kinds = ("train",)


def submitted(out: Path, grid: type[InProcessGrid], **more: object) -> list[dict[str, str]]:
    """Run the app with these clients; return rounds.csv."""
    plain = {
        "clients": 4,
        "num-rounds": 2,
        "fraction": 1.0,
        "device": "cpu",
        "wait-for-clients": 0.0,
        "out": str(out),
    }
    settings = Settings.of({**plain, **more})
    context = Context(
        run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=settings.run_config()
    )
    main(grid(app, settings.run_config(), settings.clients), context)
    return ROUNDS.read(out)


def test_both_kinds_of_runs_tell_their_grid(tmp_path: Path) -> None:
    said = list[str]()
    noted = type("Noted", (InProcessGrid,), {"note_wait": staticmethod(said.append)})
    submitted(tmp_path / "run", noted, **{"num-rounds": 1})
    assert said == [""]  # all are there at once
    FlowerClients(FedAvg(), noted(app, {}, 1))._quorum.wait.on_wait("awaited: a")
    assert said[1:] == ["awaited: a"]


def test_a_number_beyond_the_others_needs_the_operators_word(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    subtests: pytest.Subtests,
) -> None:
    # clients in this process are trusted
    assert len(submitted(tmp_path / "one process", Claiming)) == 2
    enroll(tmp_path, monkeypatch, {})
    words = (
        r"client client-0 says that it has 9007199254740991 .* fairbloom deploy enroll client-0"
        r" --examples"
    )
    for _ in range(2):
        with subtests.test():
            with pytest.raises(FairbloomError, match=words):
                submitted(tmp_path / "run", Claiming)
    assert [
        row["refused"]
        for row in submitted(tmp_path / "run", Claiming, **{"enrolled-sizes": "client-0=2000"})
    ] == [
        "",
        "",
    ]


def test_who_claims_more_than_it_said_at_first_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enroll(tmp_path, monkeypatch, {})
    assert [
        "client-0: num-examples 9007199254740991 is more than 10 times" in row["refused"]
        for row in submitted(tmp_path / "run", ClaimingLater)
    ] == [True] * 2


def test_who_joins_later_is_compared_with_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Joining(Claiming):
        """The client that claims too much is there from round 2 on."""

        kinds = ("query", "train")
        evaluated = False

        def get_node_ids(self) -> Iterator[int]:  # type: ignore[override]
            return (node for node in self.contexts if node != SERVER + 1 or self.evaluated)

        def _answer(self, message: Message) -> Message:
            self.evaluated |= message.metadata.message_type == "evaluate"
            return super()._answer(message)

    enroll(tmp_path, monkeypatch, {})
    first, second = submitted(tmp_path / "run", Joining)
    assert first["refused"] == ""
    assert (
        "client-0: num-examples 9007199254740991 is more than 10 times the median of the others"
        in second["refused"]
    )
    assert "--set enrolled-sizes=client-0=N" in second["refused"]


def test_ten_times_the_others_median_is_the_most() -> None:
    check_sizes({"a": 100.0, "b": 120.0, "c": 1100.0}, ())
    check_sizes({"a": 1e9}, ())
    check_sizes({}, ())
    with pytest.raises(FairbloomError, match=r"client c says that it has 1101 .*\(110\)"):
        check_sizes({"a": 100.0, "b": 120.0, "c": 1101.0}, ("a",))
    check_sizes({"a": 100.0, "b": 120.0, "c": 1101.0}, ("c",))


class Slow(Clock):
    """Stands for a grid: the reply to message i comes at second i of its own clock."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = list[set[str]]()
        self.sent = list[str | None]()
        self.offline = dict[int, tuple[float, float]]()

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
        return SimpleNamespace(
            metadata=about,
            has_content=lambda: kind not in {"7", "8", "9"},
            error=Error(ErrorCode.NODE_UNAVAILABLE, "it is an error"),
        )


@pytest.fixture
def slow() -> Slow:
    return Slow()


def replies(
    grid: Slow, *nodes: int, timeout: float | None, what: str = "query", min_replies: int = 0
) -> list[str]:
    messages = [Message(RecordDict(), dst_node_id=node, message_type=what) for node in nodes]
    polled = PollingGrid(grid, min_replies=min_replies, quorum=Quorum(clock=grid))  # type: ignore[arg-type]
    came = polled.send_and_receive(messages, timeout=timeout)
    return [reply.metadata.reply_to_message_id for reply in came]


MINUTE = polling.GRACE_SECONDS

# Nodes, deadline, the time offline by node; the clients that reply, and when the call ends.
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


@pytest.mark.parametrize(("nodes", "timeout", "offline", "came", "ends"), ENDS)
def test_it_returns_what_has_come_once_no_more_is_awaited(
    slow: Slow,
    nodes: tuple[int, ...],
    timeout: float | None,
    offline: dict[int, tuple[float, float]],
    came: list[str],
    ends: tuple[float, float],
) -> None:
    slow.offline = offline
    assert replies(slow, *nodes, timeout=timeout) == came
    assert ends[0] <= slow.now <= ends[1]


@pytest.mark.parametrize(
    ("nodes", "what", "min_replies", "came"),
    [
        ((1, 2, 50), "train", 2, ["1", "2"]),
        ((1, 7, 6, 50), "train", 3, ["1", "6", "7", "50"]),
        ((1, 2), "train", 5, ["1", "2"]),
        ((1, 2, 5), "evaluate", 1, ["1", "2", "5"]),
        ((1, 2, 5), "query", 1, ["1", "2", "5"]),
    ],
)
def test_enough_replies_without_errors_end_a_rounds_training(
    slow: Slow, nodes: tuple[int, ...], what: str, min_replies: int, came: list[str]
) -> None:
    assert replies(slow, *nodes, timeout=60.0, what=what, min_replies=min_replies) == came


class Falls(Slow):
    """Fails at the first calls, as a SuperLink that falls and comes back."""

    def __init__(self, *errors: Exception, seconds: float = 0.0) -> None:
        super().__init__()
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
# How often a call may fail that answers at once.
PATIENT_TRIES = int(polling.PATIENCE_SECONDS / polling.LONGEST_SECONDS)


def answer(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "https://server:8000/v1/runtime/pull-messages")
    return httpx.HTTPStatusError(
        f"status {status}", request=request, response=httpx.Response(status, request=request)
    )


PASSING = [REFUSED, HANDSHAKE, httpx.ReadTimeout("slow"), answer(500), answer(503)]
# What passes with time, and what does not, as where the task of this process was given to another
# one.
FOR_GOOD = [*map(answer, (400, 401, 403, 404, 409)), ZeroDivisionError(), ValueError("no")]


def test_what_passes_within_ten_minutes_is_outlived(
    subtests: pytest.Subtests,
) -> None:
    """The minutes count, not the tries."""
    for error in PASSING:
        with subtests.test(error=error):
            falls = Falls(*[error] * PATIENT_TRIES)
            assert sorted(replies(falls, 1, 2, timeout=60.0)) == ["1", "2"]
            falls = Falls(*[error] * (PATIENT_TRIES + 1))
            with pytest.raises(type(error), match=re.escape(str(error))):
                replies(falls, 1, timeout=60.0)
            assert falls.now == polling.PATIENCE_SECONDS == 600.0
    falls = Falls(*[HANDSHAKE] * 100, seconds=250.0)
    with pytest.raises(httpx.ConnectError):
        replies(falls, 1, timeout=60.0)
    assert len(falls.errors) == 100 - 4  # at 250, 501, 752 and 1003 s
    grid: Any = PollingGrid(falls, quorum=Quorum(clock=falls))  # type: ignore[arg-type]
    for call in (lambda: list(grid.pull_messages({"1"})), grid.get_node_ids, grid.get_nodes):
        with subtests.test(call=call):
            falls.errors = [HANDSHAKE]
            assert call()
            assert falls.errors == []


@pytest.mark.parametrize("error", FOR_GOOD)
def test_what_time_does_not_cure_ends_the_run_at_once(error: Any) -> None:
    falls = Falls(error)
    with pytest.raises(type(error)) as raised:
        replies(falls, 1, timeout=60.0)
    assert raised.value is error
    assert falls.now == 0.0
    falls.errors = [HANDSHAKE, HANDSHAKE, error]
    with pytest.raises(type(error)):
        PollingGrid(falls, quorum=Quorum(clock=falls)).get_nodes()  # type: ignore[arg-type]
    assert falls.now == 2.0


def test_a_lost_superlink_and_its_return_are_one_log_line_each(
    said: pytest.LogCaptureFixture,
) -> None:
    replies(Falls(*[HANDSHAKE] * 30, answer(500), answer(500)), 1, timeout=60.0)
    assert [*dict.fromkeys(said.messages)] == [
        f"the SuperLink fails this run, which waits for it up to 10 minutes: {HANDSHAKE}",
        "the SuperLink works again after 32 s, and the run continues",
    ]


def test_messages_that_outlived_their_time_on_the_way_live_anew() -> None:
    grid = Falls(HANDSHAKE, HANDSHAKE, seconds=7.0)
    message = Message(RecordDict(), dst_node_id=18, message_type="train", ttl=10.0)
    lives: list[float] = []
    push = grid.push_messages
    grid.push_messages = lambda messages: (lives.append(message.metadata.ttl), push(messages))[1]  # type: ignore[method-assign]
    came = [*PollingGrid(grid, quorum=Quorum(clock=grid)).send_and_receive([message], timeout=4.0)]  # type: ignore[arg-type]
    assert lives == [10.0, 10.0, pytest.approx(16.0 + 10.0, abs=1.0)]
    assert len(came) == 1  # at second 18: the deadline counts from when the message was taken


def test_a_node_that_goes_again_has_its_minute_again(slow: Slow) -> None:
    absences = polling.Absences()
    online = {0.0: {1}, 50.0: {1, 2}, 90.0: {1}, 90.0 + polling.GRACE_SECONDS: {1}}
    late = [absences.find_late({1, 2}, nodes, now) for now, nodes in online.items()]
    assert late == [set(), set(), set(), {2}]


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
    monkeypatch.setattr(
        slow, "get_node_ids", lambda: [node for node in nodes if not slow.is_away(node)]
    )
    quorum = Quorum(patience, clock=slow, enrolled=options.get("enrolled", tuple))
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
        message.metadata.__dict__["_created_at"] = slow.time()
    grid: Any = PollingGrid(slow, min_replies=min_replies, quorum=quorum)  # type: ignore[arg-type]
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


# The quorum, the nodes, who is offline, options; the clients that reply, and when the call ends.
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


@pytest.mark.parametrize(("fewest", "nodes", "offline", "options", "came", "ends"), QUORUM)
def test_while_too_few_are_online_a_round_waits(
    slow: Slow,
    monkeypatch: pytest.MonkeyPatch,
    fewest: int,
    nodes: tuple[int, ...],
    offline: dict[int, tuple[float, ...]],
    options: dict[str, Any],
    came: list[str],
    ends: float,
) -> None:
    slow.offline = offline
    assert sorted(with_quorum(slow, monkeypatch, fewest, 3600.0, *nodes, **options)) == came
    assert ends <= slow.now < ends + 4.0, nodes


@pytest.mark.parametrize(
    ("offline", "timeout", "again", "left"),
    [
        ((0.5, 300.0), 100.0, [1, 20, 21], 99.9),  # too few were online
        ((0.0, 0.0), 10.0, [20, 21], MINUTE),  # too few answered before the deadline
    ],
)
def test_expired_messages_are_sent_again_for_the_time_left(
    slow: Slow,
    monkeypatch: pytest.MonkeyPatch,
    offline: tuple[float, float],
    timeout: float,
    again: list[int],
    left: float,
) -> None:
    slow.offline = dict.fromkeys((20, 21), offline)
    lives = list[list[tuple[int, float]]]()
    push = slow.push_messages

    def pushed(messages: Iterable[Message]) -> Iterable[str | None]:
        messages = list(messages)
        lives.append([(message.metadata.dst_node_id, message.metadata.ttl) for message in messages])
        return push(messages)

    monkeypatch.setattr(slow, "push_messages", pushed)
    came = with_quorum(slow, monkeypatch, 2, 3600.0, 1, 20, 21, timeout=timeout)
    assert sorted(came) == ["1", "20", "21"]
    assert len(lives) == 2
    assert [node for node, _ in lives[1]] == again
    assert all(left - 2.0 < life <= left for _, life in lives[1])


class Strict(Slow):
    """Reports a message as expired as soon as its time is over."""

    def __init__(self) -> None:
        super().__init__()
        self.until = dict[str, float]()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str | None]:
        messages = list(messages)
        for message in messages:
            expiry = message.metadata.created_at + message.metadata.ttl
            self.until[str(message.metadata.dst_node_id)] = expiry
        return super().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Any]:
        message_ids = list(message_ids)
        dead = [each for each in message_ids if self.until[each] <= self.time()]
        error = Error(ErrorCode.MESSAGE_UNAVAILABLE, "its time is over")
        expired = [self.reply("9", each) for each in dead]
        for each in expired:
            each.error = error
        return [*expired, *super().pull_messages(set(message_ids).difference(dead))]


# The fewest clients, the nodes; those with a reply, those whose messages expired, and the end.
EXPIRING: list[tuple[int, tuple[int, ...], list[str], list[str], float]] = [
    (2, (1, 25), ["1", "25"], [], 25.0),  # too few answered: a minute more
    (2, (1, 2000), ["1"], ["2000"], 20.0 + MINUTE),  # the minute was in vain
    (1, (1, 25), ["1"], ["25"], 20.0),
    (2, (1, 2, 25), ["1", "2"], ["25"], 20.0),
]


@pytest.mark.parametrize(("fewest", "nodes", "came", "expired", "ends"), EXPIRING)
def test_the_last_minute_outlives_messages_that_expire(
    monkeypatch: pytest.MonkeyPatch,
    fewest: int,
    nodes: tuple[int, ...],
    came: list[str],
    expired: list[str],
    ends: float,
) -> None:
    strict = Strict()
    found = with_quorum(strict, monkeypatch, fewest, 3600.0, *nodes, timeout=20.0)
    assert sorted(found) == sorted(came + expired)
    assert ends <= strict.now < ends + 2.0


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
    monkeypatch.setattr(slow, "sleep", lambda s: (waits.append(s), Clock.sleep(slow, s)))
    replies(slow, 100, timeout=None)
    assert waits[0] == polling.SHORTEST_SECONDS
    assert waits == sorted(waits)
    assert waits[-1] == polling.LONGEST_SECONDS


class Unable(InProcessGrid):
    """Some of its clients, with registered names, answer the first question with an error."""

    code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    unable = 4

    def get_nodes(self) -> list[Any]:
        return [node_info(node, f"client-{i}") for i, node in enumerate(self.contexts)]

    def _answer(self, message: Message) -> Message:
        number = [*self.contexts].index(message.metadata.dst_node_id)
        if message.metadata.message_type != "query" or number >= self.unable:
            return super()._answer(message)
        return Message(Error(self.code, "it has columns that are not named"), reply_to=message)


@pytest.mark.parametrize("code", [ErrorCode.CLIENT_APP_RAISED_EXCEPTION, ErrorCode.INVALID_FAB])
@pytest.mark.parametrize(("unable", "training"), [(4, ""), (1, "client-0")])
def test_a_run_that_no_client_can_join_does_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, unable: int, training: str
) -> None:
    enroll(tmp_path, monkeypatch, {})
    out = tmp_path / "run"
    settings = {"wait-for-clients": 0.0, "training-clients": training, "min-clients": 1}
    grid = type("Unable", (Unable,), {"code": code, "unable": unable})
    words = "no client can take part: .*client-0.*: it has columns that are not named. Once"
    with pytest.raises(QuorumError, match=words):
        submitted(out, grid, **settings)
    assert not out.exists()
    mended = type("Mended", (Unable,), {"unable": 0})
    assert len(submitted(out, mended, **settings)) == 2


@pytest.mark.parametrize("code", [ErrorCode.CLIENT_APP_RAISED_EXCEPTION, ErrorCode.INVALID_FAB])
@pytest.mark.parametrize(("unable", "training"), [(3, ""), (3, "client-0,client-3"), (0, "")])
def test_a_run_that_one_client_can_join_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, unable: int, training: str
) -> None:
    enroll(tmp_path, monkeypatch, {})
    settings = {"wait-for-clients": 0.0, "training-clients": training, "min-clients": 1}
    grid = type("Unable", (Unable,), {"code": code, "unable": unable})
    assert len(submitted(tmp_path / "run", grid, **settings)) == 2


def test_missing_rows_of_a_device_are_said_before_round_1(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    quorum = Quorum(100.0, clock=clock)
    clients = FlowerClients(FedAvg(), None, 5.0, quorum)
    grid = Nodes(clock, clients=3)
    told: dict[str, Any] = {"site-0": 120, "site-1": -1, "site-2": True}

    def answer(message: Message) -> list[Message]:
        name = grid.nodes[message.metadata.dst_node_id]
        about = {"name": name, "num-examples": 30, "rows-missing": told[name]}
        return [Message(RecordDict({"client": ConfigRecord(about)}), reply_to=message)]

    grid._answers = answer  # type: ignore[method-assign]
    clients.courier = courier_of(grid)
    assert ask_sizes(clients, quorum) == dict.fromkeys(told, 30.0)
    (said,) = [words for words in caplog.messages if "fewer rows" in words]
    assert said.startswith("site-0 has 120 fewer rows, or units, than before")
    assert said.endswith("its owner puts it back")


@pytest.mark.parametrize("second", [40.0, NEVER])
def test_a_run_waits_for_a_client_that_refuses_it(
    clock: Clock, second: float, caplog: pytest.LogCaptureFixture
) -> None:
    """Its owner mends that after some time, or not within the patience."""
    waits = list[str]()
    quorum = Quorum(100.0, clock=clock, on_wait=waits.append)
    clients = FlowerClients(FedAvg(), None, 5.0, quorum)
    grid = Nodes(clock, clients=3)
    answers = grid._answers

    def answer(message: Message) -> list[Message]:
        name = grid.nodes[message.metadata.dst_node_id]
        if clock.now >= second or name != "site-1":
            return answers(message)
        return [Message(Error(ErrorCode.INVALID_FAB, "its schema is new here"), reply_to=message)]

    grid._answers = answer  # type: ignore[method-assign]
    clients.courier = courier_of(grid)
    sizes = ask_sizes(clients, quorum)
    words = "site-1: its schema is new here"
    assert words in next(filter(None, waits))
    assert waits[-1] == ""
    if second < NEVER:
        assert (clients.refusing, len(sizes)) == ({}, 3)
        assert second <= clock.now < second + 10.0
    else:
        assert clients.refusing.keys() == {"site-1"}
        assert (sorted(sizes), f"without clients that refuse it: {words}" in caplog.text) == (
            ["site-0", "site-2"],
            True,
        )
        assert 100.0 <= clock.now < 110.0
    # the others are asked once
    assert [len(asked) for asked in grid.asked.values()].count(1) == 2
