"""What the command line prints: tables of runs, comparisons, methods, tasks and settings, whole at any width."""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rich import box
from rich.cells import cell_len
from rich.console import ConsoleDimensions
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fairbloom.command import Terminal
from fairbloom.errors import FairbloomError
from fairbloom.protocol.parameters import Parameter, Value
from fairbloom.protocol.scores import COUNT, Score
from fairbloom.protocol.settings import SETTINGS
from fairbloom.server.run_folder.files import CLIENTS
from fairbloom.server.run_folder.groups import GROUP_KEYS
from fairbloom.server.settings import parameters
from fairbloom.strategies.torchjd import WRAPPERS
from fairbloom.tasks import TaskInfo
from fairbloom.tasks.task import OTHER_PARTITIONS, Described

from ..recipes.recipe import CLIENT
from ..results.caveats import caveats_of_run
from ..results.comparison import Comparison, mean_and_deviation
from ..results.differences import FEWEST_SEEDS, Difference, differences_of
from ..results.groups import ALL, Gap, Group, GroupReport
from ..results.measured import LARGER_CLASS, decimals, in_title, measure_title
from ..results.ranks import Ranks
from ..results.run import REPORT, Rows, Run, final_of, measures
from ..results.scored import scores_of, sentences_of
from .catalogue import REQUIRED, MethodDoc, default_of, describe

if TYPE_CHECKING:
    from fairbloom.simulation.tune import Tuned

    from ..recipes.recipe import Recipe
    from ..results.outcome import Outcome
    from ..results.reproduction import Reproduction

NEGLECTED, SERVED = 6, 3
"""Number of clients that are shown of those that the baseline serves worst, and best."""

SHOWN = ("mean", "std", "worst_10", "best_10")
"""The measures in tables."""

INTERVAL, STD = "interval", "std"
SPREADS = (INTERVAL, STD)
"""What tables of a comparison have beside means: differences with intervals, or standard deviations over the seeds."""

CLEAR = "*"
"""Marks a clear difference, also where there are no colours."""

INTERVALS = ", with its 95 % interval over the seeds; where single seeds decide a difference, it is too narrow"
"""What captions say of differences to the baseline over three seeds or more."""

NARROW = 72
"""Below so many columns, lists are printed line by line and not in columns."""

ROOMY = 100
"""Below so many columns, settings are: their names and defaults leave little room for what they mean."""


class Page(Terminal):
    """A console that has no edge where nobody watches: in a file or a pipe nothing is cut or wrapped."""

    @property
    def size(self) -> ConsoleDimensions:
        """The size of the terminal, or that of COLUMNS; else wider than any table."""
        size = super().size
        bounded = self.is_terminal or self.is_jupyter or "COLUMNS" in os.environ
        return size if bounded else ConsoleDimensions(100_000, size.height)

    @size.setter
    def size(self, size: tuple[int, int]) -> None:
        self.width, self.height = size


console = Page(highlight=False)

