"""What a folder shows of the runs in it, as a page: of one run its clients, of several how far each is."""

from collections.abc import Sequence

from fairbloom.deploy.processes import duration

from ..report import charts
from ..report.cells import NONE
from ..report.charts import Series
from ..report.page import Block, Cell, Chart, Charts, Note, Page, Section, Table, slug
from .state import LiveRun, Snapshot

ORDER = ("running", "damaged", "interrupted", "finished", "waiting")
"""The states of runs, in the order in which runs are listed."""


def page_of_snapshot(snapshot: Snapshot) -> Page:
    """Return the page of what a folder shows."""
    facts = [("folder", str(snapshot.folder))]
    if not snapshot.runs:
        return Page(snapshot.folder.name, f"waiting for a run in {snapshot.folder}", (), facts, ())
    if snapshot.alone:
        (run,) = snapshot.runs
        headline = f"{run.state}: round {run.rounds} of {run.num_rounds}"
        if run.seconds is not None and run.seconds_left is not None:
            headline += f", {run.seconds:.3g} s a round, {duration(run.seconds_left)} left"
        sections = [*_rounds_section(run), *_clients_section(run), *_absences_section(run)]
        sentences = [f"Test {run.score.name} after round {run.points[-1].round}: {run.measured}."] if run.points else []
        return Page(run.about, headline, sentences, facts, sections, run.share)
    running = [run for run in snapshot.runs if run.state == "running"]
    headline = f"{snapshot.done} of {len(snapshot.runs)} runs finished"
    headline += f", {len(running)} running" if snapshot.going_on else ""
    sections = [*_curves_section(running), _runs_section(snapshot.runs)]
    done = sum(run.share for run in snapshot.runs) / len(snapshot.runs)
    return Page(snapshot.folder.name, headline, (), facts, sections, done)


def _rounds_section(run: LiveRun) -> list[Section]:
    if len(run.points) < 2:
        return []
    names = ("mean", run.worst_title)
    series = [Series(name, f"series-{place}", charts.SHAPES[place]) for place, name in enumerate(names)]
    rows = [row for place, name in enumerate(names) for row in _curve(run, name, 1 + place)]
    spec = charts.over_rounds(rows, series, f"test {run.score.title}")
    title = f"Mean and {run.worst_title}"
    chart = Chart("rounds", title, f"{title} over the rounds; after the last one: {run.measured}.", spec)
    intro = f"The {run.score.name} on the clients' test examples after each evaluated round."
    return [Section("rounds", "Over the rounds", intro, [Charts([chart], series)])]


def _curve(run: LiveRun, name: str, place: int) -> list[charts.Row]:
    """Return the rows of one line: the number at a place of each point over the rounds."""
    kept = set(charts.thin([point.round for point in run.points], most=500))
    return [
        {"round": point.round, "method": name, **charts.around(point[place])}
        for point in run.points
        if point.round in kept
    ]


def _clients_section(run: LiveRun) -> list[Section]:
    if not run.clients:
        return []
    largest = 100.0 if run.score.percent else max(abs(client.score) for client in run.clients) or 1.0
    rows = [
        [
            Cell(client.name),
            Cell(run.score.written(client.score), client.score, share=min(1.0, abs(client.score) / largest)),
            NONE if client.coefficient is None else Cell(f"{client.coefficient:.3g}", client.coefficient),
        ]
        for client in run.clients
    ]
    last = run.points[-1].round if run.points else run.rounds
    table = Table("clients", f"Clients after round {last}", ("client", f"test {run.score.title}", "coefficient"), rows)
    intro = "A client without a coefficient did not take part in that round, or its reply was not used."
    return [Section("clients", "Clients, worst first", intro, [table])]


def _absences_section(run: LiveRun) -> list[Section]:
    counted = [(name, kind, count) for kind, names in run.absences.items() for name, count in names]
    rows = [[Cell(name), Cell(kind), Cell.of(count)] for name, kind, count in counted]
    if not rows:
        return []
    blocks: list[Block] = [Table("absences", "Clients whose reply was not used", ("client", "why", "rounds"), rows)]
    if run.refusals:
        blocks.append(Note([f"Round {number}, {client}: {reason}" for number, client, reason in run.refusals]))
    return [Section("absences", "Absences and refusals", "", blocks)]


def _curves_section(runs: Sequence[LiveRun]) -> list[Section]:
    drawn = [run for run in runs if len(run.points) > 1][:8]  # more curves cannot be told apart
    if not drawn or len({run.score for run in drawn}) > 1:
        return []
    series = charts.series_of([run.name for run in drawn])
    parts = []
    for place, title in enumerate(("mean over the clients", drawn[0].worst_title), start=1):
        rows = [row for run in drawn for row in _curve(run, run.name, place)]
        said = "; ".join(f"{run.name} {run.score.written(run.points[-1][place])}" for run in drawn)
        spec = charts.over_rounds(rows, series, f"test {drawn[0].score.title}")
        parts.append(Chart(slug(title), title.capitalize(), f"{title.capitalize()} over the rounds: {said}.", spec))
    return [Section("rounds", "Runs that go on", "", [Charts(parts, series)])]


def _runs_section(runs: Sequence[LiveRun]) -> Section:
    """Return how far each run is, those that go on first."""
    rows = []
    for run in sorted(runs, key=lambda run: ORDER.index(run.state)):
        rounds = f"{run.rounds}/{run.num_rounds}" if run.num_rounds else ""
        measured = [Cell(run.score.written(value), value) for value in run.points[-1][1:]] if run.points else []
        left = run.seconds_left
        rows.append(
            [
                Cell(run.name),
                Cell(run.state),
                Cell(rounds, run.rounds, share=run.share),
                *(measured or [Cell("")] * 2),
                Cell("" if left is None else duration(left), left),
            ]
        )
    worst = next((run.worst_title for run in runs if run.points), "worst 10 %")
    table = Table("runs", "Runs", ("run", "state", "rounds", "mean", worst, "left"), rows)
    faults = [f"{run.name}: {run.fault}" for run in runs if run.fault]
    return Section("runs", "All runs", "", [table, *([Note(faults)] if faults else [])])
