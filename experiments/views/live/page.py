"""`fairbloom watch --page`: a page for a browser on this machine that follows what a folder shows."""

import json
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from fairbloom.deploy.processes import duration
from fairbloom.errors import FairbloomError

from ..report import charts
from ..report.charts import Series
from ..report.html import render
from ..report.page import Block, Cell, Chart, Charts, Note, Page, Section, Table, slug
from .state import LiveRun, Point, Snapshot, follow

HOST = "127.0.0.1"

LINGER_SECONDS = 6.0
"""How long the page is served after the end, so that open ones show it."""

MOST_POINTS = 500
"""How many rounds a curve has at most."""

MOST_CURVES = 8
"""Of so many runs that go on, the curves are drawn."""

HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "frame-ancestors 'none'",  # the page itself has the rest, and browsers keep both
}


def serve(folder: Path, port: int, interval: float) -> Snapshot:
    """Serve a page that follows what a folder shows until it is over; return how it ended.

    Raises
    ------
    FairbloomError
        When the port is taken, or what lies in the folder cannot be read.
    """
    snapshots = follow(folder, interval)
    snapshot = next(snapshots)
    content = _Content(snapshot)
    secret = secrets.token_urlsafe(16)
    try:
        server = ThreadingHTTPServer((HOST, port), partial(_Handler, content, secret))
    except OSError as error:
        raise FairbloomError(f"port = {port} cannot be used: {error.strerror}; choose another (--port)") from error
    server.daemon_threads = True
    address = f"http://{HOST}:{server.server_address[1]}/{secret}/"
    print(f"{address} follows {folder}; Ctrl-C ends the page, and the run goes on", flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        for snapshot in snapshots:
            content.take(snapshot)
        content.end()
        time.sleep(LINGER_SECONDS)
    finally:
        server.shutdown()
        server.server_close()
    return snapshot


class _Content:
    """What the page shows, and which version of it that is; a version is made into a page when it is asked for."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot, self._version, self._over = snapshot, 0, False
        self._rendered = (-1, "")
        self._lock = threading.Lock()

    def take(self, snapshot: Snapshot) -> None:
        """Take in what the folder shows now."""
        if snapshot != self._snapshot:
            self._snapshot, self._version = snapshot, self._version + 1

    def end(self) -> None:
        """Take in that nothing follows."""
        self._over = True

    def state(self) -> Mapping[str, object]:
        """Return the version, and whether it is the last."""
        over = self._over  # first, for then the version that is read next is the last indeed
        return {"version": self._version, "over": over}

    def page(self) -> str:
        """Return the page of the newest version."""
        with self._lock:
            version = self._version
            if self._rendered[0] != version:
                script = Path(__file__).with_name("live.js").read_text(encoding="utf-8")
                self._rendered = version, render(page_of_snapshot(self._snapshot), live=script)
            return self._rendered[1]


class _Handler(BaseHTTPRequestHandler):
    """Answers GET for the page and its state, at an address that only who has started the command knows.

    Other names of this machine than its own are refused, so that no page of the web can reach this one by a name that
    leads here.
    """

    server_version, sys_version = "fairbloom", ""
    timeout = 10

    def __init__(self, content: _Content, secret: str, *arguments: object) -> None:
        self._content, self._secret = content, secret
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        """Answer a request."""
        port = self.connection.getsockname()[1]
        if self.headers.get_all("Host") not in ([f"{HOST}:{port}"], [f"localhost:{port}"]):
            self._answer(HTTPStatus.MISDIRECTED_REQUEST)
        elif secrets.compare_digest(self.path.encode(), f"/{self._secret}/".encode()):
            self._answer(HTTPStatus.OK, self._content.page(), "text/html")
        elif secrets.compare_digest(self.path.encode(), f"/{self._secret}/state".encode()):
            self._answer(HTTPStatus.OK, json.dumps(self._content.state()), "application/json")
        else:
            self._answer(HTTPStatus.NOT_FOUND)

    def _answer(self, status: HTTPStatus, text: str = "", kind: str = "text/plain") -> None:
        content = text.encode()
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing of a request."""


# What the page shows --------------------------------------------------------------------------------------------------


def page_of_snapshot(snapshot: Snapshot) -> Page:
    """Return the page of what a folder shows."""
    name = snapshot.folder.name
    if not snapshot.runs:
        headline = f"waiting for a run in {snapshot.folder}"
        return Page(name, headline, (), (("folder", str(snapshot.folder)),), ())
    return _page_of_run(snapshot.runs[0]) if snapshot.alone else _page_of_runs(snapshot)


def _page_of_run(run: LiveRun) -> Page:
    headline = f"{run.state}: round {run.rounds} of {run.num_rounds}"
    if run.seconds_left is not None:
        headline += f", {duration(run.seconds_left)} left"
    seconds = "" if run.seconds is None else f"{run.seconds:.3g} s"
    facts = [("state", run.state), ("seconds a round", seconds), ("folder", str(run.folder))]
    sentences = [_describe_last(run)] if run.points else []
    sections = [*_rounds_section(run), *_clients_section(run), *_absences_section(run)]
    return Page(run.about, headline, sentences, [fact for fact in facts if fact[1]], sections)


def _describe_last(run: LiveRun) -> str:
    last: Point = run.points[-1]
    mean, worst = (run.score.written(value) for value in (last.mean, last.worst))
    return f"Test {run.score.name} after round {last.round}: mean {mean}, {run.worst_title} {worst}."


def _rounds_section(run: LiveRun) -> list[Section]:
    if len(run.points) < 2:
        return []
    names = ("mean", run.worst_title)
    series = [Series(name, f"series-{place}", charts.SHAPES[place]) for place, name in enumerate(names)]
    rows = [row for place, name in enumerate(names) for row in _curve(run, name, 1 + place)]
    spec = charts.over_rounds(rows, series, f"test {run.score.title}")
    said = f"Mean and {run.worst_title} over the rounds. {_describe_last(run)}"
    chart = Chart("rounds", f"Mean and {run.worst_title}", said, spec)
    intro = f"The {run.score.name} on the clients' test examples after each evaluated round."
    return [Section("rounds", "Over the rounds", intro, [Charts([chart], series)])]


def _curve(run: LiveRun, name: str, place: int) -> list[charts.Row]:
    """Return the rows of one line: the number at a place of each point over the rounds."""
    kept = set(charts.thin([point.round for point in run.points], MOST_POINTS))
    values = [(point.round, charts.short(float(point[place]))) for point in run.points if point.round in kept]
    return [{"round": number, "method": name, "value": value, "low": value, "high": value} for number, value in values]


def _clients_section(run: LiveRun) -> list[Section]:
    if not run.clients:
        return []
    rows = [
        [
            Cell(client.name),
            Cell(run.score.written(client.score), client.score),
            Cell("–") if client.coefficient is None else Cell(f"{client.coefficient:.3g}", client.coefficient),
        ]
        for client in run.clients
    ]
    last = run.points[-1].round if run.points else run.rounds
    table = Table("clients", f"Clients after round {last}", ("client", f"test {run.score.title}", "coefficient"), rows)
    intro = "A client without a coefficient did not take part in that round, or its reply was not used."
    return [Section("clients", "Clients, worst first", intro, [table])]


def _absences_section(run: LiveRun) -> list[Section]:
    counted = [(name, kind, count) for kind, names in run.absences.items() for name, count in names]
    rows = [[Cell(name), Cell(kind), Cell(str(count), count)] for name, kind, count in counted]
    if not rows:
        return []
    blocks: list[Block] = [Table("absences", "Clients whose reply was not used", ("client", "why", "rounds"), rows)]
    if run.refusals:
        blocks.append(Note([f"Round {number}, {client}: {reason}" for number, client, reason in run.refusals]))
    return [Section("absences", "Absences and refusals", "", blocks)]


def _page_of_runs(snapshot: Snapshot) -> Page:
    going_on = [run for run in snapshot.runs if run.state == "running"]
    headline = f"{snapshot.done} of {len(snapshot.runs)} runs finished"
    if snapshot.going_on:
        headline += f", {len(going_on)} running"
    sections = [*_curves_section(going_on), _runs_section(snapshot.runs)]
    facts = [("state", snapshot.state), ("folder", str(snapshot.folder))]
    return Page(snapshot.folder.name, headline, (), facts, sections)


def _curves_section(runs: Sequence[LiveRun]) -> list[Section]:
    drawn = [run for run in runs if len(run.points) > 1][:MOST_CURVES]
    if not drawn or len({run.score for run in drawn}) > 1:
        return []
    series = charts.series_of([run.name for run in drawn])
    titles = ("Mean over the clients", f"{drawn[0].worst_title[0].upper()}{drawn[0].worst_title[1:]}")
    parts = []
    for place, title in enumerate(titles, start=1):
        rows = [row for run in drawn for row in _curve(run, run.name, place)]
        said = "; ".join(f"{run.name} {run.score.written(run.points[-1][place])}" for run in drawn)
        spec = charts.over_rounds(rows, series, f"test {drawn[0].score.title}")
        parts.append(Chart(slug(title), title, f"{title} over the rounds: {said}.", spec))
    return [Section("rounds", "Runs that go on", "", [Charts(parts, series)])]


def _runs_section(runs: Sequence[LiveRun]) -> Section:
    rows = []
    for run in runs:
        cells = [Cell(run.name), Cell(run.state), Cell(f"{run.rounds}/{run.num_rounds}" if run.num_rounds else "")]
        measured = run.points[-1][1:] if run.points else ()
        cells += [Cell(run.score.written(value), value) for value in measured] or [Cell(""), Cell("")]
        left = run.seconds_left
        rows.append([*cells, Cell("" if left is None else duration(left), left)])
    worst = next((run.worst_title for run in runs if run.points), "worst 10 %")
    table = Table("runs", "Runs", ("run", "state", "rounds", "mean", worst, "left"), rows)
    faults = [f"{run.name}: {run.fault}" for run in runs if run.fault]
    return Section("runs", "All runs", "", [table, *([Note(faults)] if faults else [])])
