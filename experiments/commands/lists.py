"""What the command line lists: recipes, methods, tasks, data, settings and runs."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich import table as rich_table
from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

from fairbloom.protocol.parameters import Parameter, Value
from fairbloom.protocol.settings import SETTINGS
from fairbloom.server.settings import parameters
from fairbloom.strategies.torchjd import TORCHJD
from fairbloom.tasks import TaskInfo
from fairbloom.tasks.task import OWN_PARTITION, Described

from ..render.page import Cell, Table
from ..render.terminal import console, show_table
from .described import REQUIRED, MethodDoc, default_of, describe

if TYPE_CHECKING:
    from ..recipe import Recipe


def show_recipes(recipes: Sequence["Recipe"]) -> None:
    """Print the recipes: what each is, what data it needs, and how much it runs."""
    headings = ("name", "what", "data", "rows", "runs")
    cells = [
        [*map(Cell.of, (each.name, each.title, ", ".join(each.tasks), len(each.cases()), each.runs))]
        for each in recipes
    ]
    show_table(Table("recipes", "", headings, cells, "runs: with the recipe's number of seeds"))


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


def show_torchjd() -> None:
    """Print by what names TorchJD's weightings come beside the methods."""
    console.print(f"[b]{TORCHJD}upgrad[/] and its like  {escape(describe(f'{TORCHJD}upgrad').summary)}")


def show_tasks(tasks: Iterable[TaskInfo]) -> None:
    """Print each task with its models, partitions, settings and source."""
    for task in tasks:
        console.print(f"[b]{escape(task.name)}[/]  {escape(task.summary)}")
        partitions = (*task.partitions, *([OWN_PARTITION] if task.deals else []))
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
        if headings:
            show_table(
                Table(name, name, headings, [[Cell.of(row.get(heading, "")) for heading in headings] for row in rows])
            )


def show_settings(defaults: Mapping[str, Value]) -> None:
    """Print every setting with its default, what it means and what it may be."""
    known = {**SETTINGS, **parameters()}
    meaning = {key: f"{known[key].description} ({known[key].range})" for key in defaults}
    shown = {key: REQUIRED if known[key].default is None else repr(value) for key, value in defaults.items()}
    if console.width < 100:  # names and defaults leave little room for what settings mean
        for key, default in shown.items():
            console.print(f"[cyan]{key}[/] = {escape(default)}")
            _indented(escape(meaning[key]))
        return
    table = rich_table.Table(box=box.SIMPLE_HEAD)
    for heading, no_wrap in (("setting", True), ("default", True), ("meaning", False)):
        table.add_column(heading, no_wrap=no_wrap, overflow="fold")
    for key, default in shown.items():
        table.add_row(key, escape(default), escape(meaning[key]))
    console.print(table)


def _indented(markup: str) -> None:
    console.print(Padding(Text.from_markup(markup, overflow="fold"), (0, 0, 0, 4), expand=False))


def show_runs(runs: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Print the list of runs that `find_runs` returns."""
    if not runs:
        console.print(f"there are no runs in {escape(str(folder))}", soft_wrap=True)
        return
    cells = []
    for run in runs:
        score = run.get("score", {})
        rounds = f"{run['rounds']}/{run['of_rounds']}" if "rounds" in run else ""
        state = f"damaged: {run['fault']}" if "fault" in run else run["state"]
        measured = (Cell(score.get(f"{key}_in_words", ""), score.get(key)) for key in ("mean", "worst_10"))
        words = map(Cell, (run["name"], str(run.get("task", "")), run.get("method", "")))
        cells.append([*words, Cell(rounds, 0), Cell(score.get("title", "")), *measured, Cell(state), Cell(run["when"])])
    headings = ("run", "task", "method", "rounds", "score", "mean", "worst 10 %", "state", "when")
    show_table(Table("runs", "", headings, cells))
