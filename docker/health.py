"""Health of a container: `answers HOST:PORT CA`, the HTTP API does; `connected PORT`, a connection to one is up."""

import ssl
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path


def answers(address: str, ca: str) -> bool:
    """Return whether a SuperLink's HTTP API says that it is well, and shows a certificate of this authority."""
    context = ssl.create_default_context(cafile=ca)
    with urllib.request.urlopen(f"https://{address}/health", timeout=4, context=context) as answer:
        return int(answer.status) == 200


def connected(port: str) -> bool:
    """Return whether this container has a connection to a port of another."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            remote, state = line.split()[2:4]
            if state == "01" and int(remote.rpartition(":")[2], 16) == int(port):
                return True
    return False


if __name__ == "__main__":
    checks: dict[str, Callable[..., bool]] = {"answers": answers, "connected": connected}
    sys.exit(not checks[sys.argv[1]](*sys.argv[2:]))
