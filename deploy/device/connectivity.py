"""Why a client cannot talk to its SuperLink, in words.

The address does not answer, TLS is on one side alone, the port is something else's: gRPC retries some of these for ever
without saying what is wrong.
"""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING

from ..errors import ClientError
from ..processes import split_address

if TYPE_CHECKING:
    from .client import ClientSettings

PROBE_SECONDS = 10.0
"""How long an address may take to answer."""


def connection_fault(client: ClientSettings) -> str | None:
    """Return, in words, why this client cannot talk to its SuperLink just now; None where nothing is in the way."""
    place = split_address(client.superlink)
    try:
        context = tls_context(client.ca or None)
        context.set_alpn_protocols(["h2"])
        if client.insecure:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with socket.create_connection(place, timeout=PROBE_SECONDS) as connection:
            fault = _shake_hands(context, connection, place[0], client)
        if fault is None and client.insecure:
            with socket.create_connection(place, timeout=PROBE_SECONDS) as connection:
                fault = _no_http(connection, client.superlink)
    except ClientError as error:
        return str(error)
    except TimeoutError:
        return f"{client.superlink} does not answer within {PROBE_SECONDS:.0f} s: is a firewall between?"
    except OSError as error:
        return f"{client.superlink} cannot be reached: {error.strerror or error}"
    return fault


def tls_context(authority: str | None) -> ssl.SSLContext:
    """Return how a server's certificate is checked: against one authority, and as leniently as gRPC does."""
    try:
        context = ssl.create_default_context(cafile=authority)
    except OSError as error:  # ssl.SSLError is one
        reason = (
            "it holds no certificate" if isinstance(error, ssl.SSLError) else f"it cannot be read: {error.strerror}"
        )
        raise ClientError(f"ca = {authority}: {reason}; take ca.crt from the client's bundle again") from error
    context.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
    return context


def _shake_hands(context: ssl.SSLContext, connection: socket.socket, host: str, client: ClientSettings) -> str | None:
    try:
        with context.wrap_socket(connection, server_hostname=host) as secured:
            if client.insecure:
                return (
                    f"{client.superlink} speaks TLS and this client is set insecure: give it the CA certificate instead"
                )
            return None if secured.selected_alpn_protocol() == "h2" else _no_http(secured, client.superlink)
    except ssl.SSLCertVerificationError as error:
        return (
            f"{client.superlink} shows a certificate that {client.ca} does not vouch for: {error.verify_message}. If "
            "it has expired or lacks this name, the federation's operator makes a new one (fairbloom deploy renew); "
            "else take the CA certificate from the operator; and see that this device's clock is right"
        )
    except (ssl.SSLError, ConnectionError):
        if client.insecure:
            return None
        return f"{client.superlink} does not speak TLS: the federation's operator starts it with its certificate"


def _no_http(connection: socket.socket, address: str) -> str | None:
    """Return words where a port answers HTTP/1.1, as the control API does and no port for clients."""
    connection.sendall(f"GET /health HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode())
    if not connection.recv(5).startswith(b"HTTP/"):
        return None
    return (
        f"{address} is the control API's port or a web server's: clients connect to the fleet port, 9092 unless the "
        "federation's operator chose another"
    )
