"""A hostile enrolled client: each of its replies is refused by name, and the run is unharmed."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, MessageType
from flwr.app.error import Error
from safetensors.numpy import load_file

from benchmarks.deployment import Deployment, federation, names, rounds
from benchmarks.processes import peak_memory
from fairbloom.client.app import app
from fairbloom.protocol.error_codes import ErrorCode
from fairbloom.rounds.flower import FlowerClients
from fairbloom.server.app import federate
from fairbloom.server.settings import Settings
from fairbloom.simulation.grid import InProcessGrid
from tests.checkout import ROOT

from .hostile import ATTACKS

pytestmark = pytest.mark.slow

HONEST = names(4)[:3]
REFUSED = {
    "honest": "",
    "1 GB": r"error 413: the reply has \d+ bytes, and at most \d+ are taken",
    "20,000 arrays": r"array '1.weight' is missing|\d+ arrays",
    "a list of 8 MB": r"error 413: the reply has \d+ bytes, and at most \d+ are taken",
    "a lying header": r"array '1.weight' can't be read: ",
    "Python objects": r"array '1.weight' can't be read: ",
    "infinite weights": r"array '1.weight' is not finite",
    "a loss of 1e300": r"loss-before.* 1e\+300",
    "2^60 examples": r"num-examples.* 1152921504606846976",
    "100 times the examples": r"num-examples 7200",
    "no examples": r"num-examples must be an integer of at least 1, got 0",
    "24 MB in one piece": r"error 413: the reply has \d+ bytes, and at most \d+ are taken",
}
SETTINGS: dict[str, Any] = {
    "clients": 4,
    "partition": "iid",
    "fraction": 1.0,
    "num-rounds": len(ATTACKS),
    "evaluate-every": 0,
    "method": "qfedavg",
    "device": "cpu",
    "round-timeout": 600.0,  # making, keeping and sending 1 GB takes long on a slow machine
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Deployment, Path]]:
    """A run of three honest clients and a hostile one."""
    with federation(tmp_path_factory.mktemp("replies") / "home") as there:
        there.enroll(*HONEST, "mallory")
        (there.bundle("mallory") / "owner.toml").write_text('app = "tests.attacks.hostile:app"\n')
        for name in HONEST:
            there.start_client(name)
        there.environment["PYTHONPATH"] = str(ROOT)
        there.start_client("mallory")
        there.wait_for_clients(*HONEST, "mallory")
        out = there.home / "run"
        submitted = there.submitting({**SETTINGS, "out": str(out)})
        there.wait_for_end(submitted)
        yield there, out


@pytest.mark.parametrize("number", range(1, len(ATTACKS) + 1), ids=list(ATTACKS))
def test_each_is_refused_by_name_with_the_reason(run: tuple[Deployment, Path], number: int) -> None:
    row = rounds(run[1])[number - 1]
    reason = REFUSED[list(ATTACKS)[number - 1]]
    assert row["missing"] == ""
    if reason:
        assert row["replies_used"] == "3", row
        assert re.match(f"mallory: .*{reason}", row["refused"]), row["refused"]
    else:
        assert (row["replies_used"], row["refused"]) == ("4", "")


def test_the_run_ends_as_if_the_hostile_client_only_failed(
    run: tuple[Deployment, Path], tmp_path: Path
) -> None:
    settings = Settings.of({**SETTINGS, "out": str(tmp_path / "expected")})
    grid = Failing(settings)
    expected = load_file(
        federate(settings, lambda method: FlowerClients(method, grid)) / "model.safetensors"
    )
    model = load_file(run[1] / "model.safetensors")
    for name, array in expected.items():
        np.testing.assert_allclose(model[name], array, rtol=0, atol=1e-6)


class Failing(InProcessGrid):
    """Clients in this process; the last one answers the first round and fails in the others."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(app, settings.run_config(), settings.clients)
        self._asked = 0

    def _answer(self, message: Message) -> Message:
        if message.metadata.message_type == MessageType.TRAIN and message.metadata.dst_node_id == 5:
            self._asked += 1
        if (
            self._asked > 1
            and message.metadata.dst_node_id == 5
            and message.metadata.message_type == MessageType.TRAIN
        ):
            return Message(
                Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "hostile"), reply_to=message
            )
        return super()._answer(message)


def test_nothing_of_it_stays_on_the_servers_disk(run: tuple[Deployment, Path]) -> None:
    there, _ = run
    size = sum(
        file.stat().st_size for file in (there.folder / "state").rglob("*") if file.is_file()
    )
    assert size < 10e6  # although a gigabyte was sent


def test_the_servers_log_names_it(run: tuple[Deployment, Path]) -> None:
    log = run[0].log(run[0].server)
    assert re.search(r"the reply of client mallory is refused: the reply has \d+ bytes", log)


def test_the_servers_memory_did_not_hold_it(run: tuple[Deployment, Path]) -> None:
    peak = peak_memory(run[0].server.pid)
    assert peak < 300.0, f"{peak:.0f} MB"
