"""A device's part in private rounds, through Flower's messages: each answer comes from a state that is on disk."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.error import Error
from flwr.common.constant import ErrorCode

from fairbloom.client.app import app
from fairbloom.deploy.pki import make_node_key
from fairbloom.private.keys import Authority, issue, new_signing_key, write_identity
from fairbloom.private.packing import pack, unpack
from fairbloom.private.server import Task
from fairbloom.private.weighing import AscentWeighing, GramWeighing
from fairbloom.protocol.version import PROTOCOL
from fairbloom.rounds.flower import FlowerClients, record_of
from fairbloom.rounds.private import PrivateRounds
from fairbloom.server.app import federate
from fairbloom.server.checkpoint import load_last
from fairbloom.server.run_folder.files import CLIENTS as CLIENT_ROWS
from fairbloom.server.run_folder.files import ROUNDS
from fairbloom.server.settings import Settings
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.simulation.run import simulate
from fairbloom.strategies.term import TERM
from tests.experiments.helpers import fairbloom

CLIENTS = 8
SETTINGS: dict[str, Any] = {
    "clients": CLIENTS,
    "num-rounds": 2,
    "method": "term",
    "privacy": "sums",
    "device": "cpu",
    "fraction": 1.0,
    "partition": "iid",
    "round-timeout": 30.0,
    "engine": "loop",
}


class Devices(InProcessGrid):
    """Devices with identities and folders of their own; `away` says which give no answer, by exchange."""

    def __init__(self, settings: Settings, folder: Path, away: dict[str, set[int]] | None = None) -> None:
        super().__init__(app, settings.run_config(), CLIENTS)
        self.folder, self.away = folder, away or {}
        self.asked: list[str] = []
        self.replies: list[Message] = []
        secret, public = new_signing_key()
        for number, context in enumerate(self.contexts.values()):
            name = f"device-{number}"
            place = folder / name
            place.mkdir(parents=True, exist_ok=True)
            if not (place / "identity").exists():
                keys = make_node_key()
                certificate = issue(secret, "test", name, keys.signing, "")
                (place / "identity").write_bytes(write_identity(certificate, Authority("test", public)))
                (place / "key").write_bytes(keys.private)
            context.node_config |= {
                "name": name,
                "state-dir": str(place),
                "private": str(place / "key"),
            }

    def _answer(self, message: Message) -> Message:
        kind = message.metadata.message_type
        self.asked.append(kind)
        if message.metadata.dst_node_id - 2 in self.away.get(kind, ()):
            return Message(Error(ErrorCode.NODE_UNAVAILABLE, "away"), reply_to=message)
        self.replies.append(super()._answer(message))
        return self.replies[-1]


ANGLES: dict[str, Any] = {"privacy": "angles", "fedmgdaplus.epsilon": 0.25, "fedmgdaplus.server-lr": 0.5}


def trained(
    folder: Path, away: dict[str, set[int]] | None = None, devices: type[Devices] = Devices, **settings: Any
) -> tuple[Path, Devices]:
    chosen = Settings.of({**SETTINGS, **settings, "out": str(folder / "run")})
    grid = devices(chosen, folder / "devices", away)
    clients = lambda method: FlowerClients(method, grid, 30.0, protocol=PROTOCOL)  # noqa: E731
    return federate(chosen, clients, deployed=True), grid


def arrays(folder: Path) -> Any:
    last = load_last(folder / "checkpoint")
    assert last is not None
    return last[0]


@pytest.mark.parametrize("method", ["term", "semivred", "ditto", "fedfa", "afl"])
def test_private_messages_give_the_run_in_one_process(method: str, tmp_path: Path) -> None:
    folder, grid = trained(tmp_path, method=method)
    plain = simulate(Settings.of({**SETTINGS, "method": method, "privacy": "none", "out": str(tmp_path / "plain")}))
    for name, array in arrays(plain).items():
        assert arrays(folder)[name] == pytest.approx(array, abs=2e-4)
    kinds = {"query.keys", "train.work", "query.open", "train.vector", "query.unmask"}
    assert kinds <= set(grid.asked)
    assert not {"train", "evaluate"} & set(grid.asked)


@pytest.mark.parametrize(("method", "given"), [("fedmgdaplus", ANGLES), ("torchjd:upgrad", {"privacy": "angles"})])
def test_messages_that_open_angles_give_the_run_in_one_process(
    method: str, given: dict[str, Any], tmp_path: Path
) -> None:
    folder, grid = trained(tmp_path, method=method, **given)
    plain = Settings.of({**SETTINGS, **given, "method": method, "privacy": "none", "out": str(tmp_path / "plain")})
    for name, array in arrays(simulate(plain)).items():
        assert arrays(folder)[name] == pytest.approx(array, abs=2e-4)
    assert not {"train", "evaluate", "query.share"} & set(grid.asked)


@pytest.mark.parametrize("kind", ["query.keys", "train.work", "query.open", "train.vector", "query.unmask"])
def test_a_device_that_is_lost_with_angles_costs_itself_alone(kind: str, tmp_path: Path) -> None:
    folder, _ = trained(tmp_path, {kind: {3}}, method="fedmgdaplus", **{**ANGLES, "num-rounds": 1})
    (row,) = ROUNDS.read(folder)
    assert int(row["replies_used"]) in (7, 8)
    assert "device-3" in row["missing"] + row["refused"]


@pytest.mark.parametrize("kind", ["query.keys", "train.work", "query.open", "train.vector", "query.unmask"])
def test_a_device_that_is_lost_costs_the_device_alone(kind: str, tmp_path: Path) -> None:
    folder, _ = trained(tmp_path, {kind: {3}}, **{"num-rounds": 1})
    (row,) = ROUNDS.read(folder)
    assert int(row["replies_used"]) in (7, 8)
    assert "device-3" in row["missing"] + row["refused"]


class OneComesLater(Devices):
    """Devices of which one is offline until a first round is trained."""

    def get_node_ids(self) -> Iterable[int]:
        """Return the node ids."""
        nodes = list(super().get_node_ids())
        return nodes if "query.unmask" in self.asked else nodes[:-1]


def test_a_device_that_comes_later_is_no_participant_of_afl(tmp_path: Path) -> None:
    folder, grid = trained(tmp_path, method="afl", devices=OneComesLater)
    rows = ROUNDS.read(folder)
    assert [(row["participants"], row["replies_used"]) for row in rows] == [("7", "7"), ("7", "7")]
    assert grid.asked.count("query.keys") == 2 * 7 + 2 * 8  # it evaluates the model


def test_no_reply_of_a_private_run_has_a_number_of_a_device(tmp_path: Path) -> None:
    _, grid = trained(tmp_path)
    assert {"query", "query.keys"} <= set(grid.asked)
    said = set()
    for reply in grid.replies:
        assert not reply.content.array_records
        assert not reply.content.metric_records
        said |= {key for record in reply.content.config_records.values() for key in record}
    assert said == {"name", "honours", "packs", "authority", "body", "signature", "vector"}


@pytest.mark.parametrize("later", ["sums", "none"])
def test_a_forged_server_gets_no_number_by_plain_messages(later: str, tmp_path: Path) -> None:
    """Not even if the run's settings say later that it is a plain one: before its first round, owners' limits count."""
    folder, grid = trained(tmp_path, **{"num-rounds": 1})
    for context in grid.contexts.values():
        context.run_config |= {"privacy": later}
    measure = ["loss-before", "loss-after", "update-norm"]
    config = {"server-round": 2, "measure": measure, "about": True, "fairbloom-protocol": PROTOCOL}
    for kind in ("train", "evaluate"):
        content = RecordDict({"config": ConfigRecord({**config}), "arrays": record_of(arrays(folder))})
        (reply,) = grid.send_and_receive([Message(content, next(iter(grid.contexts)), kind)])
        assert "privacy = 'sums': in a private run" in reply.error.reason
        assert "answers the exchanges of private rounds alone" in reply.error.reason
    content = RecordDict({"config": ConfigRecord({**config})})
    (reply,) = grid.send_and_receive([Message(content, next(iter(grid.contexts)), "query")])
    client = reply.content.config_records["client"]
    assert {*client} == {"name", "honours", "packs", "authority", "about"}
    assert client["about"] == "{}"


@pytest.mark.parametrize(("forged", "opened"), [(GramWeighing, "angles"), (AscentWeighing, "sums of AFL")])
def test_a_run_opens_what_its_settings_name_alone(
    forged: type[GramWeighing | AscentWeighing], opened: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Devices know it by the run's settings, which owners can limit."""
    monkeypatch.setattr(TERM, "private_weighing", lambda self, names, *others: forged(clients=names))
    folder, _ = trained(tmp_path, **{"num-rounds": 1, "unused-rounds": 0})
    (row,) = ROUNDS.read(folder)
    assert row["replies_used"] == "0"
    assert f"privacy = 'sums': the terms would open {opened}, too" in row["refused"]


