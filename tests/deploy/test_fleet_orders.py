"""The server's runs and folder, without processes: orders are carried out or refused."""

import asyncio
import errno
import os
import shutil
import time
from collections.abc import Callable, Coroutine, Iterator
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
from fairbloom.deploy.fleet import runs as module
from fairbloom.deploy.fleet.content import Content, MemoryBudget
from fairbloom.deploy.fleet.daemon import Daemon, read_identity, renew_if_due
from fairbloom.deploy.fleet.enrolment import enroll, revoke
from fairbloom.deploy.fleet.federation import NOW, Federation, Now, read_now
from fairbloom.deploy.fleet.mailbox import Envelope, Mailbox, Reply
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
    digest = mailbox.store(Content(b"model"))
    ids = ["a", "b", "c"]
    mailbox.send(1, [Envelope(id, id, 1, "", "train", digest, 60.0, kept=True) for id in ids])

    async def wait(number: int, answered: str) -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        message = mailbox.find(answered, answered)
        assert message is not None
        waiting: Coroutine[Any, Any, None] = runs._answer(1, "wait", (ids, number, 30.0), b"")
        task = asyncio.create_task(waiting)
        await asyncio.sleep(0.01)
        mailbox.answer(message, Reply(None, 2, "an error counts"))
        await task
        return loop.time() - began

    async def wait_for_each() -> list[float]:
        return [await wait(number, answered) for number, answered in enumerate(ids, 1)]

    assert max(asyncio.run(wait_for_each())) < 20.0


@pytest.mark.parametrize(
    "line",
    [
        "max-reply = -1",
        'pin-keys = "no"',
        "listen = 9092",
        'listen = "9092"',
        'superlink = "a.org:9092"',
    ],
)
def test_settings_of_the_server_are_checked(tmp_path: Path, line: str) -> None:
    with pytest.raises(DeployError, match="is not a federation's folder"):
        Federation.read(tmp_path)
    file = tmp_path / "federation.toml"
    good = 'server = "a.org:9092"\n'
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


# Faults of one file, or of the machine ------------------------------------------------------------


def break_file(file: Path, how: str) -> None:
    """Make a file that cannot be read."""
    if how == "a link to itself":
        file.symlink_to(file.name)
    elif how == "a pipe":
        os.mkfifo(file)
    elif how == "endless":
        file.symlink_to("/dev/zero")
    elif how == "a folder":
        file.mkdir()
    else:
        file.write_bytes(b"\xff" * (2 << 20))


