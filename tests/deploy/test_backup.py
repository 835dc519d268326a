"""A federation in one file, and a folder made from it: whole, private, and without those who were revoked since."""

import contextlib
import gzip
import io
import json
import os
import shutil
import sqlite3
import stat
import tarfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairbloom.deploy import pki
from fairbloom.deploy.errors import DeployError
from fairbloom.deploy.operator import audit
from fairbloom.deploy.operator import backup as backups
from fairbloom.deploy.operator.backup import FILES, back_up, copy_database, restore
from fairbloom.deploy.operator.federation import Federation
from fairbloom.deploy.operator.joining import make_token
from fairbloom.deploy.operator.registry import EnrolledClient
from fairbloom.deploy.server.supervisor import check_files, lock_folder
from tests.deploy.state import SuperLinkState
from tests.experiments.helpers import fairbloom

NOW = "2026-11-20T10:00:00+00:00"


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    """A federation with a database, a join token and two clients, of which one is revoked."""
    made = Federation.init(tmp_path / "federation", ["fl.example.org"], 9443, "127.0.0.1:8000", 30)
    save(made, "site-a", "7")
    save(made, "site-b", "8", revoked=NOW)
    SuperLinkState(made.database).submit()
    make_token(made, "site-c")
    return made


def save(federation: Federation, name: str, node_id: str, **about: str) -> EnrolledClient:
    public = pki.make_node_key().public.decode()
    client = EnrolledClient(name=name, node_id=node_id, partition_id=0, public_key=public, enrolled=NOW, **about)
    federation.registry.save(client)
    return client


def events(federation: Federation) -> list[str]:
    return [json.loads(line)["event"] for line in audit.read_text(federation.state).splitlines()]


def content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def runs(federation: Federation) -> int:
    return SuperLinkState(federation.database).count("run")


# Whole --------------------------------------------------------------------------------------------------------------


def test_a_restored_federation_is_the_one_that_was_backed_up(federation: Federation, tmp_path: Path) -> None:
    file, new = tmp_path / "copy.tar.gz", tmp_path / "new host" / "fed"
    assert back_up(federation, file) == ()
    restored = restore(file, new)
    assert restored.federation.path == new
    assert restored.struck_off == ()
    before, after = content(federation.path), content(new)
    log = after.pop("state/audit.jsonl")
    assert log.startswith(before.pop("state/audit.jsonl").splitlines()[0])
    for name in (*FILES, "clients/site-a.toml", "clients/site-b.toml"):
        assert after.pop(name) == before.pop(name), name
    left_out = {"state/superlink.db-wal", "state/superlink.db-shm", *(name for name in before if "tokens/" in name)}
    assert set(after) == set(before) - left_out
    assert events(restored.federation) == ["init", "token", "restore"]
    assert audit.first_broken_line(restored.federation.state) is None
    assert events(federation) == ["init", "token", "backup"]
    assert runs(restored.federation) == 1
    check_files(restored.federation)
    assert str(new / "ca.crt") in (new / "flower" / "config.toml").read_text()
    assert str(new) in (new / "fairbloom-server.service").read_text()


