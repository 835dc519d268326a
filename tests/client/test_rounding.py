"""What rounding leaves of an update goes into the client's next one.

The precision that clients compute in.
"""

from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import MessageType
from numpy.typing import NDArray

from fairbloom.client.device import computing_in
from fairbloom.client.rules.rounded import round_updates
from fairbloom.client.states import ROUNDING_STATE, ClientStates
from fairbloom.logs import log, log_once
from fairbloom.protocol.bfloat16 import widen
from fairbloom.protocol.settings import fingerprint
from fairbloom.protocol.terms import Terms
from fairbloom.system.versions import Versions
from tests.protocol.test_bfloat16 import rounded
from tests.simulation.helpers import config_of, model_bytes, run, table

from .helpers import ask, context, fresh, run_config

W = {"w": np.zeros((3, 4), np.float32)}
UPDATES = np.random.default_rng(1).normal(size=(20, 3, 4)).astype(np.float32)


def terms_of(number: int) -> Terms:
    return Terms(server_round=number, wire_dtype="bfloat16-updates")


def send(states: ClientStates, number: int, update: NDArray[np.float32]) -> NDArray[np.float32]:
    return widen(round_updates(states, terms_of(number), W, {"w": -update})["w"])


def error(states: ClientStates, number: int) -> NDArray[np.float32]:
    found = states.find(ROUNDING_STATE, before=number + 1)
    assert found.made == number
    return widen(found.state["w"].numpy())


@pytest.fixture
def states() -> ClientStates:
    return ClientStates()


def test_sent_updates_are_the_true_ones_less_the_last_error(states: ClientStates) -> None:
    sent = [send(states, number, update) for number, update in enumerate(UPDATES, start=1)]
    due = UPDATES.sum(axis=0, dtype=np.float64) - error(states, len(UPDATES))
    # Each error is rounded to bfloat16: 2**-9 of 2**-9 of a number up to 4.
    np.testing.assert_allclose(np.sum(sent, axis=0, dtype=np.float64), due, 0, 20 * 4 * 2.0**-18)
    assert np.abs(rounded(UPDATES).sum(axis=0, dtype=np.float64) - due).max() > 20 * 4 * 2.0**-18


def test_an_update_in_bfloat16_leaves_nothing(states: ClientStates) -> None:
    update = rounded(UPDATES[0])
    assert np.array_equal(send(states, 1, update), update)
    assert not error(states, 1).any()


@pytest.mark.parametrize("wrong", [np.nan, np.inf, np.float32(3.4e38)])
def test_a_number_beyond_the_range_leaves_no_error(wrong: float, states: ClientStates) -> None:
    update = UPDATES[0].copy()
    update[1, 2] = wrong
    assert not np.isfinite(send(states, 1, update)[1, 2])
    assert error(states, 1)[1, 2] == 0.0
    assert np.isfinite(send(states, 2, UPDATES[1])).all()


def test_a_repeated_round_starts_from_the_same_error(tmp_path: Path) -> None:
    for folder in (None, tmp_path):
        states = ClientStates(folder and Versions(folder))
        for number in (1, 2, 3):
            first = send(states, number, UPDATES[number])
        again = states if folder is None else ClientStates(folder and Versions(folder))
        assert np.array_equal(send(again, 3, UPDATES[3]), first)
    fresh = send(ClientStates(), 3, UPDATES[3])
    assert not np.array_equal(fresh, first)
    assert np.array_equal(fresh, rounded(UPDATES[3]))  # a lost error is zero


def test_the_error_takes_two_bytes_a_number(states: ClientStates) -> None:
    send(states, 1, UPDATES[0])
    assert states.in_memory[ROUNDING_STATE][1]["w"].dtype == torch.uint16


def test_an_array_may_be_one_number(states: ClientStates) -> None:
    received = {"scale": np.array(0.5, np.float32)}
    for number in (1, 2):
        sent = round_updates(
            states, terms_of(number), received, {"scale": np.array(0.2, np.float32)}
        )
        assert widen(sent["scale"]) == pytest.approx(0.3, rel=2.0**-7)
        assert sent["scale"].shape == ()


IID = {"method": "fedavg", "model": "mlp", "fraction": 1.0, "partition": "iid"}

CUDA = torch.device("cuda")  # its flags can be set without a card
CPU = torch.device("cpu")


def flags() -> tuple[bool, ...]:
    return (
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32,
        torch.backends.cudnn.benchmark,
        torch.are_deterministic_algorithms_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
    )


@pytest.mark.parametrize(
    ("precision", "expected"),
    [
        ("float32", (False, False, False, True, False)),
        ("tf32", (True, True, True, False, False)),
        ("bfloat16", (False, False, True, False, False)),
    ],
)
def test_the_flags_of_a_precision_last_as_long_as_a_run(
    precision: str, expected: tuple[bool, ...]
) -> None:
    before = flags()
    with computing_in(precision, CUDA):
        assert flags() == expected
    assert flags() == before


def test_tf32_is_float32_on_a_cpu_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log_once.cache_clear()
    with caplog.at_level("WARNING", log.name):
        other = run(tmp_path / "tf32", precision="tf32")
    assert "precision = tf32 is float32 on cpu" in caplog.text
    assert model_bytes(other) == model_bytes(run(tmp_path / "float32"))
    assert 'precision = "tf32"' in (other / "config.toml").read_text()


@pytest.mark.parametrize("model", ["logistic", "mlp", "cnn"])
def test_bfloat16_then_float32_leaves_equal_bits(tmp_path: Path, model: str) -> None:
    exact = run(tmp_path / "before", model=model, num_rounds=2)
    rough = run(tmp_path / "bfloat16", model=model, num_rounds=2, precision="bfloat16")
    again = run(tmp_path / "after", model=model, num_rounds=2)
    assert model_bytes(exact) == model_bytes(again) != model_bytes(rough)


def test_bfloat16_learns_as_float32_does(tmp_path: Path) -> None:
    scores = {}
    for precision in ("float32", "bfloat16"):
        folder = run(tmp_path / precision, precision=precision, **IID)
        scores[precision] = float(
            table(folder / "rounds.csv")[-1]["test_accuracy_of_global_model_mean"]
        )
    assert scores["bfloat16"] == pytest.approx(scores["float32"], abs=5.0)  # percent


def test_a_client_of_messages_computes_in_the_runs_precision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[str, torch.device]] = []

    def watch(precision: str, device: torch.device) -> AbstractContextManager[None]:
        seen.append((precision, device))
        return computing_in(precision, device)

    monkeypatch.setattr("fairbloom.client.device.computing_in", watch)
    replies = {
        precision: ask(
            MessageType.TRAIN, {}, context(1, run_config(precision=precision, model="mlp"))
        )
        for precision in ("float32", "bfloat16")
    }
    assert seen == [("float32", CPU), ("bfloat16", CPU)]
    assert replies["float32"]["arrays"] != replies["bfloat16"]["arrays"]


def test_another_precision_is_another_run() -> None:
    assert fingerprint(config_of(precision="bfloat16")) != fingerprint(config_of())


def test_rounded_arrays_are_in_the_order_of_the_model() -> None:
    """Equal replies have equal bytes, whatever the hash of a name in this process."""
    config = run_config(model="mlp")
    reply = ask("train", {"wire-dtype": "bfloat16-updates"}, context(1, config))
    assert [name.removesuffix(":bfloat16") for name in reply.array_records["arrays"]] == [
        *fresh(config)[1].state_dict()
    ]
