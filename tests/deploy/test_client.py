"""Settings of a client, what it says stands in the way, and the loop that starts its node again."""

import os
import re
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from fairbloom.deploy import client as module
from fairbloom.deploy import keys, pki
from fairbloom.deploy.client import APP, Client, ClientError, Supervisor, obstacle
from fairbloom.deploy.warm import Remedies

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    pki.make_authority(tmp_path / "ca.crt", tmp_path / "ca.key")
    pki.write_private(tmp_path / "key", pki.new_node_key().private)
    settings = 'superlink = "localhost:1"\nca = "ca.crt"\nkey = "key"\npartition-id = 3\n'
    (tmp_path / "client.toml").write_text(settings)
    return tmp_path


# Settings -----------------------------------------------------------------------------------------------------------


def test_paths_of_the_file_are_relative_to_it_and_options_win(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    client = Client.of({"partition-id": 5, "state-dir": "state", "name": None}, bundle / "client.toml")
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
        ({"superlink": "a:1", "insecure": True, "bundles": "all"}, 'bundles = \'all\': "ours" or "any" would do'),
        ({"superlink": "a:1", "insecure": True, "colour": 1}, "unknown setting colour = 1: there are allow, app"),
        ({"superlink": "a:1", "insecure": True, "app": "client"}, "app = 'client': write it as module:attribute"),
        ({"superlink": "a:1", "insecure": True, "app": "nowhere.at:all"}, "there is no such module here; install it"),
        ({"superlink": "a:1", "insecure": True, "app": "a:b", "bundles": "any"}, "the run brings its app then"),
        ({"superlink": "a:1", "insecure": True, "allow": "x:y"}, "allow = 'x:y': it must be of type list"),
        ({"superlink": "a:1", "insecure": True, "allow": [3]}, "allow = [3]: it must be a list of texts"),
    ],
)
def test_what_cannot_be_is_named_with_its_value_and_what_would_do(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ClientError) as error:
        Client.of(given)
    assert words in str(error.value)


@pytest.mark.parametrize(("text", "words"), [(None, "cannot be read"), ("a = ", "is no TOML file")])
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, text: str | None, words: str) -> None:
    file = tmp_path / "client.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ClientError, match=words) as error:
        Client.of({}, file)
    assert str(file) in str(error.value)


def test_the_command_is_flowers_own_with_our_beginning(bundle: Path) -> None:
    client = Client.of({"data-dir": "/my data", "isolated": True, "bundles": "any", "port": 9}, bundle / "client.toml")
    assert client.command() == [
        *(
            sys.executable,
            "-P",
            "-c",
            "from fairbloom.deploy.warm import main; main()",
            "--isolated",
            "--any-bundle",
            "--",
        ),
        *("--superlink", "localhost:1", "--root-certificates", str(bundle / "ca.crt")),
        *("--auth-supernode-private-key", str(bundle / "key")),
        *("--node-config", 'partition-id=3 data-dir="/my data"', "--host", "127.0.0.1", "--port", "9"),
    ]


def test_a_client_runs_the_installed_app_unless_it_is_told_to_run_any(bundle: Path) -> None:
    command = Client.of({}, bundle / "client.toml").command()
    assert command[4 : command.index("--")] == [f"--app={APP}"]
    (bundle / "client.toml").write_text('superlink = "a:1"\ninsecure = true\napp = "json.tool:main"\nallow = ["x:y"]\n')
    command = Client.of({}, bundle / "client.toml").command()
    assert command[4 : command.index("--")] == ["--app=json.tool:main", "--allow=x:y"]


