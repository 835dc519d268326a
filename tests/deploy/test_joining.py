"""Devices that have themselves enrolled by a token, and renew their keys, at a real port over TLS."""

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from fairbloom.deploy import pki
from fairbloom.deploy.device import joining as device
from fairbloom.deploy.errors import ClientError, DeployError
from fairbloom.deploy.flower import exchange_pb2
from fairbloom.deploy.flower.server import fleet_server as gate
from fairbloom.deploy.operator import audit, enrolment, joining
from fairbloom.deploy.operator.federation import Federation
from fairbloom.private.keys import key_of_device, read_identity
from fairbloom.protocol.names import TOKEN_HEADER
from tests.attacks.strangers import Stranger
from tests.deploy.flower import PATIENCE, wait_until
from tests.deploy.peer import signed_head
from tests.experiments.helpers import fairbloom

from .door import Door

JOIN = "/fairbloom.exchange.v1.Exchange/Join"


def refused(call: Callable[[], object], *words: str) -> None:
    with pytest.raises(ClientError) as error:
        call()
    assert all(each in str(error.value) for each in ("the server refuses this device: ", *words)), str(error.value)


def fail(*given: object) -> None:
    raise OSError(30, "Read-only file system")


# Joining ------------------------------------------------------------------------------------------------------------


def test_a_device_joins_by_a_token_and_connects(door: Door) -> None:
    folder = door.join(door.token("hospital-7", examples=1200))
    assert sorted(file.name for file in folder.iterdir()) == [
        *("ca.crt", "client.toml", "fairbloom-client.service", "hospital-7.request", "identity", "key")
    ]
    client = door.clients()["hospital-7"]
    assert door.connect(folder).node.node_id == int(client.node_id)
    assert (client.examples, client.partition_id) == (1200, 0)
    identity, authority = read_identity(
        (folder / "identity").read_bytes(), key_of_device((folder / "key").read_bytes())
    )
    authority.check(identity.certificate)
    assert identity.name == "hospital-7"
    (line,) = door.noted("join")
    assert (line["client"], line["node-id"], line["key"]) == (
        *("hospital-7", client.node_id),
        pki.fingerprint(client.public_key.encode()),
    )
    assert line["token"] == door.federation.tokens.all()[0].id


def test_of_the_secret_the_server_keeps_only_a_hash(door: Door) -> None:
    file = door.token("a")
    secret = device.read_token(file)["token"].partition(".")[2]
    door.join(file)
    kept = b"".join(path.read_bytes() for path in door.federation.path.rglob("*") if path.is_file())
    assert len(secret) == 43
    assert secret.encode() not in kept


def test_a_token_for_several_admits_so_many(door: Door) -> None:
    file = door.token(clients=2)
    assert [door.join(file, name).name for name in ("a", "b")] == ["a", "b"]
    refused(lambda: door.join(file, "c"), "is used up: it was for 2 client(s)", "fairbloom deploy token")
    assert [(client.name, client.partition_id) for client in door.federation.clients] == [("a", 0), ("b", 1)]


def test_a_token_is_good_once(door: Door) -> None:
    file = door.token("a")
    door.join(file)
    refused(lambda: door.join(file, to="other"), "another device has come as 'a'", "fairbloom deploy token")
    assert len(door.federation.clients) == 1
    assert [line["event"] for line in door.noted("refused")] == ["refused: a join"]


def test_a_token_used_once_stays_so_after_its_client_is_revoked(door: Door) -> None:
    file = door.token("a")
    folder = door.join(file)
    door.revoke("a")
    refused(lambda: door.join(file, to="other"), "another device has come as 'a'")
    (folder / "client.toml").unlink()
    refused(lambda: door.join(file), "client 'a', which is revoked, has had this key")


def test_a_device_that_lost_the_answer_gets_it_again(door: Door) -> None:
    """Also when the token has ended meanwhile, and whatever it had written of its files."""
    file = door.token("a")
    folder = door.join(file)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for name in ("client.toml", "identity", "ca.crt"):
        (folder / name).unlink()
    door.change_token(expires="2026-01-01T00:00:00+00:00")
    door.join(file)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert len(door.noted("join")) == 1


def test_a_name_of_another_token_or_a_revoked_client_is_kept(door: Door) -> None:
    several, kept = door.token(clients=5), door.token("a")
    refused(lambda: door.join(several, "A"), "'A' is for another token's device", "fairbloom deploy token A)")
    door.join(kept)
    door.revoke("a")
    refused(lambda: door.join(several, "a", "other"), "client 'a' is revoked", "(fairbloom deploy token a)")
    door.join(door.token("a"), to="new")
    door.join(several, "b")
    assert not door.clients()["a"].revoked


