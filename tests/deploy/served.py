"""A federation whose control API is Flower's own behind our door, over TLS, in a thread."""

import threading
import time
from pathlib import Path

import uvicorn

from fairbloom.deploy.operator.federation import Federation
from tests.deploy.processes import free_port

from .test_control import Place


class Served:
    """A federation's folder, and the SuperLink's HTTP side that answers its operator.

    Attributes
    ----------
    federation
        The operator's.
    state
        The server's state folder, which another machine might have.
    """

    def __init__(self, folder: Path) -> None:
        control = f"127.0.0.1:{free_port()}"
        self.federation = Federation.init(folder / "federation", ["localhost"], free_port(), control, 10)
        self.state = folder / "state"
        self.state.mkdir()
        self.place = Place(self.state)
        self.place.operators.write_bytes(self.federation.operators.read_bytes())
        config = uvicorn.Config(
            self.place.app,
            host="127.0.0.1",
            port=int(control.rpartition(":")[2]),
            ssl_certfile=self.federation.certificate,
            ssl_keyfile=self.federation.certificate_key,
            lifespan="off",
            ws="none",
            log_level="critical",
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    def start(self) -> None:
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive()
            time.sleep(0.01)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()
