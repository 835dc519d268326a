"""Certificates and keys: their content, their permissions, and atomic writes."""

import ssl
from base64 import b64decode, b64encode
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fairbloom.deploy import pki
from fairbloom.deploy.errors import DeployError


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


def test_a_host_is_named_as_in_certificates(subtests: pytest.Subtests) -> None:
    for host, name in (
        ("fl.example.org", "fl.example.org"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("Bücher.Example", "xn--bcher-kva.Example"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("control", "control"),
        ("10.0.0.7", "10.0.0.7"),
        ("2001:DB8::7", "2001:db8::7"),
    ):
        with subtests.test(host=host, name=name):
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
    """Return a request with the signature of another request."""
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
