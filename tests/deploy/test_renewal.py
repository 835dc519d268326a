"""A client that renews its key before it ends, at a real port over TLS: what it has on disk works at any moment."""

import contextlib
import os
import re
import shlex
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fairbloom.deploy import pki
from fairbloom.deploy.bundle import UNIT
from fairbloom.deploy.device.client import ClientSettings
from fairbloom.deploy.device.instance import Instance
from fairbloom.deploy.device.outage import Outage
from fairbloom.deploy.errors import DeployError
from fairbloom.deploy.flower.device import renewal as renewal_module
from fairbloom.deploy.flower.device.fleet import Fleet as Connection
from fairbloom.deploy.flower.device.fleet import RefusedError, UnknownNodeError
from fairbloom.deploy.flower.device.renewal import Renewal
from fairbloom.deploy.flower.server.joining import Joining
from fairbloom.deploy.operator import enrolment
from fairbloom.deploy.operator.federation import server_unit
from fairbloom.deploy.server.joining import renew

from .door import Door, end_soon, identity_of

STEPS = ("before the call", "before the answer", "after it", "before the switch", "after the switch")


class Device:
    """A device that has joined, and renews its key as a session does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.start()

    def start(self) -> None:
        """Start, or start again after the process before has ended."""
        if hasattr(self, "fleet"):
            self.fleet.close()
            os.close(self.instance._file)
        client = ClientSettings.of({}, self.folder / "client.toml")
        self.instance = Instance(client.key)
        self.renewal = Renewal(client, self.instance)
        self.fleet = Connection(client.superlink, client.ca, client.key, self.instance.name, Outage())

    def renew(self) -> None:
        """Connect, and renew the key where it is time."""
        self.renewal.connect(self.fleet)
        if "fairbloom-renew" in self.fleet.beat(""):
            self.renewal.ask()
        if self.renewal.is_due:
            self.renewal.run(self.fleet)
        assert self.fleet.beat("") is not None  # it goes on by the key that it has now

    def key(self) -> bytes:
        return (self.folder / "key").read_bytes()


@pytest.fixture
def joined(door: Door) -> Device:
    return Device(door.join(door.token("a")))


def test_a_key_that_ends_soon_is_renewed(door: Door, joined: Device) -> None:
    """The node, its partition and its place in runs stay; the identity in private runs follows the key."""
    before, key = end_soon(door.federation, "a"), joined.key()
    joined.renew()
    client = door.clients()["a"]
    assert joined.key() != key
    assert client.public_key == pki.read_node_key(joined.folder / "key").public.decode()
    assert (client.node_id, client.partition_id) == (before.node_id, before.partition_id)
    left = datetime.fromisoformat(client.expires) - datetime.now(UTC)
    assert timedelta(days=9.9) < left <= timedelta(days=10)
    identity, authority = identity_of(joined.folder)
    authority.check(identity.certificate)
    assert (identity.name, identity.certificate.expires) == ("a", client.expires)
    assert not (joined.folder / "key.new").exists()
    assert [line["client"] for line in door.noted("key renewed")] == ["a"]
    assert not (door.federation.path / "bundles" / "a.tar.gz").exists()
    with pytest.raises(UnknownNodeError):
        call_with(door, joined.folder, key)
    joined.renew()
    assert len(door.noted("key renewed")) == 1


def test_the_units_allow_what_renewal_writes(door: Door, joined: Device) -> None:
    """The units make all other folders read-only."""
    before = read_files(door.folder)
    end_soon(door.federation, "a")
    joined.renew()
    door.federation.renew((), 30)
    written = {file for file, content in read_files(door.folder).items() if before.get(file) != content}
    on_device = {joined.folder / "key", joined.folder / "identity"}
    assert on_device == {file for file in written if file.is_relative_to(joined.folder)}
    client = UNIT.read_text()
    (settings,) = re.findall(r"^ExecStart=.* client (\S+/client.toml) ", client, re.MULTILINE)
    assert writable(client) == [Path(settings).parent]
    (folder,) = writable(server_unit(door.federation.path))
    assert door.federation.certificate in written
    assert all(file.is_relative_to(folder) for file in written - on_device)


def read_files(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def writable(unit: str) -> list[Path]:
    """Return where a systemd unit lets its service write, in addition to its state folder."""
    assert "ProtectSystem=strict" in unit.splitlines()
    (paths,) = re.findall("^ReadWritePaths=(.*)", unit, re.MULTILINE)
    return [Path(path.removeprefix("-")) for path in shlex.split(paths)]


def call_with(door: Door, folder: Path, key: bytes) -> None:
    """Call as the device of a folder with another key."""
    (door.folder / "other").write_bytes(key)
    client = ClientSettings.of({"key": str(door.folder / "other")}, folder / "client.toml")
    connection = Connection(client.superlink, client.ca, client.key, "", Outage())
    connection.node.node_id = int(door.clients()["a"].node_id)
    connection.beat("")


@pytest.mark.parametrize("days", [3.4, 9.0])
def test_a_key_is_not_renewed_early(door: Door, joined: Device, days: float) -> None:
    end_soon(door.federation, "a", days)
    joined.renew()
    assert not door.noted("key renewed")
    joined.renewal.ask()
    joined.renewal.run(joined.fleet)  # a device that asks all the same
    assert not door.noted("key renewed")
    assert door.noted("refused: a renewal")[0]["reason"] == "too early"
    joined.renewal._pause_until = 0.0
    assert not joined.renewal.is_due  # until the server asks
    end_soon(door.federation, "a")
    joined.renew()
    assert len(door.noted("key renewed")) == 1


def test_a_call_that_took_effect_after_a_refusal_locks_nobody_out(door: Door, joined: Device) -> None:
    joined.renewal.connect(joined.fleet)
    joined.renewal.ask()
    joined.renewal.run(joined.fleet)  # too early
    end_soon(door.federation, "a")
    request = pki.write_request(pki.read_node_key(joined.folder / "key.new"), "a")
    asked = pki.read_request(request, "a request")
    renew(door.federation, door.nodes.replace_key, int(door.clients()["a"].node_id), asked)
    joined.renewal._pause_until = 0.0
    joined.renew()
    assert door.clients()["a"].public_key == pki.read_node_key(joined.folder / "key").public.decode()


def test_a_revoked_client_renews_no_key(door: Door, joined: Device) -> None:
    end_soon(door.federation, "a")
    joined.renewal.connect(joined.fleet)
    door.revoke("a")
    joined.renewal.ask()
    with pytest.raises(UnknownNodeError):
        joined.renewal.run(joined.fleet)


def test_an_expired_key_renews_nothing(door: Door, joined: Device) -> None:
    joined.renewal.connect(joined.fleet)
    end_soon(door.federation, "a", -0.1)
    joined.renewal.ask()
    with pytest.raises(UnknownNodeError, match="the key of client a was good until"):
        joined.renewal.run(joined.fleet)
    assert not door.noted("key renewed")


def test_a_former_key_renews_nothing(door: Door, joined: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enrolment.control_api, "connected", lambda federation: contextlib.nullcontext(door.nodes))
    joined.renewal.connect(joined.fleet)
    enrolment.rotate(door.federation, "a", False)
    with pytest.raises(RefusedError, match="this key was replaced by the operator"):
        joined.fleet.renew(pki.write_request(pki.make_node_key(), "a"))


def test_an_identity_that_is_made_again_is_noted(door: Door, joined: Device) -> None:
    joined.renewal.connect(joined.fleet)
    asked = pki.KeyPair(b"", pki.read_node_key(joined.folder / "key").public, pki.make_node_key().signing)
    for _ in range(3):
        assert joined.fleet.renew(pki.write_request(asked, "a")).identity
    assert [line["client"] for line in door.noted("identity made again")] == ["a"]


def test_an_owner_may_keep_a_key(door: Door, joined: Device) -> None:
    with (joined.folder / "client.toml").open("a") as file:
        file.write("renew-keys = false\n")
    end_soon(door.federation, "a")
    joined.start()
    joined.renew()
    assert not door.noted("key renewed")


def test_a_device_without_identity_renews_without_the_authority(door: Door) -> None:
    door.federation.authority_key.rename(door.folder / "ca.key")
    device = Device(door.join(door.token("a")))
    assert not (device.folder / "identity").exists()
    end_soon(door.federation, "a")
    device.renew()
    assert len(door.noted("key renewed")) == 1


def test_an_identity_is_not_lost_where_the_authority_is_away(door: Door, joined: Device) -> None:
    door.federation.authority_key.rename(door.folder / "ca.key")
    key = joined.key()
    end_soon(door.federation, "a")
    joined.renew()
    assert joined.key() == key
    assert door.noted("refused: a renewal")[0]["reason"] == "the authority's key is not on the server"
    assert not joined.renewal.is_due  # it asks again later


def test_a_folder_that_cannot_be_written_keeps_its_key(
    door: Door, joined: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = joined.key()
    end_soon(door.federation, "a")
    monkeypatch.setattr(renewal_module, "write_private", fail)
    joined.renew()
    assert joined.key() == key
    assert not joined.renewal.is_due


def fail(*given: object) -> None:
    raise OSError(30, "Read-only file system")


class KilledError(BaseException):
    """The device's process is over."""


