"""The log of a device says what was asked, sent and refused, and no run can wash it away."""

import errno
import json
import os
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Context, RecordDict
from hypothesis import example, given, strategies as st

from fairbloom.client.app import app
from fairbloom.client.guard import log_files
from fairbloom.client.guard.accepted_settings import SettingRefusedError
from fairbloom.client.guard.log_entries import NO_RUN, describe_entries, shorten
from fairbloom.client.guard.log_files import AuditLog, open_log, read_entries
from fairbloom.client.messages import log_exchange
from fairbloom.deploy.device.accepted import Installed, RunDescription
from fairbloom.deploy.device.client import APP
from fairbloom.deploy.fleet.enrolment import enroll
from fairbloom.deploy.fleet.federation import Federation
from fairbloom.errors import FairbloomError, ReportableError
from fairbloom.system import retry
from tests.experiments.helpers import fairbloom

from ..hospital import SCHEMA, Device, write_hospital

SENT = {"arrays": {"weight": "float32, 2×3"}, "metrics": {"num-examples": 30}}


@pytest.fixture
def device(tmp_path: Path) -> Device:
    write_hospital(tmp_path / "data")
    return Device(tmp_path)


def entry(run: int, **more: Any) -> dict[str, Any]:
    return {"run": run, "asked": "train", "schema": "s", "settings-digest": f"of {run % 2}", **more}


def say(folder: Path) -> list[str]:
    return list(describe_entries(read_entries(folder)))


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


@pytest.mark.parametrize("answer", [app, partial(log_exchange, answer=app)])
def test_the_log_says_what_was_asked_sent_and_held_back(
    device: Device, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    """Once, although the client wraps an app that logs its messages itself."""
    monkeypatch.setattr("tests.client.hospital.app", answer)
    monkeypatch.chdir(device.state)
    Device(device.data.parent, state_dir="").evaluate()
    assert not [*device.state.iterdir()]
    device.evaluate(**{"test-share": 6 / 260, "seed": 1})
    with pytest.raises(FairbloomError):
        device.train(**{"test-share": 0.99})
    sent, refused = read_entries(device.state)
    assert (sent["asked"], refused["asked"]) == ("evaluate", "train")
    assert sent["sent"]["metrics"]["num-examples"] == 6
    assert "a class has fewer than 5" in sent["held-back"][0]
    assert "at least 5 training rows" in refused["refused"]


def test_what_leaves_outside_of_runs_is_no_run(tmp_path: Path) -> None:
    open_log(tmp_path).note(
        {"run": NO_RUN, "asked": "profile", "sent": {"profile": "3 columns"}}, {}
    )
    first = say(tmp_path)
    assert not any("run 0" in line or "unknown" in line or "1 run" in line for line in first)
    assert any(line.startswith("outside of runs, ") for line in first)
    open_log(tmp_path).note({**entry(7), "sent": {"arrays": "x"}}, {})
    assert any(line.startswith("schema s: 1 run.") for line in say(tmp_path))


def test_the_log_is_read_run_by_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = enroll(Federation.init(tmp_path / "made", ["localhost"], 1), "lund")
    write_hospital(bundle / "data")
    device = Device(bundle)
    device.ask("query", {}, RecordDict())
    device.evaluate()
    device.train()
    device.evaluate()
    device.evaluate(seed=2)
    assert fairbloom("client", "log", bundle / "client.toml") == 0
    first, schema, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith("5 replies left; the first: 20")
    assert "asked: query; sent: client: name, num-examples" in first
    assert ": 1 run with 2 different settings. The difference of two runs can" in schema
    assert lines[0].startswith("run 1, task csv, 20")
    evaluated = "  asked: evaluate; sent: metrics: num-examples, larger-class, loss, accuracy"
    assert sum(line.startswith(evaluated) for line in lines) == 1
    assert any(line.startswith("  asked: train; sent: arrays: ") for line in lines)
    assert fairbloom("client", "log", bundle / "state", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)) == 5
    assert fairbloom("client", "log", bundle) == 2
    assert "name the client's state-dir" in capsys.readouterr().err


