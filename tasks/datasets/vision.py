"""Data sets that torchvision downloads, laid out as it lays them out."""

from pathlib import Path

from .store import library


def fetch(dataset: str, place: Path) -> None:
    """Download one of torchvision's data sets into a folder, with its progress bar and checksums.

    Raises
    ------
    ImportError
        When torchvision is not installed; the message says how to install it.
    """
    getattr(library("torchvision.datasets", "images"), dataset)(place, download=True)
