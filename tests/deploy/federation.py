"""The settings of runs that tests disturb, and a cable that they cut."""

import contextlib
import socket
import threading
from typing import Any

# The settings of a run for tests of faults: the bits of its model depend on all rounds. A round
# takes at least 0.2 s, so that a test that waits for a round can act before the last one.
DISTURBED: dict[str, Any] = {
    "clients": 4,
    "fraction": 0.75,
    "num-rounds": 8,
    "evaluate-every": 0,
    "local-epochs": 40,
    "smallest-batch": 5,
    "method": "fedfv",
    "momentum": 0.9,
    "server-optimizer": "adam",
    "server-optimizer-lr": 0.05,
    "device": "cpu",
    "seed": 3,
}


class Cable:
    """A port on loopback that leads to another one; once cut, connections break or hang."""

    def __init__(self, port: int) -> None:
        self._far = port
        self._whole = threading.Event()
        self._whole.set()
        self._ends: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._connect, daemon=True).start()

    def cut(self) -> None:
        self._whole.clear()
        self._break()

    def mend(self) -> None:
        self._whole.set()

    def close(self) -> None:
        self._listener.close()
        self._break()

    def _break(self) -> None:
        while self._ends:
            with contextlib.suppress(OSError):
                self._ends.pop().shutdown(socket.SHUT_RDWR)

    def _connect(self) -> None:
        with contextlib.suppress(OSError):  # the listener is closed
            while True:
                near, _ = self._listener.accept()
                self._whole.wait()
                try:
                    far = socket.create_connection(("127.0.0.1", self._far))
                except OSError:  # nothing listens at the other port now
                    near.close()
                    continue
                self._ends += [near, far]
                for one, other, way in ((near, far, "up"), (far, near, "down")):
                    threading.Thread(target=self._pump, args=(one, other, way), daemon=True).start()

    def _pump(self, one: socket.socket, other: socket.socket, way: str) -> None:
        with one, contextlib.suppress(OSError):
            while content := one.recv(1 << 16):
                self.passing(way, len(content))
                other.sendall(content)
            other.shutdown(socket.SHUT_WR)

    def passing(self, way: str, size: int) -> None:
        """Act before bytes pass, "up" to the port or "down" from it; here: do nothing."""
