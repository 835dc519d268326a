"""A federation's status, from its server's files: clients, runs, disk and certificate."""

import shutil
import time
from collections import Counter
from collections.abc import Iterable, Mapping
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
from fairbloom.server.run_folder.files import is_run_folder
from fairbloom.text import text_if

from .. import pki
from ..fleet.connections import FULL
from ..fleet.federation import COPIED, Federation, find_copied, read_now
from ..fleet.profiles import UNKNOWN, YES, describe_told
from ..fleet.runs import DRAIN, RunEnd, RunFiles, list_runs
from ..processes import duration

# What the table shows of a client's last answer on a schema.
ACCEPTS = {
    YES: ", schema accepted",
    UNKNOWN: ", cannot tell whether a schema is accepted",
}

# Most characters of a reason that the tables show; the JSON has all of it.
WIDEST_REASON = 200


def survey(federation: Federation) -> dict[str, Any]:
    """Return the status of a federation: docs/deployment.md lists the keys.

    It has the open runs and the five that ended last, the newest run first.
    """
    now = read_now(federation)
    is_served = federation.is_served
    online = now.online if is_served else {}
    copied = find_copied(now)
    clients = dict[str, Any]()
    for member in federation.members():
        name = member.name
        if member.revoked:
            state = "revoked"
        elif name in online:
            state = "online"
        else:
            state = "away" if name in now.seen else "never"
        clients[name] = {
            "state": state,
            "last-seen": _format_time(now.seen.get(name)),
            "partition-id": member.partition,
            "examples": member.examples,
            "privacy-units": None,
            "refused-with-same-key": online.get(name, 0),
            "copied": _format_time(copied.get(name)),
            "version": now.versions.get(name),
            "last-reason": now.reasons.get(name),
            "last-reason-at": _format_time(now.reasons_at.get(name)),
            "revoked": member.revoked or None,
            **describe_told(federation.path, name),
        }
    runs_with_status = [(run, run.status) for run in list_runs(federation.runs)]
    ended = [(run, status) for run, status in runs_with_status if status is not None]
    runs = [_describe_run(run, RunEnd.of(status), status) for run, status in ended[-5:]]
    open_runs = [run for run, status in runs_with_status if status is None]
    numbers = [run.number for run in open_runs]
    drained = text_if((federation.state / DRAIN).exists(), "for the server's next start")
    # the first one is about to begin, unless no further one does
    current = now.run if now.run in numbers or drained else min(numbers, default=0)
    awaited = {now.run: now.waiting}
    for run in open_runs:
        state = "running" if run.number == current else "waiting"
        runs.append(
            _describe_run(run, state, None)
            | {"awaits": text_if(is_served, awaited.get(run.number, drained))}
        )
    server: dict[str, Any] = {
        "server": "down",
        "started": None,
        "version": None,
        "refused": {},
        "connections": {"open": None, "limit": None},
    }
    if is_served:
        server = {
            "server": "up",
            "started": _format_time(federation.lock.stat().st_mtime),
            "version": now.version,
            "refused": dict(now.refused),
            "connections": dict(now.connections),
        }
    # in the order of runs: the last status of each account stays
    accounts = {name: each for run in runs for name, each in run.pop("accounts", {}).items()}
    for name in clients.keys() & accounts:
        clients[name]["privacy-units"] = int(accounts[name]["units"])
    return {
        "at": _format_time(time.time()),
        **server,
        "clients": clients,
        "runs": runs[::-1],
        "disk": {"free-bytes": shutil.disk_usage(federation.path).free},
        "certificate-days": round(pki.days_left(federation.identity[0]), 1),
    }


def _describe_run(run: RunFiles, state: str, status: int | None) -> dict[str, Any]:
    """Return a run's entry of the survey; `status` is None for a run that has not ended."""
    about: dict[str, Any] = {
        "run": run.number,
        "state": state,
        "exit-status": status,
        "said": run.last_line if status else "",
        "ended": _format_time(run.ended_at),
    }
    folder = find_announced(run.folder)
    if folder is None or (status is None and not is_run_folder(folder)):
        return about  # it has not begun
    try:
        return describe_progress(folder) | about
    except (FairbloomError, ValueError, OSError) as error:
        return about | {"folder": str(folder), "unknown": str(error)}


