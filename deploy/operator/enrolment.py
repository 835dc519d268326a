"""Enrolling clients: their keys are registered with the SuperLink, and each device gets a bundle to unpack."""

import contextlib
import csv
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

from fairbloom.errors import FairbloomError

from .. import pki
from ..arguments import NAME, NAME_RULE, check_count, check_days
from ..errors import DeployError, UnauthorizedError, UnreachableError
from ..flower.operator import control_api
from ..processes import first_names
from .device_bundle import remove_bundle, write_bundle
from .federation import Federation, warn
from .registry import EnrolledClient, FormerKey, check_key, check_name

KEY_DAYS = 398.0
"""How long a client's key is good unless the operator says otherwise."""

LONGEST_DAYS = 36_500.0


class Nodes(Protocol):
    """Where the SuperLink keeps which keys it lets in: its control API, or its state itself."""

    def register(self, name: str, public_key: bytes) -> str:
        """Register a client's public key, in OpenSSH format; return the number of its node."""

    def unregister(self, node_id: str) -> None:
        """Strike a node off."""


@dataclass(frozen=True, kw_only=True)
class Applicant:
    """A client that is to be enrolled.

    Without a request, keys are made here, and the private key is in the bundle alone. `examples` is 0 where their
    number is not known, `partition_id` None for the first that is free.
    """

    name: str
    partition_id: int | None = None
    examples: int = 0
    request: Path | pki.Request | None = None


def enroll(federation: Federation, applicant: Applicant, unpack: bool, *, days: float = KEY_DAYS) -> Path:
    """Register a client's public key and write the device's bundle; return its path. 0 `days`: a key without end."""
    with federation.audited("enroll", client=applicant.name) as about:
        check_days(days, LONGEST_DAYS, or_never=True)
        check_count("--examples", applicant.examples)
        check_count("--partition-id", applicant.partition_id or 0)
        check_name(federation.clients, applicant.name)
        keys = _choose_keys(federation, applicant.name, applicant.request)
        _retire(federation)
        with (
            control_api.connected(federation) as api,
            new_client(federation, api, applicant, keys.public, days) as enrolled,
        ):
            bundle = write_bundle(federation, enrolled, keys, unpack)
        about |= key_facts(enrolled)
    return bundle


@contextlib.contextmanager
def new_client(
    federation: Federation, nodes: Nodes, applicant: Applicant, public_key: bytes, days: float
) -> Iterator[EnrolledClient]:
    """Register a key and give its client, which is enrolled once the block succeeds."""
    name = applicant.name
    with federation.registry.locked(), contextlib.ExitStack() as undo:
        clients = federation.clients
        check_name(clients, name)  # another command may have been quicker
        check_key(clients, name, public_key)
        node_id = nodes.register(name, public_key)
        undo.enter_context(_unregister_on_failure(nodes, node_id))
        taken = {client.partition_id for client in clients if not client.revoked}
        first_free = min({*range(len(taken) + 1)} - taken)
        before = {client.name: client for client in clients}.get(name)
        enrolled = EnrolledClient(
            name=name,
            node_id=node_id,
            partition_id=first_free if applicant.partition_id is None else applicant.partition_id,
            public_key=public_key.decode(),
            enrolled=now(),
            expires=in_days(days) if days else "",
            examples=applicant.examples,
            former=before.all_former if before else (),
        )
        yield enrolled
        federation.registry.save(enrolled)


LIST_COLUMNS = ("client", "examples", "partition-id", "request")
"""The columns that a list of clients may have; the first it must have, where it has a header."""


def read_list(file: Path) -> list[Applicant]:
    """Return the clients of a list, or of standard input (`-`): a name per line, or CSV with columns LIST_COLUMNS.

    Empty lines, and lines that begin with #, are skipped. A request is looked for next to the list. DeployError names
    the line with a bad cell.
    """
    where = f"--list {file}"
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8-sig")
        lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
        filled = [(number, line) for number, line in lines if line and not line.startswith("#")]
        rows = [(number, [cell.strip() for cell in next(csv.reader([line]))]) for number, line in filled]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DeployError(f"{where} cannot be read: {error}") from None
    columns: Sequence[str] = LIST_COLUMNS[:1]
    if rows and LIST_COLUMNS[0] in rows[0][1]:
        columns = rows.pop(0)[1]
        if unknown := [column for column in columns if column not in LIST_COLUMNS or columns.count(column) > 1]:
            raise DeployError(f"{where} has a column {unknown[0]!r}: it may have {', '.join(LIST_COLUMNS)}, each once")
    if not rows:
        raise DeployError(f"{where} names no client: write one name a line")
    return [_applicant(file, f"line {number} of {where}", columns, cells) for number, cells in rows]


