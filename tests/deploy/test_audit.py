"""The audit log: whole lines whoever writes at once, a chain that shows what was changed, and life after a crash."""

import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fairbloom.deploy.operator import audit

WRITER = """
import sys
from pathlib import Path
from fairbloom.deploy.operator import audit

print("ready", flush=True)
sys.stdin.readline()
for number in range(40):
    audit.note(Path(sys.argv[1]), "enroll", client=sys.argv[2], number=number, words="x" * 1500)
"""


def lines(folder: Path) -> list[str]:
    return (folder / audit.FILE).read_text().splitlines()


def rewrite(folder: Path, kept: list[str]) -> None:
    (folder / audit.FILE).write_text("".join(f"{line}\n" for line in kept))


@pytest.fixture
def noted(tmp_path: Path) -> Path:
    for number in range(5):
        audit.note(tmp_path, "enroll", client=f"site-{number}", number=number)
    return tmp_path


def test_a_large_log_goes_on_in_a_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "LARGEST_BYTES", 1000)
    for number in range(60):
        audit.note(tmp_path, "enroll", number=number)
        assert audit.first_broken_line(tmp_path) is None
    files = sorted(file.name for file in tmp_path.iterdir())
    assert files == ["audit.jsonl", *(f"audit.jsonl.{number}" for number in range(1, audit.KEPT_FILES + 1))]
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}
    assert all(file.stat().st_size < 1400 for file in tmp_path.iterdir())
    entries = [json.loads(line) for line in audit.read_text(tmp_path).splitlines()]
    kept = [entry["number"] for entry in entries if "number" in entry]
    assert kept == [*range(kept[0], 60)]
    assert kept[0] > 0
    assert audit.read_whole(tmp_path).decode() == audit.read_text(tmp_path)


def test_a_change_in_an_older_file_of_the_log_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "LARGEST_BYTES", 1000)
    for number in range(12):
        audit.note(tmp_path, "enroll", number=number)
    older = tmp_path / "audit.jsonl.1"
    whole = older.read_text()
    older.write_text(whole.replace('"account": "', '"account": "not ', 1))
    assert audit.first_broken_line(tmp_path)
    older.write_text(whole)
    assert audit.first_broken_line(tmp_path) is None
    older.unlink()
    assert audit.first_broken_line(tmp_path)


