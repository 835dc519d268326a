"""What the operator sees at a glance: from a real control API, and of made-up surveys as they look."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.server.superlink.linkstate import linkstate_factory
from flwr.supercore.object_store import object_store_factory
from rich.console import Console

from fairbloom.deploy import pki
from fairbloom.deploy.flower.server.registration import register_enrolled
from fairbloom.deploy.flower.server.run_state import RunState, RunStore
from fairbloom.deploy.operator import status
from fairbloom.deploy.operator.doctor import ServerPage, check_clients
from fairbloom.deploy.operator.enrolment import enroll
from fairbloom.deploy.operator.federation import Federation
from fairbloom.deploy.operator.registry import EnrolledClient
from fairbloom.deploy.operator.status import PROGRESS, render, survey
from fairbloom.deploy.server.supervisor import RUN_FOLDERS
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from tests.deploy.flower import PATIENCE, ROOT, wait_until
from tests.deploy.processes import free_port
from tests.experiments.helpers import fairbloom

from .served import Served
from .state import submit


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with one enrolled client and the folders of three runs, of which one is gone."""
    folder = tmp_path_factory.mktemp("served")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linkstate_factory, "SqlLinkState", RunState)
        patch.setattr(object_store_factory, "SqlObjectStore", RunStore)
        there = Served(folder)
    there.start()
    enroll(there.federation, "site-a")
    settings = {"clients": 2, "num-rounds": 2, "device": "cpu", "method": "fedfv"}
    there.run = simulate(Settings.of({**settings, "out": str(folder / "run")}))  # type: ignore[attr-defined]
    yield there
    there.stop()


def begin(served: Served, folder: Path | None) -> str:
    """Submit a run that has left word of its folder, None for none; return its id."""
    run, _ = submit(served.place.state)
    place = served.state / RUN_FOLDERS
    place.mkdir(exist_ok=True)
    if folder is not None:
        (place / str(run)).write_bytes(os.fsencode(folder))
    return str(run)


def of_run(found: dict[str, Any], run: str) -> dict[str, Any]:
    return next(each for each in found["runs"] if each["run-id"] == run)


def text_of(found: dict[str, Any], width: int = 160) -> str:
    console = Console(width=width, file=None, record=True, quiet=False, force_terminal=False)
    with console.capture() as capture:
        console.print(render(found))
    return capture.get()


# From a server ------------------------------------------------------------------------------------------------------


def test_a_run_is_told_with_what_its_folder_says(served: Served) -> None:
    run = begin(served, served.run)  # type: ignore[attr-defined]
    found = survey(served.federation)
    about = of_run(found, run)
    assert (about["method"], about["task"], about["round"], about["of-rounds"]) == ("fedfv", "digits", 2, 2)
    assert about["unknown"] is None
    assert about["seconds-a-round"] > 0
    assert f"run {run}: pending" in text_of(found)
    assert "fedfv on digits, round 2 of 2" in text_of(found)


def test_a_run_that_another_one_has_continued_does_not_boast_of_its_rounds(served: Served) -> None:
    first = begin(served, served.run)  # type: ignore[attr-defined]
    time.sleep(0.01)
    second = begin(served, served.run)  # type: ignore[attr-defined]
    found = survey(served.federation)
    assert of_run(found, second)["round"] == 2
    assert (of_run(found, first)["round"], of_run(found, first)["folder"]) == (None, str(served.run))  # type: ignore[attr-defined]
    assert of_run(found, first)["unknown"] == f"run {second} has continued it"


@pytest.mark.parametrize("gone", [True, False])
def test_what_cannot_be_known_of_a_run_is_said(served: Served, gone: bool, tmp_path: Path) -> None:
    run = begin(served, tmp_path / "gone" if gone else None)
    found = survey(served.federation)
    about = of_run(found, run)
    assert about["round"] is None
    words = f"{tmp_path / 'gone'} holds no run yet" if gone else "its run folder is not known"
    assert words in about["unknown"]
    assert words in " ".join(text_of(found, 400).split())


def test_disk_and_certificate_come_from_the_server(served: Served) -> None:
    found = survey(served.federation)
    assert 9 < found["certificate-days"] <= 10
    assert found["disk"]["state-free-bytes"] > 0
    text = text_of(found)
    assert "the server's holds for 10 more days" in text
    assert "GB free for the server's state" in text


def test_the_keys_of_the_json_are_those_of_the_guide(served: Served) -> None:
    begin(served, served.run)  # type: ignore[attr-defined]
    found = survey(served.federation)
    guide = (ROOT / "docs" / "deployment.md").read_text()
    section = guide[guide.index("### At a glance") : guide.index("### After the run")]
    runs = {"run-id", "status", "status-details", "elapsed", "fab-id", *PROGRESS, "unknown"}
    assert set(found["runs"][0]) == runs
    (client,) = found["clients"]
    for key in [*found, "error", *runs, *client, *found["disk"]]:
        assert f"`{key}`" in section, key


