"""Many warm clients in one process: 20 of them fit into 1 GB, and a server cannot tell them from 20 devices.

Each node is a thread with a key and a connection of its own, and runs Flower's and our code of a warm client. The app
answers one message at a time.

Used by `python -m benchmarks.superlink`, as `python -m benchmarks.nodes HOST:PORT CA BUNDLE...`.
"""

import argparse
import importlib
import threading
import tomllib
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supernode.nodestate import NodeStateFactory

from fairbloom.deploy.device.bundles import Installed
from fairbloom.deploy.device.client import APP
from fairbloom.deploy.flower.device.answers import Resident
from fairbloom.deploy.flower.device.inbox import answer_next
from fairbloom.deploy.flower.device.supernode import BACKOFF_SECONDS, PollPause, read_no_bundles
from fairbloom.deploy.flower.relied_on import LOOP
from fairbloom.flower import set_waits_for_objects

READY = "nodes: ready"


class Node(threading.Thread):
    """One client: what Flower's SuperNode does in a process of its own.

    Parameters
    ----------
    address, ca
        Of the SuperLink's fleet API.
    bundle
        The folder that the client was enrolled with.
    answer
        Calls the app.
    turn
        Held by the one node that calls the app.
    """

    def __init__(self, address: str, ca: Path, bundle: Path, answer: Resident, turn: threading.Lock) -> None:
        super().__init__(name=bundle.name, daemon=True)
        self._address, self._ca, self._answer, self._turn = address, ca, answer, turn
        self._key: Any = load_ssh_private_key((bundle / "key").read_bytes(), None)
        self._config = {"partition-id": tomllib.loads((bundle / "client.toml").read_text())["partition-id"]}
        self.connected = threading.Event()

    def run(self) -> None:
        """Answer messages for ever."""
        loop: Any = importlib.import_module(LOOP)
        states = NodeStateFactory(objectstore_factory=ObjectStoreFactory())
        state, store, pace = states.state(), states.objectstore_factory.store(), PollPause()
        with loop._init_connection(
            transport="grpc-rere",
            server_address=self._address,
            insecure=False,
            root_certificates=self._ca.read_bytes(),
            authentication_keys=(self._key, self._key.public_key()),
        ) as (node_id, receive, send, get_run, get_fab, pull_object, push_object, confirm):
            state.set_node_id(node_id)
            self.connected.set()
            while True:
                pulled = loop._pull_and_store_message(
                    *(state, store, self._config, receive, get_run, get_fab, pull_object, confirm, None)
                )
                if pulled is None:
                    pace.sleep(3.0)
                    continue
                with self._turn:
                    answer_next(state, store, self._answer)
                loop._push_messages(state, store, send, push_object)
                pace.worked()


def main() -> None:
    """Connect all nodes, say so, and stay until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("ca", type=Path)
    parser.add_argument("bundles", type=Path, nargs="+")
    chosen = parser.parse_args()
    read_no_bundles()
    set_waits_for_objects(initial_backoff=BACKOFF_SECONDS)
    answer, turn = Resident(Installed.of(APP, ())), threading.Lock()
    nodes = [Node(chosen.address, chosen.ca, bundle, answer, turn) for bundle in chosen.bundles]
    for node in nodes:
        node.start()
    for node in nodes:
        node.connected.wait()
    print(READY, flush=True)
    for node in nodes:
        node.join()


if __name__ == "__main__":
    main()
