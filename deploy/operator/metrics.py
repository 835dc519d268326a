"""A federation's numbers for Prometheus, also between runs: a file for node_exporter's textfile collector."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from .. import pki
from ..errors import DeployError
from .doctor import EXPIRES_SOON_DAYS
from .federation import Federation, warn
from .status import survey

STATES = ("pending", "starting", "running", "finished:completed", "finished:failed", "finished:stopped")

Metric = tuple[str, str, float | Mapping[str, float] | None]
"""Name, meaning, and the number, None if it is not known, or a number for each value of the label `state`.

These values are words of this file: a thousand clients have as many series as one, and no name gets into a label.
"""


def write_metrics(federation: Federation, file: Path) -> None:
    """Write the numbers to a file, whole or not at all; DeployError where that cannot be."""
    try:
        from prometheus_client import write_to_textfile
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    except ImportError as error:
        raise DeployError("metrics need prometheus-client: pip install 'fairbloom[metrics]'") from error
    if file.suffix != ".prom":
        raise DeployError(f"--to {file}: node_exporter reads only files with names that end with .prom")
    families = []
    for name, meaning, value in measure(federation):
        kind = CounterMetricFamily if name == "refused_attempts" else GaugeMetricFamily
        if isinstance(value, Mapping):
            family = kind(f"fairbloom_{name}", meaning, labels=["state"])
            for state, number in value.items():
                family.add_metric([state], number)
        else:
            family = kind(f"fairbloom_{name}", meaning, value)
        families.append(family)
    collector: Any = SimpleNamespace(collect=lambda: families)
    try:
        write_to_textfile(str(file), collector)
    except OSError as error:
        raise DeployError(f"--to {file} cannot be written: {error.strerror}") from error


def measure(federation: Federation) -> Iterator[Metric]:
    """Yield all metrics; if the server is away, only those that are known without it."""
    now, held = datetime.now(UTC), federation.keys()
    ends = [key.expires for key in held if key.current]
    days = sorted((datetime.fromisoformat(end) - now).total_seconds() / 86_400 for end in ends if end)
    expired, soon = (sum(left <= limit for left in days) for limit in (0.0, EXPIRES_SOON_DAYS))
    states = {"expired": expired, "expiring": soon - expired, "good": len(ends) - soon}
    yield "keys", "Keys of clients; expiring: within 30 days", states
    yield "first_key_days_left", "Days until the first key of a client expires", days[0] if days else None
    yield "authority_days_left", "Days that the authority is still valid", pki.days_left(federation.authority)
    try:
        found = survey(federation)
    except DeployError as error:
        warn(str(error))
        yield "up", "Whether the server answers and runs can begin", 0
        return
    yield "up", "Whether the server answers and runs can begin", found["server"]["verdict"] == "ok"
    yield "certificate_days_left", "Days that the server's certificate is still valid", found["certificate-days"]
    summary, counts, disk = found["summary"], found["counts"], found["disk"] or {}
    clients = {state: summary[state] for state in ("online", "away", "never-seen", "revoked")}
    yield "clients", "Clients, by whether they are connected", clients
    oldest = datetime.fromisoformat(summary["oldest-contact"]) if clients["away"] else now
    yield "longest_absence_seconds", "Since when the longest absent client is away", (now - oldest).total_seconds()
    runs = {state: counts["runs"].get(state, 0) for state in STATES}
    yield "runs", "All runs", {**runs, "other": sum(counts["runs"].values()) - sum(runs.values())}
    yield "refused_attempts", "Attempts that were refused since the server started", counts["refused-attempts"]
    yield "calls_under_way", "Calls of clients that are worked on or wait", counts["calls-under-way"]
    yield "database_bytes", "Size of the server's database", counts["database-bytes"]
    yield "state_free_bytes", "Free space for the server's state", disk.get("state-free-bytes")
    yield "runs_free_bytes", "Free space for the last run folder", disk.get("runs-free-bytes")