def refusals(grid: Devices, folder: Path, **settings: Any) -> str:
    """Return why devices refuse a second run of this server, which goes by the same number."""
    chosen = Settings.of({**SETTINGS, "num-rounds": 1, "unused-rounds": 0, **settings, "out": str(folder)})
    rows = ROUNDS.read(federate(chosen, lambda method: FlowerClients(method, grid, 30.0, protocol=PROTOCOL)))
    assert {row["replies_used"] for row in rows} == {"0"}
    return rows[-1]["refused"]


def test_a_private_run_opens_no_more_than_it_began_with(tmp_path: Path) -> None:
    _, grid = trained(tmp_path, **{"num-rounds": 1})
    for context in grid.contexts.values():
        context.run_config |= {"privacy": "angles"}
    angles = {**ANGLES, "method": "fedmgdaplus", "num-rounds": 2}
    (tmp_path / "run").rename(tmp_path / "sums")
    assert "privacy = 'sums': the terms would open angles, too" in refusals(grid, tmp_path / "run", **angles)


def test_a_private_run_keeps_its_name(tmp_path: Path) -> None:
    """By another name, a server would have the sums of a round again, over other clients."""
    _, grid = trained(tmp_path, **{"num-rounds": 1})
    assert "position: this is the run" in refusals(grid, tmp_path / "another")


