"""What stays on a card, what comes to it batch by batch, and several processes on one card.

Tensors and generators of a card.
"""

import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fairbloom.client.device import choose_device
from fairbloom.client.local import _load_for_device
from fairbloom.client.training import seeded
from fairbloom.errors import FairbloomError
from fairbloom.rounds.layout import Layout
from fairbloom.rounds.updates import Updates
from fairbloom.rounds.vectors import gram_matrices, weighted_sum
from fairbloom.simulation.memory import SHARE, rows_on_card, write_models
from fairbloom.tasks.models import arrays_of
from tests.simulation.helpers import ROOT, Outcome, run, small

from .test_limits import command
from .test_numbers import ENGINES

pytestmark = pytest.mark.gpu

PLAIN = {"model": "mlp", "num_rounds": 3, "batch_size": 10}
ROWS = 9


def test_sums_of_updates_on_a_card_are_those_of_numpy(card: torch.device) -> None:
    random = np.random.default_rng(0)
    layout = Layout({"weight": random.normal(size=(700, 500)).astype(np.float32)})
    models = random.normal(size=(ROWS, layout.size)).astype(np.float32)
    (matrix,) = rows_on_card([layout], ROWS, card)
    tensors = {"weight": torch.from_numpy(models).view(ROWS, 700, 500).to(card)}
    write_models(matrix, range(ROWS), layout.slices, tensors)
    here, there = Updates(layout, models.copy()), Updates(layout, matrix)
    for each in (here, there):
        each.add_rows([{}] * ROWS)
        assert not each.screen(gram=True)
    np.testing.assert_array_equal(there.matrix[:, :], here.matrix)
    ends = (layout.size,)
    expected, found = (gram_matrices(each.vectors, ends, exact=True) for each in (here, there))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-6)
    weights = random.random(ROWS)
    found, expected = (weighted_sum(weights, each.vectors) for each in (there, here))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_updates_beyond_a_share_of_a_card_stay_outside(card: torch.device) -> None:
    layout = Layout({"weight": np.zeros(1_000_000, np.float32)})
    fitting = int(SHARE * torch.cuda.mem_get_info(card)[1] / (4 * layout.size))
    assert not rows_on_card([layout], fitting + 1, card)


@pytest.mark.parametrize("engine", ENGINES)
def test_examples_that_do_not_fit_are_fetched_ahead(
    engine: str, card: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = PLAIN | {"engine": engine, "device": str(card)}
    expected = Outcome.of(run(tmp_path / "there", **plain))
    monkeypatch.setattr("fairbloom.tasks.task.has_room", lambda device, size: False)
    _load_for_device.cache_clear()
    streamed = Outcome.of(run(tmp_path / "streamed", **plain))
    _load_for_device.cache_clear()
    assert not streamed.differences(expected)


def test_two_processes_on_one_card_give_equal_bits(card: torch.device, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    processes = [
        subprocess.Popen(command(small(folder, device=str(card), **PLAIN)), cwd=ROOT)
        for folder in folders
    ]
    assert [process.wait(120) for process in processes] == [0, 0]
    one, two = map(Outcome.of, folders)
    assert not one.differences(two)


def test_workers_are_refused_on_a_card(card: torch.device, tmp_path: Path) -> None:
    with pytest.raises(FairbloomError, match="its processes compute on the CPU"):
        run(tmp_path / "run", engine="workers", device=str(card), **PLAIN)


def test_a_run_on_the_second_card_leaves_the_first(card: torch.device, tmp_path: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two cards")
    before = torch.cuda.memory_allocated(0)
    run(tmp_path / "run", device="cuda:1", **PLAIN)
    assert torch.cuda.memory_allocated(0) == before
    assert torch.cuda.memory_allocated(1)


def test_models_come_back_from_a_card(device: str) -> None:
    there = choose_device(device)
    model = {"a": torch.rand(2, 3), "b": torch.rand(4), "c": torch.arange(3), "d": torch.rand(())}
    found = arrays_of({name: each.to(there) for name, each in model.items()})
    assert all((found[name] == each.numpy()).all() for name, each in model.items())


def test_dropout_on_a_card_is_seeded_and_leaves_its_generator(card: torch.device) -> None:
    dropout = nn.Dropout(0.5).train()
    ones = torch.ones(100, device=card)
    before = torch.cuda.get_rng_state(card)
    drawn = []
    for _ in range(2):
        with seeded(7, card):
            drawn.append(dropout(ones))
    assert torch.equal(*drawn)
    assert torch.equal(torch.cuda.get_rng_state(card), before)
