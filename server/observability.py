"""What a run tells the outside while it goes on: log lines as JSON, and a metrics endpoint for Prometheus."""

import json
import logging
import math
from collections.abc import Mapping

from strategies import Round

from .records import ACCURACY

log = logging.getLogger("flwr")


class JsonLines(logging.Formatter):
    """Writes each record as one JSON object, with the run, and the round and client where it is about one.

    Parameters
    ----------
    run
        Name of the run folder.
    """

    def __init__(self, run: str) -> None:
        super().__init__()
        self._run = run

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's time, level, message, run, round and client as JSON."""
        entry = {"time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"), "level": record.levelname.lower()}
        entry |= {"message": record.getMessage(), "run": self._run}
        entry |= {key: getattr(record, key) for key in ("round", "client") if hasattr(record, key)}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def log_as_json(run: str) -> None:
    """Let Flower's logger, and ours below it, write JSON lines."""
    for handler in log.handlers:
        handler.setFormatter(JsonLines(run))


SHOWN = 5
"""Clients that are named at the end."""


def in_short(row: Mapping[str, object]) -> str:
    """Return what a log line tells of an evaluated round, "" of another."""
    mean, worst = (row.get(f"{ACCURACY}_{over}") for over in ("mean", "worst_10"))
    return "" if mean is None else f": test accuracy {mean:.1f} %, of the worst 10 % of clients {worst:.1f} %"


def worst_served(finished: Round) -> str:
    """Return the clients with the lowest accuracy, and the one with the highest."""
    accuracy = {name: measured.get("accuracy", math.nan) for name, measured in finished.evaluations.items()}
    *others, best = sorted(accuracy, key=lambda name: (accuracy[name], name))
    shown = ", ".join(f"{name} {100 * accuracy[name]:.1f} %" for name in others[:SHOWN] or [best])
    return f"{shown}; best: {best} {100 * accuracy[best]:.1f} %"


class Metrics:
    """Counts and gauges of one run, served over HTTP at /metrics.

    Parameters
    ----------
    port
        Where they are served, on all interfaces.

    Raises
    ------
    ValueError
        When prometheus-client is not installed, or the port is taken.
    """

    def __init__(self, port: int) -> None:
        try:
            from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server
        except ImportError as error:
            raise ValueError("metrics-port needs prometheus-client: pip install 'fairbloom[metrics]'") from error
        registry = CollectorRegistry()
        self._rounds = Counter("fairbloom_rounds", "Rounds finished", registry=registry)
        self._seconds = Counter("fairbloom_round_seconds", "Seconds spent in rounds", registry=registry)
        self._refused = Counter(
            "fairbloom_refused_replies", "Replies that were not used", ["client"], registry=registry
        )
        self._missing = Counter(
            "fairbloom_missing_replies", "Replies that did not come in time", ["client"], registry=registry
        )
        self._connected = Gauge("fairbloom_connected_clients", "Clients online", registry=registry)
        self._accuracy = Gauge(
            "fairbloom_test_accuracy_percent", "Test accuracy of the global model", ["over"], registry=registry
        )
        try:
            self._server, _ = start_http_server(port, registry=registry)
        except OSError as error:
            raise ValueError(f"metrics-port = {port} cannot be served: {error.strerror}; choose another") from error

    def observe(self, finished: Round, row: Mapping[str, object], connected: int) -> None:
        """Take in a finished round: what it was, its row of rounds.csv, and how many clients are online."""
        self._rounds.inc()
        self._seconds.inc(float(str(row["seconds"])))
        self._connected.set(connected)
        for name in finished.refused:
            self._refused.labels(client=name).inc()
        for name in finished.missing:
            self._missing.labels(client=name).inc()
        for over in ("mean", "worst_10", "best_10"):
            value = row.get(f"{ACCURACY}_{over}")
            if isinstance(value, float):
                self._accuracy.labels(over=over).set(value)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
