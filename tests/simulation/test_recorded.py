"""Runs with recorded steps, which on the CPU are the same operations."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from fairbloom.simulation.choice import RECORDED, Choice
from tests.client.test_capture import PlainRecorder
from tests.simulation.helpers import Outcome, run

T = TypeVar("T")

MLP = {"method": "fedavg", "model": "mlp", "batch_size": 16}
NETWORK = MLP | {"model": "tests.simulation.test_stacked:Dropped"}

LOOP = [
    MLP | {"method": "fedprox", "momentum": 0.9},
    MLP | {"method": "ditto"},
    MLP | {"method": "scaffold"},
    MLP | {"learning_rate_decay": 0.9},
    NETWORK,
]

STACKED = [
    MLP | {"method": "fedprox", "momentum": 0.9},
    MLP | {"method": "ditto"},
    MLP | {"method": "scaffold"},
    MLP | {"learning_rate_decay": 0.9},
    MLP | {"optimizer": "adam", "learning_rate": 0.01},
    MLP | {"batch_size": 0, "local_epochs": 4},
    MLP | {"method": "qfedavg"},
    NETWORK | {"learning_rate_decay": 0.9},
    NETWORK | {"method": "fedprox", "gradient_clip": 1.0, "optimizer": "adamw"},
]


class Late(PlainRecorder):
    """Fails after some records."""

    def __init__(self, records: int) -> None:
        super().__init__()
        self._records = records

    def record(self, step: Callable[[], T]) -> Callable[[], T]:
        if self.recorded == self._records:
            raise RuntimeError("operation not permitted when stream is capturing")
        return super().record(step)


def use(recorder: PlainRecorder, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run be recorded."""
    choice = Choice(engine, "it was asked for", block=4, recorded=RECORDED)
    monkeypatch.setattr("fairbloom.simulation.choice.CudaRecorder", lambda _: recorder)
    monkeypatch.setattr("fairbloom.simulation.run.choose", lambda *_: choice)
    # On the CPU, Adam reads its step count.
    monkeypatch.setattr("fairbloom.client.capture.WAITS", None)


def recorded_in(folder: Path) -> str:
    return str(json.loads((folder / "engine.json").read_text())["recorded"])


@pytest.mark.parametrize(
    ("engine", "changes"),
    [("loop", each) for each in LOOP] + [("stacked", each) for each in STACKED],
    ids=str,
)
def test_a_run_of_recorded_steps_has_the_bits_of_ordinary_ones(
    engine: str, changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = PlainRecorder()
    use(Late(0), engine, monkeypatch)  # blocks of the same size
    expected = Outcome.of(run(tmp_path / "ordinary", engine=engine, **changes))
    use(recorder, engine, monkeypatch)
    folder = run(tmp_path / "recorded", engine=engine, **changes)
    assert not Outcome.of(folder).differences(expected)
    # The rule of SCAFFOLD corrects the gradients of every step; stacked, it adds to them.
    unrecorded = changes["method"] == "scaffold" and engine == "loop"
    assert (recorder.replayed > 0) == (not unrecorded)
    assert bool(recorder.released) == (not unrecorded)
    assert (recorded_in(folder) == RECORDED) == (not unrecorded)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_a_late_failure_is_recorded_and_logged_once(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    changes = NETWORK | {"batch_size": 20, "num_rounds": 4, "fraction": 0.2}  # fails in round 3
    use(Late(0), engine, monkeypatch)
    expected = Outcome.of(run(tmp_path / "ordinary", engine=engine, **changes))
    recorder = Late(1)
    use(recorder, engine, monkeypatch)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "flwr"):
        folder = run(tmp_path / "late", engine=engine, **changes)
    assert recorder.replayed
    assert "not permitted when stream is capturing" in recorded_in(folder)
    assert caplog.text.count("local steps run without CUDA graphs") == 1
    assert not Outcome.of(folder).differences(expected)
