"""Whom a run on deployed clients waits for when it begins and when it resumes, and when it goes on
without them."""

import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fairbloom.client.app import app
from fairbloom.errors import FairbloomError
from fairbloom.flower import SimulationError
from fairbloom.rounds.flower import FlowerClients
from fairbloom.rounds.quorum import Quorum, QuorumError
from fairbloom.server import waiting
from fairbloom.server.app import main
from fairbloom.server.run_folder.files import ROUNDS
from fairbloom.server.run_folder.flower import RunFolder
from fairbloom.server.settings import Settings
from fairbloom.server.waiting import (
    check_sizes,
    drop_revoked,
    wait_for_clients,
)
from fairbloom.simulation.grid import SERVER, InProcessGrid
from fairbloom.strategies import FedAvg
from tests.federation import initial_model, record
from tests.rounds.test_waits import Day as Clock, Nodes, Times

NEVER = 1e9
NAMES = tuple(f"site-{k}" for k in range(4))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for place in ("rounds.quorum", "rounds.flower", "server.waiting"):
        monkeypatch.setattr(f"fairbloom.{place}.time", clock)
    return clock


def until(second: float, *names: str) -> dict[str, Times]:
    """Return that clients are away until a second."""
    return dict.fromkeys(names, ((0.0, second),))


def arrive(clock: Clock, away: Mapping[str, Times], *, clients: int = 4, **given: Any) -> Quorum:
    given = {"expected": clients, "began": (), "min_clients": 0, "patience": 3600.0} | given
    quorum = Quorum(given["patience"])
    there = FlowerClients(FedAvg(), Nodes(clock, away=away, clients=clients), 5.0, quorum)
    wait_for_clients(there, quorum, **given)
    return quorum


NEW_IN_TURN = until(8.0, "site-1") | until(16.0, "site-2") | until(NEVER, "site-3")
FIRST_LATE = until(500.0, "site-0") | until(700.0, "site-1") | until(NEVER, "site-2", "site-3")

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
"""Who is away until when, and what the run says; when it goes on, and the fewest clients that its
rounds need."""

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
"""The same with too few clients: when the run ends, and its error."""


def test_a_run_waits_for_its_clients_and_no_longer(clock: Clock, subtests: pytest.Subtests) -> None:
    for away, given, at, fewest in ARRIVALS:
        with subtests.test(away=away, given=given):
            clock.now = 0.0
            assert arrive(clock, away, **given).fewest == fewest, given
            assert at <= clock.now < at + 2.0, given


def test_a_run_ends_where_too_few_clients_come(clock: Clock, subtests: pytest.Subtests) -> None:
    for away, given, at, words in TOO_FEW:
        with subtests.test(away=away, given=given):
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


# Flower's simulation ------------------------------------------------------------------------------


class InMemoryGrid(Nodes):
    """Has the name by which Flower's own is recognised; its nodes are there a moment after the
    server."""


def test_in_a_simulation_too_few_nodes_end_the_run_at_once(
    clock: Clock, subtests: pytest.Subtests
) -> None:
    for began, remedy in (((), "clients = 4"), ((*NAMES, "site-9"), "a run of 4 clients")):
        with subtests.test(began=began, remedy=remedy):
            clock.now = 0.0
            quorum = Quorum(3600.0)
            wanted = len(began) or 20
            there = FlowerClients(
                FedAvg(), InMemoryGrid(clock, away=until(0.4, *NAMES), clients=4), 5.0, quorum
            )
            with pytest.raises(
                SimulationError,
                match=f"4 of {wanted} .*--federation-config num-supernodes={wanted}.*{remedy}",
            ):
                wait_for_clients(
                    there, quorum, expected=20, began=began, min_clients=0, patience=3600.0
                )
            assert clock.now < 5.0


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


def test_a_simulation_logs_a_refusal_at_once(
    tmp_path: Path,
    said: pytest.LogCaptureFixture,
    subtests: pytest.Subtests,
) -> None:
    grid = type("InMemoryGrid", (InProcessGrid,), {})(app, {}, 4)
    for config, words in (
        ({"method": "fedvf"}, "method = 'fedvf': unknown method"),
        ({"method": "fedfv", "clients": 4, "out": str(tmp_path)}, "choose another folder (out)"),
    ):
        with subtests.test(config=config, words=words):
            (tmp_path / "mine.txt").touch()
            context = Context(
                run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config
            )
            with pytest.raises(FairbloomError, match=re.escape(words)):
                main(grid, context)
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
    rows = submitted(tmp_path / "run", ClaimingLater)
    assert [
        "client-0: num-examples 9007199254740991 is more than 10 times" in row["refused"]
        for row in rows
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