# Tables of any width -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Grid:
    """A table before it is known how wide it may be; cells may have rich's markup.

    Attributes
    ----------
    headings
        One a column; the first column names the rows.
    rows
        The cells.
    title, caption
        What is said above and below.
    words
        The headings, beside the first, of columns that hold words and no numbers.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    caption: str = ""
    words: Sequence[str] = ()

    def tables(self, width: int) -> list[Table]:
        """Return tables of at most this width that have all cells: one, or several with a part of the columns each."""
        lengths = [[_length(cell) for cell in column] for column in zip(self.headings, *self.rows, strict=True)]
        naturals = [max(column) for column in lengths]
        if sum(naturals) + GAP * (len(naturals) - 1) <= width:
            return [self._table(range(len(naturals)), naturals)]
        name = min(naturals[0], max(12, width // 3))
        bodies = [max(column[1:], default=0) for column in lengths]
        rest = [
            min(width - name - GAP, max(body, min(natural, _longest_word(heading), 12)))
            for body, natural, heading in zip(bodies, naturals, self.headings, strict=True)
        ]
        tables, chosen = [], [0]
        for column in range(1, len(naturals)):
            if len(chosen) > 1 and name + sum(GAP + rest[each] for each in (*chosen[1:], column)) > width:
                tables.append(chosen)
                chosen = [0]
            chosen.append(column)
        tables.append(chosen)
        # What is left over goes to the names of the rows.
        lefts = [width - sum(GAP + rest[each] for each in columns[1:]) for columns in tables]
        widest = max(name, min(naturals[0], *lefts))
        return [self._table(columns, [widest, *rest[1:]]) for columns in tables]

    def _table(self, columns: Sequence[int], widths: Sequence[int]) -> Table:
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 0, 0, 1))
        for column in columns:
            of_words = column == 0 or self.headings[column] in self.words
            table.add_column(
                self.headings[column],
                width=widths[column],
                justify="left" if of_words else "right",
                overflow="fold",
                vertical="top" if of_words else "bottom",
            )
        for row in self.rows:
            table.add_row(*(row[column] for column in columns))
        return table


GAP = 2
"""The number of characters between two columns."""


def show_grid(grid: Grid) -> None:
    """Print a table, in several parts where it is wider than the console."""
    if grid.title:
        console.print(f"[b]{grid.title}[/]")
    for table in grid.tables(console.width):
        if console.is_terminal or console.is_jupyter:
            console.print(table)
        else:  # without the spaces that fill each line up
            with console.capture() as captured:
                console.print(table)
            lines = (line.rstrip() for line in captured.get().splitlines())
            console.out(*lines, sep="\n", highlight=False)
        console.print()
    if grid.caption:
        console.print(grid.caption, style="dim")


def _length(markup: str) -> int:
    return cell_len(Text.from_markup(markup).plain)


def _longest_word(markup: str) -> int:
    return max(map(cell_len, Text.from_markup(markup).plain.split()), default=0)


@dataclass(frozen=True)
class Digits:
    """How the numbers of a table are written, all with the same number of decimals."""

    decimals: int

    @classmethod
    def of(cls, score: Score, values: Iterable[float]) -> "Digits":
        """Return three digits of the largest number; one decimal of percentages."""
        largest = max((abs(value) for value in values), default=0.0)
        if score.percent or not largest:
            return cls(1)
        return cls(min(9, max(0, 2 - math.floor(math.log10(largest)))))

    def number(self, value: float) -> str:
        """Return a number."""
        return f"{value:.{self.decimals}f}"

    def difference(self, found: Difference) -> str:
        """Return a difference with its interval, where it has one."""
        text = f"{found.mean:+.{self.decimals}f}"
        return text if math.isnan(found.low) else f"{text} ({self.number(found.low)} to {self.number(found.high)})"

    def spread(self, mean: float, deviation: float, sign: str = "") -> str:
        """Return a mean and its deviation."""
        return f"{mean:{sign}.{self.decimals}f} ±{deviation:.{self.decimals}f}"


# Runs ---------------------------------------------------------------------------------------------------------------


def show_run(run: Run) -> None:
    """Print how the final model serves the clients, and name those that it serves worst."""
    final = final_of(run)
    show_grid(run_grid(run))
    ascending = sorted(final, key=lambda name: run.score.better(final[name], 0.0))
    shares = {name: f" ({share:.0f} % in one class)" for name, share in run.larger_classes().items()}
    worst = ", ".join(
        f"{name} {run.score.written(final[name])}{shares.get(name, '')}" for name in ascending[:NEGLECTED]
    )
    console.print(f"worst served: {escape(worst)}", soft_wrap=True)
    for line in sentences_of(scores_of(run)):
        console.print(escape(line))
    for model in ("global", "personal"):
        if (report := run.by_group(model)) is not None:
            show_groups(report, model)
    for line in caveats_of_run(run):
        console.print(escape(line))
    console.print(f"run folder: {escape(str(run.folder))}", soft_wrap=True)


def run_grid(run: Run) -> Grid:
    """Return the table of how a run's model serves the clients: a row a score and kind of model."""
    rows = []
    for each in scores_of(run):
        measured = measures(each.values, each.score)
        digits = Digits.of(each.score, (measured[key] for key in (*SHOWN, "gap")))
        rows.append([escape(each.title), *(digits.number(measured[key]) for key in (*SHOWN, "gap"))])
    title = f"{escape(run.label)} after round {run.rounds_done}, over clients"
    return Grid(("test score", *titles_over(len(run.final())).values(), "gap"), rows, title)


def metric_grid(rows: Rows) -> Grid:
    """Return the table of what a user's app reports of all clients together, and of the server, after a round."""
    cells = [[escape(row["phase"]), escape(row["metric"]), f"{float(row['value']):.6g}"] for row in rows]
    return Grid(("phase", "metric", "value"), cells, f"Metrics of round {rows[0]['round']}", words=["phase", "metric"])


def show_groups(report: GroupReport, model: str = "global") -> None:
    """Print counts, scores and gaps of groups, over all clients and client by client, and say what is left out."""
    what = "" if model == "global" else f" ({model} models)"
    for grouping in report.grouped.groupings:
        show_grid(group_grid(report, grouping, what))
        gaps = [_gap_in_words(each) for each in report.gaps(ALL) if each.grouping == grouping]
        if gaps:
            console.print(f"gaps by {escape(grouping)}, {ALL} together: {escape('; '.join(gaps))}")
        console.print(f"by {escape(grouping)}, {escape(str(report.left_out(grouping)))}")


