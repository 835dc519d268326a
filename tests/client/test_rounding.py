"""What rounding leaves of an update goes into the client's next one."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fairbloom.client.rounding import round_updates
from fairbloom.client.states import ROUNDING, ClientStates
from fairbloom.protocol.bfloat16 import widen
from fairbloom.protocol.terms import Terms
from fairbloom.system.versions import Versions
from tests.protocol.test_bfloat16 import rounded

from .helpers import ask, context, fresh, run_config

W = {"w": np.zeros((3, 4), np.float32)}
UPDATES = np.random.default_rng(1).normal(size=(20, 3, 4)).astype(np.float32)


def terms_of(number: int) -> Terms:
    return Terms(server_round=number, wire_dtype="bfloat16-updates")


def send(states: ClientStates, number: int, update: NDArray[np.float32]) -> NDArray[np.float32]:
    return widen(round_updates(states, terms_of(number), W, {"w": -update})["w"])


def error(states: ClientStates, number: int) -> NDArray[np.float32]:
    found = states.find(ROUNDING, before=number + 1)
    assert found is not None
    assert found.made == number
    return widen(found.state["w"].numpy())


def test_sent_updates_are_the_true_ones_less_the_last_error() -> None:
    states = ClientStates()
    sent = [send(states, number, update) for number, update in enumerate(UPDATES, start=1)]
    due = UPDATES.sum(axis=0, dtype=np.float64) - error(states, len(UPDATES))
    # Each error is rounded to bfloat16: 2**-9 of 2**-9 of a number up to 4.
    np.testing.assert_allclose(np.sum(sent, axis=0, dtype=np.float64), due, 0, 20 * 4 * 2.0**-18)
    without = rounded(UPDATES).sum(axis=0, dtype=np.float64)
    assert np.abs(without - due).max() > 20 * 4 * 2.0**-18


def test_an_update_in_bfloat16_leaves_nothing() -> None:
    states = ClientStates()
    update = rounded(UPDATES[0])
    assert np.array_equal(send(states, 1, update), update)
    assert not error(states, 1).any()


@pytest.mark.parametrize("wrong", [np.nan, np.inf, np.float32(3.4e38)])
def test_a_number_beyond_the_range_leaves_no_error(wrong: float) -> None:
    states = ClientStates()
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


def test_the_error_takes_two_bytes_a_number() -> None:
    states = ClientStates()
    send(states, 1, UPDATES[0])
    assert states.in_memory[ROUNDING][1]["w"].dtype == torch.uint16


def test_an_array_may_be_one_number() -> None:
    states = ClientStates()
    received = {"scale": np.array(0.5, np.float32)}
    for number in (1, 2):
        sent = round_updates(
            states, terms_of(number), received, {"scale": np.array(0.2, np.float32)}
        )
        assert widen(sent["scale"]) == pytest.approx(0.3, rel=2.0**-7)
        assert sent["scale"].shape == ()


def test_rounded_arrays_are_in_the_order_of_the_model() -> None:
    """Equal replies have equal bytes, whatever the hash of a name in this process."""
    config = run_config(model="mlp")
    reply = ask("train", {"wire-dtype": "bfloat16-updates"}, context(1, config))
    names = [name.removesuffix(":bfloat16") for name in reply.array_records["arrays"]]
    assert names == [*fresh(config)[1].state_dict()]
