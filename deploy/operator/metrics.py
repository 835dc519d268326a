"""A federation's numbers for Prometheus, also between runs: a file for node_exporter's textfile collector."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from .. import pki
from ..errors import DeployError
from .doctor import EXPIRES_SOON_DAYS
from .federation import Federation
from .status import survey

STATUSES = ("pending", "starting", "running", "finished:completed", "finished:failed", "finished:stopped")

LABELS: Mapping[str, str] = {"clients": "state", "keys": "state", "runs": "status", "disk_free_bytes": "of"}
"""The one label that a metric may have. Its values are words of this file: no name of a client gets into a label, and a
thousand clients have as many series as one."""

WORDS: Mapping[str, str] = {
    "up": "Whether the server answers and runs can begin",
    "clients": "Clients that are enrolled, by whether they are connected",
    "longest_absence_seconds": "Time since the last contact of the client that is away for longest",
    "keys": "Keys of clients, by whether they are good for 30 more days",
    "first_key_days_left": "Days until the first key of a client expires",
    "certificate_days_left": "Days that the server's certificate is still valid",
    "authority_days_left": "Days that the authority's certificate is still valid",
    "runs": "Runs that the server knows, by status",
    "refused_attempts": "Attempts of clients and strangers that were refused since the server started",
    "calls_under_way": "Calls of clients that are worked on, or wait for their turn",
    "database_bytes": "Size of the server's database",
    "disk_free_bytes": "Free space on the disks of the server's state and of the last run folder",
}

Values = float | None | Mapping[str, float | None]
"""A number, or one for each value of the label; None is not known and left out."""


def write_metrics(federation: Federation, file: Path) -> None:
    """Write the numbers to a file, whole or not at all; DeployError where that cannot be."""
    try:
        from prometheus_client import write_to_textfile
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    except ImportError as error:
        raise DeployError("metrics need prometheus-client: pip install 'fairbloom[metrics]'") from error
    if file.suffix != ".prom":
        raise DeployError(f"--to {file}: node_exporter reads only files whose names end with .prom")
    families = []
    for name, values in measure(federation):
        kind, labels = GaugeMetricFamily, [LABELS[name]] if name in LABELS else []
        if name == "refused_attempts":
            kind = CounterMetricFamily
        family = kind(f"fairbloom_{name}", WORDS[name], labels=labels)
        for label, number in values.items() if isinstance(values, Mapping) else [("", values)]:
            if number is not None:
                family.add_metric([label] if labels else [], number)
        families.append(family)
    collector: Any = SimpleNamespace(collect=lambda: families)
    try:
        write_to_textfile(str(file), collector)
    except OSError as error:
        raise DeployError(f"--to {file} cannot be written: {error.strerror}") from error


def measure(federation: Federation) -> Iterator[tuple[str, Values]]:
    """Yield names and values; if the server is away, only what is known without it."""
    now, held = datetime.now(UTC), federation.keys()
    ends = [key.expires for key in held if key.current]
    days = sorted((datetime.fromisoformat(end) - now).total_seconds() / 86_400 for end in ends if end)
    expired, soon = (sum(left <= limit for left in days) for limit in (0.0, EXPIRES_SOON_DAYS))
    yield "keys", {"expired": expired, "expiring": soon - expired, "good": len(ends) - soon}
    yield "first_key_days_left", days[0] if days else None
    yield "authority_days_left", pki.days_left(federation.authority)
    try:
        found = survey(federation)
    except DeployError:
        yield "up", 0
        return
    yield "up", found["server"]["verdict"] == "ok"
    yield "certificate_days_left", found["certificate-days"]
    yield from measure_server(found, now)


def measure_server(found: Mapping[str, Any], now: datetime) -> Iterator[tuple[str, Values]]:
    """Yield what a survey says of clients, runs and the server."""
    summary, counts, disk = found["summary"], found["counts"], found["disk"] or {}
    yield "clients", {state: summary[state] for state in ("online", "away", "never-seen", "revoked")}
    oldest = summary["oldest-contact"]
    yield "longest_absence_seconds", (now - datetime.fromisoformat(oldest)).total_seconds() if oldest else 0
    runs = {status: counts["runs"].get(status, 0) for status in STATUSES}
    yield "runs", {**runs, "other": sum(counts["runs"].values()) - sum(runs.values())}
    for name in ("refused_attempts", "calls_under_way", "database_bytes"):
        yield name, counts[name.replace("_", "-")]
    yield "disk_free_bytes", {of: disk.get(f"{of}-free-bytes") for of in ("state", "runs")}
