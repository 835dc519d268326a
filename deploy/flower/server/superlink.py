"""A SuperLink with a door: the one file that replaces names inside Flower's SuperLink.

Everything that needs no credential in Flower's own asks for one here; replies have limits; nodes that ask for work are
answered once there is some; a run whose process died is given to another one; the database gives room back. Everything
else is Flower's. Started by `fairbloom server`.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fairbloom.logs import colour_on_terminals_alone
from fairbloom.system.parents import end_with_parent

from ...operator.federation import Federation
from ...processes import leave
from ...server.connections import MOST_STRANGERS, MOST_STRANGERS_OVER_HTTP, Connections, raise_descriptors
from ...server.refusals import RefusalLog
from ..relied_on import missing_names

COMMAND = "flwr.superlink.cli.flower_superlink"
MAIN = "flwr.superlink.main"
FACTORY = "flwr.server.superlink.linkstate.linkstate_factory"
STORES = "flwr.supercore.object_store.object_store_factory"
STATE = "flwr.server.superlink.linkstate.sql_linkstate:SqlLinkState"
SQL = "flwr.supercore.sql_mixin"

RELIED_ON: Mapping[str, Iterable[str]] = {
    f"{COMMAND}:FleetServicer": ("state_factory", "objectstore_factory", "enable_supernode_auth"),
    f"{COMMAND}:flower_superlink": (),
    f"{COMMAND}:generic_create_grpc_server": (
        "servicer_and_add_fn",
        "server_address",
        "max_message_length",
        "certificates",
        "interceptors",
    ),
    f"{COMMAND}:uvicorn.run": (
        "timeout_graceful_shutdown",
        "http",
        "h11_max_incomplete_event_size",
        "ws",
        "proxy_headers",
    ),
    f"{MAIN}:create_app": ("config", "superlink_lifespan_class"),
    f"{FACTORY}:SqlLinkState": (),
    f"{STORES}:SqlObjectStore": (),
    f"{SQL}:SqlMixin.session": (),
    f"{STATE}.store_object": ("run_id", "session_id", "object_id", "object_content"),
    f"{SQL}:SqlMixin.query": ("query", "data"),
    f"{STATE}._cleanup_expired_task_tokens": (),
    f"{STATE}._cleanup_push_session": ("session_id", "cleanup_messages"),
    f"{STATE}._store_generated_message": ("message",),
    f"{STATE}.activate_task": ("task_id",),
    f"{STATE}.create_node": ("owner_aid", "owner_name", "public_key", "heartbeat_interval", "name"),
    f"{STATE}.delete_messages": ("message_ins_ids",),
    f"{STATE}.delete_node": ("owner_aid", "node_id"),
    f"{STATE}.delete_sessions_in_run": ("run_id",),
    f"{STATE}.get_message_ids_from_run_id": ("run_id",),
    f"{STATE}.get_node_id_by_public_key": ("public_key",),
    f"{STATE}.get_run_status": ("run_ids",),
    f"{STATE}.get_task_by_token": ("token",),
    f"{STATE}.store_message_res": ("message",),
    "flwr.superlink.servicer.runtime.runtime_handlers:push_messages": ("request", "state", "task"),
    "flwr.superlink.servicer.runtime.runtime_handlers:push_object": ("request", "state", "task"),
    "flwr.superlink.dependencies.account:AccountAccessDependency": ("authn_plugin",),
    "flwr.superlink.auth_plugin:NoOpControlAuthnPlugin": (),
    "flwr.supercore.corestate.sql_corestate:_task_status_filter": ("status",),
}
"""Names inside Flower, as module:attribute, with the parameters that are relied on."""

PRAGMAS = (("busy_timeout", "60000"), ("journal_size_limit", str(64 << 20)))
"""Settings of SQLite: a call waits a minute for a busy database, not 5 s, and the log of changes is cut to 64 MB."""

CLOSING_SECONDS = 2
"""How long open calls may go on once the SuperLink is told to stop."""

VACUUM_SECONDS, VACUUM_PAGES = 20.0, 4096
"""Seconds between two times at which room that is free in the database's file goes back to the disk, and how many pages
of it at a time."""

INCREMENTAL = 2
"""SQLite's number for a database whose free room can be given back a little at a time."""

log = logging.getLogger("flwr").getChild("fairbloom")


