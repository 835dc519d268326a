"""A SuperLink with a door: what of Flower's is replaced, and the start of the process.

Everything that needs no credential in Flower's own asks for one here; replies have limits; nodes that ask for work are
answered once there is some; a run whose process died is given to another one; the database gives room back. Everything
else is Flower's. Started by `fairbloom server`.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fairbloom.logs import colour_on_terminals_alone, log
from fairbloom.system.parents import end_with_parent

from ...operator import audit
from ...operator.federation import Federation
from ...processes import leave, split_address
from ...server.connections import MOST_STRANGERS, MOST_STRANGERS_OVER_HTTP, Connections, raise_descriptors
from ...server.database import find_damage, set_aside
from ...server.memory import keep_trimmed
from ...server.refusals import RefusalLog
from ..relied_on import HTTP_APP, SQL, STATE_FACTORY, STORE_FACTORY, SUPERLINK, look_up, replace

PRAGMAS = (("busy_timeout", "60000"), ("journal_size_limit", str(64 << 20)))
"""Settings of SQLite: a call waits a minute for a busy database, not 5 s, and the log of changes is cut to 64 MB."""

REMEDY = "Enrolled clients are registered again; submit the runs again that were going on: they continue"
"""What follows of a database that is made anew."""

VACUUM_SECONDS, VACUUM_PAGES = 20.0, 4096
"""Seconds between two times at which room that is free in the database's file goes back to the disk, and how many pages
of it at a time."""

INCREMENTAL = 2
"""SQLite's number for a database whose free room can be given back a little at a time."""


def install_guards(federation: Federation, descriptors: int) -> Connections:
    """Replace what is open or brittle in Flower's SuperLink; return its ports' connections, which must be checked."""
    from ...server.long_poll import LongPoll
    from ...server.members import EnrolledMembers
    from ...server.overdue import Overdue
    from .control import LARGEST_HEAD, Operators, guard
    from .fleet import LARGEST_CALL, GuardedFleet
    from .fleet_server import fleet_server
    from .registration import register_enrolled
    from .run_state import RunState, RunStore

    refusals, long_poll, overdue = RefusalLog(federation.state), LongPoll(), Overdue()
    strangers = {federation.listen: MOST_STRANGERS, federation.control: MOST_STRANGERS_OVER_HTTP}
    ports = {int(place.rpartition(":")[2]): most for place, most in strangers.items()}
    connections = Connections(ports, descriptors, refusals)
    create_app = look_up(HTTP_APP, "create_app")

    def create_guarded_app(config: Any, superlink_lifespan_class: Any) -> Any:
        app = create_app(config, superlink_lifespan_class)
        guard(
            app,
            Operators(federation.operators),
            federation.state,
            federation.database,
            refusals,
            long_poll,
            connections,
            overdue,
        )
        return app

    replace(HTTP_APP, "create_app", create_guarded_app)
    replace(STATE_FACTORY, "SqlLinkState", RunState)
    replace(STORE_FACTORY, "SqlObjectStore", RunStore)
    members = EnrolledMembers(federation.path)

    def guarded_fleet(state_factory: Any, objectstore_factory: Any, enable_supernode_auth: bool) -> GuardedFleet:
        register_enrolled(state_factory.state(), federation.registry, federation.state)
        given = (state_factory, objectstore_factory, enable_supernode_auth)
        return GuardedFleet(*given, members=members, refusals=refusals, long_poll=long_poll, overdue=overdue)

    replace(SUPERLINK, "FleetServicer", guarded_fleet)
    replace(SUPERLINK, "GRPC_MAX_MESSAGE_LENGTH", LARGEST_CALL)
    create_server = partial(fleet_server, connections=connections, refusals=refusals)
    replace(SUPERLINK, "generic_create_grpc_server", create_server)
    # Operators who follow a run's log keep a call open, for which the server would wait when it is to stop.
    # h11, in place of uvicorn's faster parser, bounds what is read of a call's head.
    serve = partial(
        look_up(SUPERLINK, "uvicorn").run,
        timeout_graceful_shutdown=2,
        http="h11",
        h11_max_incomplete_event_size=LARGEST_HEAD,
        ws="none",
        proxy_headers=False,
    )
    replace(SUPERLINK, "uvicorn", SimpleNamespace(run=serve))
    kept = tuple(pragma for pragma in look_up(SQL, "SQLITE_PRAGMAS") if pragma[0] not in dict(PRAGMAS))
    replace(SQL, "SQLITE_PRAGMAS", kept + PRAGMAS)
    return connections


