"""A run on a disk that is full: it says so, loses nothing that was there, and continues when there
is room."""

import errno
import logging
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairbloom.server.checkpoint import load_last
from fairbloom.server.run_folder.tables import TableWriter, format_csv
from fairbloom.simulation.run import simulate
from tests.commands import forked
from tests.simulation import disturbed
from tests.simulation.disturbed import LONG, STEP, UNDEALT
from tests.simulation.helpers import ROOT, Outcome, assert_whole, drafts, run, small, table

PAGE = 4096


@pytest.fixture(autouse=True, scope="module")
def quiet_rounds() -> Iterator[None]:
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(before)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return Outcome.of(
        run(
            tmp_path_factory.mktemp("whole") / "run",
            task=UNDEALT,
            method="fedavg",
            num_rounds=LONG,
            engine="loop",
        )
    )


def damage(folder: Path) -> str:
    """Return the first damage that a full disk has done: to tables or checkpoint, or by a draft."""
    try:
        for name in ("rounds.csv", "clients.csv"):
            if (folder / name).exists():
                assert_whole(folder / name)
        if checkpoint := load_last(folder / "checkpoint"):
            last = checkpoint[1]["strategy"]["finished_rounds"]
            recorded = [int(row["round"]) for row in table(folder / "rounds.csv")]
            assert recorded[:last] == list(range(1, last + 1)), (
                f"{recorded} are recorded up to {last}"
            )
    except AssertionError as error:
        return str(error)
    return ", ".join(map(str, drafts(folder)))


def difference(folder: Path, whole: Outcome) -> str:
    """Continue a run that a full disk has stopped; return in which fields it differs."""
    try:
        return Outcome.of(
            simulate(small(folder, task=UNDEALT, method="fedavg", num_rounds=LONG, engine="loop"))
        ).differences(whole)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


# Files that cannot grow ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Folders of one run with files of at most 0, STEP, 2·STEP … bytes; the last is undisturbed."""
    folder = tmp_path_factory.mktemp("full")
    done = forked(ROOT, disturbed.main, "full", str(folder), "fedavg", "1", seconds=1200.0)
    assert done.returncode == 0, done.stderr
    return [folder / str(number) for number in range(len(list(folder.glob("*.txt"))))]


def attempts(folder: Path) -> list[str]:
    return folder.with_suffix(".txt").read_text().splitlines()


@pytest.mark.slow
def test_a_full_disk_is_said_at_every_kind_of_file_and_each_time(
    limited: list[Path], subtests: pytest.Subtests
) -> None:
    for folder in limited[:-1]:
        with subtests.test(folder=folder):
            for message in attempts(folder)[:2]:
                assert message.startswith("RunFolderError: "), folder
                assert "File too large" in message, folder
    first = "\n".join(attempts(folder)[0] for folder in limited)
    assert "config.toml cannot be written" in first or "env.json cannot be written" in first
    assert "round 1 cannot be written" in first
    assert "round 12 cannot be written" in first
    assert attempts(limited[-1]) == ["finished", "finished"]


@pytest.mark.slow
def test_a_full_disk_costs_no_bits_of_the_continued_run(
    limited: list[Path], whole: Outcome
) -> None:
    wrong = []
    for number, folder in enumerate(limited[:-1]):
        if found := damage(folder) or difference(folder, whole):
            wrong.append(f"limit {number * STEP}: {found}")
    assert not wrong, "\n".join(wrong)


# A file system without room -----------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", place], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(
            f"a small file system cannot be mounted here: {mounted.stderr.decode().strip()}"
        )
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def fill(disk: Path, *, but_for: int) -> Path:
    ballast = disk / "ballast"
    try:
        with ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(PAGE))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
    with ballast.open("r+b") as file:
        file.truncate(ballast.stat().st_size - but_for)
    return ballast


@pytest.mark.parametrize("clients", [10, 100, 300, 1000])
def test_rows_that_do_not_fit_leave_the_table_as_it_was(disk: Path, clients: int) -> None:
    """Rows of many clients take several pages, of which the first may still have had room."""
    columns = ("round", "client", "test_examples")
    rows = [(2, f"client-{k:04}", 10**30 + k) for k in range(clients)]
    wrong = []
    for pages in range(12):
        table = TableWriter(disk / f"clients-{pages}.csv", columns)
        table.begin()
        table.add([(1, "client-0000", 8)])
        before = table.path.read_bytes()
        ballast = fill(disk, but_for=pages * PAGE)
        added = format_csv(columns, [dict(zip(columns, row, strict=True)) for row in rows])
        kept = before + added.partition("\n")[2].encode()
        try:
            table.add(rows)
        except OSError:
            if table.path.read_bytes() != before:
                wrong.append(
                    f"{pages} pages free: {len(table.path.read_bytes())} bytes instead of"
                    f" {len(before)}"
                )
            ballast.unlink()
            table.add(rows)  # now that there is room
        ballast.unlink(missing_ok=True)
        if table.path.read_bytes() != kept:
            wrong.append(
                f"{pages} pages free: {len(table.path.read_bytes())} bytes instead of {len(kept)}"
            )
        table.path.unlink()
    assert not wrong, "\n".join(wrong)
