"""Messages in bfloat16: what is refused, what they cost, and that nothing else changes."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from safetensors.numpy import load_file

from fairbloom.errors import FairbloomError
from fairbloom.protocol.bfloat16 import narrow
from fairbloom.protocol.codec import ENDING
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.layout import Layout
from fairbloom.rounds.updates import Updates
from fairbloom.server.run_folder.files import ROUNDS
from fairbloom.server.settings import Settings
from fairbloom.simulation.clients import LocalClients
from fairbloom.strategies import SCAFFOLD, FedAvg, FedDyn
from tests.federation import BUFFERS, TRAINABLE, MemoryGrid, quadratics, run as run_rounds, unpack
from tests.protocol.test_bfloat16 import rounded
from tests.simulation.helpers import run

UPDATES = "bfloat16-updates"


class Rounding:
    """A quadratic client that replies its update in bfloat16, and can do this wrongly."""

    def __init__(self, name: str, wrong: str = "") -> None:
        self.honest = quadratics(4)[name]
        self.wrong = wrong

    def __call__(self, message: Message) -> Message:
        reply = self.honest(message)
        if message.metadata.message_type != "train":
            return reply
        before = unpack(message.content.array_records["arrays"])
        after = unpack(reply.content.array_records["arrays"])
        for name in TRAINABLE:
            update = narrow(before[name] - after.pop(name))
            after[f"{name}{ENDING}"] = update.view(np.int16) if self.wrong == "int16" else update
        if self.wrong == "shape":
            after[f"bias{ENDING}"] = np.zeros(4, np.uint16)
        if self.wrong == "buffer":
            after[f"norm.mean{ENDING}"] = narrow(after.pop("norm.mean"))
        reply.content["arrays"] = ArrayRecord({key: Array(each) for key, each in after.items()})
        if self.wrong != "metric":
            reply.content["metrics"] = MetricRecord(
                {**reply.content.metric_records["metrics"], "update-bits": 16}
            )
        return reply


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("model", "metric 'update-bits' must be 16, got None: the reply must have the update"),
        ("metric", "metric 'update-bits' must be 16"),
        ("int16", "array 'weight' has dtype int16"),
        ("shape", "array 'bias' has shape (4,), the model has (3,)"),
        ("buffer", "array 'norm.mean' has dtype uint16, the model has float32"),
    ],
)
def test_a_reply_without_a_rounded_update_is_refused(wrong: str, reason: str) -> None:
    clients: dict[str, Any] = {name: Rounding(name) for name in quadratics(4)}
    clients["site-1"] = quadratics(4)["site-1"] if wrong == "model" else Rounding("site-1", wrong)
    _, (finished,) = run_rounds(
        FedAvg(wire_dtype=UPDATES, buffers=BUFFERS), MemoryGrid(clients), rounds=1
    )
    assert set(finished.refused) == {"site-1"}
    assert reason in finished.refused["site-1"]
    assert set(finished.coefficients) == {"site-0", "site-2", "site-3"}
    assert not any("update-bits" in report for report in finished.train_metrics.values())


def test_a_plain_run_takes_no_rounded_update() -> None:
    clients = {**quadratics(3), "site-1": Rounding("site-1")}
    _, (finished,) = run_rounds(FedAvg(buffers=BUFFERS), MemoryGrid(clients), rounds=1)
    assert set(finished.refused) == {"site-1"}


def test_a_client_that_does_not_know_the_setting_is_refused() -> None:
    def ignorant(message: Message) -> Message:
        reply = quadratics(2)["site-1"](message)
        if "client" in reply.content:
            reply.content["client"] = ConfigRecord({"name": "site-1", "num-examples": 5})
        return reply

    clients = {"site-0": Rounding("site-0"), "site-1": ignorant}
    _, (finished,) = run_rounds(
        FedAvg(wire_dtype=UPDATES, buffers=BUFFERS), MemoryGrid(clients), rounds=1
    )
    assert "wire-dtype = bfloat16-updates" in finished.refused["site-1"]


@pytest.mark.parametrize("method", [SCAFFOLD, FedDyn, partial(FedAvg, control_variates=True)])
@pytest.mark.parametrize("value", [UPDATES, "bfloat16"])
def test_methods_that_need_exact_updates_refuse_it(value: str, method: Any) -> None:
    with pytest.raises(
        ValueError, match=rf"wire_dtype = '{value}': .* whole updates: leave wire_dtype out"
    ):
        method(wire_dtype=value)
    with pytest.raises(FairbloomError, match=r"wire-dtype = 'bfloat16': .*leave wire-dtype out"):
        Settings.of({"method": "scaffold", "wire-dtype": "bfloat16"})


def test_an_update_that_bfloat16_holds_is_the_same_to_the_bit() -> None:
    random = np.random.default_rng(2)
    model = {"a": np.float32([[1.0, -0.5], [0.25, 8.0]]), "b": np.float32([2.0])}
    updates = [
        {name: rounded(each * random.choice([0.5, -0.25], each.shape)).astype(np.float32)
         for name, each in model.items()}
        for _ in range(3)
    ]  # fmt: skip
    layout = Layout(model)
    plain = Updates(layout)
    in_bits = Updates(layout)
    for update in updates:
        plain.add({name: model[name] - each for name, each in update.items()})
        in_bits.add({name: narrow(each) for name, each in update.items()})
    for one, other, update in zip(
        plain.vectors.blocks[0], in_bits.vectors.blocks[0], updates, strict=True
    ):
        assert one.tobytes() == other.tobytes()
        assert one.tobytes() == np.concatenate([each.ravel() for each in update.values()]).tobytes()


def test_the_servers_model_takes_steps_below_a_unit_of_bfloat16(tmp_path: Path) -> None:
    """Rounding the model itself would lose them."""
    folder = run(tmp_path / "a", wire_dtype="bfloat16", learning_rate=1e-6, num_rounds=2)
    plain = run(tmp_path / "b", learning_rate=1e-6, num_rounds=2)
    ours, due = (load_file(each / "model.safetensors") for each in (folder, plain))
    for name, array in due.items():
        if array.dtype.kind == "f" and array.any():
            assert not np.array_equal(rounded(ours[name]), ours[name])
            np.testing.assert_allclose(ours[name], array, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("value", "share"), [(UPDATES, (1.0, 0.5)), ("bfloat16", (0.5, 0.5))])
def test_rounded_arrays_take_half_the_bytes(
    value: str, share: tuple[float, float], tmp_path: Path
) -> None:
    rows = [
        ROUNDS.read(run(tmp_path / each, wire_dtype=each, model="mlp", num_rounds=1))[0]
        for each in ("float32", value)
    ]
    for column, due in zip(("bytes_sent", "bytes_received"), share, strict=True):
        plain, ours = (int(row[column]) for row in rows)
        assert ours / plain == pytest.approx(due, abs=0.05)


def test_a_lost_error_leaves_a_client_in_the_run() -> None:
    settings = Settings.of({"clients": 3, "wire-dtype": UPDATES, "device": "cpu"})
    clients = LocalClients(settings.strategy(), settings)
    _, module = clients.task_and_model()
    model = {name: tensor.numpy().copy() for name, tensor in module.state_dict().items()}
    names = clients.online(1)
    rows = list[Any]()
    for loses in (False, True):
        for number in (1, 2):
            terms = Terms(server_round=number, wire_dtype=UPDATES)
            if loses and number == 2:
                clients.states(names[0]).in_memory.clear()
            replies = clients.train(names, model, terms)
            assert replies.names == tuple(names)
        rows.append(np.array(replies.updates.matrix))
    assert not np.array_equal(rows[0][0], rows[1][0])
    assert np.array_equal(rows[0][1:], rows[1][1:])
