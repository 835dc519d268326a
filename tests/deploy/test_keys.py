"""Keys that are made on the device, and stay there."""

import shutil
import stat
import threading
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from fairbloom.deploy import pki
from fairbloom.deploy.device import keys
from fairbloom.deploy.device.client import ClientSettings
from fairbloom.deploy.errors import DeployError
from fairbloom.deploy.fleet.enrolment import enroll
from fairbloom.deploy.fleet.federation import Federation

from .commands import client_command


def test_a_key_stays_and_only_the_request_is_printed(tmp_path: Path) -> None:
    done = client_command("keys", "site-a", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    key = tmp_path / "site-a" / "key"
    request = tmp_path / "site-a" / "site-a.request"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert sorted(tmp_path.rglob("*")) == [key.parent, key, request]
    assert request.read_text() == done.stdout
    asked = pki.read_request(done.stdout, "stdout")
    public = serialization.load_pem_private_key(key.read_bytes(), None).public_key()
    assert asked == (public, "site-a")
    assert "PRIVATE" not in done.stdout + done.stderr + request.read_text()


def test_a_made_key_fits_the_bundle_that_is_unpacked_next_to_it(
    bundle: Path, tmp_path: Path
) -> None:
    device = tmp_path / "device"
    assert client_command("keys", "site-a", "--out", device, folder=tmp_path).returncode == 0
    enroll(Federation.read(tmp_path / "fed"), "site-a", request=device / "site-a.request")
    assert not (bundle / "key").exists()
    shutil.copytree(bundle, device, dirs_exist_ok=True)
    client = ClientSettings.of({}, device / "client.toml")
    assert (client.key, client.name, client.partition_id) == (str(device / "key"), "site-a", 3)


def test_an_existing_key_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("mine")
    done = client_command("keys", "site-a", "--out", tmp_path, folder=tmp_path)
    assert done.returncode == 2
    assert f"{tmp_path / 'key'} is there already" in done.stderr
    assert (tmp_path / "key").read_text() == "mine"
    assert not (tmp_path / "site-a.request").exists()


def test_a_key_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "key").symlink_to(tmp_path / "elsewhere")
    assert client_command("keys", "site-a", "--out", tmp_path, folder=tmp_path).returncode == 2
    assert not (tmp_path / "elsewhere").exists()


def test_of_two_processes_at_once_one_makes_the_key(tmp_path: Path) -> None:
    outcomes = list[str]()

    def make() -> None:
        try:
            outcomes.append(keys.make(tmp_path, "site-a"))
        except DeployError:
            outcomes.append("")

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (request,) = filter(None, outcomes)
    assert (tmp_path / "site-a.request").read_text() == request
    key = tmp_path / "key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    public = serialization.load_pem_private_key(key.read_bytes(), None).public_key()
    assert pki.read_request(request, "") == (public, "site-a")


@pytest.mark.parametrize("name", ["", "../x", "a b", "-a", "a\nb", "x" * 64])
def test_an_invalid_name_makes_no_key(tmp_path: Path, name: str) -> None:
    with pytest.raises(DeployError, match="digits, dots, dashes and underscores"):
        keys.make(tmp_path, name)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DeployError, match="the key cannot be written there: Not a directory"):
        keys.make(tmp_path / "file" / "x", "site-a")