# The database -------------------------------------------------------------------------------------------------------


def prepare_database(path: Path) -> None:
    """Make the database's file, for its owner alone, or shrink it; a damaged file is set aside for a new one.

    sqlite3.Error: it cannot be used just now.
    """
    make_private(path)
    if damage := find_damage(path):
        aside = set_aside(path)
        log.error("%s is damaged (%s): it is kept as %s, and a new one is made. %s", path, damage, aside.name, REMEDY)
        with contextlib.suppress(OSError):  # a full disk does not keep the server from starting
            audit.note(path.parent, "damaged database set aside", file=aside.name, damage=damage)
        make_private(path)
    with connected(path) as database:
        if database.execute("PRAGMA auto_vacuum").fetchone()[0] != INCREMENTAL:
            convert(database)
        database.executescript("PRAGMA incremental_vacuum")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def make_private(path: Path) -> None:
    """Make a file for its owner alone, be it there or not."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(file, 0o600)
    finally:
        os.close(file)


def convert(database: sqlite3.Connection) -> None:
    """Let a database give room back, which takes room for a copy of it; where there is none, it stays as it is."""
    try:
        database.execute(f"PRAGMA auto_vacuum = {INCREMENTAL}")
        database.execute("VACUUM")
    except sqlite3.OperationalError as error:
        log.warning("the database's file cannot be made smaller: %s", error)


def shrink_database(path: Path) -> None:
    """Give some of what is free inside the database's file back to the disk."""
    with connected(path) as database:
        database.executescript(f"PRAGMA incremental_vacuum({VACUUM_PAGES})")  # by execute() it frees one page alone
        database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


def keep_small(path: Path) -> None:
    """Give back to the disk, forever, what becomes free inside the database's file.

    If the file was deleted or replaced, this process ends, and `fairbloom server` starts it again with the new one.
    """
    opened = path.stat().st_ino
    while True:
        time.sleep(VACUUM_SECONDS)
        if not is_file(path, opened):
            log.error("%s was deleted or replaced: the SuperLink is started again", path)
            leave(1)
        try:
            shrink_database(path)
        except sqlite3.OperationalError as error:
            log.warning("the database's file cannot be made smaller: %s", error)
        except sqlite3.DatabaseError as error:
            log.error("%s is damaged (%s): the SuperLink is started again", path, error)
            leave(1)


def is_file(path: Path, number: int) -> bool:
    """Return whether a path leads to the file of this number."""
    try:
        return path.stat().st_ino == number
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def connected(path: Path) -> Iterator[sqlite3.Connection]:
    """Give a connection to the database, beside Flower's, and close it."""
    with contextlib.closing(sqlite3.connect(path, timeout=60.0, isolation_level=None)) as database:
        yield database


# Start --------------------------------------------------------------------------------------------------------------


def arguments(federation: Federation) -> list[str]:
    """Return the arguments of flower-superlink that a federation's folder stands for."""
    host, port = split_address(federation.control)
    return [
        *("--isolation", "process", "--host", host, "--port", str(port)),
        *("--fleet-api-address", federation.listen, "--enable-supernode-auth"),
        *("--ssl-ca-certfile", str(federation.authority)),
        *("--ssl-certfile", str(federation.certificate), "--ssl-keyfile", str(federation.certificate_key)),
        *("--database", str(federation.database), "--superexec-auth-secret-file", str(federation.runtime_secret)),
        "--disable-runtime-dependency-installation",
    ]


def main(parent: int) -> None:
    """Run the SuperLink of the federation's folder that is named, as long as the parent lives."""
    end_with_parent(parent)
    os.umask(0o077)
    federation = Federation(Path(sys.argv[1]))
    connections = install_guards(federation, raise_descriptors())
    try:
        prepare_database(federation.database)
    except (OSError, sqlite3.Error) as error:
        sys.exit(f"fairbloom server: {federation.database} cannot be used: {error}")
    threading.Thread(target=keep_small, args=(federation.database,), daemon=True, name="look-after").start()
    threading.Thread(target=keep_trimmed, daemon=True, name="trim-memory").start()
    threading.Thread(target=connections.watch, daemon=True, name="watch-connections").start()
    sys.argv = ["flower-superlink", *arguments(federation)]
    colour_on_terminals_alone()
    look_up(SUPERLINK, "flower_superlink")()
