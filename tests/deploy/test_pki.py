"""Certificates and keys: their content, their permissions, and atomic writes.

Keys that are made on the device, and stay there.
"""

import shutil
import ssl
import stat
import threading
from base64 import b64decode, b64encode
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
from fairbloom.deploy.fleet.enrolment import enroll
from fairbloom.deploy.fleet.federation import Federation

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


def test_the_server_is_accepted_by_its_own_names_only(
    authority: tuple[Path, Path],
) -> None:
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


def test_an_invalid_host_is_refused(subtests: pytest.Subtests) -> None:
    no_hosts = (
        "",
        "a b",
        "a:9092",
        "[::1]",
        "fe80::1%eth0",
        "999.1.1.1",
        "-a.org",
        "a..b",
        "a.",
        "a\n",
        "*.org",
    )
    for host in (*no_hosts, "x" * 64, "ü" * 70):
        with subtests.test(host=host):
            with pytest.raises(DeployError, match="give a name or an address without port"):
                pki.normalise_host(host)
    # newer rules spell it differently
    with pytest.raises(DeployError, match="give it in its ASCII form"):
        pki.normalise_host("straße.example")


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


def test_an_invalid_request_is_refused(subtests: pytest.Subtests) -> None:
    good = pki.write_request(pki.make_key(), "a")
    for text, message in (
        ("", "is not a certificate request"),
        ("ecdsa-sha2-nistp384 AAAA a", "is not a certificate request"),
        (good[:100], "is not a certificate request"),
        (request_of(ec.generate_private_key(ec.SECP384R1())), "not on the curve P-256"),
        (request_of(ed25519.Ed25519PrivateKey.generate()), "not on the curve P-256"),
        (forged_request(), "is not signed by the key|is not a certificate request"),
    ):
        with subtests.test(text=text, message=message):
            with pytest.raises(DeployError, match=message) as refused:
                pki.read_request(text, "site.request")
            assert "site.request" in str(refused.value)


def test_a_devices_certificate_is_only_for_clients(
    authority: tuple[Path, Path], tmp_path: Path
) -> None:
    made = pki.issue_device_certificate(*authority, pki.make_key().public_key(), "site-1")
    (tmp_path / "certificate").write_bytes(made)
    assert pki.read_name(tmp_path / "certificate") == "site-1"
    extensions = x509.load_pem_x509_certificate(made).extensions
    usage = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert [*usage] == [ExtendedKeyUsageOID.CLIENT_AUTH]
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

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (request,) = filter(None, outcomes)
    assert (tmp_path / "site-a.request").read_text() == request


@pytest.mark.parametrize("name", ["", "../x", "a b", "-a", "a\nb", "x" * 64])
def test_an_invalid_name_makes_no_key(tmp_path: Path, name: str) -> None:
    with pytest.raises(DeployError, match="digits, dots, dashes and underscores"):
        keys.make(tmp_path, name)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DeployError, match="the key cannot be written there: Not a directory"):
        keys.make(tmp_path / "file" / "x", "site-a")
