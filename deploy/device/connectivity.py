"""Find out why a client cannot reach its server.

The address may not answer, another program may use the port, or one side may not accept the other's
certificate. gRPC retries some of these faults for ever without an error.
"""

import contextlib
import os
import socket
import ssl
from base64 import b64encode
from ipaddress import ip_address, ip_network
from urllib.parse import unquote, urlsplit

from ..errors import DeployError
from ..processes import split_address
from .client import ClientSettings

# The longest time that an address may take to answer.
PROBE_SECONDS = 10.0

# gRPC takes the first of these variables that is set, if that is a URL of http.
PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")

# The first of these variables that is set lists hosts to which gRPC takes no proxy.
NO_PROXIES = ("no_grpc_proxy", "no_proxy")


def connection_fault(client: ClientSettings) -> str | None:
    """Return the reason why this client cannot reach its server now, or None if it can.

    It is tried in gRPC's way, which may lead through a proxy.
    """
    host, port = split_address(client.server)
    proxy = find_proxy(host)
    fault = _find_fault(client, host, port, proxy)
    if fault is None or not proxy:
        return fault
    return (
        f"{fault}. The connection goes through the proxy that the environment variable {proxy}"
        f" names: let the proxy's operator allow CONNECT to {client.server}, or set no_proxy={host}"
        " where the client starts if it needs no proxy"
    )


def find_proxy(host: str) -> str:
    """Return the environment variable with gRPC's proxy to a host, "" for none."""
    name = next((each for each in PROXIES if each in os.environ), "")
    listed = next((os.environ[each] for each in NO_PROXIES if each in os.environ), "")
    if not os.environ.get(name, "").casefold().startswith("http://") or any(
        _is_among(host, each.strip().lstrip(".")) for each in listed.split(",")
    ):
        return ""
    return name


def _is_among(host: str, listed: str) -> bool:
    """Return whether a host is the listed one, below a listed domain or in a listed network."""
    with contextlib.suppress(ValueError):
        return ip_address(host) in ip_network(listed, strict=False)
    return bool(listed) and f".{host}".casefold().endswith(f".{listed}".casefold())


def _dial(host: str, port: int, proxy: str) -> socket.socket:
    """Return a connection to a port, as gRPC makes it."""
    if not proxy:
        return socket.create_connection((host, port), timeout=PROBE_SECONDS)
    from http.client import HTTPConnection, HTTPException  # imported late: few clients have a proxy

    url = urlsplit(os.environ[proxy])
    account = unquote(url.netloc.rpartition("@")[0])
    known = {"Proxy-Authorization": f"Basic {b64encode(account.encode()).decode()}"}
    tunnel = HTTPConnection(url.hostname or "", url.port, timeout=PROBE_SECONDS)
    tunnel.set_tunnel(host, port, known if account else None)
    try:
        tunnel.connect()
    except HTTPException as error:
        tunnel.close()
        raise ConnectionAbortedError(f"{proxy} is no proxy's: {error}") from error
    dialled: socket.socket = tunnel.sock
    return dialled


def _find_fault(client: ClientSettings, host: str, port: int, proxy: str) -> str | None:
    try:
        context = client.tls_context()
        context.set_alpn_protocols(["h2"])
        with (
            _dial(host, port, proxy) as connection,
            context.wrap_socket(connection, server_hostname=host) as secured,
        ):
            if secured.selected_alpn_protocol() != "h2":
                return (
                    f"{client.server} is a web server's port: clients connect to the fleet port,"
                    " 9092 unless the federation's operator chose another"
                )
            # In TLS 1.3 the handshake ends before the server has checked our certificate: only
            # data from the server show that it is accepted.
            with contextlib.suppress(ssl.SSLError, ConnectionResetError):
                if secured.recv(1):
                    return None
            return (
                f"{client.server} does not accept certificate = {client.certificate}: it has"
                " expired, or is of another federation: ask the federation's operator to enrol"
                " this client again"
            )
    except DeployError as error:
        return str(error)
    except ssl.SSLCertVerificationError as error:
        return (
            f"{client.server} shows a certificate that {client.ca} does not vouch for:"
            f" {error.verify_message}. If it has expired or does not have this name, the"
            " federation's operator must make a new one (fairbloom deploy renew). Otherwise, take"
            " the CA certificate from the operator. Also check this device's clock"
        )
    except (ssl.SSLEOFError, ConnectionResetError):
        return (
            f"{client.server} closes connections before it says anything: the server is full, as"
            " fairbloom deploy status shows there, or this is not the fleet port of a fairbloom"
            " server"
        )
    except ssl.SSLError:
        return f"{client.server} does not speak TLS: is it the fleet port of a fairbloom server?"
    except TimeoutError:
        return (
            f"{client.server} does not answer within {PROBE_SECONDS:.0f} s: is there a firewall in"
            " between? A proxy is named by https_proxy, in small letters"
        )
    except (OSError, ValueError) as error:  # also the proxy's port may be no number
        words = getattr(error, "strerror", None) or error
        return f"{client.server} cannot be reached: {words}"
