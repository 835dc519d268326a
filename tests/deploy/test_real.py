"""Real processes on loopback, over mutual TLS: results, faults, refusals and commands."""

import contextlib
import os
import re
import shutil
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, MessageType
from flwr.app.error import Error
from safetensors.numpy import load_file

from benchmarks.deployed import LARGE
from benchmarks.deployment import Deployment, federation, names, rounds, wait_for_rounds
from benchmarks.flower import wait_until
from fairbloom.client.app import app
from fairbloom.deploy import pki
from fairbloom.protocol.error_codes import ErrorCode
from fairbloom.rounds.flower import FlowerClients
from fairbloom.server.app import federate
from fairbloom.server.checkpoint import load_last
from fairbloom.server.settings import Settings
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.simulation.run import simulate
from fairbloom.system.files import write_private
from tests.deploy.federation import DISTURBED, Cable
from tests.simulation.helpers import assert_same_model

pytestmark = pytest.mark.slow

CLIENTS = names(DISTURBED["clients"])
ROUNDS = DISTURBED["num-rounds"]
SETTINGS = DISTURBED
# The exit status of a run that its operator stopped.
STOPPED = 130


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("in-process") / "run"
    # the engine that computes as real nodes do
    return simulate(Settings.of({**SETTINGS, "engine": "loop", "out": str(out)}))


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A federation with four warm clients online."""
    with federation(tmp_path_factory.mktemp("deployed") / "home", len(CLIENTS)) as runtime:
        runtime.start_clients(*CLIENTS)
        yield runtime


class Replay(InProcessGrid):
    """Clients in this process that do not answer where they did not answer in a recorded run.

    If all free clients take part and these are fewer than all, the last client is away.
    """

    def __init__(self, settings: Settings, rows: list[dict[str, str]]) -> None:
        super().__init__(app, settings.run_config(), settings.clients)
        self._rows = rows
        self._trained = 0
        self._all_take_part = settings.fraction == 1.0

    def get_node_ids(self) -> list[int]:
        everybody = [*super().get_node_ids()]
        free = int(self._rows[min(self._trained, len(self._rows) - 1)]["participants"])
        return everybody[:free] if self._all_take_part else everybody

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        self._trained += messages[0].metadata.message_type == MessageType.TRAIN
        return super().push_messages(messages)

    def _answer(self, message: Message) -> Message:
        row = self._rows[max(self._trained, 1) - 1]
        away = CLIENTS[message.metadata.dst_node_id - 2] in row["missing"] + row["refused"]
        if away and message.metadata.message_type == MessageType.TRAIN:
            return Message(Error(ErrorCode.NODE_UNAVAILABLE, "away"), reply_to=message)
        return super()._answer(message)


def assert_same_as_with_the_same_clients(
    folder: Path, settings: dict[str, Any], scratch: Path
) -> None:
    """Assert that the model equals that of a run in process with the replies that were used."""
    last = load_last(folder / "checkpoint")
    assert last is not None
    model, state = last
    number = state["strategy"]["finished_rounds"]
    chosen = Settings.of({**settings, "num-rounds": number, "out": str(scratch / "replayed")})
    grid = Replay(chosen, rounds(folder)[:number])
    for name, array in load_file(
        federate(chosen, lambda method: FlowerClients(method, grid)) / "model.safetensors"
    ).items():
        np.testing.assert_allclose(model[name], array, rtol=0, atol=1e-5)


def missing(folder: Path) -> list[str]:
    return [row["missing"] for row in rounds(folder)]


# What a run gives ---------------------------------------------------------------------------------


def test_a_run_gives_the_run_in_process(there: Deployment, undisturbed: Path, out: Path) -> None:
    there.submit({**SETTINGS, "out": str(out)})
    assert_same_model(out, undisturbed)
    assert missing(out) == [""] * ROUNDS


def test_a_failed_run_has_an_exit_code_and_a_reason(there: Deployment, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "diary.txt").write_text("mine")
    submitted = there.submitting({**SETTINGS, "out": str(tmp_path / "run")})
    there.wait_for_end(submitted, code=1)
    log = there.log(submitted)
    assert "is there already and is no run folder" in log
    assert "failed (exit status 1)" in log


# What it survives ---------------------------------------------------------------------------------


def test_a_killed_serverapp_costs_one_round(
    there: Deployment, undisturbed: Path, out: Path
) -> None:
    first = there.submitting({**SETTINGS, "out": str(out)})
    wait_for_rounds(out, 2)
    there.kill_run()
    there.kill(first)
    assert 2 <= len(rounds(out)) < ROUNDS
    there.submit({**SETTINGS, "out": str(out)})
    assert_same_model(out, undisturbed)
    assert [int(row["round"]) for row in rounds(out)] == [*range(1, ROUNDS + 1)]


def test_killed_parts_of_the_server_cost_nothing(
    there: Deployment, undisturbed: Path, out: Path
) -> None:
    """The run's process is killed twice, and once with the server, which systemd would restart."""
    submitted = there.submitting({**SETTINGS, "round-timeout": 120.0, "out": str(out)})
    wait_for_rounds(out, 1)
    there.kill_run()
    wait_for_rounds(out, 3)
    os.kill(there.server.pid, signal.SIGKILL)
    there.server.wait()
    there.start_server()
    wait_for_rounds(out, 5)
    there.kill_run()
    there.wait_for_end(submitted)
    assert missing(out) == [""] * ROUNDS
    assert_same_model(out, undisturbed)


