"""Settings of a client: what they mean, and what a wrong one says."""

import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from fairbloom.deploy.device import supervisor
from fairbloom.deploy.device.client import APP, ClientSettings
from fairbloom.deploy.device.connectivity import connection_fault
from fairbloom.deploy.errors import ClientError

from .commands import client_command

OWN = {"superlink": "a:1", "insecure": True, "app": "json.tool:main"}

# Settings -----------------------------------------------------------------------------------------------------------


def test_paths_of_the_file_are_relative_to_it_and_options_win(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    client = ClientSettings.of({"partition-id": 5, "state-dir": "state", "name": None}, bundle / "client.toml")
    assert (client.ca, client.key) == (str(bundle / "ca.crt"), str(bundle / "key"))
    assert (client.partition_id, client.state_dir) == (5, "/state")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "superlink is missing"),
        ({"superlink": "example.org"}, "superlink = 'example.org': write it as HOST:PORT"),
        ({"superlink": "a:1"}, "ca is missing"),
        ({"superlink": "a:1", "ca": "/nowhere/ca.crt"}, "ca = /nowhere/ca.crt: there is no such file"),
        ({"superlink": "a:1", "insecure": True, "key": "k"}, "insecure = true with ca or key"),
        ({"superlink": "a:1", "insecure": True, "partition-id": -1}, "partition-id = -1: it is counted from 0"),
        ({"superlink": "a:1", "insecure": True, "partition-id": "0"}, "partition-id = '0': it must be of type int"),
        ({"superlink": "a:1", "insecure": True, "colour": 1}, "unknown setting colour = 1: there are allow, app"),
        ({"superlink": "a:1", "insecure": True, "app": "client"}, "app = 'client': write it as module:attribute"),
        ({"superlink": "a:1", "insecure": True, "app": "nowhere.at:all"}, "there is no such module here; install it"),
        ({"superlink": "a:1", "insecure": True, "allow": "x:y"}, "allow = 'x:y': it must be of type list"),
        ({"superlink": "a:1", "insecure": True, "allow": [3]}, "allow = [3]: it must be a list of texts"),
        ({"superlink": "a:1", "insecure": True, "node-config": {"a": 1}}, "node-config is for an app of your own"),
        (
            OWN | {"node-config": {"name": "x"}},
            "node-config has name = 'x': write name outside node-config",
        ),
        (OWN | {"node-config": {"a": [1]}}, "node-config has a = [1]: it must be a number, true, false, or a text"),
    ],
)
def test_what_cannot_be_is_named_with_its_value_and_what_would_do(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ClientError) as error:
        ClientSettings.of(given)
    assert words in str(error.value)


@pytest.mark.parametrize(("text", "words"), [(None, "cannot be read"), ("a = ", "is not a TOML file")])
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, text: str | None, words: str) -> None:
    file = tmp_path / "client.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ClientError, match=words) as error:
        ClientSettings.of({}, file)
    assert str(file) in str(error.value)


def test_the_worker_gets_what_the_app_needs_and_no_key(bundle: Path) -> None:
    client = ClientSettings.of({"data-dir": "/my data"}, bundle / "client.toml")
    *command, pipe, given = client.worker(7)
    code = f"from fairbloom.deploy.flower.device.app_process import main; main({os.getpid()})"
    assert command == [sys.executable, "-P", "-c", code]
    assert pipe == "7"
    assert json.loads(given) == {
        **{"app": APP, "allow": [], "limits": {}},
        "node": {"partition-id": 3, "data-dir": "/my data"},
    }


def test_a_client_runs_our_app_or_the_one_that_its_file_names(bundle: Path) -> None:
    given = json.loads(ClientSettings.of({}, bundle / "client.toml").worker(7)[-1])
    assert (given["app"], given["allow"]) == (APP, [])
    (bundle / "client.toml").write_text('superlink = "a:1"\ninsecure = true\napp = "json.tool:main"\nallow = ["x:y"]\n')
    given = json.loads(ClientSettings.of({}, bundle / "client.toml").worker(7)[-1])
    assert (given["app"], given["allow"]) == ("json.tool:main", ["x:y"])


