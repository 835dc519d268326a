"""`fairbloom watch --page`: what the page shows, whom it answers, and that it follows in a browser."""

import http.client
import json
import os
import re
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from urllib.parse import urlsplit

import pytest

from fairbloom.experiments.views.live import page
from fairbloom.experiments.views.live.state import Client, Looker, Snapshot
from fairbloom.experiments.views.live.view import page_of_snapshot
from fairbloom.experiments.views.report.html import render
from tests.experiments.helpers import fairbloom
from tests.simulation.helpers import run

from .test_live import a_run, comparison, interrupted


def going_on(folder: Path) -> Path:
    """Return a run after round 3 of 6 that goes on, in this process as its lock says."""
    interrupted(folder)
    (folder / ".lock").write_text(f"process {os.getpid()} on {socket.gethostname()}")
    return folder


class Served:
    """The page of a folder, as the command serves it, in a thread of its own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, linger: float = 0.0) -> None:
        printed: SimpleQueue[str] = SimpleQueue()
        monkeypatch.setattr(page, "print", lambda line, flush: printed.put(line), raising=False)
        monkeypatch.setattr(page, "LINGER_SECONDS", linger)
        self.ended: list[Snapshot] = []
        self.thread = threading.Thread(target=lambda: self.ended.append(page.serve(folder, 0, 0.1)), daemon=True)
        self.thread.start()
        self.url = printed.get(timeout=300).split()[0]
        self.host, self.path = urlsplit(self.url).netloc, urlsplit(self.url).path

    def ask(self, path: str = "", method: str = "GET", host: str = "") -> tuple[int, str]:
        connection = http.client.HTTPConnection(self.host, timeout=300)
        try:
            connection.request(method, path or self.path, headers={"Host": host or self.host})
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """The page of a run that goes on, and ends with the test."""
    served = Served(going_on(tmp_path / "run"), monkeypatch)
    yield served
    (tmp_path / "run" / ".lock").unlink(missing_ok=True)
    served.thread.join(60)
    assert not served.thread.is_alive()


def test_the_page_answers_its_owner_and_nobody_else(served: Served, tmp_path: Path) -> None:
    status, html = served.ask()
    assert status == 200
    assert "running: round 3 of 6" in html
    assert json.loads(served.ask(f"{served.path}state")[1]) == {"version": 0, "over": False}
    port = served.host.rpartition(":")[2]
    assert served.ask(host=f"localhost:{port}")[0] == 200
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", "127.0.0.1:1", f"127.0.0.1.evil.example:{port}"):
        assert served.ask(host=host) == (421, "")
    for path in (
        "/",
        "/state",
        "/x/",
        f"{served.path}x",
        f"{served.path}../",
        f"{served.path}config.toml",
        "/etc/passwd",
    ):
        assert served.ask(path) == (404, "")
    for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS"):
        assert served.ask(method=method)[0] == 501
    with socket.socket() as other, pytest.raises(ConnectionRefusedError):
        other.connect(("127.0.0.2", int(port)))  # no other address of this machine


def test_two_hosts_in_one_request_are_none(served: Served) -> None:
    host, port = served.host.split(":")
    with socket.create_connection((host, int(port)), timeout=300) as connection:
        connection.sendall(f"GET {served.path} HTTP/1.0\r\nHost: {served.host}\r\nHost: evil.example\r\n\r\n".encode())
        assert b" 421 " in connection.recv(1000)


def test_nothing_answers_once_the_run_is_over(served: Served, tmp_path: Path) -> None:
    (tmp_path / "run" / ".lock").unlink()
    served.thread.join(60)
    assert [snapshot.state for snapshot in served.ended] == ["interrupted"]
    with pytest.raises(ConnectionRefusedError):
        served.ask()


def test_the_command_ends_with_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(page, "LINGER_SECONDS", 0.0)
    assert fairbloom("watch", interrupted(tmp_path / "run"), "--page") == 1
    first, *_, last = capsys.readouterr().out.splitlines()
    assert re.match(r"http://127\.0\.0\.1:\d+/[\w-]{20,}/ follows ", first)
    assert last == "interrupted after round 3 of 6"


def test_a_port_that_is_taken_is_an_error_that_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert fairbloom("watch", tmp_path, "--page", "--port", port) == 2
    assert f"port = {port} cannot be used: Address already in use; choose another (--port)" in capsys.readouterr().err


# What it shows --------------------------------------------------------------------------------------------------------


def test_the_page_of_a_run_has_its_clients_and_curves(tmp_path: Path) -> None:
    looked = Looker(run(tmp_path / "run")).look()
    shown = page_of_snapshot(looked)
    clients = next(table for table in shown.tables if table.name == "clients")
    assert [row[0].text for row in clients.rows] == [client.name for client in looked.runs[0].clients]
    assert [row[1].value for row in clients.rows] == [client.score for client in looked.runs[0].clients]
    (chart,) = shown.charts
    drawn = {row["round"]: row["value"] for row in chart.spec["data"]["values"] if row["method"] == "mean"}
    assert drawn == {point.round: pytest.approx(point.mean, rel=1e-4) for point in looked.runs[0].points}
    assert shown.headline == "finished: round 6 of 6"


def test_the_page_of_a_comparison_has_all_runs(tmp_path: Path) -> None:
    shown = page_of_snapshot(Looker(comparison(tmp_path / "cmp")).look())
    assert shown.headline == "1 of 2 runs finished"
    assert [(row[0].text, row[1].text) for row in shown.tables[0].rows] == [
        ("fedavg-seed0", "finished"),
        ("fedfv-seed0", "waiting"),
    ]


def test_a_folder_without_runs_is_said_to_be_waited_for(tmp_path: Path) -> None:
    assert page_of_snapshot(Looker(tmp_path / "later").look()).headline == f"waiting for a run in {tmp_path / 'later'}"


def test_names_are_text_and_no_markup(tmp_path: Path) -> None:
    bad = "<script>alert(1)</script>\"'&"
    shown = a_run(
        about=bad, clients=[Client(bad, 1.0, 0.5)], absences={"refused": [(bad, 1)]}, refusals=[(1, bad, bad)]
    )
    html = render(page_of_snapshot(Snapshot(tmp_path, (shown,), alone=True)), live="0;")
    assert "<script>alert" not in html
    assert "connect-src &#39;self&#39;" in html
    assert "connect-src" not in render(page_of_snapshot(Snapshot(tmp_path, (shown,), alone=True)))


# In a browser ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium on the PATH")
def test_a_browser_follows_the_run_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from playwright.sync_api import sync_playwright

    served = Served(tmp_path / "run", monkeypatch, linger=5.0)
    complaints: list[str] = []
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tab = chromium.new_page(viewport={"width": 390, "height": 800})
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.goto(served.url)
        assert "waiting for a run" in tab.inner_text(".verdict")
        assert tab.inner_text(".live p") == "live"
        run(tmp_path / "run")
        tab.wait_for_selector("text=finished: round 6 of 6")
        tab.wait_for_selector("text=over: nothing more will come")
        assert len(tab.query_selector_all(".plot[data-drawn=yes] svg")) == 1
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390
        chromium.close()
    assert complaints == []
    served.thread.join(60)
    assert [snapshot.state for snapshot in served.ended] == ["finished"]
