"""The server's disk is full: the run waits, and continues by itself once there is room."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.deployment import Deployment, names, rounds, wait_for_rounds
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from tests.simulation.helpers import assert_same_model

pytestmark = pytest.mark.federation

CLIENTS = names(2)
ROUNDS = 60
SETTINGS: dict[str, Any] = {
    "smallest-batch": 5,
    "clients": len(CLIENTS),
    "fraction": 1.0,
    "num-rounds": ROUNDS,
    "evaluate-every": 0,
    "device": "cpu",
    "round-timeout": 300.0,
}
FULL_SECONDS = 5.0


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Deployment]:
    """A federation with its state on a disk of 24 MB, which holds messages and replies."""
    runtime = Deployment(tmp_path / "home")
    with (runtime.folder / "federation.toml").open("a") as file:
        file.write("mailbox-memory = 1000\n")
    state = runtime.folder / "state"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m,mode=700", "tmpfs", state], capture_output=True
    )
    if mounted.returncode:
        runtime.close()
        pytest.skip(
            f"a small file system cannot be mounted here: {mounted.stderr.decode().strip()}"
        )
    try:
        runtime.start_server()
        runtime.enroll(*CLIENTS)
        runtime.start_clients(*CLIENTS)
        yield runtime
    finally:
        runtime.close()
        subprocess.run(["umount", "-l", state], check=True)


def fill(file: Path) -> None:
    with file.open("wb", buffering=0) as hog:
        for size in (1 << 20, 1 << 12):
            try:
                while True:
                    hog.write(bytes(size))
            except OSError:
                continue


def test_the_run_waits_for_room_and_ends_as_undisturbed(
    there: Deployment, tmp_path: Path, out: Path
) -> None:
    submitted = there.submitting({**SETTINGS, "out": str(out)})
    wait_for_rounds(out, 3)
    hog = there.folder / "state" / "hog"
    fill(hog)
    before = 0
    while len(rounds(out)) > before:
        before = len(rounds(out))
        time.sleep(FULL_SECONDS)
    assert before < ROUNDS
    assert submitted.poll() is None
    hog.unlink()
    until = time.monotonic() + 200.0
    while submitted.poll() is None and time.monotonic() < until:
        time.sleep(0.2)
    logs = [
        there.log(process)[-5000:] for process in (submitted, there.server, *there.clients.values())
    ]
    assert submitted.poll() == 0, "\n=====\n".join(logs)
    assert [row["missing"] + row["refused"] for row in rounds(out)] == [""] * ROUNDS
    assert_same_model(out, simulate(Settings.of({**SETTINGS, "out": str(tmp_path / "expected")})))
