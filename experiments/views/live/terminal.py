"""`fairbloom watch` in a terminal: a picture that is replaced, and elsewhere a line for each change."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fairbloom.deploy.processes import duration
from fairbloom.logs import escape_unprintable

from ..terminal import console
from .state import Client, LiveRun, Point, Snapshot, follow

SPARKS = "▁▂▃▄▅▆▇█"

WIDEST_BAR, NARROWEST_BAR = 30, 8
"""How many characters the bars and the curves take."""

OTHER_LINES = 15
"""How many lines of the picture are not clients."""

STYLES = {"finished": "green", "running": "", "waiting": "dim", "interrupted": "yellow", "damaged": "red"}


def watch(folder: Path, interval: float) -> Snapshot:
    """Show what a folder shows until it is over; return how it ended. On a terminal nothing of that stays."""
    if not console.is_terminal:
        return _print_changes(follow(folder, interval))
    snapshot = Snapshot(folder)
    with Live(_waiting(folder), screen=True, auto_refresh=False, console=console) as live:
        for snapshot in follow(folder, interval):
            live.update(render(snapshot, console.width, console.height), refresh=True)
    return snapshot


def describe_end(snapshot: Snapshot) -> str:
    """Return in words how it ended."""
    if snapshot.alone:
        (run,) = snapshot.runs
        done = f"after round {run.rounds} of {run.num_rounds}"
    else:
        done = f"with {snapshot.done} of {len(snapshot.runs)} runs finished"
    return f"{snapshot.state} {done}"


def render(snapshot: Snapshot, width: int, height: int) -> RenderableType:
    """Return a picture of what a folder shows, for a terminal of this size."""
    if not snapshot.runs:
        return _waiting(snapshot.folder)
    if snapshot.alone:
        return _render_run(snapshot.runs[0], width, height)
    return _render_runs(snapshot, width, height)


# A run ----------------------------------------------------------------------------------------------------------------


def _render_run(run: LiveRun, width: int, height: int) -> RenderableType:
    bar = max(NARROWEST_BAR, min(WIDEST_BAR, width - 50))
    parts: list[RenderableType] = [Text(escape_unprintable(run.about), style="bold"), _progress_line(run, bar), Text()]
    if run.points:
        parts += [_curves(run, bar), Text(), _clients_table(run, bar, height - OTHER_LINES)]
    parts += [Text(), *_absence_lines(run)] if any(run.absences.values()) else []
    parts.append(Text(f"{run.folder}; Ctrl-C leaves, and the run goes on", style="dim"))
    return Group(*parts)


def _progress_line(run: LiveRun, bar: int) -> Table:
    words = [f"round {run.rounds} of {run.num_rounds}"]
    if run.seconds is not None:
        words.append(f"{run.seconds:.3g} s a round")
    if run.seconds_left is not None:
        words.append(f"{duration(run.seconds_left)} left")
    line = Table.grid(padding=(0, 1))
    line.add_row(
        Text(run.state, style=STYLES[run.state]),
        ProgressBar(total=max(1, run.num_rounds), completed=run.rounds, width=bar),
        Text(", ".join(words)),
    )
    return line


def _curves(run: LiveRun, width: int) -> Table:
    """Return the mean and the worst over the rounds, as curves of the same scale."""
    table = Table.grid(padding=(0, 2))
    table.add_row(Text(f"test {run.score.title}", style="bold"))
    values = [value for point in run.points for value in point[1:]]
    for name, curve in (
        ("mean", [point.mean for point in run.points]),
        (run.worst_title, [point.worst for point in run.points]),
    ):
        sparks = spark(curve, width, min(values), max(values))
        table.add_row(Text(f"  {name}"), Text(sparks, style="cyan"), Text(run.score.written(curve[-1])))
    return table


def spark(values: Sequence[float], width: int, low: float, high: float) -> str:
    """Return values as a curve of small bars, at most `width` of them: each is the mean of as many values."""
    count = min(width, len(values))
    edges = [len(values) * place // count for place in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    height = (high - low) or 1.0
    return "".join(SPARKS[min(len(SPARKS) - 1, int((mean - low) / height * len(SPARKS)))] for mean in means)


def _clients_table(run: LiveRun, bar: int, most: int) -> RenderableType:
    """Return the clients, worst first, as many as there is room for, and always the best."""
    shown = list(run.clients)
    left_out = 0
    if len(shown) > max(most, 4):
        left_out = len(shown) - max(most, 4) + 1
        shown = [*shown[: max(most, 4) - 2], shown[-1]]
    largest = max((abs(client.score) for client in run.clients), default=0.0)
    scale = 100.0 if run.score.percent else largest or 1.0
    table = Table.grid(padding=(0, 2))
    last = run.points[-1].round
    table.add_row(
        Text("clients, worst first", style="bold"), Text(), Text(), Text(f"coefficient, round {last}", style="bold")
    )
    for place, client in enumerate(shown):
        if left_out and place == len(shown) - 1:
            table.add_row(Text(f"  … {left_out} more", style="dim"))
        table.add_row(*_client_cells(client, run, bar, scale))
    return table


def _client_cells(client: Client, run: LiveRun, bar: int, scale: float) -> Iterator[RenderableType]:
    yield Text(f"  {escape_unprintable(client.name)}", overflow="ellipsis", no_wrap=True)
    yield ProgressBar(total=scale, completed=max(0.0, abs(client.score)), width=bar, complete_style="cyan")
    yield Text(run.score.written(client.score), justify="right")
    yield Text("–" if client.coefficient is None else f"{client.coefficient:.3g}", justify="right")


def _absence_lines(run: LiveRun) -> Iterator[Text]:
    for kind, names in run.absences.items():
        if names:
            shown = ", ".join(f"{name} in {count} round{'s' * (count > 1)}" for name, count in names[:5])
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            yield Text(escape_unprintable(f"{kind}: {shown}{more}"), style="yellow", overflow="ellipsis", no_wrap=True)
    for number, client, reason in run.refusals:
        words = escape_unprintable(f"  round {number}, {client}: {reason}")
        yield Text(words, overflow="ellipsis", no_wrap=True)


# Several runs ---------------------------------------------------------------------------------------------------------


def _render_runs(snapshot: Snapshot, width: int, height: int) -> RenderableType:
    """Return the runs: those that go on first, then those that are over or wait, as many as there is room for."""
    order = {"running": 0, "damaged": 1, "interrupted": 2, "finished": 3, "waiting": 4}
    runs = sorted(snapshot.runs, key=lambda run: order[run.state])
    most = max(4, height - 6)
    table = Table.grid(padding=(0, 2))
    for run in runs[:most]:
        table.add_row(*_run_cells(run, width))
    going_on = sum(run.state == "running" for run in runs)
    head = f"{snapshot.done} of {len(runs)} runs finished, {going_on} running"
    parts: list[RenderableType] = [Text(snapshot.folder.name, style="bold"), Text(head), Text(), table]
    if len(runs) > most:
        parts.append(Text(f"… {len(runs) - most} more", style="dim"))
    parts.append(Text(f"{snapshot.folder}; Ctrl-C leaves, and the runs go on", style="dim"))
    return Group(*parts)


def _run_cells(run: LiveRun, width: int) -> Iterator[RenderableType]:
    """Yield the cells of a run's line; in a narrow terminal it has no bar and no measures."""
    left, bar = run.seconds_left, max(NARROWEST_BAR, min(WIDEST_BAR, width - 80))
    yield _cell(escape_unprintable(run.name))
    yield _cell(run.state, STYLES[run.state])
    if width >= 60:
        yield ProgressBar(total=max(1, run.num_rounds), completed=run.rounds, width=bar)
    yield _cell(f"{run.rounds}/{run.num_rounds}" if run.num_rounds else "")
    if width >= 90:
        yield _cell(_describe_last(run))
    yield _cell("" if left is None else f"{duration(left)} left")


