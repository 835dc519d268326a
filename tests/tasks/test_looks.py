"""How often folders are looked into: once for each client of a run."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fairbloom.protocol.settings import RunSettings
from fairbloom.simulation.loop import LoopClients
from fairbloom.strategies import FedAvg
from fairbloom.tasks import digests, load_task

LISTED: list[str] = []
"""The folders that were looked into, one after the other."""


def note(event: str, arguments: tuple[Any, ...]) -> None:
    """Note a look into a folder."""
    if event in ("os.listdir", "os.scandir"):
        LISTED.append(str(arguments[0] or "."))


sys.addaudithook(note)


def looks(at: Path, work: Callable[[], object]) -> list[str]:
    """Return the folders from `at` on that were looked into during some work."""
    LISTED.clear()
    work()
    return [folder for folder in LISTED if Path(folder).is_relative_to(at)]


def write_images(folder: Path, clients: int) -> None:
    """Write ten images of two classes for each client."""
    for client in range(clients):
        for number in range(10):
            place = folder / f"c{client:02}" / ("cat", "dog")[number % 2]
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((4, 4, 3), number, np.uint8)).save(place / f"{number}.png")


def write_table(folder: Path) -> None:
    """Write a table for each of two clients, and a folder beside them with something else in it."""
    for name in ("a", "b"):
        (folder / f"{name}.csv").write_text("x,y\n" + "".join(f"{i},{i % 2}\n" for i in range(20)))
    (folder / "photos" / "old").mkdir(parents=True)
    (folder / "photos" / "old" / "a.csv").write_text("x,y\n1,0\n")


def test_clients_are_described_in_time_linear_in_them(tmp_path: Path) -> None:
    counts = []
    for clients in (4, 8):
        folder = tmp_path / str(clients)
        write_images(folder, clients)
        found = LoopClients(FedAvg(), RunSettings.of({"task": "image-folder", "data-dir": str(folder)}))
        counts.append(len(looks(folder, lambda found=found: found.sizes(found.online(1)))))  # type: ignore[misc]
    assert counts[0] > 0
    assert counts[1] <= 2 * counts[0]


def test_only_files_that_the_task_reads_are_looked_at(tmp_path: Path) -> None:
    write_table(tmp_path)
    config = {"task": "csv", "data-dir": str(tmp_path)}
    seen = looks(tmp_path, lambda: load_task(config).clients)
    assert seen
    assert not [folder for folder in seen if "photos" in folder]
    assert sorted(digests(config)) == ["a.csv", "b.csv"]
    before = load_task(config)
    (tmp_path / "photos" / "new.txt").write_text("nothing to learn from")
    assert load_task(config) is before
    (tmp_path / "a.csv").write_text("x,y\n" + "".join(f"{i},{i % 2}\n" for i in range(30)))
    assert load_task(config) is not before
