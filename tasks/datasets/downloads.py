"""Data sets of the UCI archive, whose files have the same paths there as below a data folder."""

from pathlib import Path

from ..task import TaskInfo
from .store import library

UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases"


def fetch(info: TaskInfo, place: Path) -> None:
    """Download the files of a data set into a folder, with a progress bar; each must have its checksum."""
    retrieve = library("pooch", "downloads").retrieve
    for file in info.files:
        path = place / file.path
        retrieve(f"{UCI}/{file.path}", f"md5:{file.md5}", fname=path.name, path=path.parent, progressbar=True)
