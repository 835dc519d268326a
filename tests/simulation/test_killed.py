"""A run that is killed at any moment continues with the same call and ends with the same bits."""

import random
import signal
import time
from pathlib import Path

import pytest

from fairbloom.server.checkpoint import load_last
from fairbloom.server.run_folder import recorder
from fairbloom.simulation.run import simulate
from tests.commands import STARTED, forked

from . import disturbed
from .disturbed import SHORT
from .helpers import ROOT, Outcome, checkpoints_every, drafts, run, small, table

# Of the runs that are killed from outside.
ROUNDS = 40

# Seconds of one or a few of their rounds, which share a checkpoint.
SHARED = 0.005


Kills = tuple[str, int, list[Path]]


@pytest.fixture(
    scope="module",
    params=[("fedfv", 2), ("ditto", 1), ("ditto", 2), ("scaffold", 2)],
    ids=lambda param: f"{param}",
)
def killed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kills:
    """Return a method with memory, how many rounds share a checkpoint, and the folders of one run.

    It was killed before its first, second, … touch of a file; the last one is undisturbed. FedFV
    keeps old updates on the server, Ditto personal models with the clients, SCAFFOLD vectors on
    both sides that belong together; of all the mean of all models is saved.
    """
    (method, every) = request.param
    folder = tmp_path_factory.mktemp("killed")
    done = forked(ROOT, disturbed.main, "killed", str(folder), method, str(every), seconds=1200.0)
    assert done.returncode == 0, done.stderr
    return (
        method,
        every,
        [folder / str(number) for number in range(1 + max(int(p.name) for p in folder.iterdir()))],
    )


@pytest.mark.slow
def test_kills_met_the_run_around_every_checkpoint(killed: Kills) -> None:
    _, every, folders = killed
    reached = [
        0 if checkpoint is None else checkpoint[1]["strategy"]["finished_rounds"]
        for checkpoint in [load_last(folder / "checkpoint") for folder in folders]
    ]
    assert set(reached) == {*range(0, SHORT, every), SHORT}
    # At least before a draft and its renaming: rows may be written while the last one is saved.
    assert all(reached.count(number) >= 2 for number in set(reached) - {SHORT})


@pytest.mark.slow
def test_a_run_killed_at_any_file_ends_with_the_same_bits(
    killed: Kills, subtests: pytest.Subtests
) -> None:
    method, every, folders = killed
    whole = Outcome.of(folders[-1])
    wrong = []
    for moment, folder in enumerate(folders[:-1]):
        with subtests.test(moment=moment, folder=folder):
            left = sorted(path.name for path in folder.rglob("*") if path.is_file())
            try:
                with checkpoints_every(every):
                    run(folder, method=method, num_rounds=SHORT, engine="loop", average_models=True)
                result = Outcome.of(folder).differences(whole) or ", ".join(
                    map(str, drafts(folder))
                )
            except Exception as error:
                result = f"{type(error).__name__}: {error}"
            if result:
                wrong.append(f"killed at touch {moment}, which left {left}: {result}")
    assert not wrong, "\n".join(wrong)


def slowly(folder: Path) -> None:
    """Run with a pause after each round, in which the process may be met; it waits to be killed
    before the last one."""
    recorder.SHARED_SECONDS = SHARED
    simulate(
        small(folder, num_rounds=ROUNDS),
        lambda row: time.sleep(600.0 if row.number == ROUNDS - 1 else 0.005),
    )


@pytest.mark.slow
def test_a_run_killed_from_outside_ends_with_the_same_bits(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    whole = Outcome.of(run(tmp_path / "whole", num_rounds=ROUNDS))
    folder = tmp_path / "run"
    moments = random.Random(0)
    rows = tmp_path / "run" / "rounds.csv"
    for after in sorted(moments.sample(range(ROUNDS - 10), 2)):
        with subtests.test(after=after):
            process = STARTED.Process(target=slowly, args=(folder,))
            process.start()
            while process.is_alive() and not (
                rows.exists() and len(rows.read_bytes().splitlines()) > after
            ):
                time.sleep(0.001)
            time.sleep(moments.random() * 0.03)
            process.kill()
            process.join()
            assert process.exitcode == -signal.SIGKILL
    assert not Outcome.of(run(folder, num_rounds=ROUNDS)).differences(whole)
    assert [int(row["round"]) for row in table(folder / "rounds.csv")] == list(range(1, ROUNDS + 1))
