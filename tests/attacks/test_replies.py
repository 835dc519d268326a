"""A hostile enrolled client: each of its replies is refused by name, and the run is unharmed.

Honest replies are far below the limit on update norms, on data of many kinds.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, MessageType
from flwr.app.error import Error
from safetensors.numpy import load_file

from benchmarks.deployment import REHEARSAL, Deployment, federation, names, rounds
from benchmarks.processes import peak_memory
from fairbloom.client.app import app
from fairbloom.protocol.error_codes import ErrorCode
from fairbloom.protocol.settings import RunSettings, key_of
from fairbloom.rounds import screening
from fairbloom.rounds.arrays import FloatArray
from fairbloom.rounds.flower import FlowerClients
from fairbloom.rounds.loop import Rounds
from fairbloom.rounds.round import Round
from fairbloom.rounds.screening import NormBounds
from fairbloom.server.app import federate
from fairbloom.server.settings import Settings
from fairbloom.simulation.clients import LocalClients
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.simulation.run import simulate
from fairbloom.tasks import load_task
from fairbloom.tasks.models import float_buffers, shared_parameters
from tests.checkout import ROOT
from tests.originals import needs
from tests.simulation.helpers import table
from tests.tables.helpers import csv_of

from .hostile import ATTACKS

HONEST = names(4)[:3]
REFUSED = {
    "honest": "",
    "1 GB": r"error 413: the reply has \d+ bytes, and at most \d+ are taken",
    "20,000 arrays": r"error 422: the reply of client mallory cannot be read .* more than \d+ arrays",
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
    "smallest-batch": 5,
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
        (there.bundle("mallory") / "owner.toml").write_text(
            'app = "tests.attacks.hostile:app"\n' + REHEARSAL
        )
        for name in HONEST:
            there.start_client(name)
        there.environment["PYTHONPATH"] = str(ROOT)
        there.start_client("mallory")
        there.wait_for_clients(*HONEST, "mallory")
        out = there.home / "run"
        there.wait_for_end(there.submitting({**SETTINGS, "out": str(out)}))
        yield there, out


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_nothing_of_it_stays_on_the_servers_disk(run: tuple[Deployment, Path]) -> None:
    there, _ = run
    size = sum(
        file.stat().st_size for file in (there.folder / "state").rglob("*") if file.is_file()
    )
    assert size < 10e6  # although a gigabyte was sent


@pytest.mark.slow
def test_the_servers_log_names_it(run: tuple[Deployment, Path]) -> None:
    assert re.search(
        r"the reply of client mallory is refused: the reply has \d+ bytes",
        run[0].log(run[0].server),
    )


@pytest.mark.slow
def test_the_servers_memory_did_not_hold_it(run: tuple[Deployment, Path]) -> None:
    peak = peak_memory(run[0].server.pid)
    assert peak < 300.0, f"{peak:.0f} MB"


DEFAULT = 100.0
# The measured ratios are between 1.05 and 5.4; the limit is 100.
MEASURED = 10.0

# Methods with clients that work in different ways, or with steps of very different norms.
UNLIKE = ["fedavg", "qfedsgd", "drfa", "propfair", "fedfa", "fedmgdaplus", "fedfv"]


@pytest.fixture
def ratios(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The largest ‖u_k‖/(e_k r) of each round, over all replies that are screened by norm."""
    found: list[float] = []
    find_outlier_norms = screening.find_outlier_norms

    def record(norms: FloatArray, *rest: Any) -> tuple[dict[int, float], NormBounds | None]:
        refused, bounds = find_outlier_norms(norms, *rest)
        assert refused == {}
        assert bounds is not None
        found.append(float((norms / (bounds.norm * bounds.allowances)).max()))
        return refused, bounds

    monkeypatch.setattr(screening, "find_outlier_norms", record)
    return found


def rounds_of(*, zero: bool = False, **changes: Any) -> list[Round]:
    """Return the rounds of a run in this process, from a model of zeros or from the usual model."""
    settings = Settings.of(
        {"device": "cpu", "evaluate-every": 0, "fraction": 1.0, "unused-rounds": 0}
        | {key_of(name): value for name, value in changes.items()}
    )
    config = settings.run_config()
    method = settings.strategy()
    assert method.update_limit == DEFAULT
    module = load_task(config).model()
    method.adapt(buffers=float_buffers(module), shared=shared_parameters(module))
    model = {
        name: tensor.detach().numpy() * (not zero) for name, tensor in module.state_dict().items()
    }
    loop = Rounds(method, LocalClients(method, RunSettings.of(config)), settings.num_rounds)
    return list(loop.run(model, measure=lambda number: (), measure_after=()))


ROTATED: dict[str, Any] = {"clients": 10, "num_rounds": 6, "digits.rotated-clients": 3}
OTHER_WAYS: list[dict[str, Any]] = [
    {"zero": True},
    {"momentum": 0.9},
    {"fraction": 0.1, "num_rounds": 20},  # one participant a round
    {"fraction": 0.1, "momentum": 0.9, "num_rounds": 20, "zero": True},
    {"partition": "sizes", "dirichlet_alpha": 0.2, "fraction": 0.3},
    {"learning_rate": 1.0, "local_epochs": 5},
    {"model": "cnn", "num_rounds": 3},
]
HEART = [pytest.mark.slow, needs("heart-disease/processed.va.data")]
FASHION = [pytest.mark.slow, needs("FashionMNIST/raw/train-labels-idx1-ubyte")]


@pytest.mark.parametrize(
    "changes",
    [
        *({**ROTATED, "method": method} for method in UNLIKE),
        *(
            pytest.param({"clients": 10, "num_rounds": 6, **each}, marks=pytest.mark.slow)
            for each in OTHER_WAYS
        ),
        *(
            pytest.param({"task": "heart-disease", "method": method, "num_rounds": 20}, marks=HEART)
            for method in UNLIKE
        ),
        pytest.param(
            {"task": "fashion-mnist", "partition": "class", "batch_size": 200, "num_rounds": 2},
            marks=FASHION,
        ),
    ],
    ids=str,
)
def test_no_honest_reply_comes_near_the_limit(ratios: list[float], changes: dict[str, Any]) -> None:
    assert all(each.refused == {} and each.coefficients for each in rounds_of(**changes))
    assert max(ratios) < MEASURED


@pytest.mark.slow
@pytest.mark.parametrize("fraction", [1.0, 0.25])
def test_of_hospitals_with_10_and_20000_rows(
    ratios: list[float], tmp_path: Path, fraction: float
) -> None:
    """The large client takes 2,000 times as many steps: its updates are by far the longest."""
    rows = {"a": 12, "b": 12, "c": 15, "large": 20_000}
    (tmp_path / "data").mkdir()
    for seed, (name, count) in enumerate(rows.items()):
        (tmp_path / "data" / f"{name}.csv").write_text(csv_of(count, seed))
    plain = {
        "task": "csv",
        "data-dir": str(tmp_path / "data"),
        "evaluate-every": 0,
        "device": "cpu",
        "engine": "loop",
    }
    run = simulate(
        Settings.of(plain | {"out": str(tmp_path / "run"), "fraction": fraction, "num-rounds": 6})
    )
    assert all(
        row["refused"] == "" and row["replies_used"] != "0" for row in table(run / "rounds.csv")
    )
    assert np.isfinite(ratios).all()
