"""Certificates and keys: their content, their permissions, and atomic writes.

Keys that are made on the device, and stay there.

Enrolment of clients: certificates, bundles and files.
"""

import shutil
import ssl
import stat
from base64 import b64decode, b64encode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fairbloom.deploy import pki
from fairbloom.deploy.device import keys
from fairbloom.deploy.device.client import ClientSettings
from fairbloom.deploy.errors import DeployError
from fairbloom.deploy.fleet import enrolment
from fairbloom.deploy.fleet.enrolment import enroll
from fairbloom.deploy.fleet.federation import Federation
from fairbloom.deploy.fleet.members import Member
from tests.experiments.helpers import captured, fairbloom
from tests.system.helpers import at_once

from .commands import client_command


@pytest.fixture
def authority(tmp_path: Path) -> tuple[Path, Path]:
    files = (tmp_path / "ca.crt", tmp_path / "ca.key")
    pki.make_authority(*files)
    return files


def certificate(authority: tuple[Path, Path], *hosts: str, days: float = 10.0) -> tuple[Path, Path]:
    files = (authority[0].with_name("server.crt"), authority[0].with_name("server.key"))
    pki.make_server_certificate(*authority, *files, hosts, days)
    return files


def shake_hands(authority: Path, server: tuple[Path, Path], host: str) -> None:
    """Connect a client that trusts `authority` to a server with this certificate, called `host`."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(*server)
    asking = ssl.create_default_context(cafile=str(authority))
    to_server, to_client, from_server, from_client = (ssl.MemoryBIO() for _ in range(4))
    client = asking.wrap_bio(to_client, from_client, server_hostname=host)
    other = serving.wrap_bio(to_server, from_server, server_side=True)
    for _ in range(5):
        for end, out, into in ((client, from_client, to_server), (other, from_server, to_client)):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                pass
            finally:
                into.write(out.read())


def test_the_server_is_accepted_by_its_own_names_only(authority: tuple[Path, Path]) -> None:
    server = certificate(authority, "fl.example.org", "10.0.0.7", "2001:db8::7", "bücher.example")
    for host in ("fl.example.org", "10.0.0.7", "2001:db8::7", "xn--bcher-kva.example", *pki.LOCAL):
        shake_hands(authority[0], server, host)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake_hands(authority[0], server, "evil.example.org")


def test_expired_and_foreign_certificates_are_refused(
    authority: tuple[Path, Path], tmp_path: Path
) -> None:
    pki.make_authority(tmp_path / "other.crt", tmp_path / "other.key")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(tmp_path / "other.crt", certificate(authority, "localhost"), "localhost")
    expired = certificate(authority, "localhost", days=-1)
    assert pki.days_left(expired[0]) == pytest.approx(-1.0, abs=0.01)
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        shake_hands(authority[0], expired, "localhost")


def test_a_server_certificate_signs_no_others(authority: tuple[Path, Path]) -> None:
    loaded = x509.load_pem_x509_certificate(certificate(authority, "localhost")[0].read_bytes())
    assert loaded.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False


# Hosts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("fl.example.org", "fl.example.org"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("Bücher.Example", "xn--bcher-kva.Example"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("control", "control"),
        ("10.0.0.7", "10.0.0.7"),
        ("2001:DB8::7", "2001:db8::7"),
    ],
)
def test_a_host_is_named_as_in_certificates(host: str, name: str) -> None:
    assert pki.normalise_host(host) == name


@pytest.mark.parametrize(
    ("host", "words"),
    [
        *(
            (host, "give a name or an address without port")
            for host in (
                *("", "a b", "a:9092", "[::1]", "fe80::1%eth0", "999.1.1.1", "-a.org", "a..b"),
                *("a.", "a\n", "*.org", "x" * 64, "ü" * 70),
            )
        ),
        ("straße.example", "give it in its ASCII form"),  # newer rules spell it differently
    ],
)
def test_an_invalid_host_is_refused(host: str, words: str) -> None:
    with pytest.raises(DeployError, match=words):
        pki.normalise_host(host)


# The authority ------------------------------------------------------------------------------------


def test_an_authority_that_cannot_sign_is_named_with_the_remedy(
    authority: tuple[Path, Path],
    tmp_path: Path,
    subtests: pytest.Subtests,
) -> None:
    pki.make_authority(tmp_path / "other.crt", tmp_path / "other.key")
    for path in authority:
        with subtests.test(path=path):
            before = path.read_bytes()
            other = (tmp_path / f"other.{path.suffix[1:]}").read_bytes()
            for content in (None, b"", b"\x00\xff random", other):
                path.unlink() if content is None else path.write_bytes(content)
                with pytest.raises(DeployError, match="bring it back from your copy") as refused:
                    certificate(authority, "localhost")
                assert str(path) in str(refused.value)
                assert not (tmp_path / "server.crt").exists()
                path.write_bytes(before)


# Requests and devices' certificates ---------------------------------------------------------------


def request_of(key: ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey) -> str:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a")])
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    return builder.sign(key, algorithm).public_bytes(Encoding.PEM).decode()


def forged_request() -> str:
    one, other = (
        b64decode("".join(pki.write_request(pki.make_key(), "a").splitlines()[1:-1]))
        for _ in range(2)
    )
    mark = "CERTIFICATE REQUEST-----\n"
    body = b64encode(one[:-40] + other[-40:]).decode()
    return f"-----BEGIN {mark}{body}\n-----END {mark}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a certificate request"),
        ("ecdsa-sha2-nistp384 AAAA a", "is not a certificate request"),
        (pki.write_request(pki.make_key(), "a")[:100], "is not a certificate request"),
        (request_of(ec.generate_private_key(ec.SECP384R1())), "not on the curve P-256"),
        (request_of(ed25519.Ed25519PrivateKey.generate()), "not on the curve P-256"),
        (forged_request(), "is not signed by the key|is not a certificate request"),
    ],
    ids=range(6),
)
def test_an_invalid_request_is_refused(text: str, message: str) -> None:
    with pytest.raises(DeployError, match=f"^site.request .*({message})"):
        pki.read_request(text, "site.request")


def test_a_devices_certificate_is_only_for_clients(
    authority: tuple[Path, Path], tmp_path: Path
) -> None:
    made = pki.issue_device_certificate(*authority, pki.make_key().public_key(), "site-1")
    (tmp_path / "certificate").write_bytes(made)
    assert pki.read_name(tmp_path / "certificate") == "site-1"
    extensions = x509.load_pem_x509_certificate(made).extensions
    assert [*extensions.get_extension_for_class(x509.ExtendedKeyUsage).value] == [
        ExtendedKeyUsageOID.CLIENT_AUTH
    ]
    with pytest.raises(x509.ExtensionNotFound):
        extensions.get_extension_for_class(x509.SubjectAlternativeName)


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

    at_once(8, make)
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


def members(made: Path) -> dict[str, Member]:
    return {member.name: member for member in Federation.read(made).members()}


def write_request(folder: Path, name: str, key: ec.EllipticCurvePrivateKey | None = None) -> Path:
    file = folder / f"{name}.request"
    file.write_text(pki.write_request(key or pki.make_key(), name))
    return file


def test_a_bundle_has_all_that_a_device_needs(made: Path) -> None:
    assert fairbloom("deploy", "enroll", "site-1", "site-2") == 0
    bundle = made / "bundles" / "site-2"
    assert stat.S_IMODE((bundle / "key").stat().st_mode) == 0o600
    client = ClientSettings.of({}, bundle / "client.toml")
    assert (client.server, client.name, client.partition_id) == ("fl.example.org:9092", "site-2", 1)
    assert (client.key, client.state_dir) == (str(bundle / "key"), str(bundle / "state"))
    assert (bundle / "fairbloom-client.service").read_text().startswith("[Unit]")
    kept = "".join(path.read_text() for path in (made / "clients").glob("*.toml"))
    assert "PRIVATE" in (bundle / "key").read_text()
    assert "PRIVATE" not in kept


def test_the_partition_of_a_revoked_client_is_free_again(made: Path) -> None:
    assert fairbloom("deploy", "enroll", "a", "b", "c") == 0
    assert fairbloom("deploy", "revoke", "b") == 0
    assert not (made / "bundles" / "b").exists()
    assert members(made)["b"].revoked
    assert fairbloom("deploy", "enroll", "b") == 0
    assert {name: member.partition for name, member in members(made).items()} == {
        "a": 0,
        "b": 1,
        "c": 2,
    }
    assert not members(made)["b"].revoked


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("enroll", "a/b"), "client 'a/b': use up to 63 letters"),
        (
            ("enroll", "There"),
            "client 'There' differs from client 'there', which is enrolled, only in spelling",
        ),
        (("enroll", "7.0"), "client '7.0' differs from client '7', which is enrolled"),
        (("enroll", "FL.example.org"), "is called like a host of the server's certificate"),
        (
            ("enroll", "x", "y", "--partition-id", "3"),
            "--partition-id 3 is for one client, and 2 are named",
        ),
        (("enroll", "x", "y", "--request", "f"), "--request f is for one client, and 2 are named"),
        (("enroll", "x", "--request", "f"), "--request f cannot be read: "),
        (("enroll", "x", "--partition-id", "-1"), "--partition-id -1: it is counted from 0"),
        (("enroll", "x", "--examples", "-1"), "--examples -1: it is counted from 0"),
        (("revoke", "x"), "client 'x' is not enrolled; enrolled are: 7, there"),
    ],
)
def test_an_invalid_option_is_named(
    made: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    assert fairbloom("deploy", "enroll", "there", "7") == 0
    before = (made / "clients" / "there.toml").read_bytes()
    assert message in captured(capsys, "deploy", *words, code=2).err
    assert {path.name for path in (made / "clients").iterdir()} == {"7.toml", "there.toml"}
    assert (made / "clients" / "there.toml").read_bytes() == before


def test_enroll_says_when_a_partition_is_beyond_the_clients(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "partition" not in captured(capsys, "deploy", "enroll", "a", "b", "c").err
    assert fairbloom("deploy", "revoke", "b") == 0
    assert fairbloom("deploy", "enroll", "d", "--partition-id", "3") == 0
    words = (
        "client d has partition 3, but clients=3 has only 0 to 2: set clients=4, or enrol it again"
        " with"
    )
    assert f"{words} --partition-id 1" in capsys.readouterr().err
    assert fairbloom("deploy", "enroll", "d", "--partition-id", "1") == 0  # as the warning advised
    assert "partition" not in capsys.readouterr().err
    assert members(made)["d"].partition == 1


# Keys that are made on the device -----------------------------------------------------------------


def test_a_bundle_for_a_key_of_the_device_holds_nothing_secret(made: Path, tmp_path: Path) -> None:
    key = pki.make_key()
    request = write_request(tmp_path, "gate-7", key)
    assert fairbloom("deploy", "enroll", "gate-7", "--request", request, "--examples", "1200") == 0
    bundle = made / "bundles" / "gate-7"
    names = ["ca.crt", "certificate", "client.toml", "fairbloom-client.service"]
    assert sorted(file.name for file in bundle.iterdir()) == names
    member = members(made)["gate-7"]
    assert (member.key, member.examples) == (pki.digest_key(key.public_key()), 1200)


def test_an_invalid_request_enrolls_nobody(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = pki.make_key()
    asked = write_request(tmp_path, "a", key)
    (tmp_path / "private").write_bytes(pki.format_key(key))
    assert (
        "is of client 'a', not 'b'"
        in captured(capsys, "deploy", "enroll", "b", "--request", asked, code=2).err
    )
    assert (
        "which has travelled and must be replaced"
        in captured(capsys, "deploy", "enroll", "a", "--request", tmp_path / "private", code=2).err
    )
    assert members(made) == {}


@pytest.mark.parametrize("name", "ab")
def test_a_key_has_one_client_and_never_returns_once_revoked(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    key = pki.make_key()
    assert fairbloom("deploy", "enroll", "a", "--request", write_request(tmp_path, "a", key)) == 0
    # the bundle was lost
    assert fairbloom("deploy", "enroll", "a", "--request", write_request(tmp_path, "a", key)) == 0
    assert fairbloom("deploy", "enroll", "b", "--request", write_request(tmp_path, "b", key)) == 2
    assert fairbloom("deploy", "revoke", "a") == 0
    assert (
        "client 'a'"
        in captured(
            capsys,
            "deploy",
            "enroll",
            name,
            "--request",
            write_request(tmp_path, name, key),
            code=2,
        ).err
    )
    assert members(made)["a"].revoked


def test_a_name_is_taken_whatever_its_case_even_if_revoked(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fairbloom("deploy", "enroll", "Gate") == 0
    assert fairbloom("deploy", "revoke", "Gate") == 0
    assert (
        "differs from client 'Gate', which is revoked, only in spelling"
        in captured(capsys, "deploy", "enroll", "gate", code=2).err
    )
    assert fairbloom("deploy", "enroll", "Gate") == 0


def test_clients_enrolled_at_once_get_different_partitions(made: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(
            pool.map(
                lambda name: enrolment.enroll(Federation.read(made), name), ["a", "a", "b", "c"]
            )
        )
    assert sorted(member.partition for member in members(made).values()) == [0, 1, 2]


def test_a_client_whose_bundle_cannot_be_written_is_not_enrolled(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(enrolment, "write_public", full)
        assert fairbloom("deploy", "enroll", "a") == 2
    assert "No space left on device" in capsys.readouterr().err
    assert members(made) == {}


def test_a_client_that_is_enrolled_again_keeps_its_partition(made: Path, tmp_path: Path) -> None:
    assert fairbloom("deploy", "enroll", "other", "a", "--examples", "5") == 0
    key = pki.make_key()
    assert fairbloom("deploy", "enroll", "a", "--request", write_request(tmp_path, "a", key)) == 0
    new = members(made)["a"]
    assert (new.partition, new.examples, new.key) == (1, 5, pki.digest_key(key.public_key()))
    assert fairbloom("deploy", "enroll", "a", "--partition-id", "7", "--examples", "9") == 0
    assert (members(made)["a"].partition, members(made)["a"].examples) == (7, 9)


def test_many_clients_are_enrolled_by_one_read(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Federation] = []
    read = Federation.members
    monkeypatch.setattr(Federation, "members", lambda self: (reads.append(self), read(self))[1])
    federation = Federation.read(made)
    made_now = [
        *enrolment.enroll_all(federation, ["a", "b"], examples=7),
        *enrolment.enroll_all(federation, ["b", "c", "d"]),
    ]
    assert [bundle.name for bundle in made_now] == [*"abbcd"]
    assert len(reads) == 2
    found = {name: (each.partition, each.examples) for name, each in members(made).items()}
    assert found == {"a": (0, 7), "b": (1, 7), "c": (2, 0), "d": (3, 0)}
    with pytest.raises(DeployError, match="differs from client 'e'"):
        list(enrolment.enroll_all(federation, ["e", "E"]))
    assert members(made).keys() == {*"abcde"}
