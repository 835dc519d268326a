"""How often a round waits for numbers that a device computes, counted on the CPU."""

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.profiler import ProfilerActivity, profile

from fairbloom.server.run_folder.recorded import RecordedRound
from fairbloom.simulation import choice
from fairbloom.simulation.run import simulate
from fairbloom.tasks.models import on_processor
from tests.simulation.helpers import small

CLIENTS = 4
ROUNDS = 1
SLACK = 1.1

# Functions that wait for a device. Copies of whole models are not among them.
WAITS = (
    Tensor.item,
    Tensor.tolist,
    Tensor.nonzero,
    Tensor.__bool__,
    Tensor.__int__,
    Tensor.__float__,
    Tensor.__index__,
)

CASES = [
    {"model": "logistic"},
    {"model": "mlp", "batch_size": 50, "momentum": 0.9},
    {"model": "cnn", "batch_size": 50},
    {"model": "mlp", "method": "qfedavg"},
    {"model": "mlp", "method": "scaffold"},
    {"model": "mlp", "method": "ditto"},
]


class CountWaits(TorchFunctionMode):
    """Counts the calls of WAITS, and of more functions, by name."""

    def __init__(self, *more: Callable[..., Any]) -> None:
        super().__init__()
        self.functions = (*WAITS, *more)
        self.counts = Counter[str]()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func in self.functions:
            self.counts[func.__name__] += 1
        return func(*args, **kwargs or {})


def run_after_first_round(
    folder: Path, engine: str, begin: Callable[[], object], **changes: Any
) -> None:
    """Carry out 1 + ROUNDS rounds; call `begin` after the first, which fills caches."""

    def after(recorded: RecordedRound) -> None:
        if recorded.number == 1:
            begin()

    given = {"method": "fedavg"} | changes
    settings = small(
        folder, engine=engine, clients=CLIENTS, fraction=1.0, num_rounds=1 + ROUNDS, **given
    )
    simulate(settings, after)


def most_waits(engine: str, each_client: int) -> float:
    """Return the most waits in ROUNDS rounds; there is one block of clients."""
    return SLACK * ROUNDS * (each_client * CLIENTS if engine == "loop" else 10 + 1)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("changes", CASES[:2], ids=str)
def test_a_client_reads_at_most_one_number_of_its_device(
    changes: dict[str, Any], engine: str, tmp_path: Path
) -> None:
    profiler = profile(activities=[ProfilerActivity.CPU])
    run_after_first_round(tmp_path / "run", engine, profiler.start, **changes)
    profiler.stop()
    counts = {each.key: each.count for each in profiler.key_averages()}
    assert counts["aten::copy_"]
    assert counts.get("aten::_local_scalar_dense", 0) <= most_waits(engine, 1)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("changes", CASES, ids=str)
def test_steps_and_measures_wait_for_no_step(
    changes: dict[str, Any], engine: str, tmp_path: Path
) -> None:
    with CountWaits() as waits:
        run_after_first_round(tmp_path / "run", engine, waits.counts.clear, **changes)
    assert waits.counts.total() <= most_waits(engine, 4)


@pytest.mark.parametrize("block", [CLIENTS, 3])
@pytest.mark.parametrize("changes", CASES[:3], ids=str)
def test_a_stacked_round_waits_ten_times_and_once_a_block(
    changes: dict[str, Any], block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the copies to the processor, of which each block's models are one."""
    waits = CountWaits(Tensor.cpu)

    def copy_once(state: Any) -> Any:
        before = waits.counts["cpu"]
        copied = on_processor(state)
        waits.counts["cpu"] = before + 1
        return copied

    monkeypatch.setattr("fairbloom.tasks.models.registry.on_processor", copy_once)
    monkeypatch.setattr(choice, "fitting_clients", lambda *_: block)
    with waits:
        run_after_first_round(tmp_path / "run", "stacked", waits.counts.clear, **changes)
    blocks = math.ceil(CLIENTS / block)
    assert blocks <= waits.counts["cpu"] / ROUNDS
    assert waits.counts.total() / ROUNDS <= 10 + blocks
