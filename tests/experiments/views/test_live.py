"""`fairbloom watch`: what a folder shows while a run goes on, how that ends, and that the folder is left as it is."""

import io
import json
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fairbloom
from fairbloom import FairbloomError, RecordedRound
from fairbloom.experiments.views.live import state, terminal
from fairbloom.experiments.views.live.state import Client, LiveRun, Looker, Point, Snapshot, follow
from fairbloom.experiments.views.live.view import page_of_snapshot
from fairbloom.experiments.views.terminal import Output
from fairbloom.server import polling
from fairbloom.server.run_folder.files import CLIENTS, CONFIG, MODEL, ROUNDS
from fairbloom.simulation.run import simulate
from fairbloom.strategies import FedAvg
from tests.experiments.helpers import fairbloom as command
from tests.experiments.helpers import start
from tests.server.run_folder.test_flower import start as start_app
from tests.server.test_app import deployed
from tests.simulation.helpers import checkpoints_every, run, small


class StoppedError(Exception):
    """A run ends after a round."""


def interrupted(folder: Path, after: int = 3) -> Path:
    """Return a run that was interrupted after a round."""

    def stop(recorded: RecordedRound) -> None:
        if recorded.number == after:
            raise StoppedError

    with pytest.raises(StoppedError):
        simulate(small(folder), stop)
    return folder


def picture(snapshot: Snapshot, width: int = 100, height: int = 40) -> str:
    console = Output(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(terminal.render(page_of_snapshot(snapshot), width, height))
    return capture.get()


def entries(folder: Path) -> dict[str, tuple[int, int]]:
    """Return every file in a folder, with its size and the time of its last change."""
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob("*")}


# One run --------------------------------------------------------------------------------------------------------------


def test_a_run_is_seen_round_by_round_and_left_as_it_is(tmp_path: Path) -> None:
    looker, seen = Looker(tmp_path / "run"), list[Snapshot]()

    def look(recorded: RecordedRound) -> None:
        before = entries(tmp_path)
        seen.append(looker.look())
        assert entries(tmp_path) == before

    assert looker.look().state == "waiting"
    assert not (tmp_path / "run").exists()
    with checkpoints_every(1):
        simulate(small(tmp_path / "run", fraction=1.0), look)
    assert [snapshot.runs[0].rounds for snapshot in seen] == [1, 2, 3, 4, 5, 6]
    assert {snapshot.state for snapshot in seen} == {"running"}
    done = looker.look()
    assert (done.state, done.alone) == ("finished", True)
    shown, ran = done.runs[0], fairbloom.load(tmp_path / "run")
    assert {client.name: client.score for client in shown.clients} == ran.final()
    assert [client.score for client in shown.clients] == sorted(ran.final().values())
    assert {client.name: client.coefficient for client in shown.clients} == ran.coefficients()
    assert [point.mean for point in shown.points] == list(ran.rounds["test_accuracy_of_global_model_mean"])
    assert seen[2].runs[0].seconds_left == pytest.approx((shown.seconds or 0.0) * 3, rel=0.5)


@pytest.mark.parametrize("entry", [ROUNDS, CLIENTS], ids=lambda entry: str(entry.name))
def test_a_row_that_is_half_written_is_not_there_yet(entry: Any, tmp_path: Path) -> None:
    folder = interrupted(tmp_path / "run")
    content = entry.path_in(folder).read_bytes()
    whole = Looker(folder).look().runs[0]
    for cut in (1, 5, 40):
        entry.path_in(folder).write_bytes(content + content.splitlines(keepends=True)[-1][:-cut])
        assert Looker(folder).look().runs[0] == whole


def test_what_cannot_be_read_for_a_moment_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, real, failed = run(tmp_path / "run"), state.load, list[str]()

    def load(path: Path) -> fairbloom.Run:
        if not failed:
            failed.append("once")
            raise FairbloomError("its last line is torn")
        return real(path)

    monkeypatch.setattr(state, "load", load)
    assert [snapshot.state for snapshot in follow(folder, 0.01)] == ["finished"]
    assert failed


def test_what_stays_unreadable_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run(tmp_path / "run")
    CONFIG.path_in(folder).write_text("nonsense")
    monkeypatch.setattr(state, "UNREADABLE_SECONDS", 0.05)
    with pytest.raises(FairbloomError, match=r"config\.toml cannot be read"):
        list(follow(folder, 0.02))


@pytest.mark.parametrize(("deployed", "looks"), [(False, 2), (True, 8)])
def test_a_deployed_run_is_not_over_before_another_process_could_continue_it(
    deployed: bool, looks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds))
    going, lost = (
        Snapshot(tmp_path, (a_run(state=state, deployed=deployed),), alone=True, going_on=state == "running")
        for state in ("running", "interrupted")
    )
    monkeypatch.setattr(state, "time", clock)
    script = iter([going] + [lost] * 20)
    monkeypatch.setattr(Looker, "look", lambda looker: next(script))
    assert len(list(follow(tmp_path, 10.0))) == looks  # one while it goes on, then for RESTART_SECONDS
    script = iter([going, lost, lost, going, *[lost] * 20])
    if deployed:
        assert len(list(follow(tmp_path, 10.0))) == looks + 3  # it was continued