def test_what_is_trained_is_not_averaged_beside_the_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cap limits a client's part of what is averaged beside it."""
    honest = PrivateRounds._task

    def task(rounds: PrivateRounds, purpose: str, *others: Any) -> Task:
        made = honest(rounds, purpose, *others)
        content = unpack(made.terms)
        return replace(made, terms=pack({**content, "others": content["trainable"][:1]}))

    monkeypatch.setattr(PrivateRounds, "_task", task)
    folder, _ = trained(tmp_path, **{"num-rounds": 1, "unused-rounds": 0})
    (row,) = ROUNDS.read(folder)
    assert "which is trained, averaged beside the update" in row["refused"]


def test_what_a_device_keeps_is_its_journal_alone(tmp_path: Path) -> None:
    trained(tmp_path)
    for place in (tmp_path / "devices").iterdir():
        state = unpack((place / "private-round").read_bytes())
        assert "seed" not in state
        assert "mask" not in state
        assert (place / "private-round").stat().st_mode & 0o077 == 0


def test_the_log_of_a_device_holds_no_bytes_of_an_exchange(tmp_path: Path) -> None:
    trained(tmp_path)
    entries = [json.loads(line) for line in (tmp_path / "devices" / "device-0" / "log.jsonl").read_text().splitlines()]
    private = [each for each in entries if "private" in each.get("sent", {})]
    assert private
    for entry in private:
        assert all(value.endswith(" bytes") for value in entry["sent"]["private"].values())
        assert "private" not in entry["terms"]


def test_a_device_without_an_identity_is_no_part_of_it(tmp_path: Path) -> None:
    chosen = Settings.of({**SETTINGS, "num-rounds": 1, "out": str(tmp_path / "run")})
    grid = Devices(chosen, tmp_path / "devices")
    first = next(iter(grid.contexts.values()))
    del first.node_config["private"]
    folder = federate(chosen, lambda method: FlowerClients(method, grid, 30.0, protocol=PROTOCOL), deployed=True)
    (row,) = ROUNDS.read(folder)
    assert "no identity for private rounds" in row["refused"]
    assert int(row["replies_used"]) == 7


def test_an_identity_of_another_key_serves_plain_runs_alone(tmp_path: Path) -> None:
    chosen = Settings.of({**SETTINGS, "num-rounds": 1, "out": str(tmp_path / "run")})
    grid = Devices(chosen, tmp_path / "devices")
    (tmp_path / "devices" / "device-0" / "key").write_bytes(make_node_key().private)  # which was rotated
    clients = lambda method: FlowerClients(method, grid, 30.0, protocol=PROTOCOL)  # noqa: E731
    (row,) = ROUNDS.read(federate(chosen, clients, deployed=True))
    assert "its identity for private rounds cannot be read or belongs to another key" in row["refused"]
    assert "fairbloom deploy enroll" in row["refused"]
    assert int(row["replies_used"]) == 7
    plain = Settings.of({**SETTINGS, "num-rounds": 1, "privacy": "none", "out": str(tmp_path / "plain")})
    for context in grid.contexts.values():
        context.run_config, context.state = plain.run_config(), RecordDict()
    (row,) = ROUNDS.read(federate(plain, clients, deployed=True))
    assert int(row["replies_used"]) == 8


def test_a_round_that_is_run_again_is_refused_by_devices(tmp_path: Path) -> None:
    """A server that lost its checkpoint cannot have the sums of a round a second time."""
    trained(tmp_path, **{"num-rounds": 1})
    (tmp_path / "run").rename(tmp_path / "lost")
    folder, _ = trained(tmp_path, **{"num-rounds": 1, "unused-rounds": 0})
    (row,) = ROUNDS.read(folder)
    assert int(row["replies_used"]) == 0
    assert "second attempt" in row["refused"]


def test_a_device_shows_its_own_rows_to_its_owner(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, _ = trained(tmp_path)
    plain = Settings.of({**SETTINGS, "privacy": "none", "out": str(tmp_path / "plain")})
    expected = {(row["round"], row["client"]): row for row in CLIENT_ROWS.read(simulate(plain))}
    assert not CLIENT_ROWS.read(folder)
    place = tmp_path / "devices" / "device-3"
    assert (place / "log.jsonl").stat().st_mode & 0o077 == 0
    capsys.readouterr()
    assert fairbloom("show", place, "--json") == 0
    ((rows),) = json.loads(capsys.readouterr().out)["runs"].values()
    assert [row["round"] for row in rows] == [1, 2]
    for row in rows:
        theirs = expected[str(row["round"]), "client-3"]
        assert row["loss-before"] == pytest.approx(float(theirs["train_loss_before_round"]), rel=1e-3)
        assert 100.0 * row["accuracy"] == pytest.approx(float(theirs["test_accuracy_of_global_model"]), abs=2.5)
    assert fairbloom("show", place) == 0
    assert "training-examples" in capsys.readouterr().out