def test_an_app_of_ones_own_finds_the_node_config_of_the_file(bundle: Path) -> None:
    with (bundle / "client.toml").open("a") as file:
        file.write(
            'app = "json.tool:main"\nnode-config = { num-partitions = 2, path = \'/my "data"\', on = true, a = 0.5 }\n'
        )
    expected = {"partition-id": 3, "num-partitions": 2, "path": '/my "data"', "on": True, "a": 0.5}
    assert ClientSettings.of({}, bundle / "client.toml").node() == expected


def test_settings_reach_the_small_process_whole(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"allow": ["x:y"], "app": "json.tool:main", "node-config": {"num-partitions": 2}}
    client, there = ClientSettings.of(given, bundle / "client.toml"), list[ClientSettings]()
    monkeypatch.setattr(supervisor, "run", there.append)
    monkeypatch.setattr(os, "execv", lambda program, words: monkeypatch.setattr(sys, "argv", words[3:]))
    masks: list[int] = []
    monkeypatch.setattr(os, "umask", masks.append)
    supervisor.replace_process(client)
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {
        signal.SIGINT,
        signal.SIGTERM,
    }  # held for that process
    supervisor.main()
    assert there == [client]
    assert masks == [0o077]  # what a client writes is for its account alone


# Files that cannot be used ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content", [b"", os.urandom(600), b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_a_corrupt_authority_is_named(bundle: Path, content: bytes) -> None:
    good = ClientSettings.of({}, bundle / "client.toml")
    (bundle / "ca.crt").write_bytes(content)
    words = f"ca = {bundle / 'ca.crt'}: it holds no certificate; take ca.crt from the client's bundle again"
    with pytest.raises(ClientError) as error:
        ClientSettings.of({}, bundle / "client.toml")
    assert str(error.value) == words
    assert connection_fault(good) == words  # where it breaks later


def of_another_kind() -> bytes:
    plain = (serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
    return ed25519.Ed25519PrivateKey.generate().private_bytes(*plain)


@pytest.mark.parametrize("content", [b"", os.urandom(600), b"-----BEGIN OPENSSH PRIVATE KEY-----\n", of_another_kind()])
def test_a_key_that_is_none_is_named_when_the_client_starts(bundle: Path, content: bytes) -> None:
    (bundle / "key").write_bytes(content)
    with pytest.raises(ClientError, match=r"is not a private key in OpenSSH format|is not a key of the kind") as error:
        ClientSettings.of({}, bundle / "client.toml")
    assert str(error.value).startswith(f"key = {bundle / 'key'} is ")


def test_a_missing_key_is_told_how_to_make_one(bundle: Path) -> None:
    (bundle / "key").unlink()
    with pytest.raises(ClientError) as error:
        ClientSettings.of({}, bundle / "client.toml")
    assert f"key = {bundle / 'key'}: there is no such file" in str(error.value)
    assert f"fairbloom client keys NAME --out {bundle}" in str(error.value)


# The command --------------------------------------------------------------------------------------------------------


def test_help_shows_both_commands(tmp_path: Path) -> None:
    printed = client_command("--help", folder=tmp_path).stdout
    assert re.search(r"\brun\b.+Run a client", printed)
    assert re.search(r"\bkeys\b.+private key", printed)


@pytest.mark.parametrize("words", [(), ("run",), ("--name", "keys"), ("run", "--name", "x")], ids=str)
def test_without_a_commands_name_the_client_is_run(words: tuple[str, ...], tmp_path: Path) -> None:
    done = client_command(*words, folder=tmp_path)
    assert (done.returncode, done.stderr.strip()) == (
        2,
        "fairbloom: superlink is missing: give --superlink HOST:PORT, or the client.toml of a bundle",
    )


def test_a_files_name_goes_to_the_client(tmp_path: Path) -> None:
    done = client_command("x/client.toml", "--state-dir", "state", folder=tmp_path)
    assert done.returncode == 2
    assert "x/client.toml cannot be read: No such file or directory" in done.stderr
