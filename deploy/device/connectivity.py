"""Find out why a client cannot reach its server.

The address may not answer, another program may use the port, or one side may not accept the other's
certificate. gRPC retries some of these faults for ever without an error.
"""

import contextlib
import socket
import ssl

from ..errors import DeployError
from ..processes import split_address
from .client import ClientSettings

# The longest time that an address may take to answer.
PROBE_SECONDS = 10.0


def connection_fault(client: ClientSettings) -> str | None:
    """Return the reason why this client cannot reach its server now, or None if it can."""
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
            f"{client.server} does not answer within {PROBE_SECONDS:.0f} s: is there a firewall or"
            " a proxy in between?"
        )
    except OSError as error:
        return f"{client.server} cannot be reached: {error.strerror or error}"
