"""The loop with recorded steps, which on the CPU are the same operations."""

import json
from pathlib import Path
from typing import Any

import pytest

from fairbloom.client.capture import Capture
from fairbloom.client.local import load_task_and_model
from fairbloom.simulation.choice import RECORDED, Choice
from fairbloom.simulation.trial import try_first_step
from tests.client.test_capture import Failing, PlainRecorder
from tests.simulation.helpers import Outcome, run, small

CASES = [
    {"method": "fedprox", "model": "mlp", "batch_size": 16, "momentum": 0.9},
    {"method": "ditto", "model": "mlp", "batch_size": 16},
    {"method": "scaffold", "model": "mlp", "batch_size": 16},
    {"method": "fedavg", "model": "mlp", "batch_size": 16, "learning_rate_decay": 0.9},
]


@pytest.mark.parametrize("changes", CASES, ids=str)
def test_a_run_of_recorded_steps_has_the_bits_of_the_loop(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = Outcome.of(run(tmp_path / "loop", engine="loop", **changes))
    recorders: list[PlainRecorder] = []

    def make(_device: object) -> PlainRecorder:
        recorders.append(PlainRecorder())
        return recorders[-1]

    monkeypatch.setattr("fairbloom.simulation.choice.CudaRecorder", make)
    choice = Choice("loop", "it was asked for", recorded=RECORDED)
    monkeypatch.setattr("fairbloom.simulation.run.choose", lambda *_: choice)
    folder = run(tmp_path / "recorded", engine="loop", **changes)
    assert not Outcome.of(folder).differences(expected)
    (recorder,) = recorders
    # The rule of SCAFFOLD corrects the gradients of every step.
    assert (recorder.replayed > 0) == (changes["method"] != "scaffold")
    assert json.loads((folder / "engine.json").read_text())["recorded"] == RECORDED


def test_a_trial_says_whether_steps_can_be_recorded(subtests: pytest.Subtests) -> None:
    settings = small("runs/none", model="mlp", batch_size=16)
    task, model = load_task_and_model(settings)
    for recorder, expected in ((PlainRecorder(), ""), (Failing(), "not permitted")):
        with subtests.test(expected=expected):
            capture = Capture(recorder)
            try_first_step(settings, task, model, capture)
            assert expected in capture.why_not
            assert bool(expected) == bool(capture.why_not)
