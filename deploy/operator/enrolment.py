"""Enrolling clients: their keys are registered with the SuperLink, and each device gets a bundle."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from .. import pki
from ..arguments import check_count
from ..errors import DeployError, UnauthorizedError, UnreachableError
from ..flower.operator import control_api
from ..flower.operator.control_api import ControlApi
from ..processes import first_names
from .device_bundle import remove_bundle, write_bundle
from .federation import Federation, explain_os_errors
from .registry import EnrolledClient, check_key, check_name


def enroll(
    federation: Federation,
    name: str,
    *,
    partition_id: int | None = None,
    examples: int = 0,
    request: Path | None = None,
) -> Path:
    """Register a client's public key and write the device's bundle; return its folder.

    Without a request, keys are made here, and the private key is in the bundle alone. A client that is enrolled gets
    the new key in place of the one before, which is struck off; its partition and examples stay where none are given.
    `examples` is 0 where their number is not known, `partition_id` None for the first that is free.
    """
    with explain_os_errors("enroll"):
        check_count("--examples", examples)
        check_count("--partition-id", partition_id or 0)
        check_name(federation.clients, name)
        pki.check_certificate(federation.authority)
        keys = _choose_keys(federation, name, request)
        with control_api.connected(federation) as api, federation.registry.locked():
            clients = federation.clients
            check_name(clients, name)  # another command may have been quicker
            check_key(clients, name, keys.public)
            before = next((client for client in federation.enrolled if client.name == name), None)
            taken = {client.partition_id for client in federation.enrolled}
            first_free = before.partition_id if before else min({*range(len(taken) + 1)} - taken)
            node_id = api.register(name, keys.public)
            with _unregister_on_failure(api, node_id):
                client = EnrolledClient(
                    name=name,
                    node_id=node_id,
                    partition_id=first_free if partition_id is None else partition_id,
                    public_key=keys.public.decode(),
                    enrolled=now(),
                    examples=examples or (before.examples if before else 0),
                )
                bundle = write_bundle(federation, client, keys)
                federation.registry.save(client)
            if before:
                _unregister(api, before.node_id)
    return bundle


def describe_clients_beyond(federation: Federation, clients: int) -> str:
    """Return which enrolled clients have a partition beyond this number of clients, and what to do."""
    current = federation.enrolled
    far = [client for client in current if client.partition_id >= clients]
    if not far:
        return ""
    highest = max(client.partition_id for client in far)
    free = sorted(set(range(clients)) - {client.partition_id for client in current})
    words = first_names(f"client {client.name} has partition {client.partition_id}" for client in far)
    again = f", or enrol it again with --partition-id {free[0]}" if free else ""
    deals = f"clients = {clients} deals data to partitions 0 to {clients - 1}"
    return f"{words}, and {deals}: set clients={highest + 1}{again}"


def revoke(federation: Federation, name: str) -> EnrolledClient:
    """Unregister a client's key, permanently; return what was known of it."""
    with explain_os_errors("revoke"), federation.registry.locked():
        client = federation.find_client(name)
        with control_api.connected(federation) as api:
            _unregister(api, client.node_id)
        federation.registry.save(replace(client, revoked=now()))
        remove_bundle(federation, name)
    return client


def _choose_keys(federation: Federation, name: str, request: Path | None) -> pki.KeyPair:
    """Return the key that a device asks for, without its private half, or a new pair."""
    if request is None:
        return pki.make_node_key()
    try:
        asked = pki.read_request(request.read_text(), str(request))
    except (OSError, UnicodeDecodeError) as error:
        raise DeployError(f"--request {request} cannot be read: {error}") from None
    if asked.name != name:
        raise DeployError(f"--request {request} is of client {asked.name!r}, not {name!r}: was the file mixed up?")
    check_key(federation.clients, name, asked.public)
    return pki.KeyPair(private=b"", public=asked.public)


def _unregister(api: ControlApi, node_id: str) -> None:
    try:
        api.unregister(node_id)
    except (UnreachableError, UnauthorizedError):
        raise
    except DeployError:
        status = api.nodes().get(node_id, {}).get("status", "unregistered")
        # An earlier attempt may have got this far, or the database may be another, which will not learn this key.
        if status != "unregistered":
            raise


@contextlib.contextmanager
def _unregister_on_failure(api: ControlApi, node_id: str) -> Iterator[None]:
    """Unregister a node where the block fails: it would be nobody's."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(DeployError):
            api.unregister(node_id)
        raise


def now() -> str:
    """Return this moment, as a client's file has it."""
    return datetime.now(UTC).isoformat(timespec="seconds")
