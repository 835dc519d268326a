"""Files that are written whole or not at all, whatever happens meanwhile."""

import os
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that, whatever happens, either the old or the new content is there, and stays there."""
    draft = path.with_name(f".{path.name}.draft")
    try:
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        sync_folder(path.parent)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def make_folder(folder: Path) -> None:
    """Make a folder, for its owner alone, and those above it that are missing: none is lost when the power fails."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for place in missing:
        sync_folder(place.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the disk knows which files a folder has."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