def test_a_name_that_the_token_is_not_for_is_refused(door: Door) -> None:
    refused(lambda: door.join(door.token("a"), "b"), "is for the client 'a', not 'b'")
    assert not door.federation.clients


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"expires": "2026-01-01T00:00:00+00:00"}, "was good until 2026-01-01T00:00:00+00:00"),
        ({"revoked": "2026-01-01T00:00:00+00:00"}, "was revoked on 2026-01-01"),
    ],
)
def test_a_late_or_revoked_token_is_refused(door: Door, change: dict[str, str], words: str) -> None:
    file = door.token("a")
    door.change_token(**change)
    refused(lambda: door.join(file), words, "ask the federation's operator for another (fairbloom deploy token)")
    assert not door.federation.clients


@pytest.mark.parametrize("name", ["A", "b", "a/b"])
def test_a_name_that_cannot_be_uses_no_token_up(door: Door, name: str, tmp_path: Path) -> None:
    """One of another case, one that is taken, and one that is none."""
    before, several = door.token(clients=2), door.token(clients=5)
    for taken in ("a", "b"):
        door.join(before, taken)
    with pytest.raises(ClientError, match=r"in case alone|is enrolled already|letters, digits"):
        device.join(several, name, tmp_path / "elsewhere")
    assert sum(len(token.requests) for token in door.federation.tokens.all()) == 2


def test_a_key_that_a_client_has_had_joins_under_no_other_name(door: Door) -> None:
    several = door.token(clients=5)
    key = (door.join(several, "a") / "key").read_bytes()
    (door.folder / "copy").mkdir()
    (door.folder / "copy" / "key").write_bytes(key)
    with pytest.raises(ClientError, match="client 'a', has had this key"):
        device.join(several, "b", door.folder / "copy")


def test_a_restarted_server_knows_its_tokens_and_clients(door: Door) -> None:
    once, several = door.token("a"), door.token(clients=2)
    folder = door.join(once)
    door.stop()
    door.start()
    refused(lambda: door.join(once, to="other"), "another device has come as 'a'")
    door.join(several, "b")
    assert door.connect(folder).node.node_id == int(door.clients()["a"].node_id)


def test_a_server_that_ends_in_the_midst_lets_the_same_device_finish(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = door.token("a")
    with monkeypatch.context() as patch:
        patch.setattr(type(door.federation.registry), "save", fail)
        over, folder = threading.Event(), door.folder / "devices" / "device"
        waiting = threading.Thread(target=lambda: (device.join(file, "", folder), over.set()))
        waiting.start()
        wait_until(lambda: bool(door.federation.tokens.all()[0].requests))
        refused(lambda: door.join(file, to="other"), "another device has come as 'a'")
    assert over.wait(PATIENCE)
    waiting.join()
    assert door.connect(folder).node.node_id == int(door.clients()["a"].node_id)


def test_devices_that_join_at_once_get_a_partition_each(door: Door) -> None:
    """While the operator enrols others in the same folder."""
    file, names = door.token(clients=12), [f"site-{number}" for number in range(12)]

    def enroll(name: str) -> None:
        key, applicant = pki.make_node_key().public, enrolment.Applicant(name=name)
        with enrolment.new_client(Federation(door.federation.path), door.nodes, applicant, key, 30):
            pass

    with ThreadPoolExecutor(8) as pool:
        joined = [pool.submit(door.join, file, name) for name in names]
        enrolled = [pool.submit(enroll, f"by-hand-{number}") for number in range(6)]
        for each in (*joined, *enrolled):
            each.result()
    assert sorted(client.partition_id for client in door.federation.clients) == list(range(18))
    assert audit.first_broken_line(door.federation.state) is None


def test_of_devices_that_use_a_token_at_once_one_joins(door: Door) -> None:
    file = door.token("a")

    def join(number: int) -> bool:
        with contextlib.suppress(ClientError):
            return bool(door.join(file, to=f"{number}"))
        return False

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(join, range(6))).count(True) == 1
    assert len(door.federation.clients) == 1


