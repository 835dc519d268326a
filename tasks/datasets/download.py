"""Downloads of the files of known data sets, by Python's own library."""

import gzip
import shutil
import tarfile
from contextlib import nullcontext
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

from rich.console import Console
from rich.progress import wrap_file

from ..task import DataFile

TIMEOUT_SECONDS = 60.0
"""How long a server on the web may be silent."""


def fetch(file: DataFile, place: Path) -> None:
    """Download a file, or the archive that it is in, to its path below a folder, with a progress bar.

    Whatever goes wrong with the connection, the archive or the disk is raised as it is.
    """
    path = place / file.path
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        response = urlopen(file.address, timeout=TIMEOUT_SECONDS)  # noqa: S310 (an address of ours)
    except HTTPError as error:
        error.close()
        raise
    with response:
        said = f"downloading {path.name}"
        with wrap_file(response, response.length or 0, description=said, console=Console(stderr=True)) as content:
            if file.address.endswith(".tar.gz"):
                with tarfile.open(fileobj=content, mode="r|gz") as archive:
                    archive.extractall(place, filter="data")
                return
            packed = file.address.endswith(".gz")
            with path.open("wb") as written, gzip.open(content) if packed else nullcontext(content) as read:
                shutil.copyfileobj(read, written)
        if response.length:  # an archive says itself where it ends
            raise ConnectionError(f"the connection ended {response.length} bytes too early")
