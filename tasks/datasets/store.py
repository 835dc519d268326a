"""Where the files of known data sets lie: found below a data folder, downloaded on first use, and checked."""

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
from fairbloom.system.lock import exclusive_lock

from ..task import Setup
from ..task_info import DataFile, TaskInfo

ENVIRONMENT = "FAIRBLOOM_DATA"
"""The environment variable that names the folder of known data sets, where no data-dir does."""


def folder_of(setup: Setup) -> Path:
    """Return the folder below which known data sets lie: data-dir, else FAIRBLOOM_DATA, else a cache."""
    return Path(setup.data_dir or os.environ.get(ENVIRONMENT) or "~/.cache/fairbloom").expanduser()


def locate(info: TaskInfo, setup: Setup, files: Sequence[DataFile] = ()) -> list[Path]:
    """Return where some files of a known data set lie, by default all.

    Those that are missing are downloaded.
    """
    root = folder_of(setup)
    wanted = files or info.files
    if _missing(root, wanted):
        _download(info.name, root, wanted)
    if setup.verify_data:
        for path, file in [(root / file.path, file) for file in wanted if file.md5]:
            if (found := digest_of(path, "md5")) != file.md5:
                raise FairbloomError(
                    f"{path} is not the original of {info.name}: its md5 is {found}, and the"
                    f" original's {file.md5}. Delete it, and it is downloaded again; or take it as"
                    " it is by --set verify-data=false"
                )
    return [root / file.path for file in wanted]


def _missing(root: Path, files: Sequence[DataFile]) -> list[DataFile]:
    return [file for file in files if not (root / file.path).is_file()]


def _download(name: str, root: Path, files: Sequence[DataFile]) -> None:
    """Download files; each comes into its place whole, and once if several processes want it."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with (
            exclusive_lock(root / f".{name}.lock", seconds=math.inf),
            TemporaryDirectory(dir=root, prefix=f".{name}-") as place,
        ):
            for file in _missing(root, files):
                fetched = Path(place, file.path)
                if not fetched.is_file():  # it may have come with another file's archive
                    fetch(file, Path(place))
                (root / file.path).parent.mkdir(parents=True, exist_ok=True)
                fetched.replace(root / file.path)
    except (
        Exception
    ) as error:  # whatever no network, no such page, half a file or a full disk raises
        missing = _missing(root, files)
        raise FairbloomError(
            f"task = {name!r}: {missing[0].path if missing else 'a file'} is not in {root} and"
            f" cannot be downloaded ({type(error).__name__}: {' '.join(str(error).split())[:300]}):"
            f" put the files there ({', '.join(file.path for file in files)}), or name the folder"
            f" that has them by --data-dir or {ENVIRONMENT}"
        ) from error


def fetch(file: DataFile, place: Path) -> None:
    """Download a file, or the archive that it is in, to its path below a folder, with a progress bar.

    Whatever goes wrong with the connection, the archive or the disk is raised as it is.
    """
    from urllib.error import HTTPError  # imported late, all of these: most runs download nothing
    from urllib.request import urlopen

    from rich.console import Console
    from rich.progress import wrap_file

    path = place / file.path
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        response = urlopen(file.address, timeout=60.0)  # seconds of silence  # noqa: S310 (an address of ours)
    except HTTPError as error:
        error.close()
        raise
    with response:
        said = f"downloading {path.name}"
        with wrap_file(
            response, response.length or 0, description=said, console=Console(stderr=True)
        ) as content:
            if file.address.endswith(".tar.gz"):
                with tarfile.open(fileobj=content, mode="r|gz") as archive:
                    archive.extractall(place, filter="data")
                return
            packed = file.address.endswith(".gz")
            with (
                path.open("wb") as written,
                gzip.open(content) if packed else nullcontext(content) as read,
            ):
                shutil.copyfileobj(read, written)
        if response.length:  # an archive says itself where it ends
            raise ConnectionError(f"the connection ended {response.length} bytes too early")


def digest_of(path: Path, algorithm: str) -> str:
    """Return a file's checksum, computed again when the time of its last change or its size is another."""
    about = path.stat()
    return _digest(path, algorithm, about.st_mtime_ns, about.st_size)


@lru_cache(maxsize=4096)
def _digest(path: Path, algorithm: str, changed: int, size: int) -> str:
    with path.open("rb") as content:
        return file_digest(content, algorithm).hexdigest()


def digest_files(info: TaskInfo, setup: Setup) -> dict[str, str]:
    """Return the md5 of each file of a known data set.

    One that has been verified is not read once more.
    """
    found = {}
    for file in info.files:
        path = folder_of(setup) / file.path
        if not path.is_file():
            raise FairbloomError(
                f"{path} is missing: put it there, or name a folder that has all files by"
                " --data-dir"
            )
        found[file.path] = (setup.verify_data and file.md5) or digest_of(path, "md5")
    return found
