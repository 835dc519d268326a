"""The SuperLink: runs that outlive their processes, a database that stays small and private, and what it relies on."""

import contextlib
import importlib
import os
import re
import sqlite3
import stat
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from flwr.common.constant import Status, SubStatus
from flwr.supercore.date import now
from flwr.supercore.error import FlowerError
from flwr.supercore.error.catalog import API_ERROR_MAP
from flwr.supercore.inflatable.inflatable_object import get_object_tree
from flwr.supercore.state.schema.corestate_models import Task
from flwr.supercore.utils import uint64_to_int64
from grpc import StatusCode
from sqlalchemy import event, update

from fairbloom.deploy.flower.gate import FlowerVersionError
from fairbloom.deploy.flower.relied_on import SQL, STATE_FACTORY, STORE_FACTORY
from fairbloom.deploy.flower.server import run_state, superlink, tables
from fairbloom.deploy.flower.server.superlink import PRAGMAS, prepare_database, shrink_database
from fairbloom.deploy.server.database import find_damage
from tests.deploy.state import SuperLinkState, head, part, parts, reply_to

MB = 1 << 20


@pytest.fixture
def link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SuperLinkState:
    monkeypatch.setattr(run_state, "SILENCE_SECONDS", 0.0)
    return SuperLinkState(tmp_path / "superlink.db")


# Runs that outlive their processes ----------------------------------------------------------------------------------


def status(link: SuperLinkState, run: int) -> tuple[str, str, str]:
    found = link.state.get_run_status({run})[run]
    return found.status, found.sub_status, found.details


def fall_silent(link: SuperLinkState, task: int) -> None:
    """Let a process's last sign of life be long ago."""
    with link.state.session() as session:
        long_ago = now() - timedelta(hours=1)
        session.execute(update(Task).where(Task.task_id == uint64_to_int64(task)).values(active_until=long_ago))


def test_a_run_begins_and_ends_as_with_flower(link: SuperLinkState) -> None:
    run, task = link.submit()
    assert status(link, run)[0] == Status.PENDING
    assert link.state.claim_task(task)
    assert status(link, run)[0] == Status.STARTING
    assert link.state.activate_task(task)
    assert status(link, run)[0] == Status.RUNNING
    assert link.state.finish_task(task, SubStatus.COMPLETED, "")
    assert status(link, run)[:2] == (Status.FINISHED, SubStatus.COMPLETED)
    assert not link.state.activate_task(task)
    assert status(link, run)[:2] == (Status.FINISHED, SubStatus.COMPLETED)


def test_a_process_that_is_started_again_goes_on_with_the_same_token(link: SuperLinkState) -> None:
    run, task = link.submit()
    token = link.state.claim_task(task)
    for _ in range(4):
        assert link.state.activate_task(task)
        assert link.state.get_task_by_token(token).task_id == task
    assert status(link, run)[0] == Status.RUNNING


@pytest.mark.parametrize("begun", [False, True])
def test_a_run_whose_process_fell_silent_is_handed_out_again(link: SuperLinkState, begun: bool) -> None:
    run, task = link.submit()
    before = link.state.claim_task(task)
    if begun:
        assert link.state.activate_task(task)
    fall_silent(link, task)
    assert status(link, run)[0] == Status.PENDING
    token = link.state.claim_task(task)
    assert token
    assert token != before
    assert link.state.get_task_by_token(before) is None
    assert link.state.activate_task(task)
    assert status(link, run)[0] == Status.RUNNING


@pytest.mark.parametrize("begun", [False, True])
def test_runs_that_a_superexec_had_taken_are_released_and_ended_ones_are_not(link: SuperLinkState, begun: bool) -> None:
    (run, task), (ended, ended_task), (stopped, _) = link.submit(), link.submit(), link.submit()
    link.state.claim_task(task)
    link.state.claim_task(ended_task)
    link.state.activate_task(ended_task)
    if begun:
        link.state.activate_task(task)
    link.state.finish_task(ended_task, SubStatus.COMPLETED, "")
    link.state.stop_run(stopped)
    link.state.release_runs()
    assert [status(link, one)[0] for one in (run, ended, stopped)] == [
        Status.PENDING,
        Status.FINISHED,
        Status.FINISHED,
    ]
    assert link.state.claim_task(ended_task) is None


def test_a_stopped_run_is_not_begun_again(link: SuperLinkState) -> None:
    run, task = link.submit()
    token = link.state.claim_task(task)
    assert link.state.activate_task(task)
    assert link.state.stop_run(run)
    assert not link.state.activate_task(task)
    assert link.state.get_task_by_token(token) is None
    fall_silent(link, task)
    assert status(link, run)[:2] == (Status.FINISHED, SubStatus.STOPPED)


