"""Checks of what an operator gives: hosts, ports, addresses, days; each names the option, its value and the remedy."""

import re

from . import pki
from .errors import DeployError
from .processes import split_address

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
"""Names that a client may have."""

NAME_RULE = "use up to 63 letters, digits, dots, dashes and underscores"
"""What a message says of a name that a client may not have."""


def check_host(option: str, given: str) -> str:
    """Return a host's name or address as certificates have it, or raise DeployError."""
    try:
        return pki.normalise_host(given)
    except pki.PkiError as error:
        raise DeployError(f"{option} {error}") from None


def check_port(option: str, given: int) -> int:
    """Return a port, or raise DeployError."""
    if not 0 < given < 65536:
        raise DeployError(f"{option} {given}: a port is a number from 1 to 65535")
    return given


def parse_address(option: str, given: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT, or raise DeployError."""
    try:
        host, port = split_address(given)
    except ValueError as error:
        raise DeployError(f"{option} {error}") from None
    return check_host(option, host), check_port(option, port)


def join_address(host: str, port: int) -> str:
    """Return HOST:PORT."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_count(option: str, given: int) -> None:
    """Raise DeployError unless a number is 0 or more."""
    if given < 0:
        raise DeployError(f"{option} {given}: it is counted from 0")
