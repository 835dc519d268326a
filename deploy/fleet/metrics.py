"""The server's numbers, for state/metrics.prom, in Prometheus' exposition format."""

from collections.abc import Iterator, Mapping

from fairbloom.text import text_if

# The metrics with their description and the name of their label, "" without one. Those that end in
# _total are counted since the server has started.
METRICS = {
    "clients_online": ("Clients that are online.", ""),
    "client_online": ("Whether a client is online.", "client"),
    "run_failed": ("Whether the run that ended last has failed.", ""),
    "round": ("Last round that a run has saved, 0 before the first one.", ""),
    "round_age_seconds": ("Time since then, or since the server has started.", ""),
    "refused_total": ("Calls of clients that were refused, and replies.", "kind"),
    "mailbox_bytes": ("Memory that messages and replies take.", ""),
    "certificate_remaining_days": ("Time until a certificate expires.", "file"),
    "disk_free_bytes": ("Free space at the federation's folder, and at its state.", "folder"),
    "disk_size_bytes": ("Size of these disks.", "folder"),
}


def metric_lines(samples: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """Yield the lines for each metric's samples, by the value of its label."""
    for name, (description, label) in METRICS.items():
        yield f"# HELP fairbloom_{name} {description}"
        yield f"# TYPE fairbloom_{name} {'counter' if name.endswith('_total') else 'gauge'}"
        for value, number in samples[name].items():
            escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
            labels = text_if(label, f'{{{label}="{escaped}"}}')
            yield f"fairbloom_{name}{labels} {number}"
