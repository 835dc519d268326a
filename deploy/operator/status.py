"""What goes on in a federation, at a glance: runs and their rounds, who is connected, disk, keys."""

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fairbloom.command import Terminal
from fairbloom.logs import escape_unprintable
from fairbloom.system.interrupts import until_interrupted

from ..errors import DeployError
from ..flower.operator import control_api
from ..processes import duration
from ..server.overview import UNKNOWN
from .doctor import ask_server, check_server
from .federation import Federation
from .registry import EnrolledClient

RECENT_RUNS = 5
WIDEST_REASON = 200
"""How many characters of a reason the tables show; the JSON has it whole."""

MOST_LISTED, MOST_NAMED = 20, 10
"""Up to how many clients are all listed, and how many of those that need attention where there are more."""

NOT_SAID = (
    "the server does not say how far its runs are: it is not a fairbloom server, is of another version, or is away"
)

PROGRESS = (
    *("folder", "task", "method", "round", "of-rounds", "state", "seconds-a-round", "seconds-since-round"),
    *("missing", "offline", "refused", "kept-by", "not-kept-by"),
)
"""What the server reports of each run in addition to the SuperLink; null if it is unknown, with the reason."""

COUNTED = ("refused_attempts", "calls_under_way", "database_bytes")
"""Numbers from the server's page; null if it does not have them."""


def survey(federation: Federation) -> dict[str, Any]:
    """Return what is known of a federation: docs/deployment.md lists the keys."""
    enrolled = federation.clients
    with control_api.connected(federation) as api:
        nodes, runs = dict(api.nodes()), api.runs()
    page = ask_server(federation)
    server = check_server(federation, page)
    latest = _runs(runs[:RECENT_RUNS], page.about.get("runs"))
    rows = _clients(enrolled, nodes, page.about, latest)
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "runs": latest,
        "summary": _sum_up(rows, sum(bool(client.revoked) for client in enrolled)),
        "clients": rows,
        "counts": {
            "runs": dict(Counter(run["status"] for run in runs)),
            **{key.replace("_", "-"): page.about.get(key) for key in COUNTED},
        },
        "disk": page.about.get("disk"),
        "certificate-days": page.certificate_days,
        "server": {"verdict": server.verdict, "words": server.words},
    }


def _clients(
    enrolled: list[EnrolledClient],
    nodes: dict[str, Mapping[str, str]],
    about: Mapping[str, Any],
    runs: list[dict[str, Any]],
) -> list[dict[str, Any]]:
    """Return a row for each client; nodes that nobody knows come last."""
    versions, overdue = about.get("nodes", {}), about.get("overdue", {})
    gone = {client.node_id for client in enrolled if client.revoked}
    rows = list[dict[str, Any]]()

    def add(name: str, partition_id: int | None, node_id: str, presence: Mapping[str, str]) -> None:
        first = {"client": name, "partition-id": partition_id, **presence, "version": versions.get(node_id, "")}
        kept = [run["run-id"] for run in runs if name in (run["kept-by"] or ())]
        busy = overdue.get(node_id, "")
        rows.append({**first, "busy-with-run": busy, "keeps-models-of": kept})

    for client in enrolled:
        if not client.revoked:
            presence = _describe_presence(nodes.pop(client.node_id, {}))
            add(client.name, client.partition_id, client.node_id, presence)
    for node_id, node in nodes.items():
        if node_id not in gone and node["status"] != "unregistered":
            add(f"node {node_id}, not enrolled here", None, node_id, _describe_presence(node))
    return rows


def _sum_up(rows: list[dict[str, Any]], revoked: int) -> dict[str, Any]:
    """Return how many clients are there and how many are not, since when at the most, and which versions they run."""
    seen = Counter(row["last-seen"] for row in rows)
    never, online = seen.pop("never", 0), seen.pop("now", 0)
    return {
        "online": online,
        "away": seen.total(),
        "never-seen": never,
        "revoked": revoked,
        "oldest-contact": min(seen, default=""),
        "versions": dict(Counter(row["version"] or "not known" for row in rows).most_common()),
    }


def _describe_presence(node: Mapping[str, str]) -> dict[str, str]:
    status = node.get("status", "unknown to the SuperLink")
    return {"status": status, "last-seen": "now" if status == "online" else node.get("offline-at") or "never"}