def test_a_run_whose_processes_die_for_ever_fails_with_words(
    link: SuperLinkState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_state, "MOST_STARTS", 3)
    run, task = link.submit()
    token = link.state.claim_task(task)
    assert [link.state.activate_task(task) for _ in range(5)] == [True] * 3 + [False] * 2
    assert status(link, run) == (Status.FINISHED, SubStatus.FAILED, "its process died 3 times")
    assert link.state.get_task_by_token(token) is None


def test_starts_are_counted_over_restarts_of_the_superlink(
    tmp_path: Path, link: SuperLinkState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_state, "MOST_STARTS", 2)
    _, task = link.submit()
    link.state.claim_task(task)
    assert [SuperLinkState(tmp_path / "superlink.db").state.activate_task(task) for _ in range(3)] == [
        True,
        True,
        False,
    ]


def test_what_a_dead_process_had_sent_is_deleted_and_what_other_runs_sent_is_not(link: SuperLinkState) -> None:
    node = link.node(b"key")
    run, task = link.submit()
    link.state.claim_task(task)
    link.state.activate_task(task)
    other = link.run()
    asked, theirs = link.send(run, node, arrays=3), link.send(other, node, arrays=2, size=50)
    reply, session = reply_to(asked), link.state.start_session(run)
    link.state.store_message_and_object_tree(reply, head(reply).message_object_trees[0], session)
    store = link.objects.store()
    assert link.state.activate_task(task)
    assert [name in store for name in (*parts(asked), *parts(reply))] == [False] * len({**parts(asked), **parts(reply)})
    assert all(link.state.get_object(other, name) == content for name, content in parts(theirs).items())
    assert {row["run_id"] for row in link.state.query("SELECT run_id FROM message_ins")} == {uint64_to_int64(other)}
    assert link.count("message_res") == link.count("object_push_sessions") == 0
    late = part(reply, session, reply.metadata.message_id, parts(reply)[reply.metadata.message_id])
    assert not link.state.store_object(run, session, late.object_id, late.object_content)
    again = link.send(run, node)
    assert {one.metadata.message_id for one in link.state.get_message_ins(node, None)} == {
        again.metadata.message_id,
        theirs.metadata.message_id,
    }


def test_two_runs_do_not_disturb_each_other(link: SuperLinkState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_state, "MOST_STARTS", 3)
    (run, task), (other, other_task) = link.submit(), link.submit()
    tokens = [link.state.claim_task(one) for one in (task, other_task)]
    link.state.activate_task(other_task)
    for _ in range(5):
        link.state.activate_task(task)
    assert status(link, run)[1] == SubStatus.FAILED
    assert status(link, other)[0] == Status.RUNNING
    assert link.state.get_task_by_token(tokens[1]).task_id == other_task


# The database -------------------------------------------------------------------------------------------------------