# Tokens -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("token", "a", "--clients", "2"), "--clients 2: a token is for one client by its name, or for 1 to 10000"),
        (("token", "--clients", "-1"), "--clients -1: a token is for one"),
        (("token", "a", "--hours", "0"), "--hours 0: it must be more than 0, and at most 8784"),
        (("token", "a", "--hours", "nan"), "--hours nan: it must be more than 0"),
        (("token", "a", "--days", "-1"), "--days -1: it must be 0 or more"),
        (("token", "a", "--examples", "-1"), "--examples -1: it is counted from 0"),
        (("token", "a/b"), "client 'a/b': use up to 63 letters"),
        (("token", "--revoke", "../x"), "there is no join token '../x' to revoke; there are: none"),
        (("approve", "a"), "no device waits to be client 'a'; waiting are: none"),
    ],
)
def test_a_token_that_cannot_be_is_named(
    door: Door, words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fairbloom("deploy", *words, "--dir", door.federation.path) == 2
    assert message in capsys.readouterr().err
    assert not door.federation.tokens.all()
    assert len(door.noted("refused")) == 1


def test_tokens_that_are_good_are_listed(door: Door, capsys: pytest.CaptureFixture[str]) -> None:
    place = ("--dir", door.federation.path)
    assert fairbloom("deploy", "token", *place) == 0
    assert "no join token is good" in capsys.readouterr().out
    door.join(door.token("used"))
    door.token("late", hours=1e-6)
    several, one = door.token(clients=3), door.token("a", approve=True)
    door.join(several, "b")
    capsys.readouterr()
    assert fairbloom("deploy", "token", *place) == 0
    listed = capsys.readouterr().out.splitlines()
    ids = [device.read_token(file)["token"][:8] for file in (several, one)]
    assert [line[: line.index(", good")] for line in sorted(listed)] == sorted(
        [f"{ids[0]}: 1 of 3 clients", f"{ids[1]}: a"]
    )
    assert fairbloom("deploy", "token", "--revoke", ids[0], *place) == 0
    assert "is revoked; clients that have joined by it stay" in capsys.readouterr().out
    refused(lambda: door.join(several, "c"), "was revoked")
    assert [line["event"] for line in door.noted("token")] == ["token"] * 4 + ["token revoked"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read: No such file"),
        ("", "it lacks 'superlink'"),
        ("ssh-rsa AAAA", "is not a join token: "),
        ('superlink = 1\ntoken = ""\nname = ""\nca = ""\n', "holds something other than texts"),
        ('superlink = "a:1"\ntoken = "x"\nname = "a"\nca = "none"\n', "it holds no certificate"),
    ],
)
def test_a_file_that_is_no_token_is_named(tmp_path: Path, text: str | None, words: str) -> None:
    file = tmp_path / "token"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ClientError, match=r"token|ca\.crt") as error:
        device.join(file, "", tmp_path / "device")
    assert words in str(error.value)


def test_a_token_names_no_folder_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "client.toml").touch()
    file = tmp_path / "token"
    file.write_text(f'superlink = "a:1"\ntoken = "x"\nname = "{tmp_path}/elsewhere"\nca = "none"\n')
    with pytest.raises(ClientError, match="use up to 63 letters"):
        device.join(file, "", None)


def test_a_device_that_has_joined_or_has_no_name_says_so(door: Door, tmp_path: Path) -> None:
    several = door.token(clients=2)
    with pytest.raises(ClientError, match="choose a name by --name"):
        door.join(several)
    door.join(several, "a")
    with pytest.raises(ClientError, match=r"client.toml is there already: start it by fairbloom client"):
        door.join(several, "a")


# Approval -----------------------------------------------------------------------------------------------------------


