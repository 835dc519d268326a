"""How many questions a device answers: messages with a model, to train or to evaluate."""

import errno
import sqlite3
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
    state_dir: Path,
    run: str,
    question: str,
    rounds: int,
    *,
    a_day: int,
    a_run: int | None,
    until: float,
) -> None:
    """Count a question of a run; raise SettingRefusedError if there were too many.

    `run` is the fingerprint of its settings; `question` is the digest of a message, which counts
    once. `rounds` is the number of its rounds, 0 for an unknown one; a shorter run with the same
    settings may ask as much as a longer one. `a_run` is None without a limit. The count is written
    again while the disk refuses it, up to the moment `until`; see `write_until`.
    """

    def count() -> None:
        try:
            with closing(sqlite3.connect(state_dir / FILE, timeout=60.0)) as database, database:
                _count(database, run, question, rounds, a_day, a_run)
        except sqlite3.OperationalError as error:  # a full disk, or a lock
            raise OSError(errno.EIO, str(error)) from error

    try:
        write_until(count, until, state_dir)
    except (OSError, sqlite3.DatabaseError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise SettingRefusedError(
            f"{FILE} in this client's state-dir cannot be used ({why}), and no message is answered"
            " uncounted: free space on its disk, or delete the file if it is damaged"
        ) from error


def _count(
    database: sqlite3.Connection,
    run: str,
    question: str,
    rounds: int,
    a_day: int,
    a_run: int | None,
) -> None:
    day = datetime.now(UTC).date().isoformat()
    database.execute(TABLE)
    database.execute("CREATE INDEX IF NOT EXISTS days ON asked (day)")
    if not database.execute(
        "INSERT OR IGNORE INTO asked VALUES (?, ?, ?, ?)", (run, question, day, rounds)
    ).rowcount:
        return
    (of_day,) = database.execute("SELECT count(*) FROM asked WHERE day = ?", (day,)).fetchone()
    of_run, most_rounds = database.execute(
        "SELECT count(*), max(rounds) FROM asked WHERE run = ?", (run,)
    ).fetchone()
    _check("questions-a-day", of_day, a_day)
    if a_run is not None or most_rounds:
        _check("questions-a-run", of_run, a_run or A_ROUND * most_rounds)


def _check(name: str, count: int, most: int) -> None:
    if not count <= most:
        raise SettingRefusedError(
            f"this device answers {most} messages with a model ({name}), and this is one more: the"
            " device's owner may raise it (limits, in owner.toml)"
        )
