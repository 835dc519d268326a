"""Who is connected, when each was last seen, what runs, and whether somebody is there to run it."""

from typing import Any

from rich.console import Console
from rich.table import Table

from . import control_api
from .doctor import client_keys, server_side
from .federation import Federation

RECENT_RUNS = 5


def survey(federation: Federation) -> dict[str, Any]:
    """Return clients, by the names they were enrolled with, the latest runs, and what the server's side is like.

    Raises
    ------
    DeployError
        When the SuperLink does not answer.
    """
    everybody, keys = federation.clients, federation.keys()
    partitions = {client.name: client.partition_id for client in everybody}
    gone = {node_id for client in everybody if client.revoked for node_id in client.node_ids}
    with control_api.connected(federation) as api:
        nodes, runs = dict(api.nodes()), api.runs()
    clients = []
    for key in keys:
        name = key.client if key.current else f"{key.client}, by its former key"
        seen = _seen(nodes.pop(key.node_id, {}))
        clients.append({"client": name, "partition-id": partitions[key.client], **seen, "key-expires": key.expires})
    clients += [
        {"client": f"node {node_id}, not enrolled here", "partition-id": None, **_seen(node), "key-expires": ""}
        for node_id, node in nodes.items()
        if node_id not in gone and node["status"] != "unregistered"
    ]
    known = ("run-id", "status", "elapsed", "fab-id")
    recent = [{key: run.get(key) for key in known} for run in runs[:RECENT_RUNS]]
    findings = {"server": server_side(federation), "keys": client_keys(federation)}
    said = {what: {"verdict": finding.verdict, "words": finding.words} for what, finding in findings.items()}
    return {"clients": clients, "runs": recent, **said}


def _seen(node: dict[str, Any]) -> dict[str, str]:
    status = str(node.get("status", "unknown to the SuperLink"))
    last = "now" if status == "online" else str(node.get("offline-at") or "never")
    return {"status": status, "last-seen": "never" if last == "N/A" else last}


def show(found: dict[str, Any]) -> None:
    """Print a survey: clients and runs as tables, a line on the server, and one on keys that run out."""
    console = Console()
    for title in ("clients", "runs"):
        rows = found[title]
        table = Table(title=title, title_justify="left")
        for heading in rows[0] if rows else ("none",):
            table.add_column(heading)
        for row in rows:
            table.add_row(*("" if value is None else str(value) for value in row.values()))
        console.print(table)
    print(f"server: {found['server']['words']}")
    if found["keys"]["verdict"] != "ok":
        print(f"client keys: {found['keys']['words']}")
