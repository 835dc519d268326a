"""The file of the SuperLink's database: what is damaged in it, and its place, made free for a new one."""

import contextlib
import sqlite3
from datetime import UTC, datetime
from pathlib import Path


def find_damage(path: Path) -> str:
    """Return what is damaged in a database's file; "" for a file that is whole, or missing.

    sqlite3.OperationalError: it cannot be read just now, for example on a disk that is away.
    """
    if not path.exists():
        return ""
    address = f"{path.absolute().as_uri()}?mode=rw"
    try:
        with contextlib.closing(sqlite3.connect(address, timeout=60.0, uri=True)) as database:
            verdict = str(database.execute("PRAGMA quick_check(1)").fetchone()[0])
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError as error:
        return str(error)
    return "" if verdict == "ok" else verdict


def set_aside(path: Path) -> Path:
    """Rename a database and the files that SQLite keeps next to it; return the database's new name."""
    aside = f"{path.name}.damaged-{datetime.now(UTC):%Y%m%dT%H%M%S}"
    for file in path.parent.glob(f"{path.name}-*"):
        file.rename(path.with_name(file.name.replace(path.name, aside, 1)))
    return path.rename(path.with_name(aside))
