"""Small runs and what they leave behind."""

import csv
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from safetensors.torch import save

from fairbloom.client.states import PERSONAL, ClientStates
from fairbloom.rounds.round import Round
from fairbloom.server import app
from fairbloom.server.run_folder import recorder
from fairbloom.server.run_folder.csv_rows import Row
from fairbloom.server.run_folder.recorded import RecordedRound
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from fairbloom.system.versions import Versions
from fairbloom.tasks import load_task

ROOT = Path(__file__).parents[2]


def small(out: Path | str, **changes: Any) -> Settings:
    """Return the settings of a run that takes a tenth of a second: FedFV, which remembers old
    updates."""
    plain: dict[str, Any] = {
        "clients": 5,
        "method": "fedfv",
        "num-rounds": 6,
        "fraction": 0.4,
        "device": "cpu",
    }
    return Settings.of(
        plain | {key.replace("_", "-"): value for key, value in changes.items()} | {"out": str(out)}
    )


def run(out: Path | str, **changes: Any) -> Path:
    return simulate(small(out, **changes))


@contextmanager
def checkpoints_every(rounds: int) -> Iterator[None]:
    """Make this many rounds of a run share a checkpoint: each takes a second on a patched clock."""
    ticks = itertools.count()
    clock = SimpleNamespace(
        perf_counter=lambda: float(next(ticks)), monotonic=time.monotonic, sleep=time.sleep
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app, "time", clock)
        patch.setattr(recorder, "SHARED_SECONDS", float(rounds))
        yield


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def assert_same_model(folder: Path, other: Path) -> None:
    """The final weights agree as they must across runtimes."""
    model, expected = (load_file(each / "model.safetensors") for each in (folder, other))
    assert model.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(model[name], array, rtol=0, atol=1e-5)


def model_bytes(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def without_seconds(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table without the seconds, which no two runs share."""
    return [{key: value for key, value in row.items() if key != "seconds"} for row in table(path)]


def rounds(folder: Path) -> list[dict[str, str]]:
    return without_seconds(folder / "rounds.csv")


class StoppedError(Exception):
    """A run is cut off here."""


def stop_after(number: int) -> Callable[[Any], None]:
    """Return what cuts a run off once a round is recorded."""

    def on_round(finished: Round | RecordedRound) -> None:
        if finished.number == number:
            raise StoppedError

    return on_round


@dataclass(frozen=True)
class Outcome:
    """All that two equal runs have in common, to the bit."""

    rounds: list[dict[str, str]]
    clients: bytes
    model: bytes
    best: bytes

    @classmethod
    def of(cls, folder: Path) -> "Outcome":
        files = (
            folder / name for name in ("clients.csv", "model.safetensors", "model-best.safetensors")
        )
        return cls(rounds(folder), *(file.read_bytes() for file in files))

    def differences(self, other: "Outcome") -> str:
        return ", ".join(
            name
            for name in self.__dataclass_fields__
            if getattr(self, name) != getattr(other, name)
        )


def assert_whole(path: Path) -> None:
    """Check that a table has whole rows only."""
    text = path.read_text()
    header, *lines = text.splitlines()
    assert text.endswith("\n"), f"{path} ends in a half row: {text[-60:]!r}"
    assert "\0" not in text, f"{path} has a hole"
    assert header.startswith("round,")
    for row in csv.reader(lines):
        assert len(row) == header.count(",") + 1, f"{path} has a half row: {row}"
        assert row[0].isdigit()


def newest_states(folder: Path, state: str = PERSONAL) -> dict[str, bytes]:
    """Return the newest version of a state of each client of a run that has one, as bytes."""
    folders = [*(folder / "clients").glob("*")]
    files = Versions(folders[0]) if folders else None
    names = sorted({row["client"] for row in table(folder / "clients.csv")})
    found = {name: ClientStates(files, name).find(state, sys.maxsize) for name in names}
    return {name: save(version.state) for name, version in found.items() if version}


def drafts(folder: Path) -> list[Path]:
    return list(folder.rglob(".*"))


def rows_seen(settings: Settings) -> list[Row]:
    seen: list[Row] = []
    simulate(settings, lambda recorded: seen.append(recorded.row))
    return seen


def config_of(**changes: Any) -> dict[str, Any]:
    return dict(small("", **changes).run_config())


def model_of(config: dict[str, Any]) -> dict[str, np.ndarray]:
    return {
        name: tensor.detach().numpy().copy()
        for name, tensor in load_task(config).model().state_dict().items()
    }
