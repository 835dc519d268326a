"""How many questions a device answers: messages with a model, to train or to evaluate."""

import errno
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from fairbloom.system.retry import write_until

from .accepted_settings import SettingRefusedError

FILE = "questions.sqlite"

TABLE = """
    CREATE TABLE IF NOT EXISTS asked
    (run TEXT, question TEXT, day TEXT, rounds INTEGER, UNIQUE (run, question))
"""

# Questions of a run for each of its rounds, unless the owner sets another number for the run.
A_ROUND = 4


def count_question(
    state_dir: Path, run: str, question: str, rounds: int, *, a_day: int, a_run: int | None
) -> None:
    """Count a question of a run; raise SettingRefusedError if there were too many.

    Raise OSError if that cannot be written now.

    `run` is the fingerprint of its settings; `question` is the digest of a message, which counts
    once. `rounds` is the number of its rounds, 0 for an unknown one; a shorter run with the same
    settings may ask as much as a longer one.
    """
    day = datetime.now(UTC).date().isoformat()
    try:
        with closing(sqlite3.connect(state_dir / FILE, timeout=60.0)) as database, database:
            database.execute(TABLE)
            database.execute("CREATE INDEX IF NOT EXISTS days ON asked (day)")
            row = (run, question, day, rounds)
            asked = database.execute("INSERT OR IGNORE INTO asked VALUES (?, ?, ?, ?)", row)
            if not asked.rowcount:
                return
            (of_day,) = database.execute(
                "SELECT count(*) FROM asked WHERE day = ?", (day,)
            ).fetchone()
            of_run, most_rounds = database.execute(
                "SELECT count(*), max(rounds) FROM asked WHERE run = ?", (run,)
            ).fetchone()
            _check("questions-a-day", of_day, a_day)
            if a_run is not None or most_rounds:
                _check("questions-a-run", of_run, a_run or A_ROUND * most_rounds)
    except sqlite3.OperationalError as error:  # a full disk, or a lock
        raise OSError(errno.EIO, str(error)) from error
    except sqlite3.DatabaseError as error:
        raise _unusable(error) from error


def count_until(count: Callable[[], None], until: float, state_dir: Path) -> None:
    """Count a question, and again where the disk refuses it, until a moment; see `write_until`.

    Raise SettingRefusedError then.
    """
    try:
        write_until(count, until, state_dir)
    except OSError as error:
        raise _unusable(error.strerror) from error


def _unusable(why: object) -> SettingRefusedError:
    return SettingRefusedError(
        f"{FILE} in this client's state-dir cannot be used ({why}), and no message is answered"
        " uncounted: free space on its disk, or delete the file if it is damaged"
    )


def _check(name: str, count: int, most: int) -> None:
    if not count <= most:
        raise SettingRefusedError(
            f"this device answers {most} messages with a model ({name}), and this is one more: the"
            " device's owner may raise it (limits, in owner.toml)"
        )
