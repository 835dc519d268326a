"""What monitoring sees of a server: an exit status, numbers, and signs of life for systemd."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.processes import free_port
from fairbloom import __version__
from fairbloom.deploy import pki
from fairbloom.deploy.fleet.content import Content
from fairbloom.deploy.fleet.daemon import Daemon
from fairbloom.deploy.fleet.enrolment import enroll
from fairbloom.deploy.fleet.federation import Federation, read_now, server_unit
from fairbloom.deploy.fleet.metrics import METRICS
from fairbloom.deploy.fleet.port import PortDevice
from fairbloom.deploy.fleet.runs import STOPPED, Order, submit
from fairbloom.system.lock import exclusive_lock
from fairbloom.system.supervise import notify_systemd
from tests.experiments.helpers import captured


@pytest.mark.parametrize(
    ("now", "code", "said"),
    [
        ({}, 0, "serving\n"),
        ({"days": {"ca.crt": 14.0}, "free": {"/fed": 0.05}}, 0, "serving\n"),
        ({"days": {"server.crt": 500.0, "ca.crt": 13.9}}, 2, "ca.crt holds for 14 more days.*\n"),
        ({"free": {"/fed": 0.05, "/fed/state": 0.049}}, 2, "5% .*make room at /fed/state\n"),
        ({"run": 7, "waiting": "awaited: a"}, 2, "run 7 waits for clients: awaited: a\n"),
        (
            {"waiting": "awaited: a", "free": {"/fed": 0.01}},
            2,
            "run 0 waits .*\n1% of the disk .*\n",
        ),
        ({"failure": "run 7 failed: x"}, 2, "run 7 failed: x: the same submit continues it\n"),
        ({"at": 0.0}, 1, "no server runs: .*\n"),
    ],
)
def test_check_has_a_status_and_a_line_for_each_reason(
    made: Path, now: dict[str, Any], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (made / "state" / "now.json").write_text(json.dumps({"at": time.time(), **now}))
    assert "no server runs" in captured(capsys, "deploy", "status", "--check", code=1).out
    with exclusive_lock(made / "state" / "lock"):
        found = captured(capsys, "deploy", "status", "--check", code=code)
    assert re.fullmatch(said, found.out)


SAMPLE = re.compile(r'(fairbloom_[a-z_]+)(\{[a-z]+="(?:[^"\\\n]|\\["\\n])+"\})? ([0-9.e+-]+)')


def test_each_second_has_numbers_in_prometheus_format(tmp_path: Path) -> None:
    federation = Federation.init(tmp_path / "fed", ["server.example"], 9092)
    enroll(federation, "a")
    enroll(federation, "b")
    for status in (0, 1, 1, STOPPED, 7):
        run = submit(federation.runs, Order("app", "fairbloom", "1", {}))
        run.log.write_text("round 1\nit is full\n")
        run.end(status)
    pki.make_authority(federation.authority[0], tmp_path / "key", days=-2.0)
    daemon = Daemon(federation, 1024)
    daemon._port.devices["a"] = PortDevice(seen=time.monotonic(), version="1.0")
    before = time.time()
    daemon._port.admission.note_reason("a", "it is slow")
    daemon._mailbox.store(Content(b"model"))
    daemon._port.admission.refused.update({"reply": 3, 'a"b\\c\nd': 1})
    daemon._runs.last_round = (7, time.time() + 3600.0)  # the clock was set back
    daemon._runs.waiting_for = "awaited: a"
    assert daemon._runs.waiting() == []  # a server that starts again knows what failed
    daemon._look()
    lines = (federation.state / "metrics.prom").read_text().splitlines()
    comments = [line for line in lines if line.startswith("#")]
    assert [line.split(" ")[1:4:2] for line in comments[1::2]] == [
        ["TYPE", "counter" if name.endswith("_total") else "gauge"] for name in METRICS
    ]
    samples = [SAMPLE.fullmatch(line) for line in lines if line not in comments]
    numbers = {(each[1], each[2]): float(each[3]) for each in samples if each}
    assert len(numbers) == len(samples)
    assert {f"# HELP {name}" for name, _ in numbers} == {
        " ".join(line.split(" ")[:3]) for line in comments[::2]
    }
    place = "fairbloom_certificate_remaining_days"
    assert {
        ("fairbloom_clients_online", None): 1.0,
        ("fairbloom_mailbox_bytes", None): 5.0,
        ("fairbloom_client_online", '{client="a"}'): 1.0,
        ("fairbloom_client_online", '{client="b"}'): 0.0,
        ("fairbloom_run_failed", None): 1.0,
        ("fairbloom_round", None): 7.0,
        ("fairbloom_round_age_seconds", None): 0.0,
        ("fairbloom_refused_total", '{kind="reply"}'): 3.0,
        ("fairbloom_refused_total", r'{kind="a\"b\\c\nd"}'): 1.0,
        (place, '{file="server.crt"}'): pytest.approx(398.0, abs=0.1),
        (place, '{file="ca.crt"}'): 0.0,  # it has expired
    }.items() <= numbers.items()
    now = read_now(federation)
    assert now.failure == f"run {run.number} failed: it is full"
    assert (now.waiting, now.refused["reply"]) == ("awaited: a", 3)
    assert (now.version, now.versions, now.reasons) == (
        __version__,
        {"a": "1.0"},
        {"a": "it is slow"},
    )
    assert before <= now.reasons_at["a"] <= time.time()
    for place in (federation.path, federation.state):
        label = f'{{folder="{place}"}}'
        free, size = (numbers[f"fairbloom_disk_{name}_bytes", label] for name in ("free", "size"))
        assert now.free[str(place)] == free / size < 1
    files = {each.name for each in federation.state.iterdir() if each.is_file()}
    assert files == {"last-run", "metrics.prom", "now.json"}


@pytest.mark.parametrize(
    ("name", "address"),
    [("a@notify", "a@notify"), ("\0a@notify", "@a@notify"), ("a", None), ("a", ""), ("a", "b")],
)
@pytest.mark.usefixtures("here")
def test_systemd_gets_a_state_if_it_waits_for_one(
    monkeypatch: pytest.MonkeyPatch, name: str, address: str | None
) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    if address is not None:
        monkeypatch.setenv("NOTIFY_SOCKET", address)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(name)
        notify_systemd("READY=1")
        systemd.setblocking(False)
        if "notify" in name:
            assert systemd.recv(100) == b"READY=1"
        else:
            with pytest.raises(BlockingIOError):
                systemd.recv(100)


def test_a_server_says_that_it_is_ready_and_lives(tmp_path: Path) -> None:
    federation = Federation.init(tmp_path / "fed", ["localhost"], free_port())
    assert {"Type=notify", "WatchdogSec=60"} <= {*server_unit(federation.path).splitlines()}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(60)
        command = [sys.executable, "-m", "fairbloom.deploy.fleet.daemon", str(federation.path)]
        environment = os.environ | {"NOTIFY_SOCKET": str(tmp_path / "notify")}
        with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as server:
            try:
                said = [systemd.recv(100) for _ in range(3)]
            finally:
                server.terminate()
    assert said == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
