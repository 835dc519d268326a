"""A federation's status from its server's files: clients, runs, disk, certificate."""

import shutil
import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fairbloom.command import Terminal
from fairbloom.errors import FairbloomError
from fairbloom.logs import escape_unprintable
from fairbloom.server.progress import describe_progress, find_announced
from fairbloom.text import text_if

from .. import pki
from ..fleet.federation import Federation, read_now
from ..fleet.runs import RunFiles, list_runs
from ..processes import duration
from .submit import describe_end

# How many characters of a reason the tables show; the JSON has it whole.
WIDEST_REASON = 200


def survey(federation: Federation) -> dict[str, Any]:
    """Return the status of a federation: docs/deployment.md lists the keys.

    Its runs are those that go on and wait, and the latest that have ended, the latest first.
    """
    now = read_now(federation)
    serves = federation.is_served
    online = now.get("online", {}) if serves else {}
    seen = now.get("seen", {})
    clients = dict[str, Any]()
    for member in federation.members():
        name = member.name
        there = "away" if name in seen else "never"
        if name in online:
            there = "online"
        clients[name] = {
            "state": "revoked" if member.revoked else there,
            "last-seen": _moment(seen[name]) if name in seen else None,
            "partition-id": member.partition,
            "examples": member.examples,
            "refused-with-same-key": online.get(name, 0),
        }
    status = [(run, run.status) for run in list_runs(federation.runs)]
    ended = [(run, code) for run, code in status if code is not None][-5:]
    runs = [_describe_run(run, "", code) for run, code in ended]
    for number, run in enumerate(run for run, code in status if code is None):
        runs.append(_describe_run(run, "waiting" if number else "running", None))
    return {
        "at": _moment(time.time()),
        "server": "up" if serves else "down",
        "clients": clients,
        "runs": runs[::-1],
        "disk": {"free-bytes": shutil.disk_usage(federation.path).free},
        "certificate-days": round(pki.days_left(federation.identity[0]), 1),
    }


def _describe_run(run: RunFiles, state: str, status: int | None) -> dict[str, Any]:
    about: dict[str, Any] = {"run": run.number, "state": state, "exit-status": status, "said": ""}
    if status is not None:
        about["state"] = describe_end(status).partition(" ")[0]
        about["said"] = run.last_line if status else ""
    folder = find_announced(run.folder)
    if folder is None:
        return about
    try:
        return describe_progress(folder) | about
    except (FairbloomError, ValueError, OSError) as error:
        return about | {"folder": str(folder), "unknown": str(error)}


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


# For the eye --------------------------------------------------------------------------------------


def show(found: Mapping[str, Any]) -> None:
    """Print a survey as tables and lines."""
    runs = found["runs"]
    clients = found["clients"]
    going = [run for run in runs if run["exit-status"] is None]
    parts: list[RenderableType] = [_line("server", found["server"], warn=found["server"] != "up")]
    parts += [part for run in going for part in _describe_going(run)] or [
        Text("no run is going on")
    ]
    counts = Counter(client["state"] for client in clients.values())
    parts.append(
        _line(
            "clients",
            ", ".join(f"{number} {state}" for state, number in sorted(counts.items())) or "none",
        )
    )
    if clients:
        table = Table("client", "partition", "state", "last seen")
        for name, client in clients.items():
            style, seen = (
                ("", "") if client["state"] == "online" else ("yellow", client["last-seen"] or "")
            )
            state = client["state"] + (
                text_if(client["refused-with-same-key"], ", and another process with its key")
            )
            table.add_row(*map(Text, (name, str(client["partition-id"]), state, seen)), style=style)
        table.columns[0].no_wrap = True
        parts.append(table)
    if len(going) < len(runs):
        table = Table(title="runs before", title_justify="left", title_style="bold")
        for heading in ("run", "state", "method", "rounds", "folder", "what was said"):
            table.add_column(heading, overflow="fold")
        for run in (run for run in runs if run["exit-status"] is not None):
            rounds = f"{run['round']}/{run['of-rounds']}" if "round" in run else ""
            folder = PurePath(run.get("folder", "")).name
            cells = (
                str(run["run"]),
                run["state"],
                run.get("method", ""),
                rounds,
                folder,
                _shorten(run["said"]),
            )
            table.add_row(*map(Text, cells))
        parts.append(table)
    parts.append(_line("disk", f"{found['disk']['free-bytes'] / 1e9:.1f} GB free"))
    parts.append(
        _line("certificate", f"the server's holds for {found['certificate-days']:.0f} more days")
    )
    Terminal().print(Group(*parts))


def _describe_going(run: Mapping[str, Any]) -> list[RenderableType]:
    """Return the progress of a running or waiting run, and its fault."""
    words = run["state"]
    if "round" in run:
        words += f": {run['method']} on {run['task'] or 'a user-defined task'}, "
        words += (
            f"round {run['round']} of {run['of-rounds']}"
            if run["round"]
            else "before its first round"
        )
        if run["seconds-a-round"] is not None:
            since = duration(run["seconds-since-round"])
            words += f", {run['seconds-a-round']:.3g} s a round, the last one {since} ago"
    lines: list[RenderableType] = [_line(f"run {run['run']}", words, style="bold")]
    if run.get("unknown"):
        lines.append(_line("  not known", run["unknown"], warn=True))
    for what in ("offline", "missing"):
        if run.get(what):
            lines.append(_line(f"  {what} in round {run['round']}", run[what], warn=True))
    for refusal in run.get("refused", ()):
        lines.append(
            _line(
                f"  refused in round {refusal['round']}",
                f"{refusal['client']}: {refusal['reason']}",
                warn=True,
            )
        )
    return lines


def _line(what: str, words: str, *, warn: bool = False, style: str = "") -> Text:
    return Text.assemble((f"{what}: ", style), (_shorten(words), text_if(warn, "yellow")))


def _shorten(words: str) -> str:
    words = escape_unprintable(words)
    return words if len(words) <= WIDEST_REASON else f"{words[:WIDEST_REASON]}…"
