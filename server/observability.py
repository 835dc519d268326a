"""What a run shows while it goes on: log lines, as JSON where asked, and a metrics page for Prometheus."""

import hmac
import json
import logging
import os
import socket
import threading
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from pathlib import Path
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from fairbloom.errors import FairbloomError
from fairbloom.protocol.names import PERSONAL
from fairbloom.protocol.scores import Score
from fairbloom.rounds.round import Round

from .run_folder.recorded import RecordedRound

HOST, TOKEN_FILE = "FAIRBLOOM_METRICS_HOST", "FAIRBLOOM_METRICS_TOKEN_FILE"
"""Environment variables of the server: the address where metrics are served, and the file with their credential."""

SHOWN = 5
"""How many of the worst served clients the log names at the end of a run."""

log = logging.getLogger("flwr")


class MetricsError(FairbloomError):
    """The metrics page cannot be served; the message says why and what to do."""


class JsonLines(logging.Formatter):
    """Formats each log record as one JSON object with the run's name, and round and client where it is about one."""

    def __init__(self, run: str) -> None:
        super().__init__()
        self._run = run

    def format(self, record: logging.LogRecord) -> str:
        """Return a record's time, level, message, run, round and client as JSON."""
        entry = {"time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"), "level": record.levelname.lower()}
        entry |= {"message": record.getMessage(), "run": self._run}
        entry |= {key: getattr(record, key) for key in ("round", "client") if hasattr(record, key)}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def log_as_json(run: str) -> None:
    """Let Flower's logger, and ours below it, write JSON lines that name the run."""
    for handler in log.handlers:
        handler.setFormatter(JsonLines(run))


def summarize_row(row: Mapping[str, object], score: Score, finished: Round, model: str = "global") -> str:
    """Return what a log line says of a round's row: the scores of an evaluated round, nothing of another."""
    mean, worst = (row.get(f"{score.column(model)}_{over}") for over in ("mean", "worst_10"))
    if not isinstance(mean, float) or not isinstance(worst, float):
        return ""
    metric, clients = _metric_of(score, model), len(finished.evaluations)
    scored = sum(metric in each for each in finished.evaluations.values())
    over = f" over {scored} of {clients} clients" if scored < clients else ""
    return f": test {score.name} {score.written(mean)}{over}, of the worst 10 % of clients {score.written(worst)}"


def _metric_of(score: Score, model: str) -> str:
    """Return what clients call a score of the global or the personal model when they evaluate."""
    return f"{score.name}-{PERSONAL}" if model == "personal" else score.name


def name_worst_served(finished: Round, score: Score, model: str = "global") -> str:
    """Return the clients with the worst scores after a round, and the one with the best, in words."""
    metric = _metric_of(score, model)
    measured = {name: score.shown(m[metric]) for name, m in finished.evaluations.items() if metric in m}
    if not measured:
        return f"no client reported its {score.name}"
    *others, best = sorted(measured, key=lambda name: (score.better(measured[name], 0.0), name))
    shown = ", ".join(f"{name} {score.written(measured[name])}" for name in others[:SHOWN] or [best])
    return f"{shown}; best: {best} {score.written(measured[best])}"


class Server(ThreadingMixIn, WSGIServer):
    """Serves each request in a separate thread, at an IPv4 or an IPv6 address."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[WSGIRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)


class QuietHandler(WSGIRequestHandler):
    """Answers a request without a log line, and ends a connection that says nothing for `timeout` seconds."""

    timeout = 10

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing of a request."""


class Metrics:
    """Counts and gauges of one run, served over HTTP at /metrics.

    FAIRBLOOM_METRICS_HOST is the address, 127.0.0.1 by default. If FAIRBLOOM_METRICS_TOKEN_FILE names a file, requests
    need the header `Authorization: Bearer` with its content.
    """

    def __init__(self, port: int, score: Score) -> None:
        try:
            from prometheus_client import CollectorRegistry, Counter, Gauge, make_wsgi_app
        except ImportError as error:
            raise MetricsError("metrics-port needs prometheus-client: pip install 'fairbloom[metrics]'") from error
        registry = CollectorRegistry()
        self._rounds = Counter("fairbloom_rounds", "Rounds finished", registry=registry)
        self._seconds = Counter("fairbloom_round_seconds", "Seconds spent in rounds", registry=registry)
        self._refused = Counter(
            "fairbloom_refused_replies", "Replies that were not used", ["client"], registry=registry
        )
        self._missing = Counter(
            "fairbloom_missing_replies", "Replies that did not come in time", ["client"], registry=registry
        )
        self._decided = Counter(
            "fairbloom_decided_rounds",
            "Rounds of three or more clients that one decided, or opposed as most of its rounds",
            ["client"],
            registry=registry,
        )
        self._connected = Gauge("fairbloom_connected_clients", "Clients online", registry=registry)
        unit = "_percent" if score.percent else ""
        gauge = f"fairbloom_test_{score.name.replace('-', '_')}{unit}"
        self._score = Gauge(gauge, f"Test {score.name} of the global model", ["over"], registry=registry)
        self._column = score.column()
        host, app = os.environ.get(HOST, "127.0.0.1"), require_token(make_wsgi_app(registry), read_token())
        try:
            self._server = make_server(host, port, app, Server, QuietHandler)
        except OSError as error:
            raise MetricsError(
                f"metrics-port = {port} cannot be served on {host}: {error.strerror}; choose another port, or another "
                f"address in {HOST}"
            ) from error
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def observe(self, recorded: RecordedRound, connected: int) -> None:
        """Count a recorded round, and note how many clients are connected after it."""
        self._rounds.inc()
        self._seconds.inc(float(str(recorded.row["seconds"])))
        self._connected.set(connected)
        for name in recorded.refused:
            self._refused.labels(client=name).inc()
        for name in recorded.missing:
            self._missing.labels(client=name).inc()
        if decider := recorded.row.get("decided_by"):
            self._decided.labels(client=decider).inc()
        for over in ("mean", "worst_10", "best_10"):
            value = recorded.row.get(f"{self._column}_{over}")
            if isinstance(value, float):
                self._score.labels(over=over).set(value)

    def close(self) -> None:
        """Stop serving the page and free its port."""
        self._server.shutdown()
        self._server.server_close()


def read_token() -> str | None:
    """Return the credential of the metrics page, None where no file is named."""
    if not (path := os.environ.get(TOKEN_FILE)):
        return None
    try:
        content = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise MetricsError(
            f"{TOKEN_FILE} = {path} cannot be read: {error}; correct that, or leave the variable out"
        ) from error
    if not content:
        raise MetricsError(f"{TOKEN_FILE} = {path} is empty: write the credential of the metrics page into it")
    return content


def require_token(page: WSGIApplication, token: str | None) -> WSGIApplication:
    """Return an app that shows `page` at /metrics and nothing elsewhere; where there is a token, to those with it."""

    def app(request: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        sent, needed = request.get("HTTP_AUTHORIZATION", ""), f"Bearer {token}"
        if token is not None and not hmac.compare_digest(sent.encode(), needed.encode()):
            return _answer_empty(start_response, HTTPStatus.UNAUTHORIZED, [("WWW-Authenticate", "Bearer")])
        if request["PATH_INFO"] != "/metrics":
            return _answer_empty(start_response, HTTPStatus.NOT_FOUND, [])
        return page(request, start_response)

    return app


def _answer_empty(start_response: StartResponse, status: HTTPStatus, headers: list[tuple[str, str]]) -> Iterable[bytes]:
    start_response(f"{status.value} {status.phrase}", [*headers, ("Content-Length", "0")])
    return [b""]