def test_backup_and_restore_are_their_owners_alone_and_say_what_they_hold(
    federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    federation.authority_key.unlink()  # kept offline
    before = os.umask(0)
    try:
        assert fairbloom("deploy", "backup", "copy.tar.gz") == 0
        assert "holds the authority's key" in capsys.readouterr().out
        assert fairbloom("deploy", "restore", "copy.tar.gz", "--dir", "new") == 0
    finally:
        os.umask(before)
    said = capsys.readouterr().out
    assert "It lets in site-a: revoke again those that you revoked since" in said
    assert stat.S_IMODE((tmp_path / "copy.tar.gz").stat().st_mode) == 0o600
    public = {"federation.toml", "ca.crt", "server.crt", "config.toml", "fairbloom-server.service"}
    for file in (tmp_path / "new").rglob("*"):
        if file.is_dir() or (file.name not in public and file.parent.name != "clients"):
            assert not file.stat().st_mode & 0o077, file
    assert not (tmp_path / "new").stat().st_mode & 0o077
    assert not (tmp_path / "new" / "ca.key").exists()


def test_what_is_missing_is_said(federation: Federation, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    federation.authority_key.unlink()
    federation.database.unlink()
    assert back_up(federation, tmp_path / "a") == ("ca.key", "state/superlink.db")
    assert fairbloom("deploy", "backup", tmp_path / "b", "--dir", federation.path) == 0
    assert "lacks ca.key, state/superlink.db, and so does the backup" in capsys.readouterr().out
    restored = restore(tmp_path / "a", tmp_path / "new").federation
    assert not restored.database.exists()
    assert [client.name for client in restored.clients] == ["site-a", "site-b"]


def test_a_database_is_copied_as_it_is_at_one_moment_while_it_is_written_to(tmp_path: Path) -> None:
    """Each transaction writes two rows: a copy never has one of them."""
    database, over = tmp_path / "superlink.db", threading.Event()
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as made:
        made.execute("PRAGMA journal_mode = WAL")
        made.execute("CREATE TABLE pairs (number INTEGER, text TEXT)")

    def write() -> None:
        with contextlib.closing(sqlite3.connect(database, isolation_level=None, timeout=300)) as writing:
            for number in range(100_000):
                writing.execute("BEGIN")
                writing.execute("INSERT INTO pairs VALUES (?, ?)", (number, "x" * 2000))
                writing.execute("INSERT INTO pairs VALUES (?, ?)", (number, "y" * 2000))
                writing.execute("COMMIT")
                if over.is_set():
                    return

    writer = threading.Thread(target=write)
    writer.start()
    counts = list[int]()
    try:
        while len(counts) < 20 or counts[-1] == counts[0]:
            copy = tmp_path / f"copy-{len(counts)}"
            copy_database(database, copy)
            with contextlib.closing(sqlite3.connect(copy)) as reading:
                (count,) = reading.execute("SELECT count(*) FROM pairs").fetchone()
                odd = "SELECT count(*) FROM (SELECT number FROM pairs GROUP BY number HAVING count(*) != 2)"
                assert reading.execute(odd).fetchone() == (0,)
            counts.append(count)
            copy.unlink()
    finally:
        over.set()
        writer.join()
    assert counts == sorted(counts)


def test_a_damaged_database_is_said_and_leaves_the_backup_before_it(federation: Federation, tmp_path: Path) -> None:
    file = tmp_path / "copy.tar.gz"
    back_up(federation, file)
    before = file.read_bytes()
    federation.database.write_bytes(b"no database" * 1000)
    for left in federation.state.glob("superlink.db-*"):
        left.unlink()
    with pytest.raises(DeployError, match=r"cannot be copied: .*Delete it and start fairbloom server again"):
        back_up(federation, file)
    assert file.read_bytes() == before
    assert {each.name for each in tmp_path.iterdir()} == {"federation", "copy.tar.gz"}
    assert events(federation)[-1] == "refused"
    federation.database.unlink()  # the remedy
    assert back_up(federation, file) == ("state/superlink.db",)


def test_a_backup_that_is_cut_off_leaves_the_one_before_it(
    federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "copy.tar.gz"
    back_up(federation, file)
    before = file.read_bytes()

    def full(database: Path, copy: Path) -> None:
        copy.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(backups, "copy_database", full)
    with pytest.raises(DeployError, match="No space left on device"):
        back_up(federation, file)
    assert file.read_bytes() == before
    assert {each.name for each in tmp_path.iterdir()} == {"federation", "copy.tar.gz"}
    with pytest.raises(DeployError, match="No such file or directory"):
        back_up(federation, tmp_path / "none" / "copy")


# Into which folder --------------------------------------------------------------------------------------------------


def test_a_folder_in_use_is_left_alone_unless_that_is_said(federation: Federation, tmp_path: Path) -> None:
    file = tmp_path / "copy.tar.gz"
    back_up(federation, file)
    save(federation, "site-c", "9")
    before = content(federation.path)
    with pytest.raises(DeployError, match="is not empty: choose another folder, or give --replace"):
        restore(file, federation.path)
    assert content(federation.path) == before
    with (
        lock_folder(federation),
        pytest.raises(DeployError, match=f"is served, by process {os.getpid()} on .*: stop fairb"),
    ):
        restore(file, federation.path, replaces=True)
    assert [client.name for client in Federation(federation.path).clients] == ["site-a", "site-b", "site-c"]
    restored = restore(file, federation.path, replaces=True)
    assert [client.name for client in restored.federation.clients] == ["site-a", "site-b"]
    assert not list(federation.path.glob(".*"))


def test_an_older_backup_lets_nobody_in_whom_the_folder_has_struck_off(
    federation: Federation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "copy.tar.gz"
    back_up(federation, file)
    client = federation.find_client("site-a")
    federation.registry.save(replace(client, revoked=NOW))
    assert fairbloom("deploy", "restore", file, "--dir", federation.path, "--replace") == 0
    said = capsys.readouterr().out
    assert "had struck off the keys of site-a: they stay revoked" in said
    assert "It lets in nobody" in said
    assert "join tokens made before are void: fairbloom deploy token makes new ones" in said
    assert Federation(federation.path).tokens.all() == []
    now = Federation(federation.path)
    assert now.keys() == []
    assert client.public_key in now.registry.revoked_keys()
    other = restore(file, tmp_path / "other").federation.keys()  # which knows of no revocation
    assert [key.client for key in other] == ["site-a"]


def test_a_folder_that_is_no_federations_is_never_replaced(federation: Federation, tmp_path: Path) -> None:
    file, photos = tmp_path / "copy.tar.gz", tmp_path / "photos"
    back_up(federation, file)
    (photos / "2024").mkdir(parents=True)
    (photos / "2024" / "beach.jpg").write_bytes(b"a picture")
    with pytest.raises(DeployError, match="photos is no federation's folder, and 2024 in it would be deleted: choose"):
        restore(file, photos, replaces=True)
    assert (photos / "2024" / "beach.jpg").read_bytes() == b"a picture"
    assert [*photos.iterdir()] == [photos / "2024"]
    assert restore(file, tmp_path / "another", replaces=True).federation.keys()  # the remedy


def test_a_folder_whose_replacement_was_cut_off_is_replaced(federation: Federation, tmp_path: Path) -> None:
    file = tmp_path / "copy.tar.gz"
    back_up(federation, file)
    (federation.path / "federation.toml").unlink()
    (federation.path / ".restored-x").mkdir()
    assert restore(file, federation.path, replaces=True).federation.keys()


def test_a_folder_that_holds_something_else_may_be_replaced(federation: Federation, tmp_path: Path) -> None:
    file, folder = tmp_path / "copy.tar.gz", tmp_path / "volume"
    back_up(federation, file)
    (folder / "lost+found").mkdir(parents=True)
    (folder / "federation.toml").write_text("damaged [")
    (folder / "clients").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").touch()
    number = folder.stat().st_ino
    assert restore(file, folder, replaces=True).federation.keys()
    assert folder.stat().st_ino == number  # a volume's root stays
    assert (tmp_path / "elsewhere" / "kept").exists()


def test_another_host_is_in_certificate_and_settings_and_its_devices_owners_are_told(
    federation: Federation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, new = tmp_path / "copy.tar.gz", tmp_path / "new"
    back_up(federation, file)
    assert fairbloom("deploy", "restore", file, "--dir", new, "--host", "new.example.org", "--host", "10.0.0.9") == 0
    assert 'write superlink = "new.example.org:9443"' in capsys.readouterr().out
    moved = Federation(new)
    assert moved.superlink == "new.example.org:9443"
    assert {"new.example.org", "10.0.0.9", "fl.example.org"} <= set(pki.read_hosts(moved.certificate))
    assert moved.authority.read_bytes() == federation.authority.read_bytes()
    check_files(moved)
    assert events(moved) == ["init", "token", "restore", "renew"]
    assert fairbloom("deploy", "restore", file, "--dir", tmp_path / "x", "--host", "no host") == 2
    assert not (tmp_path / "x").exists()


# Damaged or hostile files -------------------------------------------------------------------------------------------


def repacked(file: Path, change: Callable[[list[tuple[tarfile.TarInfo, bytes]]], None]) -> Path:
    """Write a backup whose files were changed; return where."""
    with tarfile.open(file) as packed:
        entries = [(entry, packed.extractfile(entry).read()) for entry in packed]  # type: ignore[union-attr]
    change(entries)
    other = file.with_name("changed.tar.gz")
    with tarfile.open(other, "w:gz") as packed:
        for entry, content in entries:
            entry.size = len(content)
            packed.addfile(entry, io.BytesIO(content))
    return other


def added(name: str, **about: Any) -> Callable[[list[tuple[tarfile.TarInfo, bytes]]], None]:
    entry = tarfile.TarInfo(name)
    for key, value in about.items():
        setattr(entry, key, value)
    return lambda entries: entries.append((entry, b""))


def begun_with(text: bytes) -> Callable[[list[tuple[tarfile.TarInfo, bytes]]], None]:
    def change(entries: list[tuple[tarfile.TarInfo, bytes]]) -> None:
        entries[0] = (entries[0][0], text)

    return change


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (added("../outside"), "'../outside' is not of a federation"),
        (added("/etc/fairbloom-outside"), "is not of a federation"),
        (added("clients/../../outside.toml"), "is not of a federation"),
        (added("clients/.hidden.toml"), "is not of a federation"),
        (added("ca.key", type=tarfile.SYMTYPE, linkname="/etc/passwd"), "'ca.key' is not a plain file"),
        (added("clients/x.toml", type=tarfile.LNKTYPE, linkname="ca.key"), "is not a plain file"),
        (added("state", type=tarfile.DIRTYPE), "is not a plain file"),
        (begun_with(b"format = 2\nversion = '9.9'"), "is of format 2, by fairbloom 9.9, .* upgrade fairbloom here"),
        (begun_with(b"format = 'x'"), "not a backup of fairbloom deploy backup"),
        (begun_with(b"\xff"), "not a backup of fairbloom deploy backup"),
        (lambda entries: entries.pop(0), "it begins with 'federation.toml'"),
        (lambda entries: entries.clear(), "it is empty"),
        (lambda entries: entries.pop(1), "it lacks 'federation.toml'"),
    ],
)
def test_what_is_no_backup_is_refused_and_leaves_nothing(
    federation: Federation, tmp_path: Path, change: Callable[[Any], None], words: str
) -> None:
    file, new = tmp_path / "copy.tar.gz", tmp_path / "new"
    back_up(federation, file)
    before = content(federation.path)
    with pytest.raises(DeployError, match=words):
        restore(repacked(file, change), new)
    assert not new.exists()
    with pytest.raises(DeployError, match=words):
        restore(repacked(file, change), federation.path, replaces=True)
    assert content(federation.path) == before
    assert {each.name for each in tmp_path.iterdir()} == {"federation", "copy.tar.gz", "changed.tar.gz"}


def test_a_backup_with_the_checksum_of_another_is_refused(federation: Federation, tmp_path: Path) -> None:
    file, new = tmp_path / "copy.tar.gz", tmp_path / "new"
    back_up(federation, file)
    whole = file.read_bytes()
    plain = bytearray(gzip.decompress(whole))
    plain[len(plain) // 2] ^= 1
    wrong = gzip.compress(bytes(plain), mtime=0)
    file.write_bytes(wrong[:-8] + whole[-8:])  # the right checksum, of other content
    with pytest.raises(DeployError, match="CRC check failed"):
        restore(file, new)
    file.write_bytes(b"not packed at all")
    with pytest.raises(DeployError, match="is not a backup of fairbloom deploy backup"):
        restore(file, new)
    with pytest.raises(DeployError, match="No such file"):
        restore(tmp_path / "none", new)
    assert not new.exists()
    file.write_bytes(whole)
    assert restore(file, new).federation.keys()
    shutil.rmtree(new)
