"""A run with a damaged last checkpoint continues from the one before, and ends with equal bits."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairbloom.server.checkpoint import list_checkpoints
from fairbloom.server.run_folder.errors import RunFolderError
from fairbloom.simulation.run import simulate
from tests.simulation.helpers import (
    Outcome,
    StoppedError,
    checkpoints_every,
    drafts,
    newest_states,
    run,
    small,
    stop_after,
    table,
)

ROUNDS = 6

Damage = Callable[[Path], None]


def run_up_to(folder: Path, last: int, method: str, **changes: Any) -> None:
    """Begin a run that is cut off after round `last`."""
    with pytest.raises(StoppedError):
        simulate(small(folder, method=method, num_rounds=ROUNDS, **changes), stop_after(last))


def cut_at(share: float) -> Damage:
    def cut(path: Path) -> None:
        content = path.read_bytes()
        path.write_bytes(content[: int(share * len(content))])

    return cut


def flip_last_byte(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 0x10]))


# test_checkpoint.py tests that a file damaged at any byte is noticed.
DAMAGES: dict[str, Damage] = {
    "truncated": cut_at(0.9),
    "flipped": flip_last_byte,
    "missing": lambda path: path.unlink(),
}


@pytest.fixture(autouse=True, params=[1, 2], ids=lambda every: f"every {every}")
def every(request: pytest.FixtureRequest) -> Iterator[int]:
    """Make this many rounds share a checkpoint."""
    with checkpoints_every(request.param):
        yield request.param


@pytest.fixture(scope="module", params=["fedfv", "ditto"])
def method(request: pytest.FixtureRequest) -> str:
    """Return a method with memory: FedFV keeps old updates on the server, Ditto personal models
    with the clients."""
    return str(request.param)


@pytest.fixture(scope="module")
def whole(method: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("whole") / "run", method=method, num_rounds=ROUNDS)


def assert_same_bits(folder: Path, other: Path) -> None:
    assert not Outcome.of(folder).differences(Outcome.of(other))
    assert newest_states(folder) == newest_states(other)


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_last_checkpoint_costs_no_bits(
    tmp_path: Path, method: str, whole: Path, damage: Damage, said: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "run"
    run_up_to(folder, 4, method)
    last, before = list_checkpoints(folder / "checkpoint")
    damage(last)
    assert_same_bits(run(folder, method=method, num_rounds=ROUNDS), whole)
    assert [row["round"] for row in table(folder / "rounds.csv")] == [
        str(number) for number in range(1, ROUNDS + 1)
    ]
    assert not drafts(folder)
    warnings = {record.getMessage() for record in said.records if record.levelno == logging.WARNING}
    # which is as if the run had been killed before it was written
    if damage is not DAMAGES["missing"]:
        assert any(
            f"{last} is damaged" in words and words.endswith(before.name) for words in warnings
        )


@pytest.mark.slow
def test_a_kill_after_a_damaged_checkpoint_costs_no_bits(
    tmp_path: Path, method: str, every: int
) -> None:
    """All clients have trained in two rounds that are run again: the personal models of before are
    still there."""
    everyone = {"fraction": 1.0, "method": method}
    whole = run(tmp_path / "whole", num_rounds=ROUNDS, **everyone)
    folder = tmp_path / "run"
    run_up_to(folder, 2, **everyone)
    kept = list_checkpoints(folder / "checkpoint")[0]
    content = kept.read_bytes()
    run_up_to(folder, 2 + 2 * every, **everyone)
    last, before = list_checkpoints(folder / "checkpoint")
    last.unlink()
    cut_at(0.5)(before)
    kept.write_bytes(content)
    assert_same_bits(run(folder, num_rounds=ROUNDS, **everyone), whole)


def test_a_run_with_two_damaged_checkpoints_is_refused_unchanged(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    run_up_to(folder, 4, "fedavg")
    for path in list_checkpoints(folder / "checkpoint"):
        cut_at(0.5)(path)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(
        RunFolderError,
        match=r"4\.safetensors is damaged: .*[23]\.safetensors is damaged: .*Put back",
    ):
        run(folder, method="fedavg", num_rounds=ROUNDS)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