def put_in_place(federation: Federation, descriptors: int) -> Connections:
    """Replace what is open or brittle in Flower's SuperLink by ours, with room for so many descriptors.

    Returns
    -------
    Connections
        Those of the SuperLink's ports, for which somebody has to look.
    """
    from ...server.long_poll import LongPoll
    from ...server.members import EnrolledMembers
    from .control import LARGEST_HEAD, Operators, guard
    from .fleet import LARGEST_CALL, GuardedFleet
    from .fleet_server import fleet_server
    from .registration import register_enrolled
    from .run_state import RunState, RunStore

    refusals, long_poll = RefusalLog(federation.state), LongPoll()
    strangers = {federation.listen: MOST_STRANGERS, federation.control: MOST_STRANGERS_OVER_HTTP}
    ports = {int(place.rpartition(":")[2]): most for place, most in strangers.items()}
    connections = Connections(ports, descriptors, refusals)
    command: Any = importlib.import_module(COMMAND)
    main: Any = importlib.import_module(MAIN)
    sql: Any = importlib.import_module(SQL)
    factory: Any = importlib.import_module(FACTORY)
    stores: Any = importlib.import_module(STORES)
    create_app = main.create_app

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
        )
        return app

    main.create_app = create_guarded_app
    factory.SqlLinkState, stores.SqlObjectStore = RunState, RunStore
    members = EnrolledMembers(federation.path)

    def guarded_fleet(state_factory: Any, objectstore_factory: Any, enable_supernode_auth: bool) -> GuardedFleet:
        register_enrolled(state_factory.state(), federation.registry, federation.state)
        given = (state_factory, objectstore_factory, enable_supernode_auth)
        return GuardedFleet(*given, members=members, refusals=refusals, long_poll=long_poll)

    command.FleetServicer = guarded_fleet
    command.GRPC_MAX_MESSAGE_LENGTH = LARGEST_CALL
    command.generic_create_grpc_server = partial(fleet_server, connections=connections, refusals=refusals)
    # Operators who follow a run's log keep a call open, for which the server would wait when it is told to stop.
    # h11, in place of uvicorn's faster parser, bounds what is read of a call's head.
    serve = partial(
        command.uvicorn.run,
        timeout_graceful_shutdown=CLOSING_SECONDS,
        http="h11",
        h11_max_incomplete_event_size=LARGEST_HEAD,
        ws="none",
        proxy_headers=False,
    )
    command.uvicorn = SimpleNamespace(run=serve)
    kept = tuple(pragma for pragma in sql.SQLITE_PRAGMAS if pragma[0] not in dict(PRAGMAS))
    sql.SQLITE_PRAGMAS = kept + PRAGMAS
    return connections


# The database -------------------------------------------------------------------------------------------------------


def prepare_database(path: Path) -> None:
    """Make the database's file, for its owner alone, or put it in order: what is free in it goes back to the disk.

    Raises
    ------
    OSError
        When it cannot be made, or is a link.
    sqlite3.Error
        When it is no database.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(file, 0o600)
    finally:
        os.close(file)
    with connected(path) as database:
        if database.execute("PRAGMA auto_vacuum").fetchone()[0] != INCREMENTAL:
            convert(database)
        database.executescript("PRAGMA incremental_vacuum")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def convert(database: sqlite3.Connection) -> None:
    """Let a database give room back, which takes room for a copy of it; where there is none, it stays as it is."""
    try:
        database.execute(f"PRAGMA auto_vacuum = {INCREMENTAL}")
        database.execute("VACUUM")
    except sqlite3.OperationalError as error:
        log.warning("the database's file cannot be made smaller: %s", error)


def give_back(path: Path) -> None:
    """Give some of what is free inside the database's file back to the disk."""
    with connected(path) as database:
        database.executescript(f"PRAGMA incremental_vacuum({VACUUM_PAGES})")  # by execute() it frees one page alone
        database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


def look_after(path: Path) -> None:
    """Give back to the disk, for ever, what becomes free inside the database's file.

    Where the file was deleted or replaced, this process ends: it would go on with a file that nobody sees any more.
    `fairbloom server` starts it again with the one that is there, or a new one.
    """
    opened = path.stat().st_ino
    while True:
        time.sleep(VACUUM_SECONDS)
        if not is_file(path, opened):
            log.error("%s was deleted or replaced: the SuperLink is started again", path)
            leave(1)
        try:
            give_back(path)
        except sqlite3.Error as error:
            log.warning("the database's file cannot be made smaller: %s", error)


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
    host, _, port = federation.control.rpartition(":")
    return [
        *("--isolation", "process", "--host", host.strip("[]"), "--port", port),
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
    missing = missing_names(RELIED_ON)
    if missing:
        sys.exit(
            f"fairbloom server: this version of Flower has no {'; '.join(missing)}: without it the control API would "
            "be open to everybody; install the version of flwr that fairbloom's pyproject.toml names"
        )
    connections = put_in_place(federation, raise_descriptors())
    try:
        prepare_database(federation.database)
    except (OSError, sqlite3.Error) as error:
        sys.exit(f"fairbloom server: {federation.database} cannot be used: {error}")
    threading.Thread(target=look_after, args=(federation.database,), daemon=True, name="look-after").start()
    threading.Thread(target=connections.watch, daemon=True, name="watch-connections").start()
    sys.argv = ["flower-superlink", *arguments(federation)]
    command: Any = importlib.import_module(COMMAND)
    colour_on_terminals_alone()
    command.flower_superlink()
