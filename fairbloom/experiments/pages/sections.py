"""The sections that pages of runs and of comparisons have in common, each of the same lines."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fairbloom.client.private.budget import Budget
from fairbloom.errors import MAX_LISTED
from fairbloom.protocol.accounts import LOSS_UNITS, STEP_UNITS
from fairbloom.protocol.private import SIMULATED_NOISE
from fairbloom.protocol.scores import Score
from fairbloom.server.run_folder.csv_rows import ABSENT, parse_refusals
from fairbloom.server.run_folder.files import CLIENTS, ROUNDS
from fairbloom.strategies.named import format_value
from fairbloom.text import join_first, text_if

from ..render.page import Block, Cell, Chart, Charts, Note, Section, Table, slug
from ..render.theme import Series, Spec
from ..results.measures import find_measure
from ..results.noise import EXACT, REACH, Values
from ..results.run import REPORT, Run
from ..results.subject import REFERENCES
from . import charts
from .cells import Digits
from .chart_rows import (
    Line,
    Scene,
    axis_title,
    curves,
    mean_and_range,
    shown_of,
    sorted_scores,
)

# The most lines that one chart has; more methods have a chart each, with the baseline in it.
TOGETHER = 6

# The most rows of a table of absences or refusals.
ABSENCES_SHOWN = 40

# The title of what a reader should know before trusting the numbers.
LIMITS = "What limits these numbers"

# The settings that are said elsewhere, are a path of one machine, or a whole file.
KEPT_APART = ("seed", "out", "method", "data-dir", "schema")


# Each client --------------------------------------------------------------------------------------

# By method, the score of each client with each seed.
Finals = Mapping[str, Sequence[Mapping[str, float]]]


def named_charts(
    finals: Finals,
    series: Sequence[Series],
    clients: Sequence[str],
    score: Score,
    shown_name: Callable[[str], str],
) -> Charts:
    """Return a chart with a point for each client and method."""
    rows: list[charts.Row] = []
    for method, by_seed in finals.items():
        for client in clients:
            values = [of_seed[client] for of_seed in by_seed if client in of_seed]
            if values:
                row = {"client": shown_name(client), "method": method, **mean_and_range(values)}
                rows.append(row)
    first = next(iter(finals))
    said = ", ".join(
        f"{row['client']} {score.written(row['value'])}" for row in rows if row["method"] == first
    )
    spec = charts.clients_by_method(rows, series, [*map(shown_name, clients)], axis_title(score))
    about = f"The score of each client. Under {first}: {said}."
    return Charts(
        [Chart("clients", "Each client", about, spec)],
        series,
    )


def ordered_charts(finals: Finals, series: Sequence[Series], score: Score) -> Charts:
    """Return a chart with a line for each method over its ordered clients, or one per method."""
    rows: list[charts.Row] = []
    for method, by_seed in finals.items():
        by_rank = sorted_scores(by_seed, score).T.tolist()
        for rank, values in enumerate(by_rank, 1):
            rows.append({"rank": rank, "method": method, **mean_and_range(values)})
    worst = "; ".join(
        f"{row['method']} {score.written(row['value'])}" for row in rows if row["rank"] == 1
    )
    title = "All clients in order"
    draw = partial(charts.sorted_clients, axis=axis_title(score))
    whole = Chart("clients", title, f"{title}. The worst served: {worst}.", draw(rows, series))
    return lines_charts(whole, rows, series, draw)


def lines_charts(
    whole: Chart,
    rows: Sequence[charts.Row],
    series: Sequence[Series],
    draw: Callable[..., Spec],
    panel: str = "",
) -> Charts:
    """Return a chart of all lines, or one of each line and the baseline if many.

    `draw` draws rows and lines; the title of a line's own chart is its label with `panel`.
    """
    if len(series) <= TOGETHER:
        return Charts([whole], series)
    base, *others = series
    panels = []
    for place, other in enumerate(others, 1):
        compared = [row for row in rows if row["method"] in (base.label, other.label)]
        spec = {**draw(compared, [base, other], among=rows), "height": 200}
        about = f"{whole.title} under {other.label} and {base.label}."
        panels.append(Chart(f"{whole.name}-{place}", f"{other.label}{panel}", about, spec))
    return Charts(panels, [base], narrow=True)


# A column of a table of clients: how its numbers are written, the number of each client, and the
# standard deviation of those with noise.
Column = tuple[Digits, Values, Values]


def score_columns(
    score: Score, values: Mapping[str, Values], noise: Mapping[str, Values]
) -> dict[str, Column]:
    """Return columns of a score by their headings, all written with as many digits."""
    digits = Digits.of(score, (value for column in values.values() for value in column.values()))
    return {
        heading: (digits, column, noise.get(heading, EXACT)) for heading, column in values.items()
    }


def reference_column(score: Score, references: Mapping[str, float]) -> dict[str, Column]:
    """Return what a model without inputs would score, {} for a score without a reference."""
    if not references:
        return {}
    heading, _ = REFERENCES[score.name]
    return {heading: (Digits.of(score, references.values()), references, EXACT)}


def about_reference(score: Score, references: Mapping[str, float], clients: Iterable[str]) -> str:
    """Return why a score, or some client, has no reference beside it; "" if all have one."""
    if score.name not in REFERENCES or not references:
        return f"No reference is known for the {score.words} of a model without inputs."
    lacking = sorted({*clients} - references.keys())
    return text_if(
        lacking,
        f"No reference: {join_first(lacking, MAX_LISTED)}, with one class among the test examples,"
        " or on a device that does not report classes.",
    )


def table_of_clients(
    caption: str,
    order: Sequence[str],
    columns: Mapping[str, Column],
    shown_name: Callable[[str], str],
    note: str = "",
) -> Table:
    """Return numbers by client, in columns by their headings; `order` has the worst served first.

    Of many clients the worst and the best served.
    """
    shown = shown_of(order)
    hidden = len(order) - len(shown)
    cells = []
    for client in shown:
        row = [Cell(shown_name(client))]
        for digits, numbers, noise in columns.values():
            reach = REACH * noise[client] if client in noise else None
            row.append(digits.cell(numbers.get(client), reach))
        cells.append(row)
    notes = [note] if note else []
    if hidden:
        of = f"{len(shown)} of {len(order)} clients, the first and the last"
        notes.insert(0, f"{of}; {CLIENTS.name} has all.")
    return Table(
        "clients",
        caption,
        ["client", *columns],
        cells,
        " ".join(notes),
        folded=len(cells) > 12,
        hidden=hidden,
        nouns="clients",
    )


# Over rounds --------------------------------------------------------------------------------------


def rounds_section(scene: Scene) -> Section | None:
    """Return the mean and the worst-served clients over the rounds."""
    drawn = list[Charts]()
    draw = partial(charts.over_rounds, axis=axis_title(scene.score))
    noisy = any(run.noise() for line in scene.lines for run in line.runs)
    for measure in ("mean",) if noisy else ("mean", "worst_10"):
        rows = curves(scene.lines, measure)
        if len({row["round"] for row in rows}) < 2:
            continue
        title = find_measure(measure).title(scene.clients)
        ends = {row["method"]: row["value"] for row in rows}
        said = "; ".join(f"{label} {scene.score.written(value)}" for label, value in ends.items())
        full = f"{title} over clients".capitalize() if measure == "mean" else title.capitalize()
        series = [look for look in scene.series if look.label in ends]
        whole = Chart(
            f"rounds-{slug(measure)}",
            full,
            f"{full}. Over the rounds. At the end: {said}.",
            draw(rows, series),
        )
        drawn.append(lines_charts(whole, rows, series, draw, f": {title}"))
    if not drawn:
        return None
    if not drawn[0].narrow:  # side by side, with one legend
        drawn = [Charts([chart for panels in drawn for chart in panels.charts], drawn[0].legend)]
    intro = f"The {scene.score.words} on the clients' test examples after each evaluated round."
    if any(len(line.runs) > 1 for line in scene.lines):
        intro += " Lines are means over the seeds, bands span them from the lowest to the highest."
    return Section("rounds", "Over the rounds", intro, drawn)


def rounds_section_of_run(run: Run) -> Section | None:
    """Return how the best-served clients, the mean and the worst served develop over the rounds."""
    drawn = rounds_charts_of_run(run)
    if len({row["round"] for row in drawn.charts[0].spec["data"]["values"]}) < 2:
        return None
    return Section(
        "rounds",
        "Over the rounds",
        f"The {run.score.words} on the clients' test examples after each evaluated round.",
        [drawn],
    )


def rounds_charts_of_run(run: Run) -> Charts:
    """Return one chart of the best served, the mean and the worst served over the rounds."""
    measures = ("mean",) if run.noise() else ("best_10", "mean", "worst_10")
    clients = len(run.final())
    names = {find_measure(measure).title(clients): measure for measure in measures}
    rows = []
    for name, measure in names.items():
        rows += curves([Line(name, [run], run.serves)], measure)
    series = [
        Series(name, f"series-{i}", charts.SHAPES[i])
        for i, name in zip((1, 0, 2), names, strict=False)
    ]
    models = text_if(run.serves == "personal", " (personal models)")
    last = {row["method"]: row["value"] for row in rows}
    said = ", ".join(f"{name} {run.score.written(value)}" for name, value in last.items())
    chart = Chart(
        "rounds",
        ", ".join(names).capitalize(),
        f"Lines over the rounds; after the last one: {said}.",
        charts.over_rounds(rows, series, axis_title(run.score) + models),
    )
    return Charts([chart], series)


# What happened ------------------------------------------------------------------------------------


def absences_section(lines: Iterable[Line]) -> Section | None:
    """Return how often clients were absent in each way, and why replies were refused."""
    rows = list[list[Cell]]()
    reasons = list[list[Cell]]()
    for line in lines:
        absences = [run.absences() for run in line.runs]
        found = [Counter[str]() for _ in ABSENT]
        for by_kind in absences:
            for kind, counts in zip(ABSENT, found, strict=True):
                counts.update(dict(by_kind[kind]))
        for client in sorted(set[str]().union(*found)):
            cells = [Cell(str(counts[client] or "–"), counts[client]) for counts in found]
            rows.append([Cell(line.label), Cell(client), *cells])
        refusals = Counter[tuple[str, str]]()
        for run in line.runs:
            for refused in run.rounds.get("refused", ()):
                refusals.update(parse_refusals(refused))
        reasons += [
            [Cell(line.label), Cell(client), Cell(reason), Cell.of(count)]
            for (client, reason), count in refusals.most_common()
        ]
    blocks: list[Block] = []
    if rows:
        headings = ["method", "client", *ABSENT]
        kinds = range(2, len(headings))
        there = [0, 1, *(i for i in kinds if any(row[i].value for row in rows))]
        rows.sort(key=lambda row: -sum(cell.value or 0 for cell in row))
        more = max(0, len(rows) - ABSENCES_SHOWN)
        about = (
            "Refused: a reply that could not be used. Missing: no reply in time. Offline: known,"
            " and not connected. Owing: online, and not asked while it owes an earlier reply."
            " Excluded: a privacy account that is spent or halted."
        )
        blocks.append(
            Table(
                "absences",
                "In how many rounds clients were absent, over all seeds",
                [headings[i] for i in there],
                [[row[i] for i in there] for row in rows[:ABSENCES_SHOWN]],
                text_if(more, f"{more} more are in the runs' {ROUNDS.name}. ") + about,
                keys=2,
            )
        )
    if reasons:
        blocks.append(
            Table(
                "refusals",
                "Why replies were refused",
                ["method", "client", "reason", "rounds"],
                reasons[:ABSENCES_SHOWN],
                folded=True,
                keys=2,
                hidden=max(0, len(reasons) - ABSENCES_SHOWN),
            )
        )
    return Section("absences", "Absences and refusals", "", blocks) if blocks else None


def describe_noise(run: Run) -> str:
    """Return in words which noise is added in a run with privacy accounts, and who weighs less."""
    honest = int(str(run.settings.get("privacy.honest", 1)))
    if honest == 1:
        return "Weights by rows are n/(1 + σ²/n): a stricter ε counts for less."
    epsilons = list[str]()
    for account in run.privacy["clients"].values():
        budget = Budget(account["epsilon"], account["delta"], int(account["steps"]))
        epsilons.append(f"{account['epsilon']:g} ({budget.epsilon_with(honest, 1):.3g})")
    return (
        f"The clients share their noise: ε holds if {honest} of them, itself included, follow the"
        " protocol; in parentheses, if only it does:"
        f" {join_first(sorted({*epsilons}), MAX_LISTED)}. The strictest account sets the noise."
    )


def privacy_section(run: Run) -> Section | None:
    """Return the clients' privacy accounts, and who has none."""
    accounts = run.privacy.get("clients", {})
    if not accounts:
        return None
    keys = ("epsilon", "delta", "rows", "sigma", "units", "reports")
    size = sum(array.size for array in run.arrays().values())
    rows = []
    for client, account in accounts.items():
        units = (STEP_UNITS + LOSS_UNITS) * account["steps"]
        noise = account["sigma"] * math.sqrt(size) / account["rows"]
        values = [Cell(f"{account[key]:,.5g}", account[key]) for key in keys]
        of_step = [Cell(f"{units:,.5g}", units), Cell(f"{noise:.2g}", noise)]
        rows.append([Cell(client), *values, *of_step])
    without = sorted({*run.clients["client"]} - accounts.keys())
    note = (
        f"{text_if(run.privacy['simulated'], f'{SIMULATED_NOISE}. ')}ε and δ hold for each row of a"
        " client that is blanked, over the life of its account. Its units are five for each of its"
        " steps. σ is the noise of a step at the lowest price, in largest gradients of a row. The"
        " last column divides the length of that noise by the longest update of a step: above 1 it"
        f" is mostly noise. {describe_noise(run)}"
        f"{text_if(without, f' Without an account: {join_first(without, MAX_LISTED)}.')}"
    )
    table = Table(
        "privacy",
        "Privacy accounts after the last round",
        [
            "client",
            "ε",
            "δ",
            "rows n",
            "σ",
            "units left",
            "test reports left",
            "units in all",
            "noise by update",
        ],
        rows,
        note,
    )
    return Section("privacy", "Privacy accounts", "", [table])