def test_what_was_answered_before_a_kill_is_not_computed_again(
    there: Deployment,
    undisturbed: Path,
    out: Path,
    subtests: pytest.Subtests,
) -> None:
    """The run's process, a client and the server are killed one after the other."""
    before = {name: len(there.log(there.clients[name])) for name in CLIENTS}
    submitted = there.submitting({**SETTINGS, "round-timeout": 120.0, "out": str(out)})
    wait_for_rounds(out, 2)
    there.kill_run()
    wait_for_rounds(out, 3)
    there.kill(there.clients[CLIENTS[1]])
    there.start_client(CLIENTS[1])
    wait_for_rounds(out, 5)
    there.kill(there.server)
    there.start_server()
    there.wait_for_end(submitted)
    assert "killed by SIGKILL: it is started again" in there.log(submitted)
    assert missing(out) == [""] * ROUNDS
    assert_same_model(out, undisturbed)
    for name in (CLIENTS[0], *CLIENTS[2:]):
        with subtests.test(name=name):
            said = there.log(there.clients[name])[before[name] :]
            ids = re.findall(r"received train message (\w+) of run \d+, round \d+$", said, re.M)
            assert len(ids) == len({*ids})


@pytest.mark.federation
def test_nothing_is_lost_if_everything_is_killed_and_restarted(
    there: Deployment, undisturbed: Path, out: Path
) -> None:
    """The clients are admitted at once, and the run waits for all clients that it began with."""
    submitted = there.submitting({**SETTINGS, "out": str(out)})
    wait_for_rounds(out, 2)
    for process in (submitted, there.server, *there.clients.values()):
        there.kill(process)
    assert len(rounds(out)) < ROUNDS
    there.start_server()
    for name in CLIENTS:
        there.start_client(name)
    there.submit({**SETTINGS, "out": str(out)})
    assert missing(out) == [""] * ROUNDS
    assert_same_model(out, undisturbed)
    there.wait_for_clients(*CLIENTS)


