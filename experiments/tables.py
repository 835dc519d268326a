"""The tables that the command line prints: of runs, comparisons, methods, tasks and settings."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fairbloom.protocol.settings import RunSettings, key_of
from fairbloom.server.fairness import summarize
from fairbloom.server.settings import Value, parameters
from fairbloom.tasks import TaskInfo

from .catalogue import Method, title
from .compare import Comparison, final_accuracies

console = Console()

NEGLECTED, SERVED = 6, 3
"""Number of clients that are shown of those that the baseline serves worst, and best."""


def show_run(folder: Path) -> None:
    """Print how the final model serves the clients, and name those that it serves worst."""
    accuracies = final_accuracies(folder)
    measures = summarize(accuracies)
    table = Table(box=box.SIMPLE_HEAD, title="Test accuracy of the global model, %")
    for heading in ("mean", "std", "worst 10 %", "best 10 %", "gap"):
        table.add_column(heading, justify="right")
    table.add_row(*(f"{measures[key]:.1f}" for key in ("mean", "std", "worst_10", "best_10", "gap")))
    console.print(table)
    ascending = sorted(accuracies, key=lambda name: accuracies[name])
    worst = ", ".join(f"{name} {accuracies[name]:.1f} %" for name in ascending[:NEGLECTED])
    console.print(f"worst served: {worst}", soft_wrap=True)
    console.print(f"run folder: {escape(str(folder))}", soft_wrap=True)


def show_comparison(comparison: Comparison, figures: Sequence[Path], out: Path) -> None:
    """Print the table of methods, the clients that the baseline neglects, and a sentence on what they show."""
    console.print(method_table(comparison))
    console.print(client_table(comparison))
    console.print(sentence(comparison), soft_wrap=True)
    console.print(
        f"\ntables and runs: {escape(str(out))}\nfigure: {escape(', '.join(map(str, figures)))}", soft_wrap=True
    )


def method_table(comparison: Comparison) -> Table:
    """Return the table with a row per method: measures over clients, each as mean ± deviation over the seeds."""
    seeds = len(comparison.accuracies[comparison.baseline])
    base = title(comparison.baseline)
    table = Table(
        box=box.SIMPLE_HEAD,
        title="Test accuracy of the final global model over clients, %",
        caption=f"mean ±standard deviation over {seeds} seed{'s' if seeds > 1 else ''}\n"
        f"gain: of the worst 10 % on {base}; improved: clients above their accuracy under {base} (seed by seed)",
        show_edge=False,
        pad_edge=False,
        padding=0,
    )
    table.add_column("method", no_wrap=True)
    for heading in ("mean", "std", "worst 10 %", "best 10 %", "gain", "% improved"):
        table.add_column(heading, justify="right", no_wrap=True)
    for method in comparison.accuracies:
        spreads = [comparison.spread(method, key) for key in ("mean", "std", "worst_10", "best_10")]
        cells = [f"{mean:.1f} ±{deviation:.1f}" for mean, deviation in spreads]
        if method == comparison.baseline:
            cells += ["–", "–"]
        else:
            gained, deviation = comparison.gain(method, "worst_10")
            better, spread = comparison.percent_better(method)
            cells += [f"{gained:+.1f} ±{deviation:.1f}", f"{better:.0f} ±{spread:.0f}"]
        table.add_row(title(method), *cells)
    return table


def client_table(comparison: Comparison) -> Table:
    """Return the table of the clients that the baseline serves worst, and best, with the first seed."""
    first = {title(method): seeds[0] for method, seeds in comparison.accuracies.items()}
    base = first[title(comparison.baseline)]
    ascending = sorted(base, key=lambda client: base[client])
    table = Table(box=box.SIMPLE_HEAD, title="Client by client, first seed, %")
    table.add_column("client")
    for name in first:
        table.add_column(name, justify="right")
    shown = ascending if len(ascending) <= NEGLECTED + SERVED else [*ascending[:NEGLECTED], "", *ascending[-SERVED:]]
    for client in shown:
        if client:
            table.add_row(client, *(coloured(own[client], base[client]) for own in first.values()))
        else:
            table.add_row(f"… {len(ascending) - NEGLECTED - SERVED} more", *("" for _ in first))
    return table


def coloured(value: float, base: float) -> str:
    """Return a value in green where it is above the baseline's and in red where it is below."""
    colour = "green" if value > base else "red" if value < base else "default"
    return f"[{colour}]{value:.1f}[/]"


def sentence(comparison: Comparison) -> str:
    """Return in one sentence what the comparison shows."""
    base, kindest = comparison.baseline, comparison.kindest
    worst, mean = (comparison.spread(base, key)[0] for key in ("worst_10", "mean"))
    left = f"{title(base)} leaves its worst tenth of clients at {worst:.0f} % while the mean is {mean:.0f} %"
    if kindest == base:
        return f"{left}; no other method here lifts them."
    lifted, own = (comparison.spread(kindest, key)[0] for key in ("worst_10", "mean"))
    return f"{left}; {title(kindest)} lifts its worst tenth to {lifted:.0f} %, with a mean of {own:.0f} %."


def show_methods(methods: Iterable[Method]) -> None:
    """Print each method with its parameters and source."""
    for method in methods:
        console.print(f"[b]{method.name}[/]  {escape(method.summary)}")
        for parameter in method.parameters:
            default = "required" if parameter.default == "required" else f"default {parameter.default}"
            details = escape(f"({parameter.range}, {default}) {parameter.description}")
            console.print(f"    [cyan]{parameter.key}[/] {details}")
        console.print(f"    [dim]{escape(method.source)}[/]\n")


def show_tasks(tasks: Iterable[TaskInfo]) -> None:
    """Print each task with its models, partitions, own settings and source."""
    for task in tasks:
        console.print(f"[b]{task.name}[/]  {escape(task.summary)}")
        for what, choices in (("models", task.models), ("partitions", task.partitions)):
            if choices:
                console.print(f"    {what}: {', '.join(choices)}")
        if task.reads_folder:
            console.print("    [cyan]data-dir[/] (required) Folder of the data")
        for setting in task.settings:
            details = escape(f"({setting.range}, default {setting.default}) {setting.description}")
            console.print(f"    [cyan]{task.key(setting)}[/] {details}")
        console.print(f"    [dim]{escape(task.source)}[/]")


def show_settings(defaults: Mapping[str, Value]) -> None:
    """Print every setting with its default and what it means."""
    own = parameters()
    meaning = {key_of(name): field.description or "" for name, field in RunSettings.model_fields.items()}
    meaning |= {key: each.description for key, each in own.items()}
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("setting", "default", "meaning"):
        table.add_column(heading)
    for key, value in defaults.items():
        required = key in own and own[key].default is None
        table.add_row(key, "required" if required else repr(value), escape(meaning[key]))
    console.print(table)