def settings_section(lines: Sequence[Line]) -> Section:
    """Return the settings that are not at their defaults; a row has the methods that share one."""
    by_method = {line.label: line.runs[0].differing() for line in lines}
    headings = ["setting", "value", *(["of"] if len(by_method) > 1 else [])]
    rows = []
    for key in dict.fromkeys(
        key for settings in by_method.values() for key in settings if key not in KEPT_APART
    ):
        methods: dict[str, list[str]] = {}
        for label, settings in by_method.items():
            if key in settings:
                value: Any = settings[key]
                methods.setdefault("–" if value == "" else format_value(value), []).append(label)
        for said, labels in methods.items():
            of = "all methods" if len(labels) == len(by_method) else ", ".join(labels)
            rows.append([Cell(key), Cell(said), Cell(of)][: len(headings)])
    return Section(
        "settings",
        "Settings",
        "",
        [Table("settings", "Settings other than the defaults", headings, rows)],
    )


def notes_section(name: str, title: str, sentences: Sequence[str]) -> Section | None:
    """Return sentences as a section, if there are some."""
    return Section(name, title, "", [Note(sentences)]) if sentences else None


# Cells --------------------------------------------------------------------------------------------


def in_seconds(seconds: float) -> str:
    """Return a time in words: "3.4 min", "12 ms"."""
    units = {"h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3}
    unit = next((unit for unit, size in units.items() if seconds >= size), "ms")
    return f"{seconds / units[unit]:.3g} {unit}"


def files_of(folder: Path, what: str, *more: tuple[str, str]) -> list[tuple[str, str]]:
    """Return the section with a result's files and its report, if any."""
    report = folder / REPORT
    return [(what, str(folder)), *more, *([("report", str(report))] if report.exists() else [])]


def present(sections: Iterable[Section | None]) -> list[Section]:
    """Return the sections that there are."""
    return [section for section in sections if section is not None]