def group_grid(report: GroupReport, grouping: str, what: str = "") -> Grid:
    """Return the table of how a model serves the groups of one grouping: a row a group, all clients together first."""
    rows = []
    for client in (ALL, *report.clients):
        groups = report.of(client, grouping)
        rows += [[escape(client), escape(each.group), *_group_cells(each, report)] for each in groups]
    headings = [column.replace("_", " ") for column in report.grouped.columns[GROUP_KEYS.index(COUNT) :]]
    return Grid(("client", "group", *headings), rows, f"Test examples by {escape(grouping)}{what}", words=["group"])


def _group_cells(group: Group, report: GroupReport) -> list[str]:
    cells = {COUNT: str(group.count)}
    for score in report.scores:
        *over, column = score.columns
        known = score.name in group.values
        cells |= {name: str(group.overs[score.name]) if known else "–" for name in over}
        digits = Digits.of(score, group.values.values())
        cells[column] = digits.number(group.values[score.name]) if known else "–"
    return list(cells.values())


def _gap_in_words(gap: Gap) -> str:
    size, low, high = (gap.score.written(value) for value in (gap.size, gap.low, gap.high))
    points = f"{gap.size:.1f} points" if gap.score.percent else size
    return f"{gap.score.name} {points} ({gap.lowest} {low}, {gap.highest} {high})"


def show_details(run: Run) -> None:
    """Print a run as `fairbloom show` does: how far it is, how it serves the clients, who was absent, its settings."""
    state = f"{run.rounds_done} of {run.num_rounds} rounds, {run.state}"
    task = f" on {escape(str(run.settings['task']))}" if "task" in run.settings else ""
    console.print(f"{escape(run.label)}{task}: {state}", soft_wrap=True)
    if run.final():
        show_run(run)
    else:
        console.print(f"run folder: {escape(str(run.folder))}", soft_wrap=True)
    for entry in run.taken_back:
        others = "".join(f", {key} was {value!r} before" for key, value in entry["before"].items())
        console.print(f"taken back to round {entry['to']} after round {entry['after']}{escape(others)}", soft_wrap=True)
    if metrics := run.last_metrics():
        show_grid(metric_grid(metrics))
    for what, names in run.absences().items():
        if names:
            counts = ", ".join(f"{name} in {count} round{'s' if count > 1 else ''}" for name, count in names)
            console.print(f"{what}: {escape(counts)}", soft_wrap=True)
    if run.engine is not None:
        console.print(f"computed by {escape(describe_engine(run.engine))}", soft_wrap=True)
    differing = run.differing()
    if differing:
        listed = ", ".join(f"{key} = {value!r}" for key, value in differing.items())
        console.print(f"settings other than the defaults: {escape(listed)}", soft_wrap=True)


def show_tuned(tuned: "Tuned") -> None:
    """Print how fast each engine is, what auto chooses, and what to set."""
    rows = []
    for timing in tuned.timings:
        speed = tuned.speed(timing)
        numbers = ["–", "–"] if speed is None else [f"{1e3 * timing.of_a_round:.1f}", f"{speed:.1f}"]
        rows.append([timing.engine, *numbers, escape(timing.why_not)])
    headings = ["engine", "ms a round", "× loop", *(["why it is not available"] if len(tuned.had) < len(rows) else [])]
    cells = [row[: len(headings)] for row in rows]
    caption = "ms a round: median, with the evaluation; × loop: speed relative to that of the engine loop"
    show_grid(Grid(headings, cells, caption=caption, words=headings[3:]))
    console.print(f"auto chooses {tuned.auto.engine}: {escape(tuned.auto.reason)}", soft_wrap=True)
    if tuned.better:
        console.print(f"{tuned.better} is faster here: set --engine {tuned.better}", soft_wrap=True)
    else:
        console.print("no engine is more than a tenth faster here: leave --engine at auto", soft_wrap=True)


def describe_engine(engine: Mapping[str, Any]) -> str:
    """Return in words how the clients of a run are computed, as its engine.json has it."""
    processes = f" in {engine['workers']} processes" if engine.get("workers", 1) > 1 else ""
    return f"the engine {engine.get('engine')}{processes}: {engine.get('reason')}"


# Comparisons --------------------------------------------------------------------------------------------------------