def _format_time(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


# The terminal -------------------------------------------------------------------------------------


def show(status: Mapping[str, Any]) -> None:
    """Print a survey as tables and lines."""
    runs = status["runs"]
    clients = status["clients"]
    open_runs = [run for run in runs if run["exit-status"] is None]
    ended_runs = [run for run in runs if run["exit-status"] is not None]
    since = text_if(status["started"], f" since {status['started']}, version {status['version']}")
    parts: list[RenderableType] = [
        _line("server", f"{status['server']}{since}", warn=status["server"] != "up")
    ]
    number = status["connections"]["open"]
    if number is not None:
        limit = status["connections"]["limit"]
        parts.append(
            _line("connections", f"{number} of at most {limit}", warn=number >= FULL * limit)
        )
        refused = [f"{number} {kind}" for kind, number in status["refused"].items() if number]
        parts.append(_line("refused", ", ".join(refused) or "none", warn=bool(refused)))
    for run in open_runs:
        parts += _describe_open_run(run)
    if not open_runs:
        parts.append(Text("no run is in progress"))
        if ended_runs:
            parts.append(_describe_last_run(ended_runs[0]))
    counts = Counter(client["state"] for client in clients.values())
    by_state = [f"{number} {state}" for state, number in sorted(counts.items())]
    parts.append(_line("clients", ", ".join(by_state) or "none"))
    if clients:
        parts.append(_client_table(clients, status["version"]))
        parts += [
            _line(f"  {name}, {client['copied']}", COPIED, warn=True)
            for name, client in clients.items()
            if client["copied"]
        ]
        for name, client in clients.items():
            if client["last-reason"]:
                day = (client["last-reason-at"] or "")[:10]
                what = f"  last error of {name}, {day}"
                parts.append(_line(what, client["last-reason"], warn=True))
    if ended_runs:
        parts.append(_run_table(ended_runs))
    parts.append(_line("disk", f"{status['disk']['free-bytes'] / 1e9:.1f} GB free"))
    parts.append(
        _line("certificate", f"the server's holds for {status['certificate-days']:.0f} more days")
    )
    Terminal().print(Group(*parts))


def _client_table(clients: Mapping[str, Any], version: str | None) -> Table:
    table = Table("client", "partition", "state", "last seen or revoked")
    for name, client in clients.items():
        is_away = client["state"] != "online"
        style = text_if(is_away, "yellow")
        seen = text_if(is_away, client["revoked"] or client["last-seen"] or "")
        state = client["state"]
        if client["refused-with-same-key"]:
            state += ", and another process with its key"
        if client["copied"]:
            state += ", and a copy of its machine"
        if not is_away and client["version"] != version:
            state += f", version {client['version']}"
        if client["privacy-units"] is not None:
            state += f", {client['privacy-units']} units of its privacy account left"
        if client["profile"]:
            state += f", profile of {client['profile']}"
        state += ACCEPTS.get(client["accepts"], "")
        table.add_row(*map(Text, (name, str(client["partition-id"]), state, seen)), style=style)
    table.columns[0].no_wrap = True
    return table


def _run_table(runs: Iterable[Mapping[str, Any]]) -> Table:
    table = Table(title="runs before", title_justify="left", title_style="bold")
    for heading in ("run", "state", "method", "rounds", "folder", "last line"):
        table.add_column(heading, overflow="fold")
    for run in runs:
        cells = [
            str(run["run"]),
            run["state"],
            run.get("method", ""),
            f"{run['round']}/{run['of-rounds']}" if "round" in run else "",
            PurePath(run.get("folder", "")).name,
            _shorten(run["said"]),
        ]
        table.add_row(*map(Text, cells))
    return table


def _describe_last_run(run: Mapping[str, Any]) -> Text:
    """Return a line with the end and the whole folder of the run that ended last."""
    ended = text_if(run["ended"], f" at {run['ended']}")
    folder = run.get("folder")
    where = f": fairbloom show {folder}" if folder else ", before it had a folder"
    return Text(
        escape_unprintable(f"the last, run {run['run']}, {run['state']}{ended}{where}"),
        text_if(run["state"] != RunEnd.COMPLETED, "yellow"),
    )


def _describe_open_run(run: Mapping[str, Any]) -> list[RenderableType]:
    """Return lines with the progress and the faults of a running or waiting run."""
    words = run["state"]
    if "round" in run:
        words += f": {run['method']} on {run['task'] or 'a user-defined task'}, "
        if run["round"] == 0:
            words += "before its first round"
        else:
            words += f"round {run['round']} of {run['of-rounds']}"
        if run["seconds-a-round"] is not None:
            words += (
                f", {run['seconds-a-round']:.3g} s a round, the last one"
                f" {duration(run['seconds-since-round'])} ago"
            )
    lines: list[RenderableType] = [_line(f"run {run['run']}", words, style="bold")]
    lines += [
        _line(f"  {what}", run[key], warn=True)
        for what, key in (("not known", "unknown"), ("waits", "awaits"))
        if run.get(key)
    ]
    lines += [
        _line(f"  {what} in round {run['round']}", run[what], warn=True)
        for what in ("offline", "missing", "owing", "revoked", "excluded")
        if run.get(what)
    ]
    for refusal in run.get("refused", ()):
        what = f"  refused in round {refusal['round']}"
        lines.append(_line(what, f"{refusal['client']}: {refusal['reason']}", warn=True))
    return lines


def _line(what: str, words: str, *, warn: bool = False, style: str = "") -> Text:
    return Text.assemble((f"{what}: ", style), (_shorten(words), text_if(warn, "yellow")))


def _shorten(words: str) -> str:
    words = escape_unprintable(words)
    return words[:WIDEST_REASON] + text_if(len(words) > WIDEST_REASON, "…")