def _applicant(file: Path, where: str, columns: Sequence[str], cells: Sequence[str]) -> Applicant:
    if len(cells) != len(columns):
        remedy = f"begin the list with a line of column names, {', '.join(LIST_COLUMNS)}"
        raise DeployError(
            f"{where} has {len(cells)} cells, and {len(columns)} are read ({', '.join(columns)}): {remedy}"
        )
    row = dict(zip(columns, cells, strict=True))
    for column in ("examples", "partition-id"):
        text = row.get(column, "")
        if text and not (text.isascii() and text.isdigit()):
            raise DeployError(f"{where} has {column} = {text!r}: it must be a whole number, counted from 0")
    return Applicant(
        name=row["client"],
        partition_id=int(row["partition-id"]) if row.get("partition-id") else None,
        examples=int(row.get("examples") or 0),
        request=file.parent / row["request"] if row.get("request") else None,
    )


def enroll_all(
    federation: Federation, applicants: Sequence[Applicant], unpack: bool, *, days: float = KEY_DAYS, keep: bool = False
) -> Iterator[tuple[str, Path | None]]:
    """Enrol several clients, one after the other; yield each one's name and bundle, None for one that was kept.

    Each is enrolled as a whole or not at all, once all names are checked. With `keep`, enrolled clients are left as
    they are instead of refused. A DeployError says who was enrolled.
    """
    there = {client.name for client in federation.clients if not client.revoked}
    kept = there if keep else set[str]()
    _check_names(federation, applicants, there - kept)
    enrolled: list[str] = []
    for number, each in enumerate(applicants):
        if each.name in kept:
            yield each.name, None
            continue
        try:
            bundle = enroll(federation, each, unpack, days=days)
        except FairbloomError as error:
            if len(applicants) == 1:
                raise
            left = first_names(one.name for one in applicants[number:] if one.name not in kept)
            raise DeployError(
                f"client {each.name}: {error}. Enrolled before it: {first_names(enrolled) or 'none'}. Not enrolled: "
                f"{left}. The same command with --keep goes on"
            ) from error
        enrolled.append(each.name)
        yield each.name, bundle


def _check_names(federation: Federation, applicants: Sequence[Applicant], enrolled: set[str]) -> None:
    """Raise DeployError, and note it, where several clients are given and one of the names cannot be enrolled."""
    if len(applicants) == 1:  # `enroll` says it
        return
    names = [each.name for each in applicants]
    lower = Counter(name.lower() for name in names)
    if wrong := [repr(name) for name in names if not NAME.fullmatch(name)]:
        reason = f"{', '.join(wrong)}: {NAME_RULE}"
    elif twice := sorted({name for name in names if lower[name.lower()] > 1}):
        reason = f"{', '.join(twice)}: listed more than once, where capitals count for nothing; nobody was enrolled"
    elif known := [name for name in names if name in enrolled]:
        reason = f"{', '.join(known)}: enrolled already, so nobody was enrolled; --keep leaves them as they are"
    else:
        return
    with federation.audited("enroll", clients=" ".join(names)):
        raise DeployError(reason)


def describe_clients_beyond(federation: Federation, clients: int) -> str:
    """Return which enrolled clients have a partition beyond this number of clients, and what to do."""
    current = [client for client in federation.clients if not client.revoked]
    far = [client for client in current if client.partition_id >= clients]
    if not far:
        return ""
    highest = max(client.partition_id for client in far)
    free = sorted(set(range(clients)) - {client.partition_id for client in current})
    words = first_names(f"client {client.name} has partition {client.partition_id}" for client in far)
    again = f", or revoke and enrol it again, which gives it partition {free[0]}" if free else ""
    deals = f"clients = {clients} deals data to partitions 0 to {clients - 1}"
    return f"{words}, and {deals}: set clients={highest + 1}{again}"


