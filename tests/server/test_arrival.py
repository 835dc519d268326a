"""Whom a run on deployed clients waits for when it begins and when it resumes, and when it goes on without them."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import tomli_w
from flwr.app import Context, Message, RecordDict

from fairbloom.client.app import app
from fairbloom.errors import FairbloomError
from fairbloom.rounds.flower import FlowerClients
from fairbloom.rounds.quorum import Quorum, QuorumError, SimulationError
from fairbloom.server import arrival
from fairbloom.server.app import main
from fairbloom.server.arrival import ImplausibleSizeError, check_sizes, drop_revoked, wait_for_clients
from fairbloom.server.run_folder.files import ROUNDS
from fairbloom.server.settings import Settings
from fairbloom.simulation.grid import SERVER, InProcessGrid
from fairbloom.strategies import FedAvg
from tests.federation import initial_model, record
from tests.rounds.test_waits import Day as Clock
from tests.rounds.test_waits import Nodes, Times

NEVER = (0.0, 1e9)
NAMES = tuple(f"site-{k}" for k in range(4))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for place in ("rounds.quorum", "rounds.flower", "server.arrival"):
        monkeypatch.setattr(f"fairbloom.{place}.time", clock)
    return clock


def windows(away: Mapping[str, tuple[float, float]]) -> dict[str, Times]:
    return {name: (window,) for name, window in away.items()}


def arrive(
    clock: Clock,
    away: dict[str, tuple[float, float]],
    *,
    clients: int = 4,
    expected: int = 4,
    began: tuple[str, ...] = (),
    min_clients: int = 0,
    patience: float = 3600.0,
    among: tuple[str, ...] = (),
) -> Quorum:
    quorum = Quorum(patience, among)
    there = FlowerClients(FedAvg(), Nodes(clock, away=windows(away), clients=clients), 5.0, quorum)
    wait_for_clients(there, quorum, expected=expected, began=began, min_clients=min_clients, patience=patience)
    return quorum


# A new run ----------------------------------------------------------------------------------------------------------


def test_a_new_run_waits_for_all_clients_as_long_as_its_patience_lasts(clock: Clock) -> None:
    quorum = arrive(clock, {"site-3": (0.0, 3000.0)})
    assert 3000.0 <= clock.now < 3002.0
    assert quorum.fewest == 2


def test_after_that_it_goes_on_without_the_late_ones_where_enough_are_there(
    clock: Clock, said: pytest.LogCaptureFixture
) -> None:
    assert arrive(clock, {"site-3": NEVER}, patience=0.0).fewest == 2
    assert clock.now == 0.0
    quorum = arrive(clock, {"site-3": NEVER}, patience=100.0)
    assert 100.0 <= clock.now < 102.0
    assert any(
        "goes on without those who are late" in words and "3 of 4 clients are online" in words
        for words in said.messages
    )
    assert quorum.fewest == 2


def test_one_device_of_twenty_never_trains_alone(clock: Clock) -> None:
    away = {f"site-{k}": NEVER for k in range(1, 20)}
    with pytest.raises(
        QuorumError, match=r"1 of 20 clients is online; awaited: others, and at least 10 are needed"
    ) as ended:
        arrive(clock, away, clients=20, expected=20, patience=200.0)
    assert isinstance(ended.value, FairbloomError)
    assert 200.0 <= clock.now < 202.0


def enroll(folder: Path, monkeypatch: pytest.MonkeyPatch, roll: dict[str, bool]) -> None:
    """Write the files of a federation's clients, each of which is revoked or not."""
    for name, gone in roll.items():
        revoked = "2026-01-01T00:00:00+00:00" if gone else ""
        (folder / f"{name}.toml").write_text(tomli_w.dumps({"name": name, "revoked": revoked}))
    monkeypatch.setenv(arrival.CLIENTS_FOLDER, str(folder))


