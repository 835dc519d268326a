"""What the operator does about devices that join: makes and revokes tokens, and approves requests."""

import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import tomli_w

from .. import pki
from ..arguments import check_count, check_days
from ..errors import DeployError
from ..processes import first_names
from .enrolment import KEY_DAYS, LONGEST_DAYS, Applicant, enroll, in_days, now
from .federation import Federation
from .registry import check_name
from .tokens import ID, Token, hash_secret, is_open

MOST_CLIENTS, MOST_HOURS = 10_000, 24.0 * 366
"""How many devices a token may be for, and how long it may be good."""


def make_token(
    federation: Federation,
    name: str,
    *,
    clients: int = 1,
    hours: float = 24.0,
    approve: bool = False,
    days: float = KEY_DAYS,
    examples: int = 0,
) -> str:
    """Make a join token, for the client `name` or for several that choose their names; return its text, a secret."""
    with federation.audited("token", client=name or None) as about:
        check_days(days, LONGEST_DAYS, or_never=True)
        if name:
            check_name(federation.clients, name)
        if not 1 <= clients <= MOST_CLIENTS or (name and clients > 1):
            raise DeployError(f"--clients {clients}: a token is for one client by its name, or for 1 to {MOST_CLIENTS}")
        if not 0 < hours <= MOST_HOURS:
            raise DeployError(f"--hours {hours:g}: it must be more than 0, and at most {MOST_HOURS:g}")
        check_count("--examples", examples)
        number, secret = secrets.token_hex(4), secrets.token_urlsafe(32)
        token = Token(
            id=number,
            sha256=hash_secret(secret),
            made=now(),
            expires=in_days(hours / 24),
            days=float(days),
            name=name,
            clients=clients,
            approve=approve,
            examples=examples,
        )
        with federation.tokens.locked():
            federation.tokens.save(token)
        about |= {"token": number, "clients": clients, "expires": token.expires, "approve": int(approve)}
    of = f"of client {name}" if name else f"for {clients} client(s)"
    said = {"superlink": federation.superlink, "token": f"{number}.{secret}", "name": name}
    settings = tomli_w.dumps({**said, "ca": federation.authority.read_text()}, multiline_strings=True)
    return f"# Join token {number} {of}, a secret, good until {token.expires}: fairbloom client join FILE\n{settings}"


def revoke_token(federation: Federation, number: str) -> Token:
    """Revoke a token: no device is enrolled by it any more, nor are those that wait for approval."""
    with federation.audited("token revoked", token=number), federation.tokens.locked():
        token = federation.tokens.read(number) if ID.fullmatch(number) else None
        if token is None or token.revoked:
            known = first_names(each.id for each in federation.tokens.all() if not each.revoked) or "none"
            raise DeployError(f"there is no join token {number!r} to revoke; there are: {known}")
        federation.tokens.save(replace(token, revoked=now()))
        return token


def describe_tokens(federation: Federation) -> list[str]:
    """Return a line about each token by which devices can still join."""
    return [
        f"{token.id}: {token.name or f'{len(token.requests)} of {token.clients} clients'}, good until {token.expires}"
        + (", with approval" if token.approve else "")
        for token in filter(is_open, federation.tokens.all())
    ]


def find_waiting(federation: Federation) -> list[dict[str, Any]]:
    """Return the devices that wait for the operator's approval: name, fingerprint of the key, and token."""
    waiting = federation.tokens.waiting(federation.clients)
    return [
        {"client": name, "key": pki.fingerprint(request.encode()), "token": token.id}
        for token, name, request in waiting
    ]


def describe_waiting(each: Mapping[str, Any]) -> str:
    """Return one of `find_waiting` in words."""
    return f"{each['client']}: key {each['key']}, token {each['token']}"


def approve(federation: Federation, name: str) -> Path:
    """Enrol a device that waits; it learns that when it asks again. Return the path of its bundle."""
    with federation.audited("approve", client=name) as about, federation.tokens.locked():
        found = federation.tokens.waiting(federation.clients)
        waiting = {each: (token, request) for token, each, request in found}
        if name not in waiting:
            raise DeployError(f"no device waits to be client {name!r}; waiting are: {first_names(waiting) or 'none'}")
        token, request = waiting[name]
        about["token"] = token.id
        asked = pki.read_request(request, f"the request of {name}")
        applicant = Applicant(name=name, examples=token.examples, request=asked)
        return enroll(federation, applicant, unpack=False, days=token.days)