def _runs(runs: list[dict[str, Any]], known: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return what the SuperLink knows of runs, the latest first, and what their folders say."""
    rows, writers = [], dict[str, str]()
    for run in runs:
        run_id = str(run["run-id"])
        about = {"unknown": NOT_SAID} if known is None else known.get(run_id, {"unknown": UNKNOWN})
        writer = writers.setdefault(about["folder"], run_id) if "folder" in about else run_id
        if writer != run_id:  # what is in the folder is no longer this run's
            about = {"folder": about["folder"], "unknown": f"run {writer} has continued it"}
        known_to_superlink = {key: run.get(key) for key in ("run-id", "status", "status-details", "elapsed", "fab-id")}
        rows.append(
            {**known_to_superlink, **{key: about.get(key) for key in PROGRESS}, "unknown": about.get("unknown")}
        )
    return rows


# For the eye ----------------------------------------------------------------------------------------------------------


def show(found: Mapping[str, Any], everyone: bool = False) -> None:
    """Print a survey."""
    Terminal().print(render(found, everyone))


def render(found: Mapping[str, Any], everyone: bool = False) -> RenderableType:
    """Return a survey as tables and lines; of many clients, only those that need attention have a line."""
    runs = found["runs"]
    going = [run for run in runs if not str(run["status"]).startswith("finished")]
    over = [run for run in runs if run not in going]
    parts: list[RenderableType] = [part for run in going for part in _describe_running(run)]
    if not going:
        parts.append(Text("no run is going on"))
    clients = found["clients"]
    parts.append(_line("clients", _describe_summary(found["summary"]), style="bold"))
    if everyone or len(clients) <= MOST_LISTED:
        parts.append(_clients_table(clients, runs))
    else:
        wanting = [each for each in clients if each["last-seen"] not in ("now", "never") or each["busy-with-run"]]
        parts += [
            _line(f"  {client['client']}", _describe_client(client), warn=True) for client in wanting[:MOST_NAMED]
        ]
        parts.append(Text(f"{len(wanting)} clients need attention; --all lists every one"))
    if over:
        parts.append(_runs_table(over))
    for run in over:
        for name, reason in (run["not-kept-by"] or {}).items():
            parts.append(_line(f"run {run['run-id']} is not kept by {escape_unprintable(name)}", reason, warn=True))
    parts.append(_line("disk", _describe_disk(found["disk"])))
    days = found["certificate-days"]
    words = "not known from here" if days is None else f"the server's holds for {days:.0f} more days"
    parts.append(_line("certificate", words))
    parts.append(_line("server", found["server"]["words"], warn=found["server"]["verdict"] != "ok"))
    return Group(*parts)


def _describe_running(run: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Yield what is said of a run that goes on: how far it is, and what is wrong with it."""
    words = f"{run['status']} for {duration(float(run['elapsed'] or 0.0))}"
    if run["round"] is not None:
        words += f": {run['method']} on {run['task'] or 'a user-defined task'}, "
        of = run["of-rounds"]
        words += f"round {run['round']} of {of}" if run["round"] else f"before the first of {of} rounds"
        if run["seconds-a-round"] is not None:
            since = run["seconds-since-round"]
            words += f", {run['seconds-a-round']:.3g} s a round, the last one {duration(since)} ago"
    yield _line(f"run {run['run-id']}", words, style="bold")
    if run["unknown"]:
        yield _line("  not known", str(run["unknown"]), warn=True)
    for what in ("offline", "missing"):
        if run[what]:
            yield _line(f"  {what} in round {run['round']}", str(run[what]), warn=True)
    for refusal in run["refused"] or ():
        yield _line(f"  refused in round {refusal['round']}", f"{refusal['client']}: {refusal['reason']}", warn=True)


def _describe_summary(summary: Mapping[str, Any]) -> str:
    """Return how many clients are there, and what is known of the others."""
    total = sum(summary[key] for key in ("online", "away", "never-seen"))
    counts = [f"{summary[key]} {key.replace('-', ' ')}" for key in ("away", "never-seen", "revoked") if summary[key]]
    oldest = [f"the longest away since {summary['oldest-contact']}"] * bool(summary["oldest-contact"])
    versions = [f"version {version}: {number}" for version, number in summary["versions"].items()]
    return "; ".join([", ".join([f"{summary['online']} of {total} online", *counts]), *oldest, *versions[:3]])


def _describe_client(client: Mapping[str, Any]) -> str:
    """Return whether a client is connected, since when it is not, and what it works on in vain."""
    status, seen = client["status"], client["last-seen"]
    since = "" if status == "online" else ", never seen" if seen == "never" else f" since {seen}"
    return f"{status}{since}{', busy with a run that is over' if client['busy-with-run'] else ''}"


def _clients_table(clients: list[dict[str, Any]], runs: list[dict[str, Any]]) -> Table:
    """Return which clients are connected, and of which run each keeps the model, by the name of its folder."""
    folders = {run["run-id"]: run["folder"] for run in runs}
    table = Table()
    table.add_column("client", no_wrap=True)
    for heading in ("partition", "connected", "version", "keeps the model of"):
        table.add_column(heading)
    for client in clients:
        partition = "" if client["partition-id"] is None else str(client["partition-id"])
        newest, *earlier = client["keeps-models-of"] or [""]
        kept = f"{PurePath(folders[newest]).name}{f' and {len(earlier)} more' if earlier else ''}" if newest else ""
        cells = (client["client"], partition, _describe_client(client), client["version"] or "not known", kept)
        table.add_row(*map(Text, cells), style="" if client["status"] == "online" else "yellow")
    return table


def _runs_table(runs: list[dict[str, Any]]) -> Table:
    table = Table(title="runs before", title_justify="left", title_style="bold")
    for heading in ("run", "status", "method", "rounds", "what was said"):
        table.add_column(heading, overflow="fold")
    for run in runs:
        said = _shorten(str(run["status-details"] or ""))
        rounds = _shorten(str(run["unknown"])) if run["round"] is None else f"{run['round']}/{run['of-rounds']}"
        table.add_row(*map(Text, (run["run-id"], str(run["status"]), str(run["method"] or ""), rounds, said)))
    return table


def _describe_disk(disk: Mapping[str, Any] | None) -> str:
    if disk is None:
        return "not known from here"
    parts = {"the server's state": disk.get("state-free-bytes"), "the run folder": disk.get("runs-free-bytes")}
    return ", ".join(f"{size / 1e9:.1f} GB free for {what}" for what, size in parts.items() if size is not None)


def _line(what: str, words: str, *, warn: bool = False, style: str = "") -> Text:
    return Text.assemble((f"{what}: ", style), (_shorten(words), "yellow" if warn else ""))


def _shorten(words: str) -> str:
    words = escape_unprintable(words)
    return words if len(words) <= WIDEST_REASON else f"{words[:WIDEST_REASON]}…"


# Again and again ------------------------------------------------------------------------------------------------------


def watch(federation: Federation, interval: float, *, as_json: bool) -> None:
    """Show the survey every `interval` seconds until Ctrl-C; on a terminal it is replaced, elsewhere a line of JSON."""
    with until_interrupted():
        if as_json or not sys.stdout.isatty():
            for found in _repeat_survey(federation, interval):
                if as_json:
                    print(json.dumps(found), flush=True)
                else:
                    print(f"{found['at']}: {found['error']}") if "error" in found else show(found)
                    sys.stdout.flush()
            return
        last: Mapping[str, Any] | None = None
        with Live(Text("asking the server"), screen=True, auto_refresh=False) as live:
            for found in _repeat_survey(federation, interval):
                last = last if "error" in found else found
                live.update(_frame(found, last, interval), refresh=True)


def _repeat_survey(federation: Federation, interval: float) -> Iterator[dict[str, Any]]:
    """Yield a survey every `interval` seconds, or the error where there is none."""
    while True:
        started = time.monotonic()
        try:
            yield survey(federation)
        except DeployError as error:
            yield {"at": datetime.now(UTC).isoformat(timespec="seconds"), "error": str(error)}
        time.sleep(max(0.0, started + interval - time.monotonic()))


def _frame(found: Mapping[str, Any], last: Mapping[str, Any] | None, interval: float) -> RenderableType:
    """Return a survey, or the error above the last one, with the time and how this ends."""
    head = Text(f"{found['at'][11:19]} UTC, every {interval:g} s, Ctrl-C ends", style="dim")
    parts: list[RenderableType] = [head]
    if "error" in found:
        parts.append(Text(found["error"], style="red"))
        if last is not None:
            parts.append(Text(f"as it was at {last['at'][11:19]}:", style="dim"))
    if last is not None:
        parts.append(render(last))
    return Group(*parts)
