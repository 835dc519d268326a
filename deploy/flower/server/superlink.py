"""The SuperLink: Flower's app behind our door, our port of the fleet API, and the database.

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
from typing import Any

import uvicorn
from fastapi import FastAPI
from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin
from flwr.superlink.config_loader import SuperLinkLifespanConfig
from flwr.superlink.main import create_app

from fairbloom.logs import colour_on_terminals_alone, log
from fairbloom.system.parents import end_with_parent
from fairbloom.system.supervise import CANNOT_RUN

from ...operator.federation import Federation
from ...processes import leave, split_address
from ...server.connections import MOST_STRANGERS, MOST_STRANGERS_OVER_HTTP, Connections, raise_descriptors
from ...server.database import find_damage, set_aside
from ...server.long_poll import LongPoll
from ...server.members import Members
from ...server.memory import keep_trimmed
from ...server.refusals import RefusalLog
from ...server.shared import Shared
from ..gate import FlowerVersionError
from ..relied_on import SQL, STATE_FACTORY, STORE_FACTORY, look_up, replace
from .control import LARGEST_HEAD, guard
from .fleet import Fleet
from .fleet_server import Pipeline, fleet_server
from .registration import register_enrolled
from .run_state import RunState, RunStore

UNREAD = (
    *("event_log_plugin", "fleet_event_log_plugin", "health_server_address", "artifact_provider", "certificates"),
    *("fleet_api_address", "ssl_ca_certfile", "ssl_certfile", "ssl_keyfile"),
)
"""Settings of Flower's for servers of its own, which are not started."""

PRAGMAS = (("busy_timeout", "60000"), ("journal_size_limit", str(64 << 20)))
"""Settings of SQLite: a call waits a minute for a busy database, not 5 s, and the log of changes is cut to 64 MB."""

REMEDY = "Enrolled clients are registered again; submit the runs again that were going on: they continue"
"""What follows of a database that is made anew."""

INCREMENTAL = 2
"""SQLite's number for a database whose free room can be given back a little at a time."""

VACUUM_SECONDS, VACUUM_PAGES = 20.0, 4096
"""Seconds between two times at which room that is free in the database's file goes back to the disk, and how many pages
of it at a time."""


class FleetPort:
    """Our port of the fleet API, which Flower's app makes, starts and stops in place of servers of Flower's own."""

    def __init__(self, config: Any, state_factory: Any, *, shared: Shared) -> None:
        federation, refusals, connections = shared.federation, shared.refusals, shared.connections
        state, members, long_poll = state_factory.state(), Members(federation.path), LongPoll()
        state.on_message = long_poll.wake
        register_enrolled(state, federation.registry)
        fleet = Fleet(state, members=members, refusals=refusals, long_poll=long_poll, overdue=shared.overdue)
        port = split_address(federation.listen)[1]
        pipeline = Pipeline(fleet.calls(), state, members, port, connections, refusals, shared.turns)
        files = (federation.authority, federation.certificate, federation.certificate_key)
        authority, certificate, key = (file.read_bytes() for file in files)
        self._server = fleet_server(pipeline, federation.listen, (authority, certificate, key), connections.most)

    def startup(self) -> None:
        """Answer calls."""
        self._server.start()

    def shutdown(self) -> None:
        """Stop listening."""
        self._server.stop(grace=1)


def make_app(shared: Shared) -> FastAPI:
    """Return Flower's app behind our door, with our port of the fleet API beside it."""
    host, port = split_address(shared.federation.control)
    config = SuperLinkLifespanConfig(
        host=host,
        port=port,
        database=str(shared.federation.database),
        authn_plugin=NoOpControlAuthnPlugin(),  # nobody gets to it without a credential
        enable_event_log=False,
        enable_supernode_auth=True,
        superexec_auth_secret=None,  # the door asks for it
        isolation="process",
        runtime_dependency_install=False,
        simulation=False,
        insecure=False,
        control_address="",
        fleet_api_type="grpc-rere",
        **dict.fromkeys(UNREAD),
    )
    app = create_app(config, partial(FleetPort, shared=shared))  # type: ignore[arg-type]
    guard(app, shared)
    return app


def prepare_flower() -> None:
    """Let Flower keep its state in our classes, with our settings of SQLite."""
    replace(STATE_FACTORY, "SqlLinkState", RunState)
    replace(STORE_FACTORY, "SqlObjectStore", RunStore)
    kept = tuple(pragma for pragma in look_up(SQL, "SQLITE_PRAGMAS") if pragma[0] not in dict(PRAGMAS))
    replace(SQL, "SQLITE_PRAGMAS", kept + PRAGMAS)


# The database -------------------------------------------------------------------------------------------------------


def prepare_database(path: Path) -> None:
    """Make the database's file, for its owner alone, or shrink it; a damaged file is set aside for a new one.

    sqlite3.Error: it cannot be used just now.
    """
    make_private(path)
    if damage := find_damage(path):
        aside = set_aside(path)
        log.error("%s is damaged (%s): it is kept as %s, and a new one is made. %s", path, damage, aside.name, REMEDY)
        make_private(path)
    with connected(path) as database:
        if database.execute("PRAGMA auto_vacuum").fetchone()[0] != INCREMENTAL:  # a new one
            database.executescript(f"PRAGMA auto_vacuum = {INCREMENTAL}; VACUUM")
        database.executescript("PRAGMA incremental_vacuum")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def make_private(path: Path) -> None:
    """Make a file for its owner alone, be it there or not."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(file, 0o600)
    finally:
        os.close(file)


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


def main(parent: int) -> None:
    """Run the SuperLink of the federation's folder that is named, as long as the parent lives."""
    end_with_parent(parent)
    os.umask(0o077)
    federation = Federation(Path(sys.argv[1]))
    refusals = RefusalLog()
    strangers = {federation.listen: MOST_STRANGERS, federation.control: MOST_STRANGERS_OVER_HTTP}
    ports = {split_address(place)[1]: most for place, most in strangers.items()}
    connections = Connections(ports, raise_descriptors(), refusals)
    prepare_flower()
    try:
        prepare_database(federation.database)
    except (OSError, sqlite3.Error) as error:
        sys.exit(f"fairbloom server: {federation.database} cannot be used: {error}")
    threading.Thread(target=keep_small, args=(federation.database,), daemon=True, name="look-after").start()
    threading.Thread(target=keep_trimmed, daemon=True, name="trim-memory").start()
    threading.Thread(target=connections.watch, daemon=True, name="watch-connections").start()
    colour_on_terminals_alone()
    try:
        app = make_app(Shared(federation, connections, refusals))
    except FlowerVersionError as error:
        print(f"fairbloom server: {error}", file=sys.stderr, flush=True)
        sys.exit(CANNOT_RUN)
    host, port = split_address(federation.control)
    uvicorn.run(
        app,
        host=host,
        port=port,
        ssl_certfile=federation.certificate,
        ssl_keyfile=federation.certificate_key,
        log_level="error",  # a warning for each request that is no HTTP would fill the disk
        # Operators who follow a run's log keep a call open, for which the server would wait when it is to stop.
        timeout_graceful_shutdown=2,
        http="h11",  # in place of a faster parser: it bounds what is read of a call's head
        h11_max_incomplete_event_size=LARGEST_HEAD,
        ws="none",
        proxy_headers=False,
    )
