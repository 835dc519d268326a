"""Models and clients' names of users' Flower apps that are unusual."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import fairbloom
from fairbloom.errors import FairbloomError
from fairbloom.protocol.names import LONGEST_NAME
from fairbloom.server.run_folder.flower import RunFolder
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.strategies import FedAvg, FedFV

NAMES = [
    "site-0\nWARNING : all clients are revoked",
    "x" * (LONGEST_NAME + 1),
    "Universitätsklinikum 2",
]

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    name = NAMES[int(str(context.node_config["partition-id"]))]
    return Message(RecordDict({"client": ConfigRecord({"name": name})}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    arrays = {name: array.numpy().copy() for name, array in message.content["arrays"].items()}
    arrays["w"] = arrays["w"] - np.asarray(0.1, arrays["w"].dtype)
    metrics = MetricRecord({"num-examples": 10, "loss-before": 1.0})
    content = {"arrays": ArrayRecord({n: Array(a) for n, a in arrays.items()}), "metrics": metrics}
    return Message(RecordDict(content), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    return Message(
        RecordDict({"metrics": MetricRecord({"num-examples": 5, "loss": 1.0, "accuracy": 0.5})}),
        reply_to=message,
    )


def start(folder: Path, strategy: FedFV | FedAvg, rounds: int = 2, **arrays: Any) -> dict[str, Any]:
    model = ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})
    RunFolder(folder, wait=False).start(
        strategy, InProcessGrid(app, {}, 3), model, num_rounds=rounds
    )
    return fairbloom.load(folder).arrays()


W = np.arange(3, dtype=np.float32)


def test_a_clients_name_that_would_forge_lines_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start(tmp_path, FedAvg(), w=W)
    (used, *others) = sorted(
        fairbloom.load(tmp_path).final(), key=lambda name: not name.startswith("Univ")
    )
    assert used == NAMES[2]
    assert all(name.isdigit() for name in others)
    assert len(others) == 2
    assert not any(
        "\n" in record.getMessage()
        for record in caplog.records
        if "calls itself" in record.getMessage()
    )


def test_a_model_of_another_byte_order_is_read_and_continued(tmp_path: Path) -> None:
    expected = start(tmp_path / "a", FedFV(), rounds=3, w=W)["w"]
    start(tmp_path / "b", FedFV(), w=W.astype(">f4"))
    np.testing.assert_array_equal(
        start(tmp_path / "b", FedFV(), rounds=3, w=W.astype(">f4"))["w"], expected
    )


def test_constants_that_are_not_finite_are_carried_by_apps(tmp_path: Path) -> None:
    mask = np.array([0, -np.inf, np.nan], np.float32)
    expected = start(tmp_path / "none", FedFV(), w=W)["w"]
    for options in ({"frozen": ("mask",)}, {"buffers": ("mask",)}):
        found = start(tmp_path / next(iter(options)), FedFV(**options), w=W, mask=mask)
        np.testing.assert_array_equal(found["mask"], mask)
        np.testing.assert_array_equal(found["w"], expected)
    with pytest.raises(FairbloomError, match=r"'mask' has an entry of .*frozen="):
        start(tmp_path / "trained", FedFV(), w=W, mask=mask)


@pytest.mark.parametrize("array", [np.array(["yes"]), np.array([1j])])
def test_an_array_of_texts_is_refused_as_other_kinds(tmp_path: Path, array: Any) -> None:
    with pytest.raises(
        FairbloomError, match=r"array 'words' has dtype .*; only float, integer and bool"
    ):
        start(tmp_path, FedFV(), w=W, words=array)
