"""A run that is killed at any moment continues with the same call and ends with the same bits."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fairbloom.server.checkpoint import load_last

from .disturbed import SHORT
from .helpers import ROOT, Outcome, drafts, run, table

ROUNDS = 40
"""Of the runs that are killed from outside: long enough to be caught at work."""


@pytest.fixture(scope="module", params=["fedfv", "ditto"])
def method(request: pytest.FixtureRequest) -> str:
    """Return a method with memory: FedFV keeps old updates on the server, Ditto personal models with the clients."""
    return str(request.param)


@pytest.fixture(scope="module")
def killed(method: str, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Folders of one run killed before its first, second, … touch of a file; the last one is undisturbed."""
    folder = tmp_path_factory.mktemp("killed")
    command = [sys.executable, "-m", "tests.simulation.disturbed", "killed", str(folder), method]
    subprocess.run(command, cwd=ROOT, check=True)
    return [folder / str(number) for number in range(1 + max(int(path.name) for path in folder.iterdir()))]


def test_kills_met_the_run_before_during_and_after_every_round(killed: list[Path]) -> None:
    last = [load_last(folder / "checkpoint") for folder in killed]
    reached = [0 if checkpoint is None else checkpoint[1]["strategy"]["round"] for checkpoint in last]
    assert reached == sorted(reached)
    assert set(reached) == set(range(SHORT + 1))
    assert all(reached.count(number) >= 4 for number in range(SHORT))


def test_a_run_killed_at_any_touch_of_a_file_ends_with_the_same_bits(killed: list[Path], method: str) -> None:
    whole = Outcome.of(killed[-1])
    wrong = []
    for moment, folder in enumerate(killed[:-1]):
        left = sorted(path.name for path in folder.rglob("*") if path.is_file())
        try:
            result = Outcome.of(run(folder, method=method, num_rounds=SHORT)).differences(whole) or ", ".join(
                map(str, drafts(folder))
            )
        except Exception as error:
            result = f"{type(error).__name__}: {error}"
        if result:
            wrong.append(f"killed at touch {moment}, which left {left}: {result}")
    assert not wrong, "\n".join(wrong)


def start(folder: Path) -> subprocess.Popen[bytes]:
    code = f"from tests.simulation.helpers import run; run({str(folder)!r}, num_rounds={ROUNDS})"
    return subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def rows_in(folder: Path) -> int:
    path = folder / "rounds.csv"
    return len(path.read_bytes().splitlines()) - 1 if path.exists() else 0


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return Outcome.of(run(tmp_path_factory.mktemp("whole") / "run", num_rounds=ROUNDS))


@pytest.mark.parametrize("seed", range(2))
def test_a_run_killed_again_and_again_from_outside_ends_with_the_same_bits(
    tmp_path: Path, whole: Outcome, seed: int
) -> None:
    folder, moments = tmp_path / "run", random.Random(seed)
    for after in sorted(moments.sample(range(ROUNDS - 10), 2)):
        process = start(folder)
        while rows_in(folder) < after and process.poll() is None:
            time.sleep(0.001)
        time.sleep(moments.random() * 0.03)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert not Outcome.of(run(folder, num_rounds=ROUNDS)).differences(whole)
    assert [int(row["round"]) for row in table(folder / "rounds.csv")] == list(range(1, ROUNDS + 1))
