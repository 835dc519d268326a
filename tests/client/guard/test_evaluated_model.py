"""A device stores the model that it evaluated last, and a crash leaves one of two complete."""

from dataclasses import replace
from pathlib import Path

import pytest

from fairbloom.client.guard.evaluated_model import (
    BEFORE,
    CONFIG,
    DRAFT,
    KEPT,
    MODEL,
    find_model,
)
from fairbloom.client.states import keep_preprocessing
from fairbloom.tasks import load_task

from ..hospital import Device, crash_at, write_hospital


@pytest.mark.parametrize("moved", [None, KEPT, DRAFT])
def test_a_crash_leaves_a_complete_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: str | None
) -> None:
    write_hospital(tmp_path / "data")
    device = Device(tmp_path)
    device.evaluate(seed=1)
    for stale in (DRAFT, BEFORE):
        (device.state / stale).mkdir()
        (device.state / stale / "stale").touch()
    crash_at(monkeypatch, moved)
    if moved is not None:
        with pytest.raises(SystemExit):
            device.evaluate(seed=2)
        found = find_model(device.state)
        assert {file.name for file in found.iterdir()} > {CONFIG, MODEL}
        assert "seed = 1\n" in (found / CONFIG).read_text()
    monkeypatch.undo()
    device.evaluate(seed=3)
    assert {path.name for path in device.state.iterdir() if "model" in path.name} == {KEPT}
    assert "seed = 3\n" in (device.state / KEPT / CONFIG).read_text()
    assert not (device.state / KEPT / "stale").exists()


def test_preprocessing_is_stored_if_there_is_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = load_task({"task": "digits"})
    keep_preprocessing(tmp_path, replace(task, preprocessing=None), ("client-0",))
    assert not [*tmp_path.iterdir()]
    keep_preprocessing(tmp_path / "of" / "run", task, ("client-0",))
    (file,) = (tmp_path / "of" / "run").iterdir()
    assert not caplog.messages
    keep_preprocessing(file, task, ("client-0",))  # it is no folder
    assert "preprocessing.json cannot be written, so that nothing can be predicted" in caplog.text
