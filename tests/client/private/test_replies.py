"""What a device with an account replies, against neighbouring data and a run without an account.

The noise is injected here, by replacing one function: no setting of the product can.
"""

import math
from dataclasses import replace
from functools import partialmethod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import RecordDict
from torch import nn

from fairbloom.client.guard.log_entries import describe_entries
from fairbloom.client.guard.log_files import read_entries
from fairbloom.client.local import LocalClient
from fairbloom.client.local_round import train_client
from fairbloom.client.private import mechanism, noise, serving
from fairbloom.client.private.account import FAILED
from fairbloom.client.private.budget import Budget
from fairbloom.client.private.mechanism import Mechanism, Training
from fairbloom.client.private.rows import Rows
from fairbloom.client.states import RULE
from fairbloom.protocol.accounts import AccountStatus
from fairbloom.protocol.names import RELEASE, RELEASE_LIMIT
from fairbloom.protocol.terms import Terms
from fairbloom.server.run_folder.files import MODEL
from fairbloom.server.settings import Settings
from fairbloom.tables import DataError
from fairbloom.tasks import Examples, load_task

from .device import EVALUATE, TRAIN, Device, opened

ASKED = {"measure": ["loss-before", "update-norm", "step-sum"]}


def no_noise(count: int) -> np.ndarray:
    return np.zeros(count, np.int64)


def arrays(reply: RecordDict) -> torch.Tensor:
    return torch.cat([each.flatten() for each in reply["arrays"].to_torch_state_dict().values()])


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Device, Device]:
    """Return two devices with an account each; one row of the second has another outcome."""
    monkeypatch.setattr(noise, "draw_noise", no_noise)
    other = Device(tmp_path / "two")
    table = other.data / "site.csv"
    lines = table.read_text().splitlines()
    lines[1] = "-500.0,0.0," + ("ill" if lines[1].endswith("well") else "well")
    table.write_text("\n".join([*lines, ""]))
    other.open()
    return opened(tmp_path / "one"), other


def test_neighbours_differ_in_noisy_numbers_only(pair: tuple[Device, Device]) -> None:
    """Both steps of the row differ by at most 2C/n times the learning rate."""
    one, two = (each.ask(TRAIN, ASKED, local_epochs=1, learning_rate=0.1) for each in pair)
    assert one["client"] == two["client"]
    assert one.keys() == two.keys() == {"arrays", "metrics", "client"}
    assert one["metrics"].keys() == two["metrics"].keys()
    differ = {key for key, value in one["metrics"].items() if value != two["metrics"][key]}
    assert differ <= {"loss-before", "update-norm"}
    assert 0.0 < float((arrays(one) - arrays(two)).norm()) <= 0.1 * 2.0 / 30 * (1.0 + 1e-5)


@pytest.mark.parametrize("terms", [{}, ASKED, {"control-variates": True, "state-round": 0}])
def test_a_reply_has_nothing_but_what_is_allowed(
    pair: tuple[Device, Device], terms: dict[str, Any]
) -> None:
    reply = pair[0].ask(TRAIN, terms)
    assert set(reply["metrics"]) <= {"num-examples", *terms.get("measure", ()), "state-round"}
    assert set(reply["client"]) == {"honours", "privacy"}
    assert [*reply["arrays"]] == [*pair[0].model().state_dict()]


def test_the_noise_is_of_the_devices_system(tmp_path: Path) -> None:
    """Equal data, seeds and questions get other noise."""
    one, two = (arrays(opened(tmp_path / name).ask()) for name in ("one", "two"))
    assert float((one - two).std()) == pytest.approx(
        math.sqrt(2.0) * 0.1 * Budget(3.0, 1e-5).sigma / 30, rel=0.9
    )


TERMS = {
    "plain": Terms(server_round=1),
    "proximal": Terms(server_round=1, proximal_mu=0.5),
    "momentum": Terms(server_round=1, client_momentum=0.5),
    "control variates": Terms(server_round=1, control_variates=True, state_round=0),
    "dynamic": Terms(server_round=1, dynamic_alpha=0.1, state_round=0),
    "steps": Terms(server_round=1, local_steps=2),
    "one step": Terms(server_round=1, full_batch_step=True),
}


