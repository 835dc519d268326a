"""Updates in the memory of a card, here the processor's: their sums are those of NumPy's pass."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fairbloom.client import training
from fairbloom.client.local import _load_for_device
from fairbloom.rounds.layout import Layout
from fairbloom.rounds.updates import Updates
from fairbloom.rounds.vectors import Vectors, gram_matrices, weighted_sum
from fairbloom.simulation import clients, memory
from fairbloom.simulation.memory import CardRows, rows_on_card
from tests.simulation.helpers import Outcome, assert_same_model, run

ENGINES = ("loop", "stacked")
UPDATES_MADE = 7


@pytest.fixture
def on_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep updates in tensors on any device."""

    def rows_of(layouts: Sequence[Layout], rows: int, device: torch.device) -> list[CardRows]:
        return [CardRows(torch.empty(rows, each.size, device=device)) for each in layouts]

    monkeypatch.setattr(clients, "rows_on_card", rows_of)


@pytest.fixture
def updates() -> tuple[Updates, Updates]:
    """Return the same updates, from NumPy's rows and from those of a card."""
    random = np.random.default_rng(0)
    shapes = {"weight": (70, 50), "bias": (70,)}
    arrays = {name: random.normal(size=each).astype(np.float32) for name, each in shapes.items()}
    layout = Layout(arrays)
    models = random.normal(size=(UPDATES_MADE, layout.size)).astype(np.float32)
    here = Updates(layout, models.copy())
    there = Updates(layout, CardRows(torch.from_numpy(models)))
    for each in (here, there):
        each.add_rows([{}] * UPDATES_MADE)
        assert not each.screen(gram=True)
    return here, there


def test_updates_on_a_card_have_the_same_bits(updates: tuple[Updates, Updates]) -> None:
    here, there = updates
    np.testing.assert_array_equal(here.matrix[:3, :], there.matrix[:3, :])


@pytest.mark.parametrize("by_array", [False, True])
def test_products_on_a_card_are_those_of_numpy(
    updates: tuple[Updates, Updates], by_array: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "CHUNK_NUMBERS", 9 * 1000)  # several chunks
    here, there = updates
    kept = Vectors.of(np.ones(here.layout.size, np.float32))
    ends = here.layout.ends if by_array else (here.layout.size,)
    expected, found = (
        gram_matrices(Vectors.concat([each.vectors, kept, kept]), ends) for each in updates
    )
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-9)
    np.testing.assert_array_equal(found, np.swapaxes(found, 1, 2))
    np.testing.assert_allclose(there.norms, here.norms, rtol=1e-14)


@pytest.mark.parametrize("by_array", [False, True])
def test_sums_on_a_card_are_those_of_numpy(
    updates: tuple[Updates, Updates], by_array: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "CHUNK_NUMBERS", UPDATES_MADE * 1000)
    layout = updates[0].layout
    shape = (len(layout.ends), UPDATES_MADE) if by_array else (UPDATES_MADE,)
    weights = np.random.default_rng(1).random(shape)
    expected, found = (weighted_sum(weights, each.vectors, ends=layout.ends) for each in updates)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_a_reply_on_a_card_that_is_not_finite_is_refused() -> None:
    layout = Layout({"a": np.zeros(3, np.float32), "b": np.zeros(2, np.float32)})
    models = torch.ones(3, 5)
    models[1, 4] = torch.nan
    models[2, 0] = torch.inf
    updates = Updates(layout, CardRows(models))
    updates.add_rows([{}] * 3)
    reasons = updates.screen(gram=True)
    assert {place: str(reason) for place, reason in reasons.items()} == {
        1: "array 'b' is not finite",
        2: "array 'a' is not finite",
    }
    updates.remove(1, 2)
    assert updates.norms == pytest.approx([5**0.5])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "changes",
    [
        {"method": "fedavg"},
        {"method": "fedfv"},
        {"method": "fedlf"},
        {"method": "drfa"},
        {"method": "fedavg", "defence": "trimmed-mean", "defence_tolerance": 1},
        {"method": "fedavg", "attack": "alie", "attackers": "0.2"},
    ],
    ids=str,
)
def test_a_run_with_updates_on_a_card_is_that_without(
    changes: dict[str, Any], engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    plain = {"engine": engine, "num_rounds": 3, "fraction": 1.0} | changes
    expected = run(tmp_path / "here", **plain)
    request.getfixturevalue("on_card")
    there = run(tmp_path / "there", **plain)
    assert_same_model(there, expected)
    assert not Outcome.of(run(tmp_path / "again", **plain)).differences(Outcome.of(there))


def test_buffers_are_averaged_with_updates_on_a_card(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    plain = {"model": "tests.gpu.own:batch_normed", "num_rounds": 1}
    expected = run(tmp_path / "here", **plain)
    request.getfixturevalue("on_card")
    assert_same_model(run(tmp_path / "there", **plain), expected)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("batch_size", [0, 10])
def test_examples_that_do_not_fit_give_the_same_bits(
    engine: str, batch_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = {"engine": engine, "num_rounds": 3, "batch_size": batch_size, "model": "mlp"}
    expected = run(tmp_path / "here", **plain)
    monkeypatch.setattr("fairbloom.tasks.task.has_room", lambda device, size: False)
    monkeypatch.setattr(training, "fetch_ahead", lambda fetched, device: fetched)
    _load_for_device.cache_clear()
    streamed = run(tmp_path / "streamed", **plain)
    _load_for_device.cache_clear()
    assert not Outcome.of(streamed).differences(Outcome.of(expected))


def test_updates_that_do_not_fit_stay_with_the_processor() -> None:
    assert not rows_on_card([Layout({"a": np.zeros(3, np.float32)})], 2, torch.device("cpu"))
