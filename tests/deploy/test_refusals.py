"""RefusalLog are noted, and do not let anybody fill the disk."""

import json
import logging
from pathlib import Path

import pytest

from fairbloom.deploy.operator.audit import read_text
from fairbloom.deploy.server import refusals
from fairbloom.deploy.server.refusals import RefusalLog


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time as refusals see it."""
    now = [1000.0]
    monkeypatch.setattr("fairbloom.deploy.server.refusals.time.monotonic", lambda: now[0])
    return now


def noted(folder: Path) -> list[tuple[str, int]]:
    return [(line["event"], line["times"]) for line in map(json.loads, read_text(folder).splitlines())]


def test_an_attempt_is_noted_once_a_minute_with_how_often(tmp_path: Path, clock: list[float]) -> None:
    seen = RefusalLog(tmp_path)
    assert [seen.note("a key", peer=f"ipv4:192.0.2.7:{port}") for port in range(100)] == [True] + [False] * 99
    seen.note("a key", peer="ipv4:192.0.2.8:1")
    clock[0] += refusals.SECONDS
    seen.note("a key", peer="ipv4:192.0.2.7:1")
    assert noted(tmp_path) == [("refused: a key", 1), ("refused: a key", 1), ("refused: a key", 100)]


@pytest.mark.parametrize(
    ("peer", "kept"),
    [
        ("ipv4:192.0.2.7:50000", "192.0.2.7"),
        ("ipv6:%5B2001:db8::1%5D:50000", "%5B2001:db8::1%5D"),
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8::1", "2001:db8::1"),
        ("unix:", "unix:"),
        ("", ""),
    ],
)
def test_a_peer_is_noted_without_its_port(tmp_path: Path, peer: str, kept: str) -> None:
    RefusalLog(tmp_path).note("a key", peer=peer)
    assert json.loads(read_text(tmp_path))["peer"] == kept


def test_no_variety_of_attempts_fills_disk_or_memory(
    tmp_path: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "DIFFERENT", 5)
    seen = RefusalLog(tmp_path)
    for number in range(500):
        seen.note("a call", call=f"/{number}" + "x" * 100_000)
    assert noted(tmp_path) == [("refused: a call", 1)] * 6
    assert len(seen._noted) <= 6
    assert len(seen._since) <= 6
    assert sum(len(word) for attempt in (*seen._noted, *seen._since) for word in attempt) < 5000
    clock[0] += refusals.SECONDS
    seen.note("a call", call="/another")
    assert noted(tmp_path)[-1] == ("refused: a call", 495)


def test_a_log_that_cannot_be_written_does_not_let_anybody_in(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    seen = RefusalLog(tmp_path / "not there")
    with caplog.at_level(logging.WARNING, "flwr"):
        assert seen.note("a key")
    assert "cannot be written" in caplog.text
