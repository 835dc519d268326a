"""Where the files of known data sets lie: found below a data folder, downloaded on first use, and checked."""

import math
import os
from collections.abc import Callable
from functools import lru_cache
from hashlib import file_digest
from pathlib import Path
from tempfile import TemporaryDirectory

from fairbloom.errors import FairbloomError
from fairbloom.system.lock import exclusive_lock

from ..task import DataFile, Setup, TaskInfo

ENVIRONMENT = "FAIRBLOOM_DATA"
"""The environment variable that names the folder of known data sets, where no data-dir does."""

Fetch = Callable[[Path], None]
"""Downloads the files of a data set into a folder, laid out as they are read."""


def folder_of(setup: Setup) -> Path:
    """Return the folder below which known data sets lie: data-dir, else FAIRBLOOM_DATA, else a cache."""
    return Path(setup.data_dir or os.environ.get(ENVIRONMENT) or "~/.cache/fairbloom").expanduser()


def locate(info: TaskInfo, setup: Setup, fetch: Fetch) -> Path:
    """Return the folder below which the files of a known data set lie, downloaded if they are not there yet."""
    root = folder_of(setup)
    if _missing(root, info):
        _download(root, info, fetch)
    if setup.verify_data:
        for file in info.files:
            _check(root / file.path, file, info)
    return root


def _missing(root: Path, info: TaskInfo) -> list[DataFile]:
    return [file for file in info.files if not (root / file.path).is_file()]


def _download(root: Path, info: TaskInfo, fetch: Fetch) -> None:
    """Download a data set; it comes into its place file by file, whole, and once if several processes want it."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(root / f".{info.name}.lock", seconds=math.inf):
            if not _missing(root, info):
                return
            with TemporaryDirectory(dir=root, prefix=f".{info.name}-") as place:
                fetch(Path(place))
                for file in info.files:
                    (root / file.path).parent.mkdir(parents=True, exist_ok=True)
                    Path(place, file.path).replace(root / file.path)
    except FairbloomError:
        raise
    except Exception as error:  # whatever a library that downloads raises: no network, no such page, a full disk
        missing = _missing(root, info)
        raise FairbloomError(
            f"task = {info.name!r}: {missing[0].path if missing else 'a file'} is not in {root} and cannot be "
            f"downloaded ({type(error).__name__}: {' '.join(str(error).split())[:300]}): put the files there "
            f"({', '.join(file.path for file in info.files)}), or name the folder that has them by --data-dir or "
            f"{ENVIRONMENT}"
        ) from error


def _check(path: Path, file: DataFile, info: TaskInfo) -> None:
    about = path.stat()
    if file.md5 and (found := compute_md5(path, about.st_mtime_ns, about.st_size)) != file.md5:
        raise FairbloomError(
            f"{path} is not the original of {info.name}: its md5 is {found}, and the original's {file.md5}. Delete it, "
            "and it is downloaded again; or take it as it is by --set verify-data=false"
        )


@lru_cache(maxsize=256)
def compute_md5(path: Path, changed: int, size: int) -> str:
    """Return the md5 of a file, computed again when the time of its last change or its size is another."""
    with path.open("rb") as content:
        return file_digest(content, "md5").hexdigest()