@pytest.mark.federation
def test_a_killed_client_is_missed_by_name_and_comes_back(
    there: Deployment, tmp_path: Path, out: Path
) -> None:
    endless = {
        **SETTINGS,
        "fraction": 1.0,
        "num-rounds": 100_000,
        "round-timeout": 8.0,
        "out": str(out),
    }
    # workers load their libraries in this round
    there.submit({**SETTINGS, "fraction": 1.0, "num-rounds": 1, "out": str(tmp_path / "first")})
    submitted = there.submitting(endless)
    wait_for_rounds(out, 2)
    there.kill(there.clients[CLIENTS[3]])
    before = len(rounds(out))
    wait_until(lambda: any(row["replies_used"] == "3" for row in rounds(out)[before:]))
    there.start_client(CLIENTS[3])
    there.wait_for_clients(CLIENTS[3])
    wait_until(lambda: rounds(out)[-1]["replies_used"] == "4")
    there.stop_runs()
    there.wait_for_end(submitted, code=STOPPED)
    away = [row for row in rounds(out)[before - 1 :] if row["replies_used"] != "4"]
    assert any(row["missing"] == CLIENTS[3] for row in away)  # the deadline passed
    assert all(row["replies_used"] == "3" for row in away)
    assert_same_as_with_the_same_clients(out, endless, tmp_path)


@pytest.mark.federation
def test_a_network_that_is_away_for_a_minute_costs_nothing(
    there: Deployment, tmp_path: Path, out: Path
) -> None:
    cable = Cable(there.fleet)
    there.stop(there.clients[CLIENTS[3]])
    there.start_client(CLIENTS[3], "--server", f"localhost:{cable.port}")
    there.wait_for_clients(*CLIENTS)
    endless = {**SETTINGS, "fraction": 1.0, "num-rounds": 100_000, "out": str(out)}
    submitted = there.submitting(endless)
    wait_for_rounds(out, 3)
    cable.cut()
    before = len(rounds(out))
    time.sleep(60.0)
    cable.mend()
    wait_for_rounds(out, before + 5)
    there.stop_runs()
    there.wait_for_end(submitted, code=STOPPED)
    rows = rounds(out)
    assert [int(row["round"]) for row in rows] == [*range(1, len(rows) + 1)]
    assert {row["replies_used"] for row in rows} == {"4"}
    assert_same_as_with_the_same_clients(out, endless, tmp_path)
    there.stop(there.clients[CLIENTS[3]])
    there.start_client(CLIENTS[3])
    there.wait_for_clients(*CLIENTS)
    cable.close()


def test_enough_replies_end_a_round_and_the_late_client_returns(
    there: Deployment, out: Path
) -> None:
    slow = {"fraction": 1.0, "num-rounds": 100_000, "local-epochs": 30}
    submitted = there.submitting({**SETTINGS, **slow, "min-replies": 3, "out": str(out)})
    # the run knows its clients' names, so that round 1 begins
    wait_until(lambda: (out / "known.json").exists())
    frozen = (there.clients[CLIENTS[3]].pid, *there.offspring(there.clients[CLIENTS[3]]))
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        wait_for_rounds(out, 6, seconds=200.0)
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
    back = len(rounds(out))
    wait_until(lambda: any(row["participants"] == "4" for row in rounds(out)[back:]))
    there.stop_runs()
    there.wait_for_end(submitted, code=STOPPED)
    rows = rounds(out)
    assert {row["replies_used"] for row in rows} <= {"2", "3", "4"}
    assert any(row["missing"] == CLIENTS[3] for row in rows[:4])
    assert all(not row["refused"] for row in rows)


def test_the_next_run_waits_and_a_run_is_stopped_by_its_number(
    there: Deployment, tmp_path: Path
) -> None:
    first = there.submitting({**SETTINGS, "num-rounds": 10_000, "out": str(tmp_path / "first")})
    number = there.submitted_run()
    second = there.submitting({**SETTINGS, "num-rounds": 1, "out": str(tmp_path / "second")})
    wait_for_rounds(tmp_path / "first", 1)
    there.wait_for_words(second, f"waits for run {number}")
    assert [run["state"] for run in there.status()["runs"][:2]] == ["waiting", "running"]
    assert f"{number}, " in there.fairbloom("deploy", "stop", check=False).stderr
    assert "is stopped" in there.fairbloom("deploy", "stop", number).stdout
    there.wait_for_end(first, code=STOPPED)
    there.wait_for_end(second)