def _cell(words: str, style: str = "") -> Text:
    return Text(words, style, overflow="ellipsis", no_wrap=True)


def _describe_last(run: LiveRun) -> str:
    if not run.points:
        return ""
    last: Point = run.points[-1]
    return f"mean {run.score.written(last.mean)}, {run.worst_title} {run.score.written(last.worst)}"


# Lines ----------------------------------------------------------------------------------------------------------------


def _waiting(folder: Path) -> Text:
    return Text(f"waiting for a run in {folder}; Ctrl-C leaves", style="dim")


def _print_changes(snapshots: Iterator[Snapshot]) -> Snapshot:
    """Print a line whenever a round, or a run of several, is there that was not."""
    before = ""
    for snapshot in snapshots:
        line = _describe(snapshot)
        if line != before:
            print(escape_unprintable(line), flush=True)
            before = line
    return snapshot


def _describe(snapshot: Snapshot) -> str:
    if not snapshot.runs:
        return f"waiting for a run in {snapshot.folder}"
    if not snapshot.alone:
        return f"{snapshot.done} of {len(snapshot.runs)} runs finished"
    (run,) = snapshot.runs
    measured = f": {_describe_last(run)}" if run.points else ""
    return f"round {run.rounds} of {run.num_rounds}{measured}"
