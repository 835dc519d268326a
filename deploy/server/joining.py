"""Devices that have themselves enrolled by a join token, and that replace their keys before these end."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from .. import pki
from ..errors import DeployError, RefusedDeviceError
from ..operator import enrolment
from ..operator.device_bundle import make_identity, remove_bundle
from ..operator.federation import Federation
from ..operator.registry import EnrolledClient, FormerKey, check_key, check_name
from ..operator.tokens import REMEDY

Enrolled = tuple[EnrolledClient, bytes]
"""A client, and its identity in private runs: b"" for none."""

ReplaceKey = Callable[[str, bytes], None]
"""Lets a node, by its number, in by another public key, and by the one before no longer."""


def admit(
    federation: Federation, nodes: enrolment.Nodes, number: str, peer: str, asked: pki.Request
) -> Enrolled | None:
    """Enrol the device of a request by a token; None: it waits for the operator's approval. DeployError: it is refused.

    The token names the device before the device is enrolled: whatever ends this halfway, the device may ask again, and
    no other one may.
    """
    name, line = asked.name, pki.write_request(pki.KeyPair(b"", asked.public, asked.signing), asked.name)
    with federation.tokens.locked():
        token = federation.tokens.read(number)
        if token is None:
            raise DeployError(f"the join token {number} was deleted: {REMEDY}")
        token.check(name, line)
        clients = federation.clients
        client = {each.name: each for each in clients}.get(name)
        if name in token.requests and client and client.public_key == asked.public.decode() and not client.revoked:
            return client, make_identity(federation, client, asked.signing)
        check_name(clients, name)
        check_key(clients, name, asked.public)
        if name not in token.requests:
            if name in {waiting for _, waiting, _ in federation.tokens.waiting(clients)}:
                raise DeployError(f"another device waits to be client {name!r}: choose another name")
            if not token.name and (client or federation.tokens.keep(name)):  # a new client gets the revoked one's file
                words = f"client {name!r} is revoked" if client else f"the name {name!r} is for another token's device"
                words += f": choose another name, or {REMEDY.removesuffix(')')} {name})"
                raise RefusedDeviceError("a name that is kept", words)
            federation.tokens.save(replace(token, requests={**token.requests, name: line}))
            if token.approve:
                about = {"key": pki.fingerprint(asked.public), "token": number, "peer": peer}
                federation.note("join asked", client=name, **about)
        if token.approve:
            return None
        applicant = enrolment.Applicant(name=name, examples=token.examples)
        with enrolment.new_client(federation, nodes, applicant, asked.public, token.days) as client:
            identity = make_identity(federation, client, asked.signing)
        federation.note("join", client=name, token=number, peer=peer, **enrolment.key_facts(client))
    return client, identity


def renew(federation: Federation, replace_key: ReplaceKey, node_id: int, asked: pki.Request) -> Enrolled:
    """Replace a node's key by that of a request, once it is time; a device that repeats its call is answered again."""
    with federation.registry.locked():
        client = next((each for each in federation.clients if each.node_id == str(node_id) and not each.revoked), None)
        if client is None:
            raise DeployError("this key was replaced by the operator: unpack the bundle that belongs to the new one")
        if client.public_key != asked.public.decode():
            client = _give_key(federation, replace_key, client, asked)
        return client, make_identity(federation, client, asked.signing)


def _give_key(
    federation: Federation, replace_key: ReplaceKey, client: EnrolledClient, asked: pki.Request
) -> EnrolledClient:
    current = client.keys[0]
    if not current.is_due(datetime.now(UTC)):
        words = f"the key of client {client.name} is good until {client.expires or 'ever'}: it is too early"
        raise RefusedDeviceError("too early", words)
    if asked.signing and not federation.authority_key.exists():
        raise RefusedDeviceError(
            "the authority's key is not on the server",
            f"the authority's key is not on the server, so that client {client.name} would lose its identity in "
            f"private runs: the operator replaces its key (fairbloom deploy rotate {client.name})",
        )
    check_key(federation.clients, client.name, asked.public)
    life = datetime.fromisoformat(client.expires) - datetime.fromisoformat(current.made)
    made = enrolment.now()
    old = FormerKey(node_id=client.node_id, public_key=client.public_key, expires=made, unregistered=made)
    renewed = replace(
        client,
        public_key=asked.public.decode(),
        key_made=made,
        expires=(datetime.fromisoformat(made) + life).isoformat(),
        former=(*client.former, old),
    )
    replace_key(client.node_id, asked.public)
    try:
        federation.registry.save(renewed)
    except BaseException:
        replace_key(client.node_id, client.public_key.encode())
        raise
    remove_bundle(federation, client.name, unpacked=False)  # its key is no longer good; a client may run from a folder
    federation.note("key renewed", client=client.name, **enrolment.key_facts(renewed))
    return renewed
