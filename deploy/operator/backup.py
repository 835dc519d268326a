"""A federation in one file, made while it runs, and a federation's folder made from such a file.

The file is a .tar.gz of its owner's alone: it holds the authority's key and the operator's credential.
"""

import contextlib
import gzip
import io
import re
import shutil
import sqlite3
import tarfile
import tempfile
import tomllib
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import tomli_w

from fairbloom import __version__
from fairbloom.system.files import whole_file, write_public
from fairbloom.system.lock import LockedError, exclusive_lock

from .. import pki
from ..arguments import NAME, check_host, join_address, parse_address
from ..errors import DeployError
from . import audit
from .federation import SERVER_UNIT, Federation, server_unit
from .folder import add_missing_files, write_flower_home

FORMAT = 1
"""Number of the form that a backup has; a restore takes none that is higher."""

ABOUT, DATABASE, LOG = "backup.toml", "state/superlink.db", f"state/{audit.FILE}"
FILES = (
    *("federation.toml", "ca.crt", "ca.key", "server.crt", "server.key"),
    *("operator.token", "operators.toml", "runtime.secret"),
)
"""What is kept of a federation's folder, in addition to clients' files, the audit log and the database."""

FOLDERS = ("clients", "bundles", "tokens", "flower", "state", SERVER_UNIT.name, "lost+found")
"""What else a federation's folder, or the volume that it is on, may hold."""

DRAFT = ".restored-"

PUBLIC = ("federation.toml", "ca.crt", "server.crt")
CLIENT = re.compile(rf"clients/{NAME.pattern}\.toml")

LARGEST_FILE = 1 << 30
"""Bytes that a file other than the database may have: the audit log is the largest of them."""


@dataclass(frozen=True)
class Restored:
    """A restored federation, and when its backup was made.

    `struck_off` are clients that the backup lets in, but which the replaced folder knew to be revoked.
    """

    federation: Federation
    made: str
    struck_off: tuple[str, ...]


def back_up(federation: Federation, file: Path) -> tuple[str, ...]:
    """Write all that a federation's server and operator need to one file, while the server may run.

    Return what the folder, and so the backup, lacks. DeployError: something cannot be read or written, or is damaged.
    """
    with (
        federation.audited("backup", file=str(file.absolute())),
        federation.registry.locked(),
        whole_file(file, 0o600) as written,
        tempfile.TemporaryDirectory(dir=file.absolute().parent, prefix=f".{file.name}-") as draft,
        tarfile.open(fileobj=written, mode="w:gz", compresslevel=1) as packed,
    ):
        about = {"format": FORMAT, "made": datetime.now(UTC).isoformat(timespec="seconds"), "version": __version__}
        _pack(packed, ABOUT, tomli_w.dumps(about).encode())
        there = [name for name in FILES if (federation.path / name).exists()]
        clients = [f"clients/{found.name}" for found in sorted(federation.registry.folder.glob("*.toml"))]
        for name in (*there, *clients):
            _pack(packed, name, (federation.path / name).read_bytes())
        _pack(packed, LOG, audit.read_whole(federation.state))
        if federation.database.exists():
            copy = Path(draft, "superlink.db")
            copy_database(federation.database, copy)
            with copy.open("rb") as content:
                packed.addfile(_entry(DATABASE, copy.stat().st_size), content)
            there.append(DATABASE)
    return tuple(name for name in (*FILES, DATABASE) if name not in there)


def copy_database(database: Path, copy: Path) -> None:
    """Copy a database that others may be writing to, as it is at one moment; DeployError if it is damaged."""
    try:
        with (
            contextlib.closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=rw", timeout=60, uri=True)) as old,
            contextlib.closing(sqlite3.connect(copy)) as new,
        ):
            old.backup(new)  # in one step: in several, each change of the database would begin it again
            (verdict,) = new.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error as error:
        verdict = str(error)
    if verdict != "ok":
        raise DeployError(
            f"{database} cannot be copied: {verdict}. Delete it and start fairbloom server again, which makes a new "
            "one and registers the clients; runs are submitted again and go on where they were"
        )


def restore(file: Path, folder: Path, hosts: Sequence[str] = (), *, replaces: bool = False) -> Restored:
    """Make a federation's folder from a backup, whole or not at all.

    `hosts` are the server's new names and addresses, if they change. With `replaces` the folder's content is deleted;
    clients that it knows to be revoked stay so.
    """
    names = [check_host("--host", host) for host in hosts]
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())) and not replaces:
        raise DeployError(
            f"{folder} is not empty: choose another folder, or give --replace, which deletes what is in it"
        )
    if replaces and (foreign := _foreign_file(folder)):
        raise DeployError(
            f"{folder} is no federation's folder, and {foreign} in it would be deleted: choose another folder, or "
            "empty this one yourself"
        )
    try:
        with _keep_from_serving(folder), _replaced_content(folder) as draft:
            about = _unpack(file, draft)
            add_missing_files(draft)
            draft_federation = Federation(draft)
            if names:
                _move(draft_federation, names[0])
                draft_federation = Federation(draft)
            struck_off = _strike_off(draft_federation, _revoked_keys(folder))
            token = draft_federation.read_token()
            write_flower_home(draft / "flower", draft_federation.control, folder / "ca.crt", token)
            write_public(draft / draft_federation.unit.name, server_unit(folder).encode())
    except OSError as error:
        raise DeployError(f"{folder} cannot be made from {file}: {error}") from error
    except DeployError as error:  # which may name a file of the draft, and that is gone
        raise DeployError(re.sub(rf"{re.escape(str(folder))}/{DRAFT}\w+", lambda _: str(file), str(error))) from error
    federation = Federation(folder)
    federation.note("restore", file=str(file.absolute()), made=str(about["made"]))
    if names:
        federation.renew([*names, *pki.read_hosts(federation.certificate)], pki.SERVER_DAYS)
    return Restored(federation, str(about["made"]), struck_off)