def test_processes_that_continue_a_large_log_lose_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "LARGEST_BYTES", 4000)
    writers = [threading.Thread(target=lambda: [audit.note(tmp_path, "enroll") for _ in range(15)]) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert audit.first_broken_line(tmp_path) is None
    assert audit.read_text(tmp_path).count('"enroll"') == 60


def test_a_line_says_what_when_and_who(tmp_path: Path) -> None:
    audit.note(tmp_path, "enroll", client="site-1", node=77, days=0.5, nothing=None)
    (line,) = lines(tmp_path)
    entry = json.loads(line)
    assert list(entry) == ["time", "event", "account", "client", "node", "days", "nothing", "chain"]
    assert (entry["event"], entry["client"], entry["node"], entry["nothing"]) == ("enroll", "site-1", 77, None)
    assert entry["time"].endswith("+00:00")
    assert entry["account"]
    assert stat.S_IMODE((tmp_path / audit.FILE).stat().st_mode) == 0o600


def test_processes_that_write_at_once_tear_no_line(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    root = Path(__file__).parents[2]
    writers = [
        subprocess.Popen([*command, name], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for name in "abcd"
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=300)
        assert writer.returncode == 0
    entries = [json.loads(line) for line in lines(tmp_path)]
    for name in "abcd":
        assert [entry["number"] for entry in entries if entry["client"] == name] == list(range(40))
    assert audit.first_broken_line(tmp_path) is None


@pytest.mark.parametrize("number", range(5))
def test_a_line_that_was_changed_is_found(noted: Path, number: int) -> None:
    kept = lines(noted)
    kept[number] = kept[number].replace("site-", "evil-")
    rewrite(noted, kept)
    assert audit.first_broken_line(noted) == number + 1


@pytest.mark.parametrize("number", range(4))
def test_a_line_that_was_removed_is_found(noted: Path, number: int) -> None:
    kept = lines(noted)
    del kept[number]
    rewrite(noted, kept)
    assert audit.first_broken_line(noted) == number + 1


@pytest.mark.parametrize(
    "other",
    [
        lambda line: line.replace('"event"', '"event": "revoke", "event"', 1),
        lambda line: line.replace(": ", ":  ", 1),
        lambda line: "{}",
        lambda line: line[: len(line) // 2],
        lambda line: "",
    ],
    ids=["a key twice", "a space", "empty", "half", "nothing"],
)
def test_a_line_that_reads_the_same_or_not_at_all_is_found(noted: Path, other: object) -> None:
    kept = lines(noted)
    kept[2] = other(kept[2])  # type: ignore[operator]
    rewrite(noted, kept)
    assert audit.first_broken_line(noted) == 3


def test_lines_that_changed_places_are_found(noted: Path) -> None:
    first, second, *others = lines(noted)
    rewrite(noted, [second, first, *others])
    assert audit.first_broken_line(noted) == 1


@pytest.mark.parametrize("cut", [1, 30, 150])
def test_after_a_torn_line_the_log_goes_on_and_vouches_for_what_is_left(noted: Path, cut: int) -> None:
    whole = (noted / audit.FILE).read_bytes()
    (noted / audit.FILE).write_bytes(whole[:-cut])
    torn = cut > 1
    assert audit.first_broken_line(noted) == (5 if torn else None)
    audit.note(noted, "revoke", client="site-1")
    audit.note(noted, "renew")
    assert audit.first_broken_line(noted) is None
    assert json.loads(lines(noted)[-2])["event"] == "revoke"
    assert lines(noted)[:4] == whole.decode().splitlines()[:4]
    if torn:
        kept = lines(noted)
        rewrite(noted, [*kept[:4], kept[4][:-1], *kept[5:]])
        assert audit.first_broken_line(noted) == 5
        rewrite(noted, [*kept[:4], *kept[5:]])
        assert audit.first_broken_line(noted) == 5


def test_a_full_disk_leaves_no_half_of_a_line(noted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, write = (noted / audit.FILE).read_bytes(), os.write

    def full(file: int, content: bytes) -> int:
        if len(content) < 100:
            raise OSError(28, "No space left on device")
        return write(file, content[:-50])

    with monkeypatch.context() as patch:
        patch.setattr("fairbloom.deploy.operator.audit.os.write", full)
        with pytest.raises(OSError, match="No space"):
            audit.note(noted, "enroll", client="site-9")
    assert (noted / audit.FILE).read_bytes() == before
    audit.note(noted, "enroll", client="site-9")
    assert audit.first_broken_line(noted) is None


def test_what_a_stranger_sends_neither_fills_the_log_nor_begins_a_line(tmp_path: Path) -> None:
    audit.note(tmp_path, "refused", reason="\n" * 3 + '{"event": "init"}' + "🙂" * 1_000_000)
    audit.note(tmp_path, "renew")
    assert len(lines(tmp_path)) == 2
    assert (tmp_path / audit.FILE).stat().st_size < audit.TAIL_BYTES
    assert audit.first_broken_line(tmp_path) is None


def test_a_link_in_the_logs_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("mine")
    (tmp_path / audit.FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        audit.note(tmp_path, "renew")
    assert (tmp_path / "elsewhere").read_text() == "mine"


def test_a_table_of_the_log_cannot_steer_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    audit.note(tmp_path, "refused", client=None, reason="\x1b[2J\x9b31m[red]")
    with (tmp_path / audit.FILE).open("a") as log:
        log.write("torn\x1b[2J\n")
    audit.show(tmp_path)
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "\x9b" not in printed
    assert "[red]" in printed
    assert "None" not in printed


def test_no_log_is_no_broken_one(tmp_path: Path) -> None:
    assert audit.first_broken_line(tmp_path) is None
    assert audit.read_text(tmp_path) == ""
    (tmp_path / audit.FILE).touch()
    audit.note(tmp_path, "init")
    assert audit.first_broken_line(tmp_path) is None