def test_refused_runs_wash_nothing_away_that_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine refused runs with a schema of 1 MB turned the log over, with all that left before."""
    log = open_log(tmp_path)
    log.note(entry(1, sent=SENT), {"schema": SCHEMA})
    before = size_of(tmp_path)
    installed = Installed(APP)
    node = {"state-dir": str(tmp_path), "partition-id": 0}
    for run in range(2, 22):
        settings = {"task": "csv", "schema": SCHEMA + f"# {run}" + "\n" * 1_000_000}
        context = Context(run, 1, dict(node), RecordDict(), {})
        with pytest.raises(SettingRefusedError, match="fairbloom client"):
            installed.accept(RunDescription(run, "fairbloom", "0", settings), context)
    logged = (tmp_path / log_files.REFUSED).stat().st_size
    assert size_of(tmp_path / "schemas") < 3_000_000
    assert logged < 20 * 1500
    monkeypatch.setattr(log_files, "MAX_REFUSED_BYTES", 1000)
    for run in range(100):
        log.note(entry(run, refused=f"no {run}"), {})
    assert (tmp_path / log_files.SENT).stat().st_size == before
    said = "\n".join(say(tmp_path))
    assert "1 reply left; the first: " in said
    assert "asked: train; sent: arrays: weight; metrics: num-examples" in said


@pytest.fixture
def log(tmp_path: Path) -> AuditLog:
    return AuditLog(tmp_path)


def test_a_repeated_refusal_is_one_line(tmp_path: Path, log: AuditLog) -> None:
    for _ in range(60):
        AuditLog(tmp_path).note(entry(1, refused="too few rows"), {})  # also after a restart
    for times in range(2, 2002):
        assert len(list(read_entries(tmp_path))) == len(str(times - 1))
        log.note(entry(1, refused="too few rows"), {})
    log.note(entry(2, refused="too few rows"), {})
    times = [each.get("times", 1) for each in read_entries(tmp_path)]
    assert times == [1, 10, 100, 1000, 1]
    assert "  asked: train; refused: too few rows (at least 1000 times)" in say(tmp_path)


def test_long_values_are_a_digest_and_a_size() -> None:
    long = "x" * 201
    assert shorten("x" * 200) == "x" * 200
    short = shorten(long)
    assert short.startswith("sha256 ")
    assert short.endswith(", 201 characters")
    assert shorten({"a": 1, "b": long, long: [1] * 201, "c": {"d": long}}) == {
        "a": 1,
        "b": short,
        short: shorten(json.dumps([1] * 201)),
        "c": {"d": short},
    }
    assert len(shorten({str(number): number for number in range(100_000)})) < 60


def test_what_left_is_counted_by_run_and_kind(tmp_path: Path, log: AuditLog) -> None:
    for number in range(100):
        log.note(
            entry(1 + number // 10, sent=SENT, terms={"round": number}, message=str(number)), {}
        )
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())
    said = say(tmp_path)
    assert said[0].startswith("100 replies left; the first: 20")
    assert ", run 1, asked: train; sent: arrays: weight" in said[0]
    assert "; the last: 20" in said[0]
    assert ", run 10, asked: train" in said[0].partition("; the last: ")[2]
    assert said[1].startswith("schema s: 10 runs with 2 different settings.")
    assert [line for line in said if line.startswith("  ")] == [
        "  asked: train; sent: arrays: weight; metrics: num-examples (10 times)"
    ] * 10


def test_the_log_outlives_a_torn_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, log: AuditLog
) -> None:
    log.note(entry(1, sent=SENT), {})
    with (tmp_path / log_files.SENT).open("a") as file:
        file.write('{"run": 100\n[]\n{"run": 7, "time": 3}\n')
        file.write('{"run": 5, "time": "9999", "asked": "train"}\n')
    for _ in range(2):
        log.note(entry(2, sent=SENT), {"seed": 3})
    found = [(each["run"], each.get("settings")) for each in read_entries(tmp_path)]
    assert found == [(1, {}), (5, None), (2, {"seed": 3}), (2, None)]
    assert caplog.text.count("sent.jsonl is damaged, and is left out") == 3


WRITES = st.tuples(st.integers(1, 400), st.integers(0, 600))


@given(writes=st.lists(WRITES, max_size=6))
@example(writes=[(400, 600), (400, 40), (400, 600), (400, 600)])
@example(writes=[(100, 600), (100, 600)])
def test_a_write_of_a_part_tears_no_other_entry(writes: list[tuple[int, int]]) -> None:
    """For each entry: bytes that one call writes at most, and those that the disk has left."""
    write = os.write
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        whole = set[int]()
        for number, (most, left) in enumerate(writes):
            room = [left]

            def write_part(file: int, data: bytes, most: int = most, room: Any = room) -> int:
                written = write(file, data[: min(most, room[0])]) if room[0] else 0
                room[0] -= written
                if not written:
                    raise OSError(errno.ENOSPC, "No space left on device")
                return written

            patch.setattr(os, "write", write_part)
            with suppress(OSError):
                AuditLog(Path(folder)).note(entry(number, sent=SENT), {})
                whole.add(number)
            patch.undo()
        read = [each["run"] for each in read_entries(Path(folder))] if writes else []
        assert read == sorted(set(read))
        assert whole <= set(read)


@pytest.mark.parametrize("failures", [0, 2, 40])
def test_a_reply_leaves_only_once_it_is_in_the_log(
    device: Device, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """A full disk is tried again while the message's time lasts, here 30 seconds."""
    synced: list[int] = []
    now = [0.0]

    def sync(file: int) -> None:
        sent = device.state / log_files.SENT
        if sent.exists() and os.path.samestat(os.fstat(file), sent.stat()):
            synced.append(file)
            if len(synced) <= failures:
                raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(
        retry,
        "time",
        SimpleNamespace(monotonic=lambda: now[0], sleep=lambda s: now.__setitem__(0, now[0] + s)),
    )
    with (
        pytest.raises(ReportableError, match="log of what leaves")
        if failures == 40
        else (nullcontext())
    ):
        assert device.evaluate(lives=30.0)["num-examples"] > 0
    assert len(synced) == failures + 1 if failures < 40 else 25 < len(synced) <= 40


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_texts_of_a_server_steer_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], log: AuditLog, words: tuple[str, ...]
) -> None:
    evil = "x\x1b[2J\x9b31m\u202e\nrun 2, task y"
    log.note(entry(1, sent={evil: {evil: 1}}, task=evil, schema=evil), {"task": evil})
    log.note(entry(1, refused=evil), {"task": evil})
    assert fairbloom("client", "log", tmp_path, *words) == 0
    printed = capsys.readouterr().out
    assert printed.replace("\n", "").isprintable()
    assert "\nrun 2" not in printed