# Packing and unpacking ----------------------------------------------------------------------------------------------


def _pack(packed: tarfile.TarFile, name: str, content: bytes) -> None:
    packed.addfile(_entry(name, len(content)), io.BytesIO(content))


def _entry(name: str, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o600
    return entry


def _unpack(file: Path, folder: Path) -> dict[str, object]:
    """Lay out what a backup holds, and nothing else; return what it says of itself."""
    damaged = f"{file} is not a backup of fairbloom deploy backup, or a damaged one"
    for name in ("clients", "state"):
        (folder / name).mkdir(mode=0o700)
    about: dict[str, object] = {}
    try:
        with gzip.open(file) as stream, tarfile.open(fileobj=stream, mode="r|") as packed:
            for entry in packed:
                content = packed.extractfile(entry) if entry.isreg() else None
                if content is None or (entry.size > LARGEST_FILE and entry.name != DATABASE):
                    raise DeployError(f"{damaged}: {entry.name!r} is not a plain file")
                if not about:
                    about = _read_about(entry.name, content, damaged)
                elif entry.name not in (*FILES, LOG, DATABASE) and not CLIENT.fullmatch(entry.name):
                    raise DeployError(f"{damaged}: {entry.name!r} is not of a federation")
                else:
                    public = entry.name in PUBLIC or entry.name.startswith("clients/")
                    with whole_file(folder / entry.name, 0o644 if public else 0o600) as written:
                        shutil.copyfileobj(content, written)
            while stream.read(1 << 20):  # what is left: the checksum of all comes last
                pass
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DeployError(f"{damaged}: {error}") from None
    if not about:
        raise DeployError(f"{damaged}: it is empty")
    if not (folder / "federation.toml").exists():
        raise DeployError(f"{damaged}: it lacks 'federation.toml'")
    return about


def _read_about(name: str, content: IO[bytes], damaged: str) -> dict[str, object]:
    """Return what a backup says of itself in its first file."""
    try:
        about: dict[str, object] = tomllib.loads(content.read().decode()) if name == ABOUT else {}
    except ValueError as error:
        raise DeployError(f"{damaged}: {error}") from None
    number = about.get("format")
    if not isinstance(number, int):
        raise DeployError(f"{damaged}: it begins with {name!r}")
    if number > FORMAT:
        made_by = f"the backup is of format {number}, by fairbloom {about.get('version')}"
        raise DeployError(f"{made_by}, and this version reads format {FORMAT}: upgrade fairbloom here")
    return about


# The folder ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _replaced_content(folder: Path) -> Iterator[Path]:
    """Give a folder to fill; its content replaces that of `folder` when the block succeeds.

    The draft is inside, since a volume's root cannot be replaced. federation.toml, which makes a folder a federation's,
    goes first and comes last.
    """
    new = not folder.exists()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=folder, prefix=DRAFT))
    try:
        yield draft
        folder.chmod(0o700)
        _delete(sorted((each for each in folder.iterdir() if each != draft), key=_is_first, reverse=True))
        for each in sorted(draft.iterdir(), key=_is_first):
            each.rename(folder / each.name)
        draft.rmdir()
    except BaseException:
        _delete([folder] if new else [draft])
        raise


def _foreign_file(folder: Path) -> str:
    """Return the name of a file that no federation's folder has; "" in one that is, or was being, a federation's."""
    if not folder.is_dir() or (folder / "federation.toml").exists():
        return ""
    names = sorted(each.name for each in folder.iterdir() if not each.name.startswith(DRAFT))
    return next((name for name in names if name not in (*FILES, *FOLDERS)), "")


def _is_first(path: Path) -> bool:
    return path.name == "federation.toml"


def _delete(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _keep_from_serving(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Keep a server of this folder from starting; raise DeployError where one is running."""
    lock = folder / "state" / "lock"
    try:
        return exclusive_lock(lock) if lock.exists() else contextlib.nullcontext()
    except LockedError as error:
        raise DeployError(f"{folder} is served, by {error.holder}: stop fairbloom server first") from None


def _revoked_keys(folder: Path) -> frozenset[str]:
    """Return the keys that the federation in a folder has struck off; none where there is no federation."""
    try:
        return frozenset(Federation(folder).registry.revoked_keys())
    except DeployError:
        return frozenset()


def _strike_off(federation: Federation, keys: frozenset[str]) -> tuple[str, ...]:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    gone = [client for client in federation.clients if client.public_key in keys and not client.revoked]
    for client in gone:
        federation.registry.save(replace(client, revoked=now))
    return tuple(client.name for client in gone)


def _move(federation: Federation, host: str) -> None:
    """Write into a federation's file that clients reach it at another host, by the same port."""
    file = federation.path / "federation.toml"
    _, port = parse_address(f"superlink in {file}:", federation.superlink)
    about = {**tomllib.loads(file.read_text()), "superlink": join_address(host, port)}
    write_public(file, tomli_w.dumps(about).encode())
