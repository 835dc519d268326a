"""Refusals are logged, and do not let anybody fill the disk."""

import pytest

from fairbloom.deploy.server import refusals
from fairbloom.deploy.server.refusals import RefusalLog, log_event

from .logged import read_events


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time as refusals see it."""
    now = [1000.0]
    monkeypatch.setattr("fairbloom.deploy.server.refusals.time.monotonic", lambda: now[0])
    return now


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, int]]:
    return [(line["event"], int(line.get("times", 1))) for line in read_events(caplog.messages)]


def test_an_attempt_is_logged_once_a_minute_with_how_often(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    seen = RefusalLog()
    for port in range(100):
        seen.note("a key", peer=f"ipv4:192.0.2.7:{port}")
    seen.note("a key", peer="ipv4:192.0.2.8:1")
    clock[0] += refusals.SECONDS
    seen.note("a key", peer="ipv4:192.0.2.7:1")
    assert logged(caplog) == [("refused: a key", 1), ("refused: a key", 1), ("refused: a key", 100)]
    assert seen.attempts == 102


@pytest.mark.parametrize(
    ("peer", "kept"),
    [
        ("ipv4:192.0.2.7:50000", "192.0.2.7"),
        ("ipv6:%5B2001:db8::1%5D:50000", "%5B2001:db8::1%5D"),
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8::1", "2001:db8::1"),
        ("unix:", "unix:"),
    ],
)
def test_a_peer_is_logged_without_its_port(peer: str, kept: str, caplog: pytest.LogCaptureFixture) -> None:
    RefusalLog().note("a key", peer=peer)
    assert caplog.messages == [f"refused: a key (peer {kept})"]


def test_no_variety_of_attempts_fills_disk_or_memory(
    clock: list[float], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(refusals, "DIFFERENT", 5)
    seen = RefusalLog()
    for number in range(500):
        seen.note("a call", call=f"/{number}" + "x" * 100_000)
    assert logged(caplog) == [("refused: a call", 1)] * 6
    assert sum(map(len, caplog.messages)) < 2000
    assert len(seen._noted) <= 6
    assert len(seen._since) <= 6
    assert sum(len(word) for attempt in (*seen._noted, *seen._since) for word in attempt) < 5000
    clock[0] += refusals.SECONDS
    seen.note("a call", call="/another")
    assert logged(caplog)[-1] == ("refused: a call", 495)


def test_words_of_strangers_are_one_line_each(caplog: pytest.LogCaptureFixture) -> None:
    log_event("a call", call="/a\nrun stopped\x1b[2J")
    assert caplog.messages == ["a call (call /a run stopped\\x1b[2J)"]