@pytest.mark.parametrize(
    ("name", "optimizer"), [*((name, "sgd") for name in TERMS), ("plain", "adamw")]
)
@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_without_noise_and_clip_it_is_a_full_batch_run(
    monkeypatch: pytest.MonkeyPatch, name: str, optimizer: str, model: str
) -> None:
    monkeypatch.setattr(Rows, "clipped_sum", partialmethod(Rows.clipped_sum, clip=math.inf))
    terms = replace(TERMS[name], measure=("loss-before", "update-norm", "step-sum"))
    settings = Settings.of(
        {
            **{"clients": 40, "batch-size": 0, "local-epochs": 3, "optimizer": optimizer},
            **{"model": model, "device": "cpu", "weight-decay": 0.01},
        }
    )
    clients = [LocalClient.of(settings.run_config(), 1) for _ in range(2)]
    received = {name: each.clone() for name, each in clients[0].model.state_dict().items()}
    sent = {"control": {name: torch.full_like(each, 0.01) for name, each in received.items()}}
    expected = train_client(clients[0], received, terms, sent)
    found = Training(clients[1], received, terms, sent).run(Mechanism(Budget(3.0, 1e-5), no_noise))
    # AdamW divides gradients of 1e-9 by themselves: their signs are of float32's rounding
    tolerance = 1e-4 if optimizer == "sgd" else 0.05
    for key, value in expected.arrays.items():
        change = (value - received[key]).norm()
        assert (found.arrays[key] - value).norm() <= tolerance * change + 1e-6, key
    for key, number in expected.metrics.items():
        assert found.metrics[key] == pytest.approx(number, rel=tolerance, abs=1e-6), key
    if terms.state_round is not None:
        kept = [each.states.find(RULE, 2) for each in clients]
        for key, value in kept[0].state.items():
            assert (kept[1].state[key] - value).norm() <= tolerance * value.norm() + 1e-6, key


def fails(error: BaseException) -> Any:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