@pytest.fixture
def careless() -> Iterator[None]:
    """A umask that lets everybody read."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def test_the_database_is_its_owners_alone(tmp_path: Path, careless: None) -> None:
    path = tmp_path / "superlink.db"
    prepare_database(path)
    assert mode(path) == 0o600
    SuperLinkState(path).run()
    assert {mode(file) for file in tmp_path.glob("superlink.db*")} == {0o600}
    path.chmod(0o644)
    prepare_database(path)
    assert mode(path) == 0o600


def test_a_link_in_the_databases_place_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    elsewhere.chmod(0o644)
    (tmp_path / "superlink.db").symlink_to(elsewhere)
    with pytest.raises(OSError, match="symbolic"):
        prepare_database(tmp_path / "superlink.db")
    assert elsewhere.read_text() == "mine"
    assert mode(elsewhere) == 0o644


def fill(path: Path, megabytes: int) -> None:
    with superlink.connected(path) as database:
        database.execute("CREATE TABLE IF NOT EXISTS filling (content BLOB)")
        for _ in range(megabytes):
            database.execute("INSERT INTO filling VALUES (zeroblob(?))", (MB,))


def empty(path: Path) -> None:
    with superlink.connected(path) as database:
        database.execute("DELETE FROM filling")


def test_an_old_database_is_converted_and_keeps_what_is_in_it(tmp_path: Path) -> None:
    path = tmp_path / "superlink.db"
    link = SuperLinkState(path)
    run = link.run()
    fill(path, 8)
    empty(path)
    assert path.stat().st_size > 8 * MB
    prepare_database(path)
    assert path.stat().st_size < MB
    with superlink.connected(path) as database:
        assert database.execute("PRAGMA auto_vacuum").fetchone() == (superlink.INCREMENTAL,)
    assert status(SuperLinkState(path), run)[0] == Status.RUNNING


def test_room_that_becomes_free_goes_back_to_the_disk_while_the_superlink_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "superlink.db"
    prepare_database(path)
    link = SuperLinkState(path)
    run = link.run()
    monkeypatch.setattr(superlink, "VACUUM_PAGES", 4 * MB // 4096)
    fill(path, 12)
    empty(path)
    full = path.stat().st_size
    assert full > 12 * MB
    sizes = []
    for _ in range(4):
        shrink_database(path)
        sizes.append(path.stat().st_size)
    assert full - sizes[0] == pytest.approx(4 * MB, rel=0.1)  # a little at a time
    assert sizes[-1] < MB
    assert status(link, run)[0] == Status.RUNNING


def test_a_restart_gives_all_free_room_back(tmp_path: Path) -> None:
    path = tmp_path / "superlink.db"
    prepare_database(path)
    fill(path, 12)
    empty(path)
    prepare_database(path)
    assert path.stat().st_size < MB


def test_flowers_connections_have_our_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sql = importlib.import_module(SQL)
    for module, name in ((STATE_FACTORY, "SqlLinkState"), (STORE_FACTORY, "SqlObjectStore"), (SQL, "SQLITE_PRAGMAS")):
        found = importlib.import_module(module)
        monkeypatch.setattr(found, name, getattr(found, name))  # for one test
    superlink.prepare_flower()
    names = [name for name, _ in sql.SQLITE_PRAGMAS]
    assert len(names) == len(set(names))
    state = SuperLinkState(tmp_path / "superlink.db").state
    for name, value in PRAGMAS:
        (row,) = state.query(f"PRAGMA {name}")
        assert str(next(iter(row.values()))) == value
    (row,) = state.query("PRAGMA foreign_keys")
    assert next(iter(row.values())) == 1


# Start --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir()
    (tmp_path / "clients").mkdir()
    (tmp_path / "federation.toml").write_text(
        'superlink = "fed.example:9092"\ncontrol = "[::1]:8000"\nlisten = "0.0.0.0:9443"\n'
    )
    return tmp_path


@pytest.mark.parametrize(
    ("change", "lacking"),
    [
        ("ALTER TABLE message_ins RENAME ttl TO lifetime", "message_ins(ttl)"),
        ("DROP TABLE objects", "objects(content, is_available, object_id, ref_count)"),
    ],
)
def test_a_database_that_lacks_what_our_statements_name_is_refused(
    link: SuperLinkState, change: str, lacking: str
) -> None:
    """As one of another Flower may."""
    link.state.query("PRAGMA foreign_keys = OFF")
    link.state.query(change)
    with pytest.raises(FlowerVersionError, match=re.escape(f"lacks columns that are relied on: {lacking}")):
        tables.check_columns(link.state.query)


def test_our_statements_name_no_other_columns_of_flowers_tables(link: SuperLinkState) -> None:
    """Which SQLite tells of each column that a statement reads or changes, and statements of those that they fill."""
    texts = [text for value in vars(tables).values() for text in (value if isinstance(value, tuple) else (value,))]
    written = [text for text in texts if re.match(r"\s*(SELECT|UPDATE|INSERT|DELETE|WITH)", str(text))]
    filled = [re.match(r"\s*INSERT (?:OR IGNORE )?INTO (\w+) \(([^)]*)\)", str(text)) for text in written]
    named = {(found[1], column) for found in filled if found for column in found[2].replace(",", " ").split()}

    def note(action: int, table: str | None, column: str | None, *about: Any) -> int:
        if action in (sqlite3.SQLITE_READ, sqlite3.SQLITE_UPDATE) and not str(table).startswith("fairbloom_"):
            named.add((str(table), str(column)))
        return sqlite3.SQLITE_OK

    with contextlib.closing(sqlite3.connect(link.factory.database)) as database:
        theirs = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        database.set_authorizer(note)
        for text in written:
            database.execute(f"EXPLAIN {text}", dict.fromkeys(re.findall(r":(\w+)", text), ""))
    found = {
        table: {column for place, column in named if place == table and column}
        for table in theirs
        if "fairbloom" not in table
    }
    assert {table: columns for table, columns in found.items() if columns} == {
        table: {*columns.split()} for table, columns in tables.COLUMNS.items()
    }


def damage_header(file: Path) -> None:
    file.write_bytes(b"no database" * 1000)


def damage_pages(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[4096:] = os.urandom(len(content) - 4096)
    file.write_bytes(content)


def cut_off(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


@pytest.mark.parametrize("damage", [damage_header, damage_pages, cut_off])
def test_a_damaged_database_is_set_aside_and_made_again(
    folder: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    file = folder / "state" / "superlink.db"
    SuperLinkState(file)
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    damage(file)
    assert find_damage(file)
    broken = file.read_bytes()
    file.with_name("superlink.db-wal").touch()
    prepare_database(file)
    assert find_damage(file) == ""
    SuperLinkState(file)
    (aside,) = (found for found in file.parent.glob("superlink.db.damaged-*") if found.name.count("-") == 1)
    assert aside.read_bytes() == broken
    assert "submit the runs again" in caplog.text
    assert aside.name in caplog.text


def test_a_whole_database_is_left_where_it_is(folder: Path) -> None:
    file = folder / "state" / "superlink.db"
    SuperLinkState(file)
    number = file.stat().st_ino
    prepare_database(file)
    assert file.stat().st_ino == number


def test_a_database_that_cannot_be_used_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "state" / "superlink.db").mkdir()
    monkeypatch.setattr(superlink, "end_with_parent", lambda parent: None)
    monkeypatch.setattr(superlink, "prepare_flower", lambda: None)
    monkeypatch.setattr(superlink, "raise_descriptors", lambda: 1000)
    monkeypatch.setattr(sys, "argv", ["superlink", str(folder)])
    umask = os.umask(0o022)
    try:
        with pytest.raises(SystemExit, match=r"superlink\.db cannot be used: .*directory"):
            superlink.main(1)
    finally:
        os.umask(umask)


# Faults that pass ---------------------------------------------------------------------------------------------------


def is_unavailable(error: FlowerError) -> bool:
    about = API_ERROR_MAP[error.code]
    return (about.status_code, about.http_status_code) == (StatusCode.UNAVAILABLE, 503)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another connection writes, and does not come to an end."""
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        other.rollback()
        other.close()


