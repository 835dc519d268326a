"""How many questions a device answers: messages with a model, to train or to evaluate.

Those of runs with the same settings count anew with each month (UTC).
"""

import errno
import math
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from fairbloom.protocol.settings import FINGERPRINT, usual_fraction
from fairbloom.system.retry import retry_write

from .accepted_settings import SettingRefusedError
from .limits import Limits

FILE = "questions.sqlite"

TABLE = """
    CREATE TABLE IF NOT EXISTS asked
    (run TEXT, question TEXT, day TEXT, rounds INTEGER, month TEXT, UNIQUE (run, question, month))
"""

# Questions of a run for each of its rounds, unless the owner sets another number for the run.
A_ROUND = 4

# Clients of a run that does not say how many it has.
MANY = 1000

REMEDY = "the device's owner may raise it (limits, in owner.toml)"


@dataclass(frozen=True)
class Asking:
    """The run that asks a device.

    `settings` is their fingerprint. `rounds` is the number of its rounds, 0 if it is unknown; a
    shorter run with the same settings may ask as much as a longer one. `planned` are the questions
    that it will ask, at least.
    """

    settings: str
    rounds: int
    planned: int

    @classmethod
    def of(cls, run: Mapping[str, Any], accepted: Mapping[str, Any]) -> "Asking":
        """Return what a run's settings say, those that the device has accepted among them."""
        rounds = int(accepted.get("num-rounds", 0))
        # without a fraction, clients of an unknown number are sampled
        usual = usual_fraction(int(run.get("clients") or MANY))
        training = float(run.get("fraction") or usual)
        every = int(run.get("evaluate-every", 1))
        tests = float(run.get("fraction-evaluate") or 1.0) * (rounds // every if every else 1)
        return cls(str(accepted[FINGERPRINT]), rounds, math.floor(rounds * training + tests))


class Questions:
    """The questions that a device has answered, in a file of its state folder."""

    def __init__(self, state_dir: Path) -> None:
        self._file = state_dir / FILE
        now = datetime.now(UTC)
        self._day = now.date().isoformat()
        self._month = self._day[:7]
        self._opens = (now.date().replace(day=1) + timedelta(days=32)).replace(day=1)

    def count(self, asking: Asking, question: str, limits: Limits) -> None:
        """Count a question, the digest of a message, which counts once in a month.

        Raise SettingRefusedError if there were too many.
        """

        def count(database: sqlite3.Connection) -> None:
            row = (asking.settings, question, self._day, asking.rounds, self._month)
            if not database.execute(
                "INSERT OR IGNORE INTO asked VALUES (?, ?, ?, ?, ?)", row
            ).rowcount:
                return
            (of_day,) = database.execute(
                "SELECT count(*) FROM asked WHERE day = ?", (self._day,)
            ).fetchone()
            of_run, rounds = self._find(database, asking)
            if not of_day <= limits.questions_a_day:
                raise SettingRefusedError(
                    f"this device answers {limits.questions_a_day} messages with a model"
                    f" (questions-a-day), and this is one more: it answers again tomorrow (UTC);"
                    f" {REMEDY}"
                )
            most = _most_of_run(limits, rounds)
            if not of_run <= most:
                raise SettingRefusedError(
                    f"this device answers {most} messages with a model (questions-a-run) of runs"
                    f" with the same settings, and this is one more: {self._remedy}"
                )

        self._use(count)

    def check_left(self, asking: Asking, limits: Limits) -> None:
        """Raise SettingRefusedError if fewer questions are left than a new run will ask."""

        def check(database: sqlite3.Connection) -> None:
            of_run, rounds = self._find(database, asking)
            most = _most_of_run(limits, max(rounds, asking.rounds))
            needed = of_run + asking.planned
            if of_run and not needed <= most:
                raise SettingRefusedError(
                    f"{most - of_run} of {most} messages with a model are left for runs with the"
                    f" same settings (questions-a-run), and this run of {asking.rounds} rounds"
                    f" sends about {asking.planned}; a mended file begins no new count. They begin"
                    f" anew on {self._opens} (UTC); the device's owner may allow the run by"
                    f" questions-a-run = {needed} or more (limits, in owner.toml), a number for all"
                    " runs"
                )

        if self._file.exists():
            self._use(check)

    def describe(self, limits: Limits) -> Iterator[str]:
        """Yield a line for each kind of run that has asked in this month."""
        found = list[str]()

        def describe(database: sqlite3.Connection) -> None:
            asked = database.execute(
                "SELECT run, count(*), max(rounds) FROM asked WHERE month = ? GROUP BY run",
                (self._month,),
            )
            for settings, of_run, rounds in asked:
                most = _most_of_run(limits, rounds)
                if most < math.inf:
                    found.append(
                        f"settings {settings[:12]}: {max(0, most - of_run)} of {most} messages with"
                        f" a model left (questions-a-run), until {self._opens}"
                    )

        if self._file.exists():
            self._use(describe)
        return iter(found)

    @property
    def _remedy(self) -> str:
        return f"they begin anew on {self._opens} (UTC); {REMEDY}"

    def _find(self, database: sqlite3.Connection, asking: Asking) -> tuple[int, int]:
        """Return the questions of runs with these settings in this month, and their rounds."""
        of_run, rounds = database.execute(
            "SELECT count(*), max(rounds) FROM asked WHERE run = ? AND month = ?",
            (asking.settings, self._month),
        ).fetchone()
        return of_run, rounds or 0

    def _use(self, work: Callable[[sqlite3.Connection], None]) -> None:
        """Do work on the file; raise SettingRefusedError if it cannot be used."""

        def use() -> None:
            try:
                with closing(sqlite3.connect(self._file, timeout=60.0)) as database, database:
                    database.execute(TABLE)
                    database.execute("CREATE INDEX IF NOT EXISTS days ON asked (day)")
                    work(database)
            except sqlite3.OperationalError as error:  # a full disk, or a lock
                raise OSError(errno.EIO, str(error)) from error

        try:
            retry_write(use, self._file.parent)
        except (OSError, sqlite3.DatabaseError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise SettingRefusedError(
                f"{FILE} in this client's state-dir cannot be used ({why}), and no message is"
                " answered uncounted: free space on its disk, or delete the file if it is damaged"
            ) from error


def _most_of_run(limits: Limits, rounds: int) -> float:
    """Return the most questions of runs with the same settings in a month."""
    return limits.questions_a_run or A_ROUND * rounds or math.inf