# Who is refused -----------------------------------------------------------------------------------


def refused(there: Deployment, name: str, *words: str, options: tuple[str, ...] = ()) -> None:
    """Start the client of this bundle and expect these words in its log."""
    there.start_client(name, *options)
    there.wait_for_words(there.clients[name], *words)
    there.stop(there.clients.pop(name))


def copy_bundle(there: Deployment, name: str, of: str = CLIENTS[0]) -> Path:
    return Path(shutil.copytree(there.bundle(of), there.bundle(name)))


def write_identity(bundle: Path, ca: tuple[Path, Path], name: str) -> None:
    """Write a new key, and a certificate of this authority and name, into a bundle."""
    key = pki.make_key()
    (bundle / "certificate").write_bytes(pki.issue_device_certificate(*ca, key.public_key(), name))
    write_private(bundle / "key", pki.format_key(key))


def test_with_a_certificate_of_another_authority(there: Deployment, tmp_path: Path) -> None:
    ca = (tmp_path / "ca.crt", tmp_path / "ca.key")
    pki.make_authority(*ca)
    write_identity(copy_bundle(there, "stranger"), ca, CLIENTS[0])
    refused(there, "stranger", "does not accept certificate", "retrying until it works")


def test_with_a_name_or_a_key_that_is_not_enrolled(there: Deployment) -> None:
    ca = (there.folder / "ca.crt", there.folder / "ca.key")
    write_identity(copy_bundle(there, "nobody"), ca, "nobody")
    refused(
        there,
        "nobody",
        "client 'nobody' is not enrolled here",
        "(fairbloom deploy enroll nobody)",
        "retrying until",
    )
    write_identity(copy_bundle(there, "forged"), ca, CLIENTS[0])
    refused(there, "forged", "is enrolled with another key", "retrying until it works")


def test_with_a_revoked_key(there: Deployment) -> None:
    there.enroll("guest")
    copy_bundle(there, "device", "guest")  # enrolment removed the operator's copy
    there.start_client("device")
    there.wait_for_clients("device")
    wait_until(lambda: "guest" in there.online())
    there.fairbloom("deploy", "revoke", "guest")
    there.wait_for_words(there.clients["device"], "was revoked", "retrying until it works")
    wait_until(lambda: "guest" not in there.online())
    there.stop(there.clients.pop("device"))


def test_a_second_node_with_the_same_key(there: Deployment) -> None:
    copy_bundle(there, "twin")
    refused(there, "twin", f"another process with the key of client '{CLIENTS[0]}' is connected")
    assert CLIENTS[0] in there.online()


def test_a_node_with_a_claimed_name_takes_part_under_its_own(there: Deployment, out: Path) -> None:
    """A name cannot be claimed: it is in the certificate."""
    there.enroll("mallory", options=("--partition-id", "99"))
    with (there.bundle("mallory") / "client.toml").open("a") as file:
        file.write(f'node-config = {{ name = "{CLIENTS[0]}" }}\napp = "fairbloom.clientapp:app"\n')
    refused(there, "mallory", "write name outside node-config")
    there.enroll("mallory", options=("--partition-id", "99"))
    there.start_client("mallory")
    there.wait_for_clients("mallory", *CLIENTS)
    there.submit({**SETTINGS, "fraction": 1.0, "num-rounds": 1, "out": str(out)})
    (row,) = rounds(out)
    assert row["refused"].startswith("mallory: error 2: partition-id = 99")
    assert row["replies_used"] == "4"
    there.stop(there.clients.pop("mallory"))


def test_an_app_that_is_not_installed_on_the_clients(there: Deployment, tmp_path: Path) -> None:
    submitted = there.submitting({"floats": 10, "out": str(tmp_path / "seconds.json")}, LARGE)
    there.wait_for_end(submitted, code=1)
    assert "the run is of large 1.0.0, this client has fairbloom 0.1.0 installed" in there.log(
        submitted
    )