BROKEN = ("a link to itself", "a pipe", "endless", "a folder", "too large")


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_file_of_a_client_hides_no_revocation(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    federation = Federation.init(tmp_path / "fed", ["server.example"], 9092)
    enroll(federation, "a")
    members = Members(federation.path / "clients")
    members.look()
    break_file(federation.path / "clients" / "b.toml", how)
    members.look()
    revoke(federation, "a")
    members.look()
    assert members.by_name["a"].revoked
    said = [record.getMessage() for record in caplog.records]
    assert sum("b.toml cannot be used" in words for words in said[:1]) == 1
    members.look()
    broken = federation.path / "clients" / "b.toml"
    if broken.is_dir():
        broken.rmdir()
    else:
        broken.unlink()
    caplog.clear()
    enroll(federation, "b")
    members.look()
    assert not members.by_name["b"].revoked
    assert caplog.text == ""


@pytest.mark.parametrize("how", [*BROKEN, "no TOML"])
def test_a_broken_order_keeps_no_other_run_waiting(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    broken, last = (submit(tmp_path / "runs", ORDER) for _ in range(2))
    broken.order.unlink()
    break_file(broken.order, how)
    runs, started = make_runs(tmp_path / "runs", lambda: 0)
    carry_out(runs, last)
    assert (started, last.status) == ([last.number], 0)
    assert caplog.text.count(f"run {broken.number} ") <= 2


def test_a_run_whose_folder_is_read_only_waits_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, last = (submit(tmp_path / "runs", ORDER) for _ in range(2))
    end = RunFiles.end
    locked = {first.number}

    def end_unless_locked(run: RunFiles, status: int) -> None:
        if run.number in locked:
            raise PermissionError(errno.EACCES, "Permission denied", str(run.folder))
        end(run, status)

    monkeypatch.setattr(RunFiles, "end", end_unless_locked)
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    runs, started = make_runs(tmp_path / "runs", lambda: 0)
    carry_out(runs, last)
    assert started[:2] == [first.number, last.number]
    assert caplog.text.count("cannot go on, and is tried again") == 1
    locked.clear()
    carry_out(runs, first)
    assert (first.status, last.status) == (0, 0)


@pytest.mark.parametrize(
    "fault",
    [
        OSError(errno.EMFILE, "Too many open files"),
        OSError(errno.ENOSPC, "No space left on device"),
        MemoryError(),
        RuntimeError("can't start new thread"),
    ],
)
def test_a_fault_of_the_machine_only_delays_runs(
    tmp_path: Path,
    fault: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, last = (submit(tmp_path / "runs", ORDER) for _ in range(2))
    faults = [fault, fault, fault]

    def code() -> int:
        if faults:
            raise faults.pop()
        return 0

    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    runs, started = make_runs(tmp_path / "runs", code)
    carry_out(runs, first, last)
    assert started == [first.number] * 4 + [last.number]  # in their order
    assert caplog.text.count("cannot go on, and is tried again") == 1


def test_orders_are_found_again_after_too_many_open_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = submit(tmp_path / "runs", ORDER)
    faults = [OSError(errno.EMFILE, "Too many open files") for _ in range(3)]
    look = Path.iterdir

    def iterdir(self: Path) -> Iterator[Path]:
        if self.name == "runs" and faults:
            raise faults.pop()
        return look(self)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    runs, _ = make_runs(tmp_path / "runs", lambda: 0)
    carry_out(runs, run)
    assert run.status == 0
    assert caplog.text.count("no run is begun") == 1


def test_a_fault_in_one_step_of_a_second_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    federation = Federation.init(tmp_path / "fed", ["server.example"], 9092)
    daemon = Daemon(federation, 1024)
    done = list[str]()

    def fail(step: str) -> Callable[[], None]:
        def look() -> None:
            done.append(step)
            raise OSError(errno.EMFILE, "Too many open files")

        return look

    monkeypatch.setattr(daemon._members, "look", fail("members"))
    monkeypatch.setattr(daemon._port, "look", fail("port"))
    monkeypatch.setattr(daemon._mailbox, "expire", fail("mailbox"))
    for _ in range(3):
        daemon._look()
    assert done == ["members", "port", "mailbox"] * 3
    assert read_now(federation).at > 0
    assert len(caplog.records) == 3
    (federation.state / ".now.json").mkdir()
    for _ in range(3):
        daemon._look()
    assert len(caplog.records) == 4


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "nonsense",
        '{"at": "now"}',
        '{"seen": 5}',
        '{"seen": {"a": "b"}}',
        '{"seen": {"a": 1e300}}',
        '{"run": [1]}',
        "[" * 100_000,
    ],
)
def test_a_damaged_state_of_the_server_says_nothing(tmp_path: Path, content: str) -> None:
    federation = Federation.init(tmp_path / "fed", ["server.example"], 9092)
    (federation.state / NOW).write_text(content)
    assert read_now(federation) == Now()
    daemon = Daemon(federation, 1024)
    daemon._runs.current = submit(federation.runs, ORDER).number
    daemon._write_now()
    assert read_now(federation).run == daemon._runs.current


# Clocks -------------------------------------------------------------------------------------------


def test_runs_are_numbered_upwards_whatever_the_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = tmp_path / "state" / "runs"
    now = time.time_ns() // 1_000_000
    numbers = list[int]()
    for milliseconds in (now, now - 10_000, now - 10_000, now + 5, now - 3600_000):
        monkeypatch.setattr(module, "time_ns", lambda at=milliseconds: at * 1_000_000)
        numbers.append(submit(runs, ORDER).number)
        if milliseconds == now + 5:
            shutil.rmtree(runs)  # an operator cleans up
    assert numbers == [now, now + 1, now + 2, now + 5, now + 6]
    (runs.parent / module.LAST_NUMBER).write_text("nonsense")
    assert submit(runs, ORDER).number == now + 7
    assert [run.number for run in module.list_runs(runs)] == [now + 6, now + 7]


def test_folders_with_other_names_are_no_runs(tmp_path: Path) -> None:
    run = submit(tmp_path, ORDER)
    for name in ("007", "٣", "9" * 40, "-1", "1e5", "notes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.toml").write_text("")
    assert [each.number for each in module.list_runs(tmp_path)] == [run.number]