def killed(*given: object) -> None:
    raise KilledError


@pytest.mark.parametrize("step", STEPS)
def test_a_device_killed_in_a_renewal_has_a_working_key(
    door: Door, joined: Device, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    end_soon(door.federation, "a")
    steps: dict[str, tuple[Any, str, Any]] = {
        "before the call": (Connection, "renew", killed),
        "before the answer": (Connection, "renew", killed_after(Connection.renew)),
        "after it": (renewal_module, "write_public", killed),
        "before the switch": (Path, "replace", killed_before(Path.replace, "key.new")),
        "after the switch": (renewal_module, "sync_folder", killed),
    }
    with monkeypatch.context() as patch:
        patch.setattr(*steps[step])
        with pytest.raises(KilledError):
            joined.renew()
    joined.start()
    joined.renew()
    client = door.clients()["a"]
    assert client.public_key == pki.read_node_key(joined.folder / "key").public.decode()
    identity, _ = identity_of(joined.folder)
    assert identity.certificate.expires == client.expires
    assert not (joined.folder / "key.new").exists()
    assert len(door.noted("key renewed")) == 1


def killed_after(call: Callable[..., Any]) -> Callable[..., Any]:
    def last(*given: Any) -> None:
        call(*given)
        raise KilledError

    return last


def killed_before(call: Callable[..., Any], name: str) -> Callable[..., Any]:
    def replace_unless(path: Path, target: Path) -> Path:
        if path.name == name:
            raise KilledError
        return Path(call(path, target))

    return replace_unless


def test_an_answer_that_was_lost_is_asked_for_by_the_new_key(
    door: Door, joined: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call is repeated by the old key, which the server has forgotten."""
    end_soon(door.federation, "a")
    answer, times = Joining.renew, list[int]()

    def lose_first(self: Joining, request: Any, caller: Any) -> Any:
        found = answer(self, request, caller)
        times.append(1)
        if len(times) == 1:
            raise ConnectionError
        return found

    door.stop()
    monkeypatch.setattr(Joining, "renew", lose_first)
    door.start()
    joined.renew()
    assert len(times) == 2
    assert door.clients()["a"].public_key == pki.read_node_key(joined.folder / "key").public.decode()


def test_a_client_that_renews_and_starts_again_is_no_copy(door: Door, joined: Device) -> None:
    end_soon(door.federation, "a")
    joined.renew()
    for _ in range(2):
        joined.start()
        joined.renew()
    assert not door.noted("a key at another place")


def test_an_older_database_learns_the_renewed_key(door: Door, joined: Device) -> None:
    door.stop()
    older = door.federation.database.read_bytes()
    door.start()
    end_soon(door.federation, "a")
    joined.renew()
    door.stop()
    for file in door.federation.state.glob("superlink.db*"):
        file.unlink()
    door.federation.database.write_bytes(older)
    door.start()
    joined.start()
    joined.renew()
    assert joined.fleet.node.node_id == int(door.clients()["a"].node_id)


def test_a_server_that_cannot_write_keeps_the_old_key(
    door: Door, joined: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    end_soon(door.federation, "a")
    with monkeypatch.context() as patch:
        patch.setattr(type(door.federation.registry), "save", fail)
        with pytest.raises(OSError, match="Read-only"):
            renew(door.federation, door.nodes.replace_key, int(door.clients()["a"].node_id), request_of_new_key())
    joined.renew()
    assert len(door.noted("key renewed")) == 1


def test_a_database_that_knows_the_new_key_already_takes_it(door: Door, joined: Device) -> None:
    """The registry could not be written, nor could the database then go back to the old key."""
    end_soon(door.federation, "a")
    asked, node_id = request_of_new_key(), door.clients()["a"].node_id
    door.nodes.replace_key(node_id, asked.public)
    renew(door.federation, door.nodes.replace_key, int(node_id), asked)
    assert door.clients()["a"].public_key == asked.public.decode()
    door.join(door.token("b"), to="b")
    with pytest.raises(DeployError, match="it is another one's"):
        door.nodes.replace_key(door.clients()["b"].node_id, asked.public)


def request_of_new_key() -> pki.Request:
    return pki.read_request(pki.write_request(pki.make_node_key(), "a"), "a request")