def test_a_run_of_a_user_defined_server_app_is_seen_too(tmp_path: Path) -> None:
    start_app(tmp_path / "run", FedAvg(), rounds=2)
    snapshot = Looker(tmp_path / "run").look()
    assert (snapshot.state, snapshot.runs[0].about, snapshot.runs[0].rounds) == ("finished", "FedAvg", 2)
    assert [client.name for client in snapshot.runs[0].clients]
    assert "site-0" in picture(snapshot)


def test_a_deployed_run_is_seen_with_who_is_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "GRACE_SECONDS", 0.5)  # in place of a minute for the reply of whoever goes offline
    deployed(tmp_path / "run", {0: 4, 12: 3})
    snapshot = Looker(tmp_path / "run").look()
    assert snapshot.deployed
    assert [name for name, _ in snapshot.runs[0].absences["offline"]] == ["client-3"]
    assert re.search(r"client-3 +offline +\d", picture(snapshot))


def test_a_folder_that_cannot_be_looked_at_is_an_error_and_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(state, "is_run_folder", refuse)
    with pytest.raises(FairbloomError, match="Permission denied"):
        Looker(tmp_path).look()


# Several runs ---------------------------------------------------------------------------------------------------------


def comparison(out: Path) -> Path:
    """Return the folder of a comparison of which one run of two has begun, and is interrupted."""
    plan = {
        "baseline": "FedAvg",
        "seeds": [0],
        "runs": {"FedAvg": ["runs/fedavg-seed0"], "FedFV": ["runs/fedfv-seed0"]},
        **{"methods": {}, "failed": {}},
    }
    run(out / "runs" / "fedavg-seed0", method="fedavg")
    (out / "comparison.json").write_text(json.dumps(plan))
    return out


def test_a_comparison_shows_all_its_runs_also_those_that_wait(tmp_path: Path) -> None:
    folder = comparison(tmp_path / "cmp")
    snapshot = Looker(folder).look()
    assert [(each.name, each.state) for each in snapshot.runs] == [
        ("fedavg-seed0", "finished"),
        ("fedfv-seed0", "waiting"),
    ]
    assert (snapshot.state, snapshot.done) == ("interrupted", 1)
    shown = picture(snapshot)
    assert "1 of 2 runs finished" in shown
    assert "fedfv-seed0" in shown
    interrupted(folder / "runs" / "fedfv-seed0")
    assert [each.state for each in Looker(folder).look().runs] == ["finished", "interrupted"]
    run(folder / "runs" / "fedfv-seed0")
    assert Looker(folder).look().state == "finished"


def test_a_run_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    folder = comparison(tmp_path / "cmp")
    CONFIG.path_in(interrupted(folder / "runs" / "fedfv-seed0")).write_text("nonsense")
    assert [each.state for each in Looker(folder).look().runs] == ["finished", "damaged"]


def test_any_folder_with_runs_shows_them(tmp_path: Path) -> None:
    run(tmp_path / "runs" / "a")
    interrupted(tmp_path / "runs" / "b")
    snapshot = Looker(tmp_path / "runs").look()
    assert [(each.name, each.state) for each in snapshot.runs] == [("a", "finished"), ("b", "interrupted")]


def test_what_has_not_changed_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looker = Looker(comparison(tmp_path / "cmp"))
    first = looker.look()
    monkeypatch.setattr(state, "load", None)
    assert looker.look() == first


# The picture ----------------------------------------------------------------------------------------------------------


def a_run(**changes: Any) -> LiveRun:
    plain: dict[str, Any] = {
        "folder": Path("/runs/a"),
        "name": "a",
        "state": "running",
        "about": "FedFV on digits",
        "rounds": 20,
        "num_rounds": 50,
        "seconds": 0.5,
        "points": [Point(number, 50.0 + number, 30.0 + number) for number in range(1, 21)],
        "clients": [Client(f"site-{number:02}", 40.0 + number, 0.25) for number in range(40)],
    }
    return LiveRun(**(plain | changes))


def test_the_picture_has_rounds_curves_clients_and_time(tmp_path: Path) -> None:
    shown = picture(Snapshot(tmp_path, (a_run(),), alone=True, going_on=True))
    for words in (
        "FedFV on digits",
        "round 20 of 50",
        "0.5 s a round",
        "15 s left",
        "70.0 %",
        "worst 10 %",
        "site-00",
        "0.25",
    ):
        assert words in shown
    assert shown.index("site-00") < shown.index("site-01") < shown.index("… ") < shown.index("site-39")
    assert len(shown.splitlines()) <= 40