def test_a_device_waits_until_it_is_approved(
    door: Door, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(enrolment.control_api, "connected", lambda federation: contextlib.nullcontext(door.nodes))
    file = door.token(clients=2, approve=True)
    folder = door.folder / "devices" / "a"
    waiting = threading.Thread(target=device.join, args=(file, "a", folder))
    waiting.start()
    wait_until(lambda: bool(joining.find_waiting(door.federation)))
    fingerprint = pki.fingerprint(pki.read_node_key(folder / "key").public)
    (asked,) = joining.find_waiting(door.federation)
    assert (asked["client"], asked["key"]) == ("a", fingerprint)
    assert not door.federation.clients
    refused(lambda: door.join(file, "a", "other"), "another device has come as 'a'")
    door.stop()
    door.start()
    assert fairbloom("deploy", "approve", "b", "--dir", door.federation.path) == 2
    said = capsys.readouterr().err
    assert "no device waits to be client 'b'; waiting are: a" in said
    assert f"waiting until the operator lets in a with key {fingerprint}" in said
    assert fairbloom("deploy", "approve", "a", "--dir", door.federation.path) == 0
    waiting.join(PATIENCE)
    assert (folder / "client.toml").exists()
    assert joining.find_waiting(door.federation) == []
    assert door.connect(folder).node.node_id == int(door.clients()["a"].node_id)
    assert [line["event"] for line in door.noted("join")] == ["join asked"]
    assert door.noted("approve")[0]["client"] == "a"


def test_a_revoked_token_approves_nobody(door: Door, capsys: pytest.CaptureFixture[str]) -> None:
    file = door.token("a", approve=True)
    said = list[str]()

    def join() -> None:
        try:
            door.join(file)
        except ClientError as error:
            said.append(str(error))

    waiting = threading.Thread(target=join)
    waiting.start()
    wait_until(lambda: bool(joining.find_waiting(door.federation)))
    (token,) = door.federation.tokens.all()
    assert fairbloom("deploy", "token", "--revoke", token.id, "--dir", door.federation.path) == 0
    waiting.join(PATIENCE)
    assert "was revoked" in said[0]
    with pytest.raises(DeployError, match="waiting are: none"):
        joining.approve(door.federation, "a")


# Strangers ----------------------------------------------------------------------------------------------------------


def called(door: Door, key: Any, token: str, body: bytes) -> grpc.StatusCode:
    """Call Join with a head that is signed by a key; return how the server refuses it."""
    credentials = grpc.ssl_channel_credentials(door.federation.authority.read_bytes())
    with grpc.secure_channel(f"localhost:{door.port}", credentials) as channel:
        head = [*signed_head(key).items(), (TOKEN_HEADER, token)] if key else [(TOKEN_HEADER, token)]
        with pytest.raises(grpc.RpcError) as error:
            channel.unary_unary(JOIN)(body, metadata=head, timeout=PATIENCE)
        return error.value.code()


def test_a_guessed_secret_is_refused(door: Door) -> None:
    token = device.read_token(door.token("a"))["token"]
    key: Any = load_ssh_private_key(pki.make_node_key().private, None)
    number, _, secret = token.partition(".")
    for guess in (
        "",
        token[:-1],
        f"{number}.{'A' * 43}",
        f"{int(number, 16) ^ 1:08x}.{secret}",
        f"../{number}.{secret}",
    ):
        assert called(door, key, guess, b"") == grpc.StatusCode.UNAUTHENTICATED
    assert called(door, None, token, b"") == grpc.StatusCode.UNAUTHENTICATED
    assert {line["event"] for line in door.noted("refused")} == {
        "refused: a join without a token of this federation",
        "refused: a call of the fleet API without a key",
    }
    assert not door.federation.clients


def test_of_a_body_without_a_token_hardly_anything_is_taken_in(door: Door) -> None:
    stranger = Stranger(door.port, door.federation.authority)
    connection = stranger.http2()
    stream = connection.begin(JOIN, {TOKEN_HEADER: "0" * 8 + "." + "A" * 43})
    connection.push([stream], 8 << 20, 3.0, whole=False)
    stranger.close()
    assert connection.sent[stream] <= 4 * gate.AHEAD_BYTES


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (bytes(5000), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (b"\xff" * 100, grpc.StatusCode.INVALID_ARGUMENT),
        (b"", grpc.StatusCode.FAILED_PRECONDITION),
        (exchange_pb2.JoinRequest(request="x y z").SerializeToString(), grpc.StatusCode.FAILED_PRECONDITION),
    ],
)
def test_a_body_that_is_no_request_is_refused(door: Door, body: bytes, status: grpc.StatusCode) -> None:
    token = device.read_token(door.token("a"))["token"]
    key: Any = load_ssh_private_key(pki.make_node_key().private, None)
    assert called(door, key, token, body) == status
    assert not door.federation.tokens.all()[0].requests


def test_a_request_for_anothers_key_is_refused(door: Door) -> None:
    token = device.read_token(door.token("a"))["token"]
    key: Any = load_ssh_private_key(pki.make_node_key().private, None)
    body = exchange_pb2.JoinRequest(request=pki.write_request(pki.make_node_key(), "a")).SerializeToString()
    assert called(door, key, token, body) == grpc.StatusCode.FAILED_PRECONDITION


def test_words_of_a_caller_fill_no_audit_log(door: Door) -> None:
    file = door.token("a")
    for name in ("b", "c"):
        with pytest.raises(ClientError, match=f"is for the client 'a', not '{name}'"):
            door.join(file, name)
    (line,) = door.noted("refused")
    assert (line["reason"], line["token"]) == ("a token of another name", door.federation.tokens.all()[0].id)


def test_many_refusals_are_a_line_a_minute(door: Door) -> None:
    file = door.token("a")
    door.join(file)
    key = pki.make_node_key()
    shown: Any = load_ssh_private_key(key.private, None)
    body = exchange_pb2.JoinRequest(request=pki.write_request(key, "a")).SerializeToString()
    for _ in range(20):
        assert called(door, shown, device.read_token(file)["token"], body) == grpc.StatusCode.FAILED_PRECONDITION
        assert called(door, shown, "0" * 8 + "." + "A" * 43, body) == grpc.StatusCode.UNAUTHENTICATED
    assert len(door.noted("refused")) == 2
