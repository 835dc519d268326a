"""A device whose file grows: its test rows stay test rows of the model."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, MessageType, RecordDict
from scipy.stats import binomtest

from fairbloom.client import local_round
from fairbloom.server.settings import Settings
from fairbloom.system.versions import FOLDER
from fairbloom.tasks import load_task

from .hospital import RUN, Device

# So many inputs that a network knows its training rows by heart.
INPUTS = [f"x{place}" for place in range(30)]

SCHEMA = "\n".join(
    [
        'target = "coin"\n[fields.coin]\ntype = "integer"\ncategories = [0, 1]',
        *(f'[fields.{name}]\ntype = "number"\ncenter = 0.0\nscale = 1.0' for name in INPUTS),
    ]
)

SETTINGS: dict[str, Any] = {
    **{"schema": SCHEMA, "model": "mlp", "learning-rate": 0.1},
    **{"local-epochs": 100, "batch-size": 20},
}


def grow(device: Device, rows: int) -> None:
    """Write a file of this many rows, whose target is a coin's."""
    random = np.random.default_rng(0)
    lines = [
        ",".join(map(str, [*random.normal(size=len(INPUTS)), random.integers(2)]))
        for _ in range(rows)
    ]
    device.data.mkdir(exist_ok=True)
    (device.data / "lund.csv").write_text("\n".join([",".join([*INPUTS, "coin"]), *lines]) + "\n")


def initial(**settings: Any) -> ArrayRecord:
    task = load_task(Settings.of({**RUN, **SETTINGS, **settings}).run_config())
    return ArrayRecord(task.model().state_dict())


def ask(
    device: Device, kind: str, arrays: ArrayRecord, number: int = 1, **settings: Any
) -> RecordDict:
    config = ConfigRecord({"server-round": number, "measure": []})
    if kind == MessageType.EVALUATE:
        config["measure"] = ["train-accuracy"]
    content = RecordDict({"arrays": arrays, "config": config})
    return device.ask(kind, {**SETTINGS, **settings}, content)


def test_coins_are_guessed_after_a_file_has_grown_twice(tmp_path: Path) -> None:
    device = Device(tmp_path)
    arrays = initial()
    for number, rows in enumerate((160, 168, 175), start=1):
        grow(device, rows)
        before = ask(device, MessageType.EVALUATE, arrays, number)["metrics"]
        assert before["rows-version"] == number
        if number > 1:
            assert before["train-accuracy"] > 0.7  # the model knows training rows by heart
            right = round(before["accuracy"] * before["num-examples"])
            assert binomtest(right, before["num-examples"], 0.5).pvalue > 0.01
        trained = ask(device, MessageType.TRAIN, arrays, number)
        assert trained["metrics"]["rows-version"] == number
        arrays = trained["arrays"]


@pytest.mark.parametrize(("rows", "missing"), [(99, 61), (155, 5), (156, None), (161, None)])
def test_a_device_says_how_many_rows_are_gone(
    tmp_path: Path, rows: int, missing: int | None
) -> None:
    """In its first answer and with each reply; a number below the floor stays on the device."""
    device = Device(tmp_path)
    grow(device, 160)
    quick = {"local-epochs": 1}

    def introduce(seed: int) -> ConfigRecord:
        return device.ask(
            MessageType.QUERY, {**SETTINGS, **quick, "seed": seed}, RecordDict()
        ).config_records["client"]

    assert "rows-missing" not in introduce(0)
    grow(device, rows)
    for seed in (0, 1):  # by any split
        assert introduce(seed).get("rows-missing") == missing
        for kind in (MessageType.TRAIN, MessageType.EVALUATE):
            metrics = ask(device, kind, initial(seed=seed), seed=seed, **quick)["metrics"]
            assert metrics.get("rows-missing") == missing, kind
    held_back = "number of its missing rows, because it is below 5"
    assert (held_back in (device.state / "sent.jsonl").read_text()) == (rows == 156)


def test_a_device_that_is_killed_goes_on_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(*_: Any) -> None:
        raise KeyboardInterrupt

    device = Device(tmp_path)
    grow(device, 60)
    arrays = initial()
    ask(device, MessageType.TRAIN, arrays)
    grow(device, 70)
    with monkeypatch.context() as patch:
        patch.setattr(local_round, "train_client", kill)
        with pytest.raises(KeyboardInterrupt):
            ask(device, MessageType.TRAIN, arrays, 2)
    (path,) = (device.state / FOLDER).glob("sides-*")
    kept = path.read_bytes()
    once, again = (ask(device, MessageType.TRAIN, arrays, 2) for _ in range(2))
    assert path.read_bytes() == kept
    assert once["metrics"] == again["metrics"]
    assert once["metrics"]["rows-version"] == 2
    for name, array in once["arrays"].items():
        assert array.data == again["arrays"][name].data


def test_after_a_model_of_all_rows_only_later_rows_test(tmp_path: Path) -> None:
    device = Device(tmp_path, **{"limit-rows": 1})
    grow(device, 60)
    arrays = ask(device, MessageType.TRAIN, initial(), **{"test-share": 0.0})["arrays"]
    after = {"after-all-rows": "0123"}
    found = ask(device, MessageType.EVALUATE, arrays, **after)["metrics"]
    assert "accuracy" not in found
    assert ask(device, MessageType.TRAIN, arrays, **after)["metrics"]["num-examples"] == 60
    grow(device, 160)
    found = ask(device, MessageType.EVALUATE, arrays, **after)["metrics"]
    assert 5 < found["num-examples"] < 40
    assert "accuracy" in found
