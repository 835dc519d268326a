"""A federation whose fleet port is ours, over TLS, in this process, and the devices that come there to join."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from fairbloom.deploy import pki
from fairbloom.deploy.device import joining as device
from fairbloom.deploy.device.client import ClientSettings
from fairbloom.deploy.device.outage import Outage
from fairbloom.deploy.flower.device.fleet import Fleet as Connection
from fairbloom.deploy.flower.server.fleet import Fleet
from fairbloom.deploy.flower.server.fleet_server import Pipeline, fleet_server
from fairbloom.deploy.flower.server.joining import Joining
from fairbloom.deploy.flower.server.registration import StateNodes, register_enrolled
from fairbloom.deploy.operator import audit, enrolment, joining
from fairbloom.deploy.operator.federation import Federation
from fairbloom.deploy.operator.registry import EnrolledClient
from fairbloom.deploy.server.connections import Connections
from fairbloom.deploy.server.long_poll import LongPoll
from fairbloom.deploy.server.members import Members
from fairbloom.deploy.server.rate_limit import CallLimit
from fairbloom.deploy.server.refusals import RefusalLog
from fairbloom.private.keys import Authority, Identity, key_of_device, read_identity
from tests.deploy.processes import free_port

from .state import SuperLinkState


class Door:
    """A federation's folder, and the fleet's port of its server in this process, which can be started again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        control = f"127.0.0.1:{free_port()}"
        self.federation = Federation.init(folder / "federation", ["localhost"], self.port, control, 30)
        self.start()

    def start(self) -> None:
        self.link, refusals = SuperLinkState(self.federation.database), RefusalLog(self.federation.state)
        members = Members(self.federation.path)
        register_enrolled(self.link.state, self.federation.registry, self.federation.state)
        about: dict[str, Any] = {"members": members, "refusals": refusals}
        fleet = Fleet(self.link.state, **about, long_poll=LongPoll(), overdue={})
        self.nodes = StateNodes(self.link.state)
        calls = {**fleet.calls(), **Joining(self.federation, self.nodes, refusals).calls()}
        connections = Connections({self.port: 100}, 1000, refusals)
        pipeline = Pipeline(calls, self.link.state, members, self.port, connections, refusals, CallLimit())
        place = self.federation
        files = [file.read_bytes() for file in (place.authority, place.certificate, place.certificate_key)]
        self.server = fleet_server(pipeline, f"127.0.0.1:{self.port}", (files[0], files[1], files[2]), 100)
        self.server.start()

    def stop(self) -> None:
        self.server.stop(0).wait()

    def token(self, name: str = "", **about: Any) -> Path:
        """Make a token; return its file, as a device has it."""
        text = joining.make_token(self.federation, name, **about)
        file = self.folder / f"{len(self.federation.tokens.all())}.token"
        file.write_text(text)
        return file

    def join(self, token: Path, name: str = "", to: str = "") -> Path:
        """Let a device join, each in a folder of its own; return its folder."""
        folder = self.folder / "devices" / (to or name or "device")
        return device.join(token, name, folder).parent

    def connect(self, folder: Path) -> Connection:
        """Connect as a device that has joined."""
        client = ClientSettings.of({}, folder / "client.toml")
        made = Connection(client.superlink, client.ca, client.key, "", Outage())
        made.connect()
        return made

    def clients(self) -> dict[str, EnrolledClient]:
        return {client.name: client for client in self.federation.clients}

    def noted(self, beginning: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in audit.read_text(self.federation.state).splitlines()]
        return [line for line in lines if line["event"].startswith(beginning)]

    def change_token(self, **changes: Any) -> None:
        """Change what is kept of the only token."""
        (token,) = self.federation.tokens.all()
        self.federation.tokens.save(replace(token, **changes))

    def revoke(self, name: str) -> None:
        client = self.clients()[name]
        self.link.state.strike_off(pki.registered_form(client.public_key.encode()))
        self.federation.registry.save(replace(client, revoked=enrolment.now()))


def identity_of(folder: Path) -> tuple[Identity, Authority]:
    """Return the identity in private runs of a device's folder."""
    return read_identity((folder / "identity").read_bytes(), key_of_device((folder / "key").read_bytes()))


def end_soon(federation: Federation, name: str, days: float = 3.0) -> EnrolledClient:
    """Let a client's key be one of ten days that ends in so many."""
    end = datetime.now(UTC) + timedelta(days=days)
    made = (end - timedelta(days=10)).isoformat(timespec="seconds")
    client = replace(federation.find_client(name), key_made=made, expires=end.isoformat(timespec="seconds"))
    federation.registry.save(client)
    return client
