"""Who is connected, when each was last seen, and what runs."""

from typing import Any

from rich.console import Console
from rich.table import Table

from .federation import CONNECTION, Federation
from .submit import runs

RECENT_RUNS = 5


def survey(federation: Federation) -> dict[str, list[dict[str, Any]]]:
    """Return clients, by the names they were enrolled with, and the latest runs.

    Raises
    ------
    DeployError
        When the SuperLink does not answer.
    """
    nodes = {str(node["node-id"]): node for node in federation.flwr_json("supernode", "list", CONNECTION)["nodes"]}
    clients = [
        {"client": client.name, "partition-id": client.partition_id, **_seen(nodes.pop(client.node_id, {}))}
        for client in federation.clients
        if not client.revoked
    ]
    revoked = {client.node_id for client in federation.clients if client.revoked}
    clients += [
        {"client": f"node {node_id}, not enrolled here", "partition-id": None, **_seen(node)}
        for node_id, node in nodes.items()
        if node_id not in revoked and node["status"] != "unregistered"
    ]
    known = ("run-id", "status", "elapsed", "fab-id")
    return {
        "clients": clients,
        "runs": [{key: run.get(key) for key in known} for run in runs(federation)[:RECENT_RUNS]],
    }


def _seen(node: dict[str, Any]) -> dict[str, str]:
    status = str(node.get("status", "unknown to the SuperLink"))
    last = "now" if status == "online" else str(node.get("offline-at") or "never")
    return {"status": status, "last-seen": "never" if last == "N/A" else last}


def show(found: dict[str, list[dict[str, Any]]]) -> None:
    """Print a survey as tables."""
    console = Console()
    for title, rows in found.items():
        table = Table(title=title, title_justify="left")
        for heading in rows[0] if rows else ("none",):
            table.add_column(heading)
        for row in rows:
            table.add_row(*("" if value is None else str(value) for value in row.values()))
        console.print(table)
