"""Health check of a container.

`listens PORT`: a program listens at this port here. `connected PORT`: a connection to such a port
is open.
"""

import sys
from pathlib import Path

# States of a TCP socket in /proc/net/tcp.
LISTEN = "0A"
ESTABLISHED = "01"


def has_socket(port: str, state: str, column: int) -> bool:
    """Return whether a TCP socket has this state and this local (column 1) or remote (2) port."""
    sockets = (
        line.split()
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in Path(table).read_text().splitlines()[1:]
    )
    return any(
        words[3] == state and int(words[column].rpartition(":")[2], 16) == int(port)
        for words in sockets
    )


if __name__ == "__main__":
    checks = {"listens": (LISTEN, 1), "connected": (ESTABLISHED, 2)}
    sys.exit(not has_socket(sys.argv[2], *checks[sys.argv[1]]))
