"""metrics.csv, an app's metrics: per client, aggregated, and of the server's own evaluation."""

from collections.abc import Mapping
from itertools import islice
from typing import Any

from fairbloom.logs import log
from fairbloom.rounds.refusals import one_line
from fairbloom.rounds.round import Round

# The columns of metrics.csv. The client is empty if a number is of all clients together, or of the
# server.
METRIC_COLUMNS = ("round", "phase", "client", "metric", "value")

# Limits of a metric's name, and of the metrics of one client in one phase; others are left out.
LONGEST_NAME = 100
MOST_METRICS = 1000

MetricRow = tuple[int, str, str, str, object]


def format_metrics(finished: Round) -> list[MetricRow]:
    """Return the rows of a round: aggregates first, then the clients by name.

    The phases are train and evaluate, which clients report, and server, the metrics of
    `evaluate_fn`.
    """
    rows = list[MetricRow]()
    for phase, together, by_client in (
        ("train", finished.metrics, finished.train_metrics),
        ("evaluate", finished.evaluation_metrics, finished.evaluations),
        ("server", finished.server_metrics, {}),
    ):
        rows += format_phase(finished.number, phase, "", together)
        for client, metrics in sorted(by_client.items()):
            rows += format_phase(finished.number, phase, client, _bounded(client, metrics))
    return rows


def format_phase(
    number: int, phase: str, client: str, metrics: Mapping[str, Any]
) -> list[MetricRow]:
    """Return a row for each metric that is a number; lists are left out."""
    return [
        (number, phase, client, one_line(name), value)
        for name, value in metrics.items()
        if isinstance(value, int | float)
    ]


def _bounded(client: str, metrics: Mapping[str, float]) -> Mapping[str, float]:
    """Return a client's metrics within the table's limits; log which metrics are left out."""
    if len(metrics) <= MOST_METRICS and all(map(_is_name, metrics)):
        return metrics
    kept = set(islice(filter(_is_name, metrics), MOST_METRICS))
    left_out = next(name for name in metrics if name not in kept)
    log.warning(
        "client %s: %d of its %d metrics are not written, %r first: names have at most %d printable"
        " characters, and %d numbers are the most",
        client,
        len(metrics) - len(kept),
        len(metrics),
        one_line(left_out[:LONGEST_NAME]),
        LONGEST_NAME,
        MOST_METRICS,
    )
    return {name: value for name, value in metrics.items() if name in kept}


def _is_name(name: str) -> bool:
    return len(name) <= LONGEST_NAME and name.isprintable()