ERRORS = [
    DataError("age of row 7 is 12: write it as a number"),
    MemoryError("7 GB"),
    ValueError("label 3"),
    IndexError("out of range"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("kind", [TRAIN, EVALUATE])
def test_charged_work_that_fails_halts(
    device: Device, monkeypatch: pytest.MonkeyPatch, kind: str, error: Exception
) -> None:
    monkeypatch.setattr(Rows, "losses", fails(error))
    assert device.ask(kind, ASKED if kind == TRAIN else {}) == FAILED
    monkeypatch.undo()
    assert device.left == ((445, 1) if kind == TRAIN else (450, 0))
    assert "halted" in device.ask(TRAIN, {"server-round": 2})
    device.account.ledger.resume()
    assert "arrays" in device.ask(TRAIN, {"server-round": 2})


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("kind", [TRAIN, EVALUATE, "query"])
def test_a_first_read_that_fails_costs_nothing(
    device: Device, monkeypatch: pytest.MonkeyPatch, kind: str, error: Exception
) -> None:
    monkeypatch.setattr("fairbloom.client.private.account.digest_tables", fails(error))
    assert device.ask(kind) == FAILED
    monkeypatch.undo()
    monkeypatch.setattr(serving, "split_by", fails(error))
    if kind != "query":
        assert device.ask(kind) == FAILED
    monkeypatch.undo()
    assert device.left == (450, 1)
    assert "client" in device.ask(kind)


def test_states_of_runs_without_privacy_are_never_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms = {"control-variates": True, "state-round": 1, "server-round": 2}
    monkeypatch.setattr(noise, "draw_noise", no_noise)
    devices = [Device(tmp_path / name) for name in ("before", "never")]
    for device in devices:
        device.own = {"state-dir": str(device.state), "limit-privacy": "{}"}
    first = devices[0].ask(TRAIN, {"control-variates": True, "state-round": 0})
    assert "privacy" not in first["client"]
    for device in devices:
        device.open()
    assert torch.equal(*[arrays(device.ask(TRAIN, terms)) for device in devices])


def test_all_that_leaves_is_released_once_and_charged(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one function, which takes integers: a call for each step, loss and test report."""
    released = list[tuple[int, str]]()

    def counted(places: np.ndarray, spacing: float, draw: noise.Draw) -> np.ndarray:
        released.append((len(places), places.dtype.kind))
        return noise.release(places, spacing, draw)

    monkeypatch.setattr(mechanism, "release", counted)
    bought = {**ASKED, "privacy-units": 300, "privacy-rounds": 10}
    reply = device.ask(TRAIN, bought, local_epochs=3)
    device.ask(EVALUATE)
    assert released == [(1, "i"), *[(6, "i")] * 3, (2, "i")]
    assert device.left == (450 - 3 * 9 - 2, 0)
    assert AccountStatus(*reply["client"]["privacy"]).spent == 3 * 9 + 2


def test_the_log_has_the_cost_of_each_reply(device: Device) -> None:
    device.own = {"state-dir": str(device.state)}
    device.ask(TRAIN, ASKED)
    device.ask(TRAIN, {"server-round": 2})
    device.ask(EVALUATE)
    text = "\n".join(describe_entries(read_entries(device.state)))
    for words in ("spent: 5 units", "spent: 4 units", "spent: 1 reports"):
        assert words in text
    assert "left of the privacy account: 441 units, 0 reports" in text


def test_a_refused_evaluation_replaces_no_model(device: Device) -> None:
    device.own = {"state-dir": str(device.state)}
    device.ask(EVALUATE)
    (kept,) = device.state.rglob("model.safetensors")
    before = kept.read_bytes()
    assert "1.bias" in str(device.ask(EVALUATE, weights={"one": torch.ones(1)}))
    assert kept.read_bytes() == before


def test_a_query_tells_public_facts(device: Device) -> None:
    about = device.ask("query")["client"]
    assert set(about) == {"name", "honours", "privacy", "num-examples"}
    assert (about["num-examples"], about["privacy"][0]) == (device.account.train, 3.0)


def test_more_steps_than_are_left_are_refused_for_nothing(tmp_path: Path) -> None:
    device = opened(tmp_path, steps=2)
    assert "12 units are asked for" in device.ask(local_epochs=3)
    assert "arrays" in device.ask(local_epochs=2)


@pytest.mark.parametrize("private", [True, False], ids=["account", "none"])
def test_planted_weights_read_no_row(private: bool) -> None:
    """A hidden unit that only one row activates: its slopes are that row, or noise."""
    task = load_task({"clients": 20})
    examples = task.splits(task.clients[0]).train
    rows = examples[slice(0, None)][0].flatten(1).double()
    rows = rows - rows.mean(0)
    target = int(rows.norm(dim=1).argmax())
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 1), nn.ReLU(), nn.Linear(1, 10))
    direction = rows[target] / rows[target].norm()
    reached = (rows @ direction).sort().values
    with torch.no_grad():
        model[1].weight.copy_(direction)
        model[1].bias.fill_(-0.5 * float(reached[-1] + reached[-2]))
    account = Rows(model, Examples(rows, examples.all_targets), 10)
    mechanism = Mechanism(Budget(3.0, 1e-5), noise.draw_noise if private else no_noise)
    read = 0
    for _ in range(20):
        slopes = mechanism.mean_gradient(account)[:64]
        read += int(torch.nn.functional.cosine_similarity(slopes, rows).abs().argmax()) == target
    assert (read <= 4) if private else (read == 20)


def test_a_released_model_costs_an_account_nothing(tmp_path: Path) -> None:
    device = opened(tmp_path)
    device.own = {"state-dir": str(device.state)}
    before = device.left
    about = {"run": "a", "method": "fedavg", "day": "2026-01-31"}
    assert device.ask(RELEASE, about)["client"] == {RELEASE_LIMIT: "take"}
    assert MODEL.exists_in(device.state / "released")
    assert "release the model of another run" in device.ask(
        RELEASE, about, {"weight": torch.ones(1)}
    )
    assert device.left == before
    assert not device.account.ledger.is_halted
