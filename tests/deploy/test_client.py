"""Settings of a client, what it says stands in the way, and the loop that starts its node again."""

import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from deploy import client as module
from deploy import pki
from deploy.client import Client, ClientError, Supervisor, obstacle


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
        ({"superlink": "a:1", "insecure": True, "colour": 1}, "unknown setting colour = 1: there are bundles, ca"),
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
        *(sys.executable, "-P", "-c", "from deploy.warm import main; main()", "--isolated", "--any-bundle", "--"),
        *("--superlink", "localhost:1", "--root-certificates", str(bundle / "ca.crt")),
        *("--auth-supernode-private-key", str(bundle / "key")),
        *("--node-config", 'partition-id=3 data-dir="/my data"', "--host", "127.0.0.1", "--port", "9"),
    ]


# What stands in the way ---------------------------------------------------------------------------------------------


@contextmanager
def server(certificate: tuple[Path, Path] | None) -> Iterator[str]:
    """A port that speaks TLS with this certificate, or something else."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        context = None
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                try:
                    if context is None:
                        connection.sendall(b"\0\0\x12\x04\0\0\0\0\0" + bytes(18))
                    else:
                        context.wrap_socket(connection, server_side=True).close()
                except OSError:
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"localhost:{listener.getsockname()[1]}"
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


def test_a_closed_port_is_named() -> None:
    words = obstacle(Client(superlink="127.0.0.1:1", insecure=True)) or ""
    assert words.startswith("127.0.0.1:1 cannot be reached: Connection refused")


# The loop -----------------------------------------------------------------------------------------------------------

LOOP = """
import sys
from deploy import client
client.obstacle = lambda settings: None
client.FIRST_DELAY, client.LONGEST_DELAY = 0.05, 0.2
client.Client.command = lambda self: [sys.executable, "-c", sys.argv[1]]
client.Supervisor(client.Client(superlink="a:1", insecure=True)).run()
"""


def supervised(program: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", LOOP, program], stderr=subprocess.PIPE, text=True)


def test_a_node_that_ends_is_started_again_for_ever_with_growing_delay() -> None:
    loop = supervised("raise SystemExit(3)")
    assert loop.stderr is not None
    lines = [loop.stderr.readline() for _ in range(6)]
    loop.terminate()
    assert loop.wait(timeout=10) == 0
    loop.stderr.close()
    assert all("the SuperNode ended (exit code 3); trying again" in line for line in lines)


def test_a_node_is_ended_in_order_with_its_client() -> None:
    program = "import os, signal, sys, time; print(os.getpid(), file=sys.stderr, flush=True); time.sleep(60)"
    loop = supervised(program)
    assert loop.stderr is not None
    node = int(loop.stderr.readline())
    loop.terminate()
    assert loop.wait(timeout=10) == 0
    loop.stderr.close()
    with pytest.raises(ProcessLookupError):
        os.kill(node, 0)


def test_a_killed_node_is_named_so() -> None:
    loop = supervised("import os; os.kill(os.getpid(), 9)")
    assert loop.stderr is not None
    assert "killed by SIGKILL" in loop.stderr.readline()
    loop.terminate()
    loop.wait(timeout=10)
    loop.stderr.close()


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