def rotate(
    federation: Federation,
    name: str,
    unpack: bool,
    *,
    request: Path | None = None,
    days: float = KEY_DAYS,
    overlap: float = 7.0,
) -> Path:
    """Register a new key for a client and write a new bundle; return its path. Arguments are those of `enroll`.

    The old key stays good for `overlap` days; 0 unregisters it at once.
    """
    with federation.audited("rotate", client=name) as about:
        federation.find_client(name)
        check_days(days, LONGEST_DAYS, or_never=True)
        check_days(overlap, LONGEST_DAYS, or_never=True, option="--overlap")
        keys = _choose_keys(federation, name, request)
        with control_api.connected(federation) as api, federation.registry.locked():
            client = federation.find_client(name)
            check_key(federation.clients, name, keys.public)
            node_id = api.register(name, keys.public)
            with _unregister_on_failure(api, node_id):
                until = min(filter(None, (client.expires, in_days(overlap))), key=datetime.fromisoformat)
                old = FormerKey(node_id=client.node_id, public_key=client.public_key, expires=until)
                rotated = replace(
                    client,
                    node_id=node_id,
                    public_key=keys.public.decode(),
                    key_made=now(),
                    expires=in_days(days) if days else "",
                    former=(*client.former, old),
                )
                bundle = write_bundle(federation, rotated, keys, unpack)
                federation.registry.save(rotated)
        about |= {**key_facts(rotated), "old-node-id": old.node_id, "old-expires": until}
    _retire(federation)
    return bundle


def revoke(federation: Federation, name: str) -> EnrolledClient:
    """Unregister all of a client's keys, permanently; return what was known of it."""
    with (
        federation.audited("revoke", client=name) as about,
        federation.registry.locked(),
    ):  # or a rotation could slip through
        client = federation.find_client(name)
        about |= key_facts(client)
        for key in client.keys:
            _unregister(federation, key.node_id)
        former = tuple(replace(old, unregistered=old.unregistered or now()) for old in client.former)
        federation.registry.save(replace(client, revoked=now(), former=former))
        remove_bundle(federation, name)
    _retire(federation)
    return client


def _choose_keys(federation: Federation, name: str, request: Path | pki.Request | None) -> pki.KeyPair:
    """Return the key that a device asks for, without its private half, or a new pair."""
    if request is None:
        return pki.make_node_key()
    try:
        asked = request if isinstance(request, pki.Request) else pki.read_request(request.read_text(), str(request))
    except (OSError, UnicodeDecodeError) as error:
        raise DeployError(f"--request {request} cannot be read: {error}") from None
    if asked.name != name:
        raise DeployError(f"--request {request} is of client {asked.name!r}, not {name!r}: was the file mixed up?")
    check_key(federation.clients, name, asked.public)
    return pki.KeyPair(private=b"", public=asked.public, signing=asked.signing)


def _unregister(federation: Federation, node_id: str) -> None:
    with control_api.connected(federation) as api:
        try:
            api.unregister(node_id)
        except (UnreachableError, UnauthorizedError):
            raise
        except DeployError:
            status = api.nodes().get(node_id, {}).get("status", "unregistered")
            # An earlier attempt may have got this far, or the database may be another, which will not learn this key.
            if status != "unregistered":
                raise


def _retire(federation: Federation) -> None:
    """Unregister former keys that have expired; what fails is tried again by the next command."""
    moment, registered = datetime.now(UTC), federation.keys()
    for key in registered:
        if key.current or not key.expired(moment):
            continue
        try:
            _unregister(federation, key.node_id)
            with federation.registry.locked():
                client = federation.find_client(key.client)
                former = (
                    replace(old, unregistered=now()) if old.node_id == key.node_id else old for old in client.former
                )
                federation.registry.save(replace(client, former=tuple(former)))
            federation.note("unregister", client=key.client, **{"node-id": key.node_id})
        except DeployError as error:
            warn(f"a former key of client {key.client} is not unregistered yet: {error}")


@contextlib.contextmanager
def _unregister_on_failure(nodes: Nodes, node_id: str) -> Iterator[None]:
    """Unregister a node where the block fails: it would be nobody's."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(DeployError):
            nodes.unregister(node_id)
        raise


def now() -> str:
    """Return this moment, as a client's file has it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def in_days(days: float) -> str:
    """Return the time in this number of days."""
    return (datetime.now(UTC) + timedelta(days=days)).isoformat(timespec="seconds")


def key_facts(client: EnrolledClient) -> dict[str, str | int | float | None]:
    """Return what the audit log says of a client's key."""
    return {
        "node-id": client.node_id,
        "key": pki.fingerprint(client.public_key.encode()),
        "expires": client.expires or "never",
        "partition-id": client.partition_id,
        "examples": client.examples or None,
    }
