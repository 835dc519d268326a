"""What `deploy doctor` finds, and what the control API says of the server."""

import http.server
import json
import ssl
import threading
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from fairbloom.deploy import pki
from fairbloom.deploy.errors import UnauthorizedError
from fairbloom.deploy.flower.operator import commands as flower_commands
from fairbloom.deploy.flower.server.superlink import prepare_database
from fairbloom.deploy.operator.doctor import (
    CheckResult,
    ask_server,
    check_clients,
    check_device_key,
    check_disk,
    check_expiry,
    check_folders,
    check_secrets,
    check_server,
    examine,
    fault,
)
from fairbloom.deploy.operator.federation import Federation
from fairbloom.deploy.operator.registry import EnrolledClient
from fairbloom.deploy.server.supervisor import RUN_FOLDERS
from fairbloom.protocol.version import PROTOCOL
from tests.deploy.processes import free_port
from tests.experiments.helpers import fairbloom

VERSION = version("fairbloom")


# Doctor -------------------------------------------------------------------------------------------------------------


def test_doctor_names_faults_and_exits_with_1(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    authority, server = (made / "ca.crt", made / "ca.key"), (made / "server.crt", made / "server.key")
    pki.make_server_certificate(*authority, *server, ["fl.example.org"], -3)
    (made / "ca.key").chmod(0o644)
    (made / "runtime.secret").chmod(0o640)
    capsys.readouterr()
    assert fairbloom("deploy", "doctor") == 1
    printed = capsys.readouterr().out
    assert "fault server certificate: " in printed
    assert "expired 3 days ago: fairbloom deploy renew" in printed
    assert "others can read federation/ca.key, federation/runtime.secret: chmod 600" in printed
    assert "fault control API: 127.0.0.1:8000 cannot be used" in printed
    assert "fault server: 127.0.0.1:8000 does not answer" in printed


def test_doctor_names_a_damaged_database(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database = made / "state" / "superlink.db"
    database.write_bytes(b"no database" * 1000)
    database.chmod(0o600)
    assert fairbloom("deploy", "doctor") == 1
    assert "fault database: " in (said := capsys.readouterr().out)
    assert "is damaged: file is not a database: start fairbloom server again" in said
    prepare_database(database)  # as the server does when it starts
    fairbloom("deploy", "doctor")
    assert "ok database: " in " ".join(capsys.readouterr().out.split())


def test_doctor_warns_of_what_ends_soon(made: Path) -> None:
    fairbloom("deploy", "renew", "--days", "20")
    assert check_expiry("x", made / "server.crt").verdict == "warning"
    assert check_expiry("x", made / "none.crt").verdict == "fault"
    assert check_disk(made / "not" / "yet").what == "disk"


@pytest.mark.parametrize(
    "name",
    [
        *("ca.key", "server.key", "operator.token", "operators.toml", "runtime.secret"),
        *("flower/credentials.yaml", "bundles/a/key"),
    ],
)
def test_doctor_finds_each_secret_that_others_can_read(made: Path, name: str) -> None:
    assert fairbloom("deploy", "enroll", "a") == 0
    assert check_secrets(Federation(made)).verdict == "ok"
    (file,) = made.glob(name)
    file.chmod(0o604)
    assert check_secrets(Federation(made)) == fault("secrets", f"others can read {file}: chmod 600 {file}")


def test_doctor_finds_folders_of_runs_that_others_can_enter(made: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir(mode=0o700)
    place = made / "state" / RUN_FOLDERS
    place.mkdir()
    (place / "7").write_text(str(run))
    (place / "8").write_text(str(tmp_path / "gone"))
    assert check_folders(Federation(made)).verdict == "ok"
    run.chmod(0o755)
    words = f"others can enter {run}, where models are: chmod 700 {run}"
    assert check_folders(Federation(made)) == CheckResult("warning", "folders", words)
    run.chmod(0o700)  # as it says
    (made / "state").chmod(0o750)
    assert f"others can enter {made / 'state'}" in check_folders(Federation(made)).words
    made.chmod(0o755)
    assert check_secrets(Federation(made)).words == f"others can enter {made}: chmod 700 {made}"


def test_doctor_finds_a_devices_state_that_others_can_enter(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fairbloom("deploy", "enroll", "a") == 0
    settings = made / "bundles" / "a" / "client.toml"
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(0o755)
    settings.write_text(f'state-dir = "{tmp_path / "state"}"\n{settings.read_text()}')
    fairbloom("deploy", "doctor", "--client", settings)
    said = f"warning state-dir: others can enter {tmp_path / 'state'}, where models are: chmod 700"
    assert said in capsys.readouterr().out
    (tmp_path / "state").chmod(0o700)
    fairbloom("deploy", "doctor", "--client", settings)
    assert "ok state-dir: " in " ".join(capsys.readouterr().out.split(" "))


@pytest.mark.parametrize("content", [b"random", b""])
def test_doctor_survives_a_damaged_authority(made: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    assert fairbloom("deploy", "enroll", "a") == 0
    for authority in (made / "ca.crt", made / "bundles" / "a" / "ca.crt"):
        authority.write_bytes(content)
    assert fairbloom("deploy", "doctor") == 1
    assert "ca.crt is not a certificate, or a damaged one" in capsys.readouterr().out
    assert fairbloom("deploy", "enroll", "b") == 2
    assert "ca.crt" in capsys.readouterr().err
    device = made / "bundles" / "a" / "client.toml"
    assert fairbloom("deploy", "doctor", "--client", device) == 2
    assert "ca.crt" in capsys.readouterr().err


def test_doctor_looks_into_a_devices_key(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fairbloom("deploy", "enroll", "a") == 0
    key = made / "bundles" / "a" / "key"
    assert check_device_key(key).verdict == "ok"
    key.chmod(0o644)
    assert check_device_key(key).words == f"others can read {key}: chmod 600 {key}"
    key.write_bytes(b"\x00random")
    assert "is not a private key in OpenSSH format" in check_device_key(key).words
    assert fairbloom("deploy", "doctor", "--client", key.with_name("client.toml")) == 2
    assert "is not a private key in OpenSSH format" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["", "operator = 3", "[operator]\nsha256 = 'other'", "[", "[operator]"])
def test_doctor_sees_a_credential_that_the_server_cannot_know(made: Path, content: str) -> None:
    def found() -> CheckResult:
        return next(finding for finding in examine(Federation(made)) if finding.what == "credential")

    assert found().verdict == "ok"
    (made / "operators.toml").write_text(content)
    assert found().verdict == "fault"
    assert "operators.toml" in found().words


# What the control API says of the server ----------------------------------------------------------------------------


class ControlApi(http.server.BaseHTTPRequestHandler):
    """Answers the server's page to whoever has the credential."""

    token, status, page = "", 200, b""

    def do_GET(self) -> None:
        allowed = self.headers["Authorization"] == f"Bearer {self.token}"
        self.answer(self.status if allowed else 401, self.page if allowed else b"{}")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def answer(self, status: int, page: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(page)))
        if status == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Federation, type[ControlApi]]]:
    federation = Federation.init(tmp_path / "served", ["localhost"], 9092, f"127.0.0.1:{free_port()}", 30)
    answering = type("Answering", (ControlApi,), {"token": federation.read_token()})
    address = ("127.0.0.1", int(federation.control.rpartition(":")[2]))
    with http.server.ThreadingHTTPServer(address, answering) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(federation.certificate, federation.certificate_key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield federation, answering
        server.shutdown()
        serving.join()


def page(**about: object) -> bytes:
    known = {"superexec_seen": 0.5, "database_bytes": 2_000_000, "version": VERSION, "protocol": PROTOCOL, "nodes": {}}
    return json.dumps(known | about).encode()


@pytest.mark.parametrize(
    ("status", "answer", "verdict", "words"),
    [
        (200, page(), "ok", f"fairbloom {VERSION} is ready for runs; its database has 2 MB"),
        (200, page(superexec_seen=None), "fault", "for work since it was started, so runs will wait"),
        (200, page(superexec_seen=31), "fault", "for work for 31 s, so runs will wait"),
        (200, page(version="9.9"), "ok", f"fairbloom 9.9 ({VERSION} is installed here, which fits) is ready for runs"),
        (
            200,
            page(protocol=PROTOCOL + 1),
            "fault",
            f"speaks protocol {PROTOCOL}, is installed here: bring",
        ),
        (200, page(protocol=None, version="0.0.9"), "fault", "fairbloom 0.0.9, which speaks protocol None, runs there"),
        (200, b"no json", "fault", "does not answer"),
        (200, b"[]", "fault", "does not answer"),
        (404, b"", "warning", "is a SuperLink that fairbloom server did not start"),
        (500, b"", "fault", "answers with 500: see the server's log"),
    ],
)
def test_what_the_server_says_of_itself_is_a_finding(
    served: tuple[Federation, type[ControlApi]], status: int, answer: bytes, verdict: str, words: str
) -> None:
    federation, api = served
    api.status, api.page = status, answer
    found = check_server(federation, ask_server(federation))
    assert found.verdict == verdict
    assert words in found.words


def test_doctor_names_the_clients_that_the_superlink_does_not_know(
    served: tuple[Federation, type[ControlApi]],
) -> None:
    """As after its database was deleted, which doctor took for ok, and status showed as unknown."""
    federation, api = served
    for number, name in enumerate(("site-a", "site-b")):
        public = pki.make_node_key().public.decode()
        federation.registry.save(
            EnrolledClient(name=name, node_id=str(7 + number), partition_id=number, public_key=public, enrolled="")
        )
    api.page = page(nodes={"7": VERSION, "8": ""})
    assert check_clients(federation, ask_server(federation)) == CheckResult(
        "ok", "clients", "the SuperLink knows all 2 that are enrolled"
    )
    assert check_clients(federation, ask_server(federation)) in list(examine(federation))
    api.page = page(nodes={"8": "", "9": ""})
    found = check_clients(federation, ask_server(federation))
    assert found.verdict == "fault"
    assert "the SuperLink does not know site-a: start fairbloom server again" in found.words
    api.page = page(nodes=None)
    assert check_clients(federation, ask_server(federation)).verdict == "warning"
    api.status = 500
    assert check_clients(federation, ask_server(federation)).verdict == "warning"


def test_a_credential_that_is_refused_is_a_finding_and_words_of_flowers_commands(
    served: tuple[Federation, type[ControlApi]],
) -> None:
    federation, api = served
    api.token = "another"
    assert check_server(federation, ask_server(federation)).verdict == "fault"
    assert (
        f"does not accept the credential in {federation.operator_token}"
        in check_server(federation, ask_server(federation)).words
    )
    with pytest.raises(UnauthorizedError, match="does not accept the credential in"):
        flower_commands.flwr_json(federation, "list", "federation")


def test_flowers_own_commands_send_the_credential(served: tuple[Federation, type[ControlApi]]) -> None:
    federation, _ = served
    assert (
        flower_commands.flwr_json(federation, "list", "federation")["runs"] == []
    )  # an empty page is an empty list of runs
