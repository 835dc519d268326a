"""The files of known data sets: find them in the data folder, download missing ones, check them."""

import gzip
import math
import os
import shutil
import tarfile
from collections.abc import Sequence
from contextlib import nullcontext
from functools import lru_cache
from hashlib import file_digest
from pathlib import Path
from tempfile import TemporaryDirectory

from fairbloom.errors import FairbloomError
from fairbloom.system.files import expand_home
from fairbloom.system.lock import exclusive_lock

from ..task import Setup
from ..task_info import DataFile, TaskInfo

# The environment variable with the folder of known data sets, if the run sets no data-dir.
ENVIRONMENT = "FAIRBLOOM_DATA"


def folder_of(setup: Setup) -> Path:
    """Return the folder of known data sets: data-dir, else FAIRBLOOM_DATA, else a cache."""
    place = setup.data_dir or os.environ.get(ENVIRONMENT) or "~/.cache/fairbloom"
    return expand_home(place, f"name the folder by data-dir or {ENVIRONMENT}")


def locate(info: TaskInfo, setup: Setup, files: Sequence[DataFile] = ()) -> list[Path]:
    """Return the paths of files of a known data set, by default all; download missing ones."""
    root = folder_of(setup)
    wanted = files or info.files
    if _missing(root, wanted):
        _download(info.name, root, wanted)
    if setup.verify_data:
        for file in wanted:
            path = root / file.path
            if not file.md5:
                continue
            found = digest_of(path, "md5")
            if found != f"md5 {file.md5}":
                raise FairbloomError(
                    f"{path} is not the original of {info.name}: its digest is {found}, and the"
                    f" original's md5 {file.md5}. Delete it, and it is downloaded again; or take it"
                    " as it is by --set verify-data=false"
                )
    return [root / file.path for file in wanted]


def _missing(root: Path, files: Sequence[DataFile]) -> list[DataFile]:
    return [file for file in files if not (root / file.path).is_file()]


def _download(name: str, root: Path, files: Sequence[DataFile]) -> None:
    """Download files; each is moved to its path when complete, and once for several processes."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with (
            exclusive_lock(root / f".{name}.lock", seconds=math.inf),
            TemporaryDirectory(dir=root, prefix=f".{name}-") as place,
        ):
            for file in _missing(root, files):
                fetched = Path(place, file.path)
                if not fetched.is_file():  # else it came with another file's archive
                    fetch(file, Path(place))
                (root / file.path).parent.mkdir(parents=True, exist_ok=True)
                fetched.replace(root / file.path)
    except Exception as error:  # no network, no such page, half a file, a full disk …
        lost = next((file.path for file in _missing(root, files)), "a file")
        why = " ".join(str(error).split())[:300]
        raise FairbloomError(
            f"task = {name!r}: {lost} is not in {root} and"
            f" cannot be downloaded ({type(error).__name__}: {why}):"
            f" put the files there ({', '.join(file.path for file in files)}), or name the folder"
            f" that has them by --data-dir or {ENVIRONMENT}"
        ) from error


def fetch(file: DataFile, place: Path) -> None:
    """Download a file, or its archive, to its path below a folder, with a progress bar.

    Exceptions of the connection, the archive or the disk are raised unchanged.
    """
    from urllib.error import HTTPError  # imported late, all of these: most runs download nothing
    from urllib.request import urlopen

    from rich.console import Console
    from rich.progress import wrap_file

    if not file.address:
        raise ValueError("no server offers it in this format")
    path = place / file.path
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        response = urlopen(file.address, timeout=60.0)  # seconds of silence  # noqa: S310 (an address of ours)
    except HTTPError as error:
        error.close()
        raise
    with response:
        with wrap_file(
            response,
            response.length or 0,
            description=f"downloading {path.name}",
            console=Console(stderr=True),
        ) as content:
            if file.address.endswith(".tar.gz"):
                with tarfile.open(fileobj=content, mode="r|gz") as archive:
                    archive.extractall(place, filter="data")
                return
            is_packed = file.address.endswith(".gz")
            with (
                path.open("wb") as written,
                gzip.open(content) if is_packed else nullcontext(content) as read,
            ):
                shutil.copyfileobj(read, written)
        if response.length:  # archives, which returned above, detect a missing end themselves
            raise ConnectionError(f"the connection ended {response.length} bytes too early")


def digest_of(path: Path, algorithm: str) -> str:
    """Return a file's checksum, after its algorithm.

    It is computed again if the file's size or its time of change differs.
    """
    about = path.stat()
    # not the time of modification, which a copy may keep
    return _digest(path, algorithm, about.st_ctime_ns, about.st_size)


@lru_cache(maxsize=4096)
def _digest(path: Path, algorithm: str, changed: int, size: int) -> str:
    with path.open("rb") as content:
        return f"{algorithm} {file_digest(content, algorithm).hexdigest()}"


def digest_files(info: TaskInfo, setup: Setup) -> dict[str, str]:
    """Return the md5 of each file of a known data set; verified files are not read again."""
    found = {}
    for file in info.files:
        path = folder_of(setup) / file.path
        if not path.is_file():
            raise FairbloomError(
                f"{path} is missing: put it there, or name a folder that has all files by"
                " --data-dir"
            )
        found[file.path] = (
            f"md5 {file.md5}" if setup.verify_data and file.md5 else digest_of(path, "md5")
        )
    return found