@pytest.mark.parametrize(("width", "height"), [(40, 15), (60, 20), (200, 60)])
def test_the_picture_fits_the_terminal(width: int, height: int, tmp_path: Path) -> None:
    run = a_run(absences={"refused": [("site-03", 2)]}, refusals=[(19, "site-03", "not finite " * 20)])
    lines = picture(Snapshot(tmp_path, (run,), alone=True), width, height).splitlines()
    assert max(map(len, lines)) <= width
    assert "round 20 of 50" in lines[1]
    runs = [a_run(name=f"method-{number}-seed0") for number in range(100)]
    lines = picture(Snapshot(tmp_path, runs), width, height).splitlines()
    assert len(lines) <= height + 1
    assert max(map(len, lines)) <= width


def test_one_client_of_ten_is_called_the_worst_client() -> None:
    clients = [Client(f"site-{number}", 40.0, None) for number in range(11)]
    assert [a_run(clients=clients[:count]).worst_title for count in (4, 10, 11)] == ["worst client"] * 2 + [
        "worst 10 %"
    ]


def test_words_of_clients_cannot_steer_the_terminal(tmp_path: Path) -> None:
    bad = "\x1b[2J\x07[red]"
    run = a_run(clients=[Client(bad, 1.0, None)], absences={"refused": [(bad, 1)]}, refusals=[(1, bad, bad)], about=bad)
    shown = picture(Snapshot(tmp_path, (run,), alone=True))
    assert "\x1b[2J" not in shown
    assert "\x07" not in shown
    assert shown.count("\\x1b[2J\\x07[red]") >= 4


@pytest.mark.parametrize(
    ("values", "expected"),
    [([1.0], "▁"), ([0.0, 1.0], "▁█"), ([0.0, 0.0, 1.0, 1.0, 1.0, 1.0], "▁▅██"), ([2.0, 2.0], "▁▁")],
)
def test_a_curve_has_as_many_bars_as_there_is_room_for(values: list[float], expected: str) -> None:
    width = len(expected)
    assert len(terminal.spark(values, width, min(values), max(values))) == width
    assert terminal.spark(values, width, min(values), max(values))[0] == expected[0]
    assert terminal.spark(values, width, min(values), max(values))[-1] == expected[-1]


# The command ----------------------------------------------------------------------------------------------------------


def test_the_command_ends_with_the_run_and_its_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run(tmp_path / "run")
    assert command("watch", folder) == 0
    printed = capsys.readouterr().out
    assert "round 6 of 6: mean" in printed
    assert "FedFV after round 6, over clients" in printed
    assert printed.rstrip().endswith("finished after round 6 of 6")


def test_an_interrupted_run_is_said_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("watch", interrupted(tmp_path / "run")) == 1
    assert capsys.readouterr().out.rstrip().endswith("interrupted after round 3 of 6")


def test_a_comparison_that_is_over_ends_with_its_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = comparison(tmp_path / "cmp")
    assert command("watch", folder) == 1
    assert capsys.readouterr().out.rstrip().endswith("interrupted with 1 of 2 runs finished")
    run(folder / "runs" / "fedfv-seed0")
    assert command("watch", folder) == 0
    printed = capsys.readouterr().out
    assert "FedFV" in printed
    assert printed.rstrip().endswith("finished with 2 of 2 runs finished")


def test_a_file_is_no_folder_to_watch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert command("watch", tmp_path / "file") == 2
    assert "is a file, not a folder" in capsys.readouterr().err


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[Any]:
    process = start("watch", tmp_path / "later", "--interval", 0.1)
    yield process
    process.kill()
    process.communicate()


@pytest.mark.slow
def test_ctrl_c_leaves_without_a_trace(waiting: Any, tmp_path: Path) -> None:
    assert waiting.stdout.readline() == f"waiting for a run in {tmp_path / 'later'}\n"
    waiting.send_signal(signal.SIGINT)
    assert waiting.wait(timeout=300) == 130
    assert waiting.stdout.read() == ""
    assert waiting.stderr.read() == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_run_that_begins_later_is_followed_to_its_end(waiting: Any, tmp_path: Path) -> None:
    assert "waiting" in waiting.stdout.readline()
    folder = run(tmp_path / "later")
    printed, _ = waiting.communicate(timeout=300)
    assert MODEL.exists_in(folder)
    assert printed.rstrip().endswith("finished after round 6 of 6")
    assert waiting.returncode == 0


def test_a_sweep_shows_its_points_from_plan_to_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, seen = tmp_path / "sweep", list[Snapshot]()
    shared = {"clients": 4, "rounds": 2, "seeds": 1, "jobs": 1, "progress": False}
    fairbloom.sweep(method="fedfv", grid={"alpha": [0.0, 0.5]}, out=out, **shared)
    seen.append(Looker(out).look())
    assert (seen[0].state, len(seen[0].runs)) == ("finished", 2)
    assert command("watch", out) == 0
    assert "finished with 2 of 2 runs finished" in capsys.readouterr().out
    shutil.rmtree(seen[0].runs[1].folder)
    assert [each.state for each in Looker(out).look().runs] == ["finished", "waiting"]
