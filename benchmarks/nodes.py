"""Many warm clients in one process: 20 of them fit into 1 GB, and a server cannot tell them from 20 devices.

Each node is a thread with a key and a connection of its own, and runs our code of a warm client. The app answers one
message at a time, in this process.

Used by `python -m benchmarks.superlink`, as `python -m benchmarks.nodes HOST:PORT CA BUNDLE...`.
"""

import argparse
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairbloom.deploy.device.bundles import Installed
from fairbloom.deploy.device.client import APP, ClientSettings
from fairbloom.deploy.device.contexts import Contexts
from fairbloom.deploy.device.instance import Instance
from fairbloom.deploy.device.outage import Outage
from fairbloom.deploy.flower.device.app_process import answer
from fairbloom.deploy.flower.device.fleet import Fleet
from fairbloom.deploy.flower.device.messages import Answer, Task
from fairbloom.deploy.flower.device.renewal import Renewal
from fairbloom.deploy.flower.device.session import Session

READY = "nodes: ready"


class Here:
    """The app of one client in this process, where a client has a worker in another.

    Parameters
    ----------
    app
        The app of all.
    turn
        Held by the one node that calls the app.
    settings
        The client's settings, as its app reads them.
    """

    runs, working = False, ""

    def __init__(self, app: Installed, turn: threading.Lock, settings: Mapping[str, Any]) -> None:
        self._app, self._turn, self._settings = app, turn, settings

    def answer(self, task: Task, name: str) -> Answer:
        """Answer one message."""
        with self._turn:
            return answer(self._app, dict(self._settings), task)

    def drop(self, name: str, reason: str) -> None:
        """Do nothing: there is no process to end."""

    def end(self) -> None:
        """Do nothing, either."""


def main() -> None:
    """Connect all nodes, say so, and stay until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("ca")
    parser.add_argument("bundles", type=Path, nargs="+")
    chosen = parser.parse_args()
    app, turn = Installed.of(APP, ()), threading.Lock()
    threads = []
    for bundle in chosen.bundles:
        given = {"superlink": chosen.address, "ca": chosen.ca, "state-dir": str(bundle / "state")}
        client = ClientSettings.of(given, bundle / "client.toml")
        fleet = Fleet(client.superlink, client.ca, client.key, bundle.name, Outage())
        session = Session(fleet, Here(app, turn, client.node()), Contexts(""), Renewal(client, Instance(client.key)))
        session.connect()
        threads.append(threading.Thread(target=session.serve, name=bundle.name, daemon=True))
    print(READY, flush=True)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