def test_settings_reach_the_small_process_whole(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client, there = Client.of({"allow": ["x:y"]}, bundle / "client.toml"), list[Client]()
    monkeypatch.setattr(module, "Supervisor", lambda settings: there.append(settings) or SimpleNamespace(run=int))
    monkeypatch.setattr(os, "execv", lambda program, words: monkeypatch.setattr(sys, "argv", words[3:]))
    module.replace_process(client)
    module.main()
    assert there == [client]


# Files that cannot be used ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content", [b"", os.urandom(600), b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_a_corrupt_authority_is_named(bundle: Path, content: bytes) -> None:
    good = Client.of({}, bundle / "client.toml")
    (bundle / "ca.crt").write_bytes(content)
    words = f"ca = {bundle / 'ca.crt'}: it holds no certificate; take ca.crt from the client's bundle again"
    with pytest.raises(ClientError) as error:
        Client.of({}, bundle / "client.toml")
    assert str(error.value) == words
    assert obstacle(good) == words  # where it breaks later


def of_another_kind() -> bytes:
    plain = (serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
    return ed25519.Ed25519PrivateKey.generate().private_bytes(*plain)


@pytest.mark.parametrize("content", [b"", os.urandom(600), b"-----BEGIN OPENSSH PRIVATE KEY-----\n", of_another_kind()])
def test_a_key_that_is_none_is_named_when_the_client_starts(bundle: Path, content: bytes) -> None:
    (bundle / "key").write_bytes(content)
    with pytest.raises(ClientError, match=r"is no private key in OpenSSH format|is not a key of the kind") as error:
        Client.of({}, bundle / "client.toml")
    assert str(error.value).startswith(f"key = {bundle / 'key'} is ")


def test_a_missing_key_is_told_how_to_make_one(bundle: Path) -> None:
    (bundle / "key").unlink()
    with pytest.raises(ClientError) as error:
        Client.of({}, bundle / "client.toml")
    assert f"key = {bundle / 'key'}: there is no such file" in str(error.value)
    assert f"fairbloom client keys NAME --out {bundle}" in str(error.value)


# Keys of the device -------------------------------------------------------------------------------------------------


def client_command(*words: object, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fairbloom.deploy", "client", *map(str, words)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )


def test_a_key_is_made_where_it_stays_and_only_the_request_is_printed(tmp_path: Path) -> None:
    done = client_command("keys", "site-a", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    key, request = tmp_path / "site-a" / "key", tmp_path / "site-a" / "site-a.request"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert sorted(tmp_path.rglob("*")) == [key.parent, key, request]
    kind, _, name = done.stdout.split()
    assert (kind, name) == ("ecdsa-sha2-nistp384", "site-a")
    assert request.read_text() == done.stdout
    public = serialization.load_ssh_private_key(key.read_bytes(), None).public_key()
    assert public == serialization.load_ssh_public_key(done.stdout.encode())
    assert "PRIVATE" not in done.stdout + done.stderr + request.read_text()


def test_a_made_key_serves_the_bundle_that_is_unpacked_beside_it(bundle: Path) -> None:
    (bundle / "key").unlink()
    assert client_command("keys", "site-a", "--out", bundle, folder=bundle).returncode == 0
    assert Client.of({}, bundle / "client.toml").key == str(bundle / "key")


def test_a_key_that_is_there_is_never_replaced(tmp_path: Path) -> None:
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


def test_of_two_that_make_a_key_at_once_one_does(tmp_path: Path) -> None:
    outcomes = list[str]()

    def make() -> None:
        try:
            outcomes.append(keys.make(tmp_path, "site-a"))
        except ClientError:
            outcomes.append("")

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (request,) = filter(None, outcomes)
    assert (tmp_path / "site-a.request").read_text() == f"{request}\n"


@pytest.mark.parametrize("name", ["", "../x", "a b", "-a", "a\nb", "x" * 64])
def test_a_name_that_is_none_makes_no_key(tmp_path: Path, name: str) -> None:
    with pytest.raises(ClientError, match="letters, digits, dots, dashes and underscores would do"):
        keys.make(tmp_path, name)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ClientError, match="the key cannot be written there: Not a directory"):
        keys.make(tmp_path / "file" / "x", "site-a")


# The command --------------------------------------------------------------------------------------------------------


def test_help_shows_both_commands(tmp_path: Path) -> None:
    printed = client_command("--help", folder=tmp_path).stdout
    assert re.search(r"\brun\b.+Be a client", printed)
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


# What stands in the way ---------------------------------------------------------------------------------------------


GRPC, HTTP = b"\0\0\x12\x04\0\0\0\0\0" + bytes(18), b"HTTP/1.1 200 OK\r\n\r\n"
"""How an answer of a gRPC server begins, and of a control API."""


@contextmanager
def server(certificate: tuple[Path, Path] | None, answer: bytes = GRPC) -> Iterator[str]:
    """A port that answers every connection alike, over TLS with this certificate or without."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        context = None
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            if answer == GRPC:
                context.set_alpn_protocols(["h2"])

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with suppress(OSError), connection:
                        talk(connection)

        def talk(plain: socket.socket) -> None:
            with context.wrap_socket(plain, server_side=True) if context else plain as connection:
                connection.sendall(answer)
                connection.recv(1000)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"localhost:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def signed(bundle: Path, host: str = "localhost", days: float = 1.0) -> tuple[Path, Path]:
    files = (bundle / "server.crt", bundle / "server.key")
    pki.make_server_certificate(bundle / "ca.crt", bundle / "ca.key", *files, [host], days)
    return files


def test_nothing_stands_in_the_way_of_a_good_certificate(bundle: Path) -> None:
    with server(signed(bundle)) as address:
        assert obstacle(Client(superlink=address, ca=str(bundle / "ca.crt"))) is None


def test_an_expired_certificate_is_named(bundle: Path) -> None:
    with server(signed(bundle, days=-1)) as address:
        words = obstacle(Client(superlink=address, ca=str(bundle / "ca.crt"))) or ""
    assert "does not vouch for: certificate has expired" in words
    assert "fairbloom deploy renew" in words


def test_a_server_without_tls_is_named(bundle: Path) -> None:
    with server(None) as address:
        words = obstacle(Client(superlink=address, ca=str(bundle / "ca.crt"))) or ""
    assert "does not speak TLS" in words


def test_tls_where_none_was_meant_is_named(bundle: Path) -> None:
    with server(signed(bundle)) as address:
        assert "this client is set insecure" in (obstacle(Client(superlink=address, insecure=True)) or "")
    with server(None) as address:
        assert obstacle(Client(superlink=address, insecure=True)) is None


@pytest.mark.parametrize("over_tls", [True, False])
def test_the_control_apis_port_is_named(bundle: Path, over_tls: bool) -> None:
    with server(signed(bundle) if over_tls else None, HTTP) as address:
        safety: dict[str, Any] = {"ca": str(bundle / "ca.crt")} if over_tls else {"insecure": True}
        words = obstacle(Client(superlink=address, **safety)) or ""
    assert words.startswith(f"{address} is the control API's port")
    assert "clients connect to the fleet port, 9092 unless the federation's operator chose another" in words


def test_what_is_the_operators_to_do_is_said_to_be_so(bundle: Path) -> None:
    """These words are read on a device, where there are no such commands."""
    with server(signed(bundle, host="elsewhere.example", days=-1)) as address:
        said = [obstacle(Client(superlink=address, ca=str(bundle / "ca.crt"))) or "", *Remedies.SAID.values()]
    for words in said:
        assert "fairbloom deploy" not in words.partition("the federation's operator")[0]
        assert "operator" in words


def test_a_closed_port_is_named() -> None:
    words = obstacle(Client(superlink="127.0.0.1:1", insecure=True)) or ""
    assert words.startswith("127.0.0.1:1 cannot be reached: Connection refused")


# The loop -----------------------------------------------------------------------------------------------------------

LOOP = """
import sys
from fairbloom.deploy import client
client.obstacle = lambda settings: None
client.FIRST_DELAY, client.LONGEST_DELAY = 0.05, 0.2
client.Client.command = lambda self: [sys.executable, "-c", sys.argv[1]]
client.Supervisor(client.Client(superlink="a:1", insecure=True)).run()
"""


def supervised(program: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", LOOP, program], stderr=subprocess.PIPE, text=True)


@contextmanager
def lines_of(loop: subprocess.Popen[str]) -> Iterator[Iterator[str]]:
    """The lines that a loop prints; it is ended in order."""
    assert loop.stderr is not None
    try:
        yield map(str.rstrip, loop.stderr)
    finally:
        loop.terminate()
        code = loop.wait(timeout=10)
        loop.stderr.close()
    assert code == 0


COUNTED = """
import pathlib, sys, time
count = pathlib.Path({count!r})
number = int(count.read_text()) if count.exists() else 0
count.write_text(str(number + 1))
"""


def starts(count: Path) -> int:
    return int(count.read_text() or 0) if count.exists() else 0


def wait_for_starts(count: Path, number: int) -> None:
    end = time.monotonic() + 60
    while starts(count) < number:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_node_that_ends_is_started_again_for_ever_and_a_fault_is_said_once(tmp_path: Path) -> None:
    count = tmp_path / "count"
    program = COUNTED.format(count=str(count)) + 'print("no luck at", time.time()); raise SystemExit(3 + (number > 5))'
    with lines_of(supervised(program)) as lines:
        assert next(lines).startswith("no luck at")
        assert next(lines) == "fairbloom client: the SuperNode ended (exit code 3); trying again until it works"
        wait_for_starts(count, 6)
        assert next(lines) == "fairbloom client: the SuperNode ended (exit code 4); trying again until it works"
        wait_for_starts(count, 10)


def test_a_start_that_fails_in_another_way_is_printed(tmp_path: Path) -> None:
    count = tmp_path / "count"
    program = COUNTED.format(count=str(count)) + 'print("no luck" if number < 3 else "no disk"); raise SystemExit(3)'
    with lines_of(supervised(program)) as lines:
        said = [next(lines) for _ in range(3)]
    assert [said[0], said[2]] == ["no luck", "no disk"]


def test_a_client_that_is_back_says_so_and_what_its_node_said(tmp_path: Path) -> None:
    count = tmp_path / "count"
    program = (
        COUNTED.format(count=str(count))
        + 'print("beginning", flush=True)\nif number < 4: raise SystemExit(3)\n'
        + 'print("INFO: SuperNode ID: 7", flush=True); print("at work", flush=True); time.sleep(60)'
    )
    with lines_of(supervised(program)) as lines:
        said = [next(lines) for _ in range(6)]
    assert re.fullmatch(r"fairbloom client: back: connected again after \d+ s", said.pop(2))
    assert said == [
        "beginning",
        "fairbloom client: the SuperNode ended (exit code 3); trying again until it works",
        *("beginning", "INFO: SuperNode ID: 7", "at work"),
    ]


def test_a_node_is_ended_in_order_with_its_client() -> None:
    program = "import os, signal, sys, time; print(os.getpid(), file=sys.stderr, flush=True); time.sleep(60)"
    with lines_of(supervised(program)) as lines:
        node = int(next(lines))
    with pytest.raises(ProcessLookupError):
        os.kill(node, 0)


def test_a_killed_node_is_named_so() -> None:
    with lines_of(supervised("import os; os.kill(os.getpid(), 9)")) as lines:
        assert "killed by SIGKILL" in next(lines)


def no_state_folder(folder: Path, *, as_nobody: bool = False) -> str:
    """Return what a client says about its state folder."""
    program = (
        "import os, sys; from fairbloom.deploy.client import Client, Supervisor\n"
        f"if {as_nobody} and os.getuid() == 0: os.setuid(65534)\n"
        "print(Supervisor(Client(superlink='a:1', insecure=True, state_dir=sys.argv[1]))._no_state_folder())"
    )
    words = [sys.executable, "-c", program, str(folder)]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def test_a_state_folder_that_cannot_be_is_named_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    below, there = tmp_path / "file" / "x", tmp_path / "file"
    assert no_state_folder(below) == f"state-dir = {below} cannot be made: Not a directory"
    assert no_state_folder(there) == f"state-dir = {there} cannot be made: File exists"
    assert no_state_folder(tmp_path / "new" / "state") == "None"


def test_a_state_folder_that_others_own_is_named() -> None:
    not_mine = "state-dir = /: the account that runs this client may not write there"
    assert no_state_folder(Path("/"), as_nobody=True) == not_mine
    assert no_state_folder(Path("/x/y"), as_nobody=True) == "state-dir = /x/y cannot be made: Permission denied"


@pytest.mark.parametrize(("seconds", "words"), [(0.4, "0 s"), (99.4, "99 s"), (180, "3 min"), (10_800, "3 h")])
def test_lengths_of_time_are_as_people_say_them(seconds: float, words: str) -> None:
    assert module.duration(seconds) == words


def test_a_delay_can_be_cut_short_by_a_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "obstacle", lambda client: "a wall")
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    started = time.monotonic()
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
    try:
        Supervisor(Client(superlink="a:1", insecure=True)).run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert time.monotonic() - started < module.FIRST_DELAY
