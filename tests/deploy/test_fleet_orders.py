"""The server's runs and folder, without processes: orders are carried out or refused."""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from fairbloom.deploy import pki
from fairbloom.deploy.errors import DeployError
from fairbloom.deploy.fleet.daemon import read_identity, renew_if_due
from fairbloom.deploy.fleet.federation import Federation
from fairbloom.deploy.fleet.mailbox import Envelope, Mailbox, MemoryBudget, Reply
from fairbloom.deploy.fleet.members import Members
from fairbloom.deploy.fleet.port import Port
from fairbloom.deploy.fleet.runs import MAX_RESTARTS, Order, RunFiles, Runs, submit

ORDER = Order("fairbloom.serverapp:app", "fairbloom", "0.1.0", {"clients": 2, "device": "cpu"})


def make_runs(folder: Path, codes: Callable[[], int]) -> tuple[Runs, list[int]]:
    """Return runs with processes that end with these exit codes, and the list of those started."""
    started = list[int]()

    class Made(Runs):
        async def _start(self, run: RunFiles, order: Order) -> int:
            assert order == ORDER
            started.append(run.number)
            self._mailbox.begin(run.number)
            return codes()

    members = Members(folder)
    mailbox = Mailbox(MemoryBudget(folder))
    return Made(folder, members, mailbox, Port(members, mailbox)), started


def carry_out(runs: Runs, *awaited: RunFiles) -> None:
    """Carry out runs until these have ended."""

    async def until_over() -> None:
        task = asyncio.create_task(runs.carry_out())
        async with asyncio.timeout(30):
            while any(run.status is None for run in awaited):
                await asyncio.sleep(0.01)
        task.cancel()

    asyncio.run(until_over())


def test_runs_are_carried_out_in_order_and_once(tmp_path: Path) -> None:
    first, stopped, damaged, last = (submit(tmp_path, ORDER) for _ in range(4))
    (stopped.folder / "stop").touch()
    damaged.order.write_text(
        damaged.order.read_text().replace("clients = 2", "clients = 2026-01-01")
    )
    runs, started = make_runs(tmp_path, iter([0, 1]).__next__)
    assert [run.number for run in runs.waiting()] == [
        first.number,
        stopped.number,
        damaged.number,
        last.number,
    ]
    carry_out(runs, first, stopped, damaged, last)
    assert [run.status for run in (first, stopped, damaged, last)] == [0, 130, 2, 1]
    assert started == [first.number, last.number]
    assert (
        "run.toml cannot be used: the setting clients is neither a number"
        in damaged.log.read_text()
    )
    again, _ = make_runs(tmp_path, iter([]).__next__)
    assert again.waiting() == []


def test_a_run_that_is_killed_again_and_again_is_given_up(tmp_path: Path) -> None:
    run = submit(tmp_path, ORDER)
    runs, started = make_runs(tmp_path, lambda: -9)
    carry_out(runs, run)
    assert run.status == 128 + 9
    assert len(started) == MAX_RESTARTS + 1
    assert (
        f"was killed {MAX_RESTARTS + 1} times (killed by SIGKILL): it is given up"
        in run.log.read_text()
    )


def test_a_wait_ends_once_enough_replies_are_there(tmp_path: Path) -> None:
    runs, _ = make_runs(tmp_path, lambda: 0)
    mailbox = runs._mailbox
    mailbox.begin(1)
    digest = mailbox.store(b"model")
    ids = ["a", "b", "c"]
    mailbox.send(1, [Envelope(id, id, 1, "", "train", digest, 60.0, kept=True) for id in ids])

    async def wait(number: int, answered: str) -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        message = mailbox.find(answered, answered)
        assert message is not None
        waiting: Coroutine[Any, Any, None] = runs._answer(1, "wait", (ids, number, 30.0))
        task = asyncio.create_task(waiting)
        await asyncio.sleep(0.01)
        mailbox.answer(message, Reply(None, 2, "an error counts"))
        await task
        return loop.time() - began

    async def wait_for_each() -> list[float]:
        return [await wait(number, answered) for number, answered in enumerate(ids, 1)]

    assert max(asyncio.run(wait_for_each())) < 20.0


def test_settings_of_the_server_are_checked(tmp_path: Path, subtests: pytest.Subtests) -> None:
    with pytest.raises(DeployError, match="is not a federation's folder"):
        Federation.read(tmp_path)
    file = tmp_path / "federation.toml"
    good = 'server = "a.org:9092"\n'
    for line in (
        "max-reply = -1",
        'pin-keys = "no"',
        "listen = 9092",
        'listen = "9092"',
        'superlink = "a.org:9092"',
    ):
        with subtests.test(line=line):
            file.write_text(good + line)
            with pytest.raises(DeployError, match=line.partition(" ")[0]):
                Federation.read(tmp_path)
    file.write_text("max-reply = 1000")
    with pytest.raises(DeployError, match="server is missing"):
        Federation.read(tmp_path)
    file.write_text(f"{good}max-reply = 1000")
    read = Federation.read(tmp_path)
    assert (read.max_reply, read.pin_keys, read.listen) == (1000, True, "[::]:9092")


def test_the_servers_certificate_is_renewed_in_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    federation = Federation.init(tmp_path / "fed", ["server.example"], 9092)
    authority = federation.authority
    server = federation.identity
    pki.make_server_certificate(*authority, *server, ["server.example"], days=30.0)
    first = read_identity(federation)
    renew_if_due(federation)
    assert read_identity(federation) == first
    server[0].write_bytes(make_old(authority, server[1]))
    hidden = authority[1].rename(tmp_path / "elsewhere")
    renew_if_due(federation)
    assert "run fairbloom deploy renew where ca.key is" in caplog.text
    hidden.rename(authority[1])
    renew_if_due(federation)
    assert pki.days_left(server[0]) > 5.0
    assert pki.read_hosts(server[0])[0] == "server.example"
    read_identity(federation)
    server[0].write_bytes(first[1])
    with pytest.raises(DeployError, match=r"server\.key is not the key of"):
        read_identity(federation)


def make_old(authority: tuple[Path, Path], key: Path) -> bytes:
    """Return a server's certificate of 10 days, 9 of them over."""
    signer = load_pem_private_key(authority[1].read_bytes(), None)
    holder = load_pem_private_key(key.read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    assert isinstance(holder, ec.EllipticCurvePrivateKey)
    issuer = x509.load_pem_x509_certificate(authority[0].read_bytes())
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(issuer.subject)
        .issuer_name(issuer.subject)
        .public_key(holder.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=9))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName("server.example")]), critical=False
        )
    )
    return builder.sign(signer, hashes.SHA256()).public_bytes(Encoding.PEM)