@contextlib.contextmanager
def full(state: Any) -> Iterator[None]:
    """The disk has no room: SQLite may not make the file larger."""

    def bound(connection: Any, record: Any, proxy: Any = None) -> None:
        connection.execute("PRAGMA max_page_count = 1")

    event.listen(state._engine, "checkout", bound)
    try:
        yield
    finally:
        event.remove(state._engine, "checkout", bound)
        state._engine.dispose()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite itself waits for a tenth of a second only."""
    monkeypatch.setattr("flwr.supercore.sql_mixin.SQLITE_PRAGMAS", (("busy_timeout", "100"), ("journal_mode", "WAL")))


def test_a_busy_database_is_unavailable_and_no_internal_error(impatient: None, link: SuperLinkState) -> None:
    with locked(Path(link.factory.database)), pytest.raises(FlowerError) as refused:
        link.submit()
    assert is_unavailable(refused.value)
    link.submit()


def test_a_full_disk_is_unavailable_until_there_is_room(link: SuperLinkState) -> None:
    run = link.run()
    node = link.node(b"key")
    with full(link.state), pytest.raises(FlowerError) as refused:
        link.send(run, node, arrays=4, size=1 << 20)
    assert is_unavailable(refused.value)
    link.send(run, node, arrays=4, size=1 << 20)


def test_a_part_that_meets_a_busy_database_is_tried_again_and_not_refused(
    impatient: None, link: SuperLinkState
) -> None:
    """Flower answers that the part is not stored: its sender gives up the whole reply."""
    asked = link.send(link.run(), link.node(b"key"))
    reply = reply_to(asked)
    (begun,) = head(reply).messages_list
    assert link.state.begin_upload(begun, 0.0, 10_000)
    first, *_ = link.state.store.preregister(asked.metadata.run_id, get_object_tree(reply))
    place = (reply.metadata.src_node_id, reply.metadata.message_id, first, parts(reply)[first])
    with locked(Path(link.factory.database)), pytest.raises(FlowerError) as refused:
        link.state.store_part(*place)
    assert is_unavailable(refused.value)
    assert [link.state.store_part(*place)[0] for _ in range(2)] == [True, False]  # which stays so


def test_a_fault_of_our_own_in_the_database_is_no_passing_one(link: SuperLinkState) -> None:
    with pytest.raises(sqlite3.OperationalError):
        link.state.query("SELECT no_such_column FROM run")