def show_comparison(comparison: Comparison, spread: str = INTERVAL) -> None:
    """Print the verdict, the table of methods, the clients that the baseline neglects, and what limits the numbers.

    Raises
    ------
    FairbloomError
        When `spread` is neither "interval" nor "std".
    """
    show_grid(method_grid(comparison, spread))
    console.print()
    show_grid(client_grid(comparison))
    for gaps in gap_grids(comparison, spread):
        console.print()
        show_grid(gaps)
    for seed, clients in zip(comparison.seeds, comparison.left_out, strict=False):
        if clients:
            reason = f"left out with seed {seed} (no test {comparison.score.name} under some method)"
            console.print(f"{reason}: {escape(', '.join(clients))}", soft_wrap=True)
    verdict = comparison.verdict
    console.print(f"[b]{escape(verdict.headline)}[/] {escape(' '.join(verdict.sentences))}")
    for line in comparison.caveats:
        console.print(escape(line))
    files = [path for ending in ("png", "svg") if (path := comparison.folder / f"clients.{ending}").exists()]
    console.print(f"\ntables and runs: {escape(str(comparison.folder))}", soft_wrap=True)
    if files:
        console.print(f"figure: {escape(', '.join(map(str, files)))}", soft_wrap=True)
    show_report_place(comparison.folder)


def show_report_place(folder: Path) -> None:
    """Say where the report lies, where there is one."""
    if (folder / REPORT).exists():
        console.print(f"report: {escape(str(folder / REPORT))}", soft_wrap=True)


def method_grid(comparison: Comparison, spread: str = INTERVAL) -> Grid:
    """Return the table with a row per method: measures over clients, and the differences to the baseline."""
    if spread not in SPREADS:
        raise FairbloomError(f"spread = {spread!r}: it must be one of {', '.join(SPREADS)}")
    return _deviation_grid(comparison) if spread == STD else _difference_grid(comparison)


def _difference_grid(comparison: Comparison) -> Grid:
    """Return the means of the measures over the seeds, and the differences to the baseline with their intervals."""
    seeds, base, titles = len(comparison.seeds), escape(comparison.baseline), titles_over(comparison.client_count)
    means = {method: [comparison.spread(method, key)[0] for key in SHOWN] for method in comparison.methods}
    digits = Digits.of(comparison.score, (mean for each in means.values() for mean in each))
    found = {measure: comparison.differences(measure) for measure in ("mean", "worst_10")}
    rows, tested = [], comparison.decisive is comparison
    for method, each in means.items():
        cells = ["–"] * 3
        if method != comparison.baseline:
            of_mean, of_worst = (found[measure][method] for measure in found)
            marked = mark_clear(digits.difference(of_worst), of_worst if tested else None)
            cells = [digits.difference(of_mean), marked, f"{of_worst.better}, {of_worst.worse}"]
        rows.append([escape(method), *map(digits.number, each), *cells])
    rows += _failed_rows(comparison, len(SHOWN) + 3)
    gains = [f"gain, {titles[measure]}" for measure in found]
    mark = (
        f"\n{CLEAR} marks what is clear: p < 0.05 by the paired t test with Holm's correction over the methods; only "
        f"the {titles['worst_10']} is tested"
    )
    many = seeds >= FEWEST_SEEDS
    return Grid(
        ("method", *titles.values(), *gains, "better, worse"),
        rows,
        f"Final model over clients: test {escape(comparison.score.title)}",
        f"mean over {seeds} seed{'s' if seeds > 1 else ''}; gain: by how much better than {base}, seed by seed"
        f"{INTERVALS if many else ''}{mark if many and tested else ''}\n"
        f"better, worse: number of seeds with which the {titles['worst_10']} is better, and worse, than under {base}",
    )


def _deviation_grid(comparison: Comparison) -> Grid:
    """Return the measures and the gain of the worst tenth, each as mean ± deviation over the seeds."""
    seeds, base, titles = len(comparison.seeds), escape(comparison.baseline), titles_over(comparison.client_count)
    spreads = {method: [comparison.spread(method, key) for key in SHOWN] for method in comparison.methods}
    digits = Digits.of(comparison.score, (mean for each in spreads.values() for mean, _ in each))
    rows = []
    for method, each in spreads.items():
        cells = [digits.spread(*spread) for spread in each]
        if method == comparison.baseline:
            cells += ["–", "–"]
        else:
            better, deviation = comparison.percent_better(method)
            cells += [digits.spread(*comparison.gain(method, "worst_10"), sign="+"), f"{better:.0f} ±{deviation:.0f}"]
        rows.append([escape(method), *cells])
    rows += _failed_rows(comparison, len(SHOWN) + 2)
    return Grid(
        ("method", *titles.values(), "gain", "% better"),
        rows,
        f"Final model over clients: test {escape(comparison.score.title)}",
        f"mean ±standard deviation over {seeds} seed{'s' if seeds > 1 else ''}\n"
        f"gain: by how much the {titles['worst_10']} is better than under {base}; "
        f"% better: share of the clients with a better score than under {base}; both are taken seed by seed",
    )