# Again and again ----------------------------------------------------------------------------------------------------

COMMAND = "from fairbloom.cli import main; main()"


def watching(served: Served, *options: str, **place: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", COMMAND, "deploy", "status", "--watch", "--interval", "0.2", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "160", "TERM": "xterm"}
    return subprocess.Popen([*command, "--dir", str(served.federation.path)], env=environment, **place)


@pytest.mark.slow
@pytest.mark.parametrize("options", [["--json"], []])
def test_watch_prints_each_look_into_a_pipe_until_ctrl_c(served: Served, options: list[str], tmp_path: Path) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = watching(served, *options, stdout=stdout, stderr=stderr)
        wait_until(lambda: out.read_text().count("certificate") >= 3)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
    assert err.read_text() == ""
    printed = out.read_text()
    assert "\x1b" not in printed
    if options:
        assert [json.loads(line)["clients"][0]["client"] for line in printed.splitlines()[:3]] == ["site-a"] * 3


@pytest.mark.slow
def test_watch_draws_on_a_terminal_and_leaves_it_as_it_was(served: Served) -> None:
    ours, theirs = pty.openpty()
    process = watching(served, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    drawn = b""
    while drawn.count(b"Ctrl-C ends") < 2:
        drawn += os.read(ours, 1 << 16)
    os.write(ours, b"\x03") if os.tcgetpgrp(ours) == process.pid else process.send_signal(signal.SIGINT)
    while True:
        try:
            drawn += os.read(ours, 1 << 16)
        except OSError:  # nobody is at the other end any more
            break
    os.close(ours)
    assert process.wait(PATIENCE) == 0
    assert b"site-a" in drawn
    assert b"Traceback" not in drawn
    assert drawn.rindex(b"\x1b[?1049l") > drawn.rindex(b"\x1b[?1049h")  # back to the screen of before
    assert drawn.rindex(b"\x1b[?25h") > drawn.rindex(b"\x1b[?25l")  # with the cursor


def test_a_server_that_is_away_is_said_and_looked_for_again(tmp_path: Path) -> None:
    away = Federation.init(tmp_path / "away", ["localhost"], free_port(), f"127.0.0.1:{free_port()}", 10)
    looks = status._repeat_survey(away, 0.01)
    for _ in range(2):
        found = next(looks)
        assert set(found) == {"at", "error"}
        assert "cannot be reached: is fairbloom server up there?" in found["error"]


def test_what_was_seen_last_stays_below_the_error(served: Served) -> None:
    last = survey(served.federation)
    found = {"at": "2026-01-01T10:00:00+00:00", "error": "nobody [red]answers"}
    console = Console(width=160)
    with console.capture() as capture:
        console.print(status._frame(found, last, 2.0))
    shown = capture.get()
    assert shown.index("nobody [red]answers") < shown.index("as it was at ") < shown.index("site-a")


# Many clients -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def thousand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A server with a thousand clients: 900 connected, 60 away, 40 never seen, and one revoked."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linkstate_factory, "SqlLinkState", RunState)
        patch.setattr(object_store_factory, "SqlObjectStore", RunStore)
        there = Served(tmp_path_factory.mktemp("thousand"))
    registry, keys = there.federation.registry, [pki.make_node_key().public.decode() for _ in range(1001)]
    for number, key in enumerate(keys):
        client = EnrolledClient(
            name=f"site-{number:04}",
            node_id=str(number + 1),
            partition_id=number,
            public_key=key,
            enrolled="2026-01-01T00:00:00+00:00",
        )
        registry.save(client if number else replace(client, revoked="2026-02-01T00:00:00+00:00"))
    state = there.place.state
    register_enrolled(state, registry)
    for number in range(1, 961):
        assert state.activate_node(number + 1, 3600)
        state.note_version(number + 1, "0.1.0")
        if number > 900:
            assert state.deactivate_node(number + 1)
    there.start()
    yield there.federation
    there.stop()


def test_a_thousand_clients_are_summed_up_on_a_screen(thousand: Federation) -> None:
    began = time.monotonic()
    found = survey(thousand)
    text = text_of(found, 80)
    assert time.monotonic() - began < 10
    oldest = min(row["last-seen"] for row in found["clients"] if row["status"] == "offline")
    assert found["summary"] == {
        **{"online": 900, "away": 60, "never-seen": 40, "revoked": 1},
        **{"oldest-contact": oldest, "versions": {"0.1.0": 960, "not known": 40}},
    }
    words = " ".join(text.split())
    assert "clients: 900 of 1000 online, 60 away, 40 never seen, 1 revoked" in words
    assert f"the longest away since {oldest}; version 0.1.0: 960; version not known: 40" in words
    assert "60 clients need attention; --all lists every one" in words
    assert text.count("site-") == 10
    assert len(text.splitlines()) <= 24
    assert len(found["clients"]) == 1000


def test_all_lists_a_thousand_clients(thousand: Federation, capsys: pytest.CaptureFixture[str]) -> None:
    assert fairbloom("deploy", "status", "--all", "--dir", thousand.path) == 0
    assert capsys.readouterr().out.count("site-") == 1000


def test_many_lost_clients_are_summed_up(thousand: Federation) -> None:
    unknown = check_clients(thousand, ServerPage(200, {"nodes": {}}))
    assert "site-0010 and 990 more: start fairbloom server again" in unknown.words


# How it looks -------------------------------------------------------------------------------------------------------


def made_up(**run: Any) -> dict[str, Any]:
    known = dict.fromkeys(PROGRESS)
    known |= {"run-id": "7", "status": "running", "status-details": "", "elapsed": 61.0, "unknown": None, **run}
    client = {"client": "site-a", "partition-id": 0, "status": "online", "last-seen": "now", "version": "1.2"}
    client |= {"busy-with-run": ""}
    gone = {"client": "site-b", "partition-id": 1, "status": "offline", "last-seen": "2026-01-01 00:00:00Z"}
    gone |= {"busy-with-run": ""}
    return {
        "runs": [known],
        "clients": [
            {**client, "keeps-models-of": ["7", "5"] if run.get("kept-by") else []},
            {**gone, "version": "", "keeps-models-of": []},
        ],
        "summary": {
            **{"online": 1, "away": 1, "never-seen": 0, "revoked": 0},
            **{"oldest-contact": "2026-01-01 00:00:00Z", "versions": {"1.2": 1, "not known": 1}},
        },
        "disk": None,
        "certificate-days": None,
        "server": {"verdict": "fault", "words": "it is away"},
    }


def test_refused_replies_absences_and_versions_are_shown() -> None:
    refused = [{"round": 4, "client": "site-b", "reason": "array is [red]not finite\x1b[2J"}]
    rounds = {"method": "fedfv", "task": "digits", "round": 5, "of-rounds": 9, "seconds-a-round": 2.5}
    text = text_of(
        made_up(**rounds, **{"seconds-since-round": 3.0, "missing": "site-c", "offline": "site-b", "refused": refused})
    )
    assert "run 7: running for 61 s: fedfv on digits, round 5 of 9, 2.5 s a round, the last one 3 s ago" in text
    assert "offline in round 5: site-b" in text
    assert "missing in round 5: site-c" in text
    assert "refused in round 4: site-b: array is [red]not finite\\x1b[2J" in text
    assert "clients: 1 of 2 online" in text
    assert "offline since 2026-01-01 00:00:00Z" in text
    assert "online " in text
    assert "1.2" in text
    assert "not known" in text  # the version of site-b


def test_runs_that_are_over_say_what_became_of_them() -> None:
    text = text_of(made_up(status="finished:failed", **{"status-details": "nothing was learned", "round": 3}))
    assert "no run is going on" in text
    assert "nothing was learned" in text


def test_who_keeps_the_model_of_which_run_is_shown_and_why_one_does_not() -> None:
    kept = {"kept-by": ["site-a"], "not-kept-by": {"site-b": "its [red]disk is full\x1b[2J"}}
    text = text_of(made_up(status="finished:completed", round=3, folder="/srv/runs/ditto-a", **kept))
    assert "keeps the model of" in text
    assert "ditto-a and 1 more" in text
    assert "run 7 is not kept by site-b: its [red]disk is full\\x1b[2J" in text


def test_what_is_not_known_is_not_made_up() -> None:
    text = text_of(made_up(unknown="its run folder is not known"))
    assert "not known: its run folder is not known" in text
    assert "disk: not known from here" in text
    assert "certificate: not known from here" in text
    assert "round" not in text


@pytest.mark.parametrize("width", [40, 80])
def test_narrow_terminals_do_not_stop_it(width: int) -> None:
    assert "site-a" in text_of(made_up(), width)


def test_status_looks_within_the_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    monkeypatch.setattr(status, "survey", lambda federation: {"at": ""})
    looks = status._repeat_survey(Federation.init(tmp_path / "made", ["localhost"], 9092, "127.0.0.1:8000", 10), 5.0)
    next(looks)
    next(looks)
    assert len(waited) == 1
    assert 0 <= waited[0] <= 5.0