def test_in_a_federation_the_awaited_are_named_before_the_first_round(
    clock: Clock, said: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enroll(tmp_path, monkeypatch, dict.fromkeys(NAMES, False) | {"gone": True})
    arrive(clock, {"site-2": (0.0, 11.0), "site-3": (0.0, 1e9)}, patience=50.0)
    waiting, going_on = (words for words in dict.fromkeys(said.messages) if "awaited" in words)
    assert waiting.startswith("2 of 4 clients are online; awaited: site-2, site-3. ")
    assert going_on.endswith("3 of 4 clients are online; awaited: site-3")


# Where nobody says how many there are -------------------------------------------------------------------------------


def test_where_nobody_says_how_many_there_are_ten_seconds_without_another_one_begin_the_run(clock: Clock) -> None:
    quorum = arrive(clock, {"site-1": (0.0, 8.0), "site-2": (0.0, 16.0), "site-3": NEVER}, expected=0)
    assert 26.0 <= clock.now < 28.0
    assert quorum.fewest == 2  # of the three that it begins with


def test_and_it_waits_for_the_first_and_for_min_clients(clock: Clock) -> None:
    away = {"site-0": (0.0, 500.0), "site-1": (0.0, 700.0), "site-2": NEVER, "site-3": NEVER}
    assert arrive(clock, away, expected=0).fewest == 1
    assert 510.0 <= clock.now < 512.0
    clock.now = 0.0
    assert arrive(clock, away, expected=0, min_clients=2).fewest == 2
    assert 710.0 <= clock.now < 712.0
    clock.now = 0.0
    with pytest.raises(QuorumError, match="0 of 1 clients are online"):
        arrive(clock, dict.fromkeys(NAMES, NEVER), expected=0, patience=60.0)
    assert 60.0 <= clock.now < 62.0


# A run that is resumed ----------------------------------------------------------------------------------------------


def test_a_resumed_run_waits_for_those_it_began_with_by_name_whoever_else_is_there(
    clock: Clock, said: pytest.LogCaptureFixture
) -> None:
    began = ("site-0", "site-1", "site-4")
    arrive(clock, {"site-4": (0.0, 360.0)}, clients=5, expected=3, began=began)
    assert 360.0 <= clock.now < 362.0
    assert any("4 of 3 clients are online; awaited: site-4. " in words for words in said.messages)


def test_it_does_not_wait_for_more_than_it_began_with(clock: Clock) -> None:
    quorum = arrive(clock, {"site-3": NEVER}, expected=4, began=NAMES[:3])
    assert clock.now == 0.0
    assert quorum.fewest == 2


def test_it_does_not_wait_for_revoked_ones_who_do_not_count_either(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enroll(tmp_path, monkeypatch, dict.fromkeys(NAMES, True) | {NAMES[0]: False})
    (tmp_path / "torn.toml").write_text("revoked = ")
    assert drop_revoked([*NAMES, "torn", "unknown"]) == [NAMES[0], "torn", "unknown"]
    with monkeypatch.context() as patch:
        patch.delenv(arrival.CLIENTS_FOLDER)
        assert drop_revoked(NAMES) == list(NAMES)  # without a federation nobody is revoked
    quorum = arrive(clock, dict.fromkeys(NAMES[1:], NEVER), expected=4, began=NAMES)
    assert clock.now == 0.0
    assert quorum.fewest == 1


def test_it_ends_where_too_few_of_them_come_and_its_remedy_helps(clock: Clock) -> None:
    away = dict.fromkeys(NAMES[1:], NEVER)
    with pytest.raises(QuorumError, match=r"awaited: site-1, site-2, site-3.*or lower min-clients") as ended:
        arrive(clock, away, began=NAMES, patience=50.0)
    assert re.search(r"at least 2 are needed \(min-clients\)", str(ended.value))
    assert arrive(clock, away, began=NAMES, patience=50.0, min_clients=1).fewest == 1


# Flower's simulation --------------------------------------------------------------------------------------------------


class InMemoryGrid(Nodes):
    """Has the name by which Flower's own is recognised; its nodes are there a moment after the server."""


def test_in_a_simulation_too_few_nodes_end_the_run_at_once(clock: Clock) -> None:
    for began, remedy in (((), "clients = 4"), ((*NAMES, "site-9"), "a run of 4 clients")):
        clock.now, quorum = 0.0, Quorum(3600.0)
        wanted = len(began) or 20
        there = FlowerClients(
            FedAvg(), InMemoryGrid(clock, away=dict.fromkeys(NAMES, ((0.0, 0.4),)), clients=4), 5.0, quorum
        )
        with pytest.raises(
            SimulationError, match=f"4 of {wanted} .*--federation-config num-supernodes={wanted}.*{remedy}"
        ):
            wait_for_clients(there, quorum, expected=20, began=began, min_clients=0, patience=3600.0)
        assert clock.now < 5.0


def test_in_a_simulation_a_users_strategy_does_not_wait_for_more(clock: Clock) -> None:
    with pytest.raises(SimulationError, match=r"4 of 20 .*num-supernodes=20.*min_available_nodes"):
        FedAvg(min_available_nodes=20).start(InMemoryGrid(clock, clients=4), record(initial_model()), num_rounds=1)
    assert clock.now < 5.0


def test_in_a_simulation_a_refusal_is_logged_at_once_in_words_of_an_app(
    tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    grid = type("InMemoryGrid", (InProcessGrid,), {})(app, {}, 4)
    for config, words in (
        ({"method": "fedvf"}, "method = 'fedvf': unknown method"),
        ({"method": "fedfv", "clients": 4, "out": str(tmp_path)}, "choose another folder (out)"),
    ):
        (tmp_path / "mine.txt").touch()
        context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config)
        with pytest.raises(FairbloomError, match=re.escape(words)):
            main(grid, context)
        assert words in said.messages[-1]


# How many examples clients say they have ------------------------------------------------------------------------------


class Claiming(InProcessGrid):
    """One of its clients says that it has 2⁵³ − 1 examples, in its replies to these messages."""

    kinds: tuple[str, ...] = ("query",)

    def _answer(self, message: Message) -> Message:
        reply = super()._answer(message)
        kind = message.metadata.message_type
        if message.metadata.dst_node_id == SERVER + 1 and kind in self.kinds:
            content = reply.content
            record = content.config_records["client"] if kind == "query" else content.metric_records["metrics"]
            record["num-examples"] = 2**53 - 1
            reply.content = content
        return reply


class ClaimingLater(Claiming):
    kinds = ("train",)


def submitted(out: Path, grid: type[InProcessGrid], **more: object) -> list[dict[str, str]]:
    """Run the app with these clients; return rounds.csv."""
    plain = {"clients": 4, "num-rounds": 2, "fraction": 1.0, "device": "cpu", "wait-for-clients": 0.0, "out": str(out)}
    settings = Settings.of({**plain, **more})
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=settings.run_config())
    main(grid(app, settings.run_config(), settings.clients), context)
    return ROUNDS.read(out)


def test_a_number_beyond_the_others_needs_the_operators_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(submitted(tmp_path / "one process", Claiming)) == 2  # where nobody else's machine says it
    enroll(tmp_path, monkeypatch, {})
    words = r"client client-0 says that it has 9007199254740991 .* fairbloom deploy enroll client-0 --examples"
    for _ in range(2):
        with pytest.raises(ImplausibleSizeError, match=words):
            submitted(tmp_path / "run", Claiming)
    assert [row["refused"] for row in submitted(tmp_path / "run", Claiming, **{"enrolled-sizes": "client-0=2000"})] == [
        "",
        "",
    ]


def test_who_claims_more_than_it_said_at_first_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enroll(tmp_path, monkeypatch, {})
    rows = submitted(tmp_path / "run", ClaimingLater)
    assert ["client-0: num-examples 9007199254740991 is more than 10 times" in row["refused"] for row in rows] == [
        True
    ] * 2


def test_who_joins_later_is_compared_with_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert "client-0: num-examples 9007199254740991 is more than 10 times the median of the others" in second["refused"]
    assert "--set enrolled-sizes=client-0=N" in second["refused"]


def test_ten_times_the_others_median_is_the_most() -> None:
    check_sizes({"a": 100.0, "b": 120.0, "c": 1100.0}, ())
    check_sizes({"a": 1e9}, ())
    check_sizes({}, ())
    with pytest.raises(ImplausibleSizeError, match=r"client c says that it has 1101 .*\(110\)"):
        check_sizes({"a": 100.0, "b": 120.0, "c": 1101.0}, ("a",))
    check_sizes({"a": 100.0, "b": 120.0, "c": 1101.0}, ("c",))