def _failed_rows(comparison: Comparison, columns: int) -> list[list[str]]:
    """Return a row without numbers for each method that is not compared because runs of it failed."""
    lacking = {method: words for method, words in comparison.failed.items() if method not in comparison.methods}
    return [[f"{escape(method)}: {words}", *["–"] * columns] for method, words in lacking.items()]


def titles_over(clients: int) -> dict[str, str]:
    """Return what tables call the measures that they show, over so many clients."""
    return {measure: measure_title(measure, clients) for measure in SHOWN}


def gap_grids(comparison: Comparison, spread: str = INTERVAL) -> list[Grid]:
    """Return the table of the gaps between groups over all clients, and that of their differences to the baseline.

    There is none without groups, and no differences without another method or where deviations are asked for.
    """
    differences = _gap_difference_grid(comparison) if spread == INTERVAL else None
    return [grid for grid in (_gap_grid(comparison), differences) if grid is not None]


def _gap_difference_grid(comparison: Comparison) -> Grid | None:
    """Return by how much narrower the gaps of the first grouping are than under the baseline, a row a method."""
    found = {gap: comparison.differences(gap) for gap in comparison.gaps_compared}
    methods = [method for method in comparison.methods if method != comparison.baseline]
    if not found or not methods:
        return None
    digits = {
        gap: Digits.of(score, (each.mean for each in found[gap].values()))
        for gap, score in comparison.gaps_compared.items()
    }
    base, (reports, *_) = escape(comparison.baseline), comparison.by_group.values()
    return Grid(
        ("method", *(escape(measure_title(gap, 0)) for gap in found)),
        [[escape(method), *(digits[gap].difference(found[gap][method]) for gap in found)] for method in methods],
        f"Gaps by {escape(next(iter(reports[0].grouped.groupings)))}: how much narrower than under {base}",
        f"positive is better, taken with each seed that has both gaps; not tested"
        f"{INTERVALS if len(comparison.seeds) >= FEWEST_SEEDS else ''}",
    )


def _gap_grid(comparison: Comparison) -> Grid | None:
    """Return the table of the gaps between groups over all clients, a row a method; None where there are no groups."""
    found: dict[str, dict[str, list[Gap]]] = {}
    for method, reports in comparison.by_group.items():
        for report in reports:
            for gap in report.gaps(ALL):
                heading = f"{gap.score.name} by {gap.grouping}"
                found.setdefault(heading, {}).setdefault(method, []).append(gap)
    if not found:
        return None
    rows = [
        [escape(method), *(_spread_of_gaps(by_method.get(method, []), comparison) for by_method in found.values())]
        for method in comparison.by_group
    ]
    seeds = len(comparison.seeds)
    return Grid(
        ("method", *map(escape, found)),
        rows,
        f"Gaps between groups, {ALL} together: the highest score of a group less the lowest",
        f"mean ±standard deviation over {seeds} seed{'s' if seeds > 1 else ''}; percentages are in points",
    )


def _spread_of_gaps(gaps: Sequence[Gap], comparison: Comparison) -> str:
    if len(gaps) < len(comparison.seeds):  # with some seed fewer than two groups are reported
        return "–"
    sizes = [each.size for each in gaps]
    return Digits.of(gaps[0].score, sizes).spread(*mean_and_deviation(sizes))