def test_a_second_server_on_the_folder_is_refused(there: Deployment) -> None:
    other = there.start("fairbloom", "server")
    there.wait_for_end(other, code=2)
    assert "is served already, by process" in there.log(other)


# What the operator sees ---------------------------------------------------------------------------


def test_doctor_finds_nothing(there: Deployment) -> None:
    assert "fault" not in there.fairbloom("deploy", "doctor").stdout
    settings = there.bundle(CLIENTS[0]) / "client.toml"
    assert "fault" not in there.fairbloom("deploy", "doctor", "--client", str(settings)).stdout


def test_status_tells_how_far_a_run_is_and_what_became_of_it(there: Deployment, out: Path) -> None:
    there.submitting({**SETTINGS, "num-rounds": 100_000, "out": str(out)})
    run = there.submitted_run()
    wait_for_rounds(out, 3)
    (about,) = (each for each in there.status()["runs"] if str(each["run"]) == run)
    assert about["state"] == "running"
    assert (about["method"], about["of-rounds"], about["folder"]) == ("fedfv", 100_000, str(out))
    assert about["round"] >= 3
    assert about["seconds-a-round"] > 0
    there.stop_runs()
    found = there.status()
    (about,) = (each for each in found["runs"] if str(each["run"]) == run)
    assert about["state"] == "stopped"
    assert about["round"] >= 3
    assert {*found["clients"]} >= {*CLIENTS}
    assert found["disk"]["free-bytes"] > 0


def test_an_expected_end_is_one_sentence_for_everybody(
    there: Deployment, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    slow = {"stragglers": 1.0, "drop-stragglers": True, "local-epochs": 2, "unused-rounds": 1}
    there.submit({**SETTINGS, **slow, "out": str(tmp_path / "run")}, code=1)
    said = there.log(there.submitted)
    sentence = "the run has learned nothing for 1 rounds: in round 1, 3 of 3 replies were refused"
    assert f"the run ends: {sentence}" in said
    assert f"run {there.submitted_run()}: failed (exit status 1)" in said.splitlines()[-1]
    there.wait_for_words(there.server, f"the run ends: {sentence}")
    for words in ("Traceback", "Exit Code", "\x1b"):
        with subtests.test(words=words):
            assert words not in said
            assert words not in there.log(there.server)


def test_a_client_without_such_a_partition_gives_no_traceback(
    there: Deployment, tmp_path: Path
) -> None:
    there.submit({**SETTINGS, "clients": 3, "num-rounds": 1, "out": str(tmp_path / "run")})
    reason = (
        "partition-id = 3 in the node config: with clients = 3 it must be an integer from 0 to 2"
    )
    device = there.log(there.clients[CLIENTS[3]])
    assert reason in device
    assert "Traceback" not in device[device.index(reason) - 2000 :]
    assert "\x1b" not in device
    submitted = there.log(there.submitted)
    assert f"client {CLIENTS[3]} has partition 3" in submitted
    assert "clients=3 has only 0 to 2" in submitted
    assert reason in submitted


def test_what_processes_write_is_for_their_account_alone(there: Deployment, tmp_path: Path) -> None:
    out = tmp_path / "new" / "run"
    there.submit({**SETTINGS, "method": "ditto", "fraction": 1.0, "num-rounds": 1, "out": str(out)})
    folders = [out, there.folder / "state", *(there.home / f"state-{name}" for name in CLIENTS)]
    written = [path for folder in folders for path in (folder, *folder.rglob("*"))]
    assert any(
        "safetensors" in path.name
        for path in written
        if path.is_relative_to(there.home / "state-client-0")
    )
    for path in written:
        with contextlib.suppress(FileNotFoundError):  # the server replaces its files each second
            assert path.stat().st_mode & 0o077 == 0, path
