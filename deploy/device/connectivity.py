"""Why a client cannot talk to its server, in words.

The address does not answer, the port is something else's, a certificate is not accepted: gRPC
retries some of these for ever without an error.
"""

from __future__ import annotations

import contextlib
import socket
import ssl

from ..errors import DeployError
from ..processes import split_address
from .client import ClientSettings

# How long an address may take to answer.
PROBE_SECONDS = 10.0


def connection_fault(client: ClientSettings) -> str | None:
    """Return, in words, why this client cannot talk to its server just now.

    None where nothing is in the way.
    """
    host, port = split_address(client.server)
    try:
        context = client.tls_context()
        context.set_alpn_protocols(["h2"])
        with (
            socket.create_connection((host, port), timeout=PROBE_SECONDS) as connection,
            context.wrap_socket(connection, server_hostname=host) as secured,
        ):
            if secured.selected_alpn_protocol() != "h2":
                return (
                    f"{client.server} is a web server's port: clients connect to the fleet port,"
                    " 9092 unless the federation's operator chose another"
                )
            # Whether the server goes on once it has seen our certificate, of which TLS 1.3 says
            # nothing before.
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
            f" {error.verify_message}. If it has expired or lacks this name, the federation's"
            " operator makes a new one (fairbloom deploy renew); else take the CA certificate from"
            " the operator; and see that this device's clock is right"
        )
    except (ssl.SSLError, ConnectionResetError):
        return f"{client.server} does not speak TLS: is it the fleet port of a fairbloom server?"
    except TimeoutError:
        return (
            f"{client.server} does not answer within {PROBE_SECONDS:.0f} s: is a firewall or a"
            " proxy between?"
        )
    except OSError as error:
        return f"{client.server} cannot be reached: {error.strerror or error}"