def client_grid(comparison: Comparison) -> Grid:
    """Return the table of the clients that the baseline serves worst, and best.

    It has means over the seeds, in which clear differences to the baseline are coloured. Where a seed decides which
    examples a client has, it has the first seed alone. It has a row a client, or a row a method where there are more
    methods than clients to show.
    """
    score, values = comparison.score, _by_client(comparison)
    base = values[comparison.baseline]
    ascending = sorted(base, key=lambda client: score.better(base[client], 0.0))
    hidden = max(0, len(ascending) - NEGLECTED - SERVED)
    shown = ascending[:NEGLECTED] + ascending[-SERVED:] if hidden else ascending
    digits = Digits.of(score, (each[client] for each in values.values() for client in shown))
    clear = {} if comparison.shared.dealt else _clear_differences(comparison, shown)
    cells = {
        (client, method): mark_clear(digits.number(each[client]), clear.get((client, method)))
        for method, each in values.items()
        for client in shown
    }
    over = "first seed" if comparison.shared.dealt or len(comparison.seeds) == 1 else "mean over the seeds"
    title = f"Client by client, {over}: test {escape(score.title)}"
    notes = [f"{hidden} clients between these are in {CLIENTS.name}"] if hidden else []
    if clear:
        notes.append(
            f"{CLEAR} marks what clearly differs from {escape(comparison.baseline)}: p < 0.05 with Holm's correction "
            "over all numbers of this table"
        )
    by_method = len(values) > len(shown)
    if shares := comparison.larger_classes:
        values = {LARGER_CLASS: {**shares}, **values}
        cells |= {(client, LARGER_CLASS): f"{shares[client]:.0f}" for client in shown if client in shares}
    caption, methods = "\n".join(notes), [escape(method) for method in values]
    if by_method:
        rows = [[escape(method), *(cells.get((client, method), "") for client in shown)] for method in values]
        return Grid(("method", *map(escape, shown)), rows, title, caption)
    by_client = [[escape(client), *(cells.get((client, method), "") for method in values)] for client in shown]
    if hidden:
        by_client.insert(NEGLECTED, [f"… {hidden} more", *("" for _ in values)])
    return Grid(("client", *methods), by_client, title, caption)


def _by_client(comparison: Comparison) -> dict[str, dict[str, float]]:
    """Return each client's score by method: with the first seed where clients are dealt, else the mean over seeds."""
    if comparison.shared.dealt:
        return {method: dict(by_seed[0]) for method, by_seed in comparison.values.items()}
    found = {}
    for method, by_seed in comparison.values.items():
        clients = dict.fromkeys(client for values in by_seed for client in values)
        found[method] = {c: fmean([values[c] for values in by_seed if c in values]) for c in clients}
    return found


def _clear_differences(comparison: Comparison, clients: Sequence[str]) -> dict[tuple[str, str], Difference]:
    """Return the clear differences to the baseline, by client and method, among all of these clients and methods."""
    gains = {
        (client, method): comparison.gains(method, f"{CLIENT}{client}")
        for method in comparison.methods
        if method != comparison.baseline
        for client in clients
    }
    found = differences_of(gains, test_share=comparison.shared.test_share)
    return {key: difference for key, difference in found.items() if difference.clear}


def mark_clear(text: str, difference: Difference | None) -> str:
    """Return a number, marked and in green or red where a clear difference is for the better or the worse."""
    if difference is None or not difference.clear:
        return text
    return f"[bold {'green' if difference.mean > 0.0 else 'red'}]{CLEAR} {text}[/]"


def show_ranks(ranks: Ranks) -> None:
    """Print how methods rank over several tasks, and what that shows."""
    show_grid(rank_grid(ranks))
    for sentence in ranks.sentences:
        console.print(escape(sentence))


def rank_grid(ranks: Ranks) -> Grid:
    """Return the table of ranks: a row a method, the best first."""
    rows = [[escape(row["method"]), f"{row['average_rank']:.2f}", *_task_ranks(row)] for row in ranks.rows()]
    return Grid(
        ("method", "average rank", *map(escape, ranks.by_task)),
        rows,
        f"Ranks over {len(ranks.by_task)} tasks by the measure: {ranks.title}",
        f"1 is the best; average ranks that differ by {ranks.critical_difference:.2f} or more are told apart "
        "(Nemenyi, level 0.05)",
    )


def _task_ranks(row: Mapping[str, Any]) -> list[str]:
    return [f"{rank:g}" for key, rank in row.items() if key not in ("method", "average_rank")]


# Reproductions ------------------------------------------------------------------------------------------------------


def show_reproduction(done: "Reproduction") -> None:
    """Print what was measured below what was printed, row by row, and in words what is known of the differences."""
    recipe = done.recipe
    console.print(f"[b]{escape(recipe.title)}[/]", soft_wrap=True)
    for line in filter(None, (escape(recipe.what), recipe.source and f"[dim]{escape(recipe.source)}[/]")):
        console.print(line, soft_wrap=True)
    console.print()
    for variant in dict.fromkeys(outcome.case.variant for outcome in done.outcomes):
        show_grid(reproduction_grid(done, variant))
        console.print()
    if said := verdict(done):
        console.print(escape(said), soft_wrap=True)
    faults = {f"[b]{escape(o.full_name)}[/]: [red]{escape(o.fault)}[/]" for o in done.outcomes if o.fault}
    notes = [f"[b]{escape(o.case.name)}[/]: {escape(o.case.row.note)}" for o in done.outcomes if o.case.row.note]
    for line in dict.fromkeys([*sorted(faults), *notes, *map(escape, recipe.notes)]):
        console.print(line, soft_wrap=True)
    written = done.whole and (done.folder / "results.csv").exists()
    console.print(f"{'table, figure and runs' if written else 'runs'}: {escape(str(done.folder))}", soft_wrap=True)
    show_report_place(done.folder)


def reproduction_grid(done: "Reproduction", variant: str) -> Grid:
    """Return the table of a variant: two lines a row, what was printed and what was measured, one if none was."""
    recipe = done.recipe
    outcomes = [outcome for outcome in done.outcomes if outcome.case.variant == variant]
    seeds = len(done.seeds)
    lines = [line for outcome in outcomes for line in _lines(outcome, seeds, printed=done.printed)]
    title = f"{escape(variant)}: {escape(recipe.variants[variant].what)}" if variant else ""
    at_most = "at most " if any(outcome.unfinished for outcome in outcomes) else ""
    caption = f"mean ±standard deviation over {at_most}{seeds} seed{'s' if seeds > 1 else ''} as measured"
    if done.printed:
        caption += f", over {recipe.published_seeds or 'an unknown number of'} seeds as printed"
    headings = ["row", *(escape(in_title(measure, recipe.unit)) for measure in recipe.measures)]
    if not done.printed:
        return Grid(headings, [line[:-1] for line in lines], title, caption)
    return Grid([*headings, "agrees"], lines, title, caption, words=["agrees"])


def _lines(outcome: "Outcome", seeds: int, *, printed: bool) -> list[list[str]]:
    """Return the lines of a row; what disagrees is red and has a ≠."""
    recipe, published = outcome.case.recipe, outcome.case.published
    name, lines = escape(outcome.name), []
    if published:
        numbers = [(published.get(measure), decimals(measure, recipe.unit)) for measure in recipe.measures]
        cells = ["–" if n is None else _pair(n.mean, n.spread, Digits(places)) for n, places in numbers]
        lines.append([name, *cells, ""])
    heading = "  measured" if published else f"{name}, measured" if printed else name
    if outcome.unfinished:
        heading += f", {len(outcome.runs)} of {seeds} seeds"
    agreed = "unfinished" if outcome.unfinished else {True: "yes", False: "no", None: "–"}[outcome.agrees]
    measured = [_measured(outcome, measure, Digits(decimals(measure, recipe.unit))) for measure in recipe.measures]
    return [*lines, [heading, *measured, agreed]]


def _measured(outcome: "Outcome", measure: str, digits: Digits) -> str:
    if measure not in outcome.measured:
        return "failed" if outcome.fault else "–"
    mean, spread = outcome.measured[measure]
    text = _pair(mean, spread if len(outcome.runs) > 1 else None, digits)
    agrees = outcome.agreements.get(measure)
    return text if agrees is None else f"[green]{text}[/]" if agrees else f"[red]≠ {text}[/]"


def _pair(mean: float, spread: float | None, digits: Digits) -> str:
    return digits.number(mean) if spread is None else digits.spread(mean, spread)


def verdict(done: "Reproduction") -> str:
    """Return in words how many rows agree with what was printed, how many are missing, or that none can be compared."""
    return " ".join(filter(None, (_progress(done), _agreement(done))))


def _progress(done: "Reproduction") -> str:
    """Return how many rows are finished, "" where all are."""
    unfinished = {folder for outcome in done.outcomes for folder in outcome.unfinished}
    if not unfinished:
        return ""
    finished = sum(not outcome.unfinished for outcome in done.outcomes)
    counts = f"Rows finished: {finished} of {len(done.outcomes)}; runs missing: {len(unfinished)}."
    return f"{counts} The same command without --show runs them."


def _agreement(done: "Reproduction") -> str:
    """Return how many of the finished rows agree, or why none can; "" where nothing was printed."""
    if not done.printed:
        return "These runs are cut short by --quick." if done.quick else ""
    if not done.comparable:
        cut = "cut short by --quick" if done.quick else "made with other settings than the recipe's"
        return f"These runs are {cut}: the numbers cannot be compared with the printed ones."
    judged = [outcome.agrees for outcome in done.outcomes if outcome.agrees is not None]
    if not judged:
        return ""
    within = "two combined standard errors, or one point where no ± is printed"
    if done.recipe.tolerance:
        unit = done.recipe.unit
        within += "".join(f", or {value:g} in {in_title(m, unit)}" for m, value in done.recipe.tolerance.items())
    agrees = "agrees" if len(judged) == 1 else "agree"
    return f"{sum(judged)} of {len(judged)} rows {agrees} with what was printed: within {within}."


def show_recipes(recipes: Sequence["Recipe"]) -> None:
    """Print the recipes: what each is, what data it needs, and how much it runs."""
    headings = ("name", "what", "data", "rows", "runs")
    cells = [
        [recipe.name, escape(recipe.title), escape(", ".join(recipe.tasks)), str(len(recipe.cases())), str(recipe.runs)]
        for recipe in recipes
    ]
    if console.width < NARROW:
        for recipe, row in zip(recipes, cells, strict=True):
            console.print(f"[cyan]{recipe.name}[/]")
            _indented(f"{row[1]} ({row[2]}; {row[3]} rows, {row[4]} runs)\n[dim]{escape(recipe.source)}[/]")
        return
    show_grid(Grid(headings, cells, caption="runs: with the recipe's number of seeds", words=headings[:3]))


# Lists --------------------------------------------------------------------------------------------------------------


def show_methods(methods: Iterable[MethodDoc]) -> None:
    """Print each method with its parameters and source."""
    for method in methods:
        console.print(f"[b]{escape(method.name)}[/]  {escape(method.summary)}")
        for parameter in method.parameters:
            _show_parameter(parameter)
        if method.needs:
            _indented(f"needs from clients: {escape(', '.join(method.needs))}")
        if method.source:
            _indented(f"[dim]{escape(method.source)}[/]")
        console.print()


def show_wrappers() -> None:
    """Print by what names TorchJD's weightings and scalarizers come beside the methods."""
    for name in WRAPPERS:
        console.print(f"[b]{escape(name)}[/] and its like  {escape(describe(name).summary)}")


def show_tasks(tasks: Iterable[TaskInfo]) -> None:
    """Print each task with its models, partitions, settings and source."""
    for task in tasks:
        console.print(f"[b]{escape(task.name)}[/]  {escape(task.summary)}")
        partitions = (*task.partitions, *(OTHER_PARTITIONS if task.deals else ()))
        for what, choices in (("models", task.models), ("partitions", partitions)):
            if choices:
                _indented(f"{what}: {escape(', '.join(choices))}")
        if task.reads_folder:
            _indented("[cyan]data-dir[/] (required) Folder of the data")
        for parameter in task.settings:
            _show_parameter(parameter)
        _indented(f"[dim]{escape(task.source)}[/]")
        console.print()


def _show_parameter(parameter: Parameter) -> None:
    default = REQUIRED if parameter.default is None else f"default {default_of(parameter)}"
    _indented(f"[cyan]{parameter.key}[/] {escape(f'({parameter.range}, {default}) {parameter.description}')}")


def show_data(described: Described) -> None:
    """Print what the data of a task hold: a table of the clients, and of whatever else the task tells."""
    for name, rows in described.items():
        headings = list(dict.fromkeys(heading for row in rows for heading in row))
        words = [heading for heading in headings if any(isinstance(row.get(heading), str) for row in rows)]
        cells = [[escape(str(row.get(heading, ""))) for heading in headings] for row in rows]
        if headings:
            show_grid(Grid([escape(heading) for heading in headings], cells, escape(name), words=words))


def show_settings(defaults: Mapping[str, Value]) -> None:
    """Print every setting with its default, what it means and what it may be."""
    known = {**SETTINGS, **parameters()}
    meaning = {key: f"{known[key].description} ({known[key].range})" for key in defaults}
    shown = {key: REQUIRED if known[key].default is None else repr(value) for key, value in defaults.items()}
    if console.width < ROOMY:
        for key, default in shown.items():
            console.print(f"[cyan]{key}[/] = {escape(default)}")
            _indented(escape(meaning[key]))
        return
    table = Table(box=box.SIMPLE_HEAD)
    for heading, no_wrap in (("setting", True), ("default", True), ("meaning", False)):
        table.add_column(heading, no_wrap=no_wrap, overflow="fold")
    for key, default in shown.items():
        table.add_row(key, escape(default), escape(meaning[key]))
    console.print(table)


def _indented(markup: str) -> None:
    console.print(Padding(Text.from_markup(markup, overflow="fold"), (0, 0, 0, 4), expand=False))


def show_runs(rows: Sequence[Mapping[str, str]], folder: Path) -> None:
    """Print the list of runs; a row has the cells by their headings."""
    if not rows:
        console.print(f"there are no runs in {escape(str(folder))}", soft_wrap=True)
        return
    words = ("task", "method", "score", "state", "when")
    show_grid(Grid(list(rows[0]), [[escape(cell) for cell in row.values()] for row in rows], words=words))
