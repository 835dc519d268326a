"""The command `fairbloom`."""

import json
import logging
import os
import signal
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fairbloom.deploy import cli as deployment
from fairbloom.experiments.catalogue import describe, title
from fairbloom.experiments.tables import show_comparison, show_methods, show_run, show_settings, show_tasks
from fairbloom.server.records import ACCURACY
from fairbloom.server.settings import Settings, SettingsError, Value, assigned, check_used, default_config
from fairbloom.strategies import METHODS
from fairbloom.tasks import TASKS

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    help="Federated learning that leaves no client behind: run a fair method, compare several, see who gains.",
)
errors = Console(stderr=True)

INTERRUPTED = 130

SetOption = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="Any of fairbloom settings.")]
TaskOption = Annotated[str | None, typer.Option(help="What is learned; see fairbloom tasks.")]
RoundsOption = Annotated[int | None, typer.Option("--rounds", help="Rounds of a run.")]
FractionOption = Annotated[float | None, typer.Option(help="Share of the clients that train in a round.")]
ClientsOption = Annotated[int | None, typer.Option(help="Into how many clients the data is split.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command(epilog="Example: fairbloom run --method fedfv --set fedfv.alpha=0.2 --rounds 50 --out runs/a")
def run(
    task: TaskOption = None,
    method: Annotated[str | None, typer.Option(help="The method; see fairbloom methods.")] = None,
    model: Annotated[str | None, typer.Option(help="One of the task's models.")] = None,
    clients: ClientsOption = None,
    partition: Annotated[str | None, typer.Option(help="How the data is split: shards, dirichlet, iid.")] = None,
    rounds: RoundsOption = None,
    fraction: FractionOption = None,
    seed: Annotated[int | None, typer.Option(help="Of data, model, draws and batches.")] = None,
    engine: Annotated[str | None, typer.Option(help="How clients are computed: loop.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, mps.")] = None,
    out: Annotated[str | None, typer.Option(help="Run folder; by default named by the settings, under runs/.")] = None,
    settings: SetOption = [],  # noqa: B006 (typer reads it, nothing changes it)
) -> None:
    """Train with one method, all clients in this process.

    The same command continues a run that was interrupted; a finished run is shown, not run again.
    """
    from fairbloom.simulation.run import simulate

    named: dict[str, Value | None] = {"task": task, "method": method, "model": model, "clients": clients}
    named |= {"partition": partition, "num-rounds": rounds, "fraction": fraction, "seed": seed}
    named |= {"engine": engine, "device": device, "out": out}
    config = merged(named, settings)
    chosen = Settings.of(config)
    check_used(config, chosen.method)
    with progress("mean [b]{task.fields[mean]}[/] %  worst 10 % [b]{task.fields[worst]}[/] %") as bar:
        shown = bar.add_task(title(chosen.method), total=chosen.num_rounds, mean="–", worst="–")

        def on_row(row: Any) -> None:
            bar.update(shown, completed=row["round"])
            if f"{ACCURACY}_mean" in row:
                mean, worst = row[f"{ACCURACY}_mean"], row[f"{ACCURACY}_worst_10"]
                bar.update(shown, mean=f"{mean:.1f}", worst=f"{worst:.1f}")

        folder = simulate(chosen, on_row)
        bar.update(shown, completed=chosen.num_rounds)
    show_run(folder)


@app.command(epilog="Example: fairbloom compare --methods fedavg,fedmgdaplus,fedfv --seeds 3 --out runs/cmp")
def compare(
    task: TaskOption = None,
    methods: Annotated[str, typer.Option(help="Methods, separated by commas.")] = "fedavg,qfedavg,fedmgdaplus,fedfv",
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, from 0.")] = 3,
    clients: ClientsOption = None,
    rounds: RoundsOption = None,
    fraction: FractionOption = None,
    out: Annotated[Path, typer.Option(help="Folder of tables, figure and runs.")] = Path("runs/comparison"),
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time.")] = os.cpu_count() or 1,
    settings: SetOption = [],  # noqa: B006 (typer reads it, nothing changes it)
) -> None:
    """Train with several methods over several seeds and see who gains and who loses.

    All methods meet the same clients, draws and batches at the same seed, so differences are paired.
    """
    from fairbloom.experiments.compare import compare as run_all
    from fairbloom.experiments.figures import sorted_clients

    names = [name.strip() for name in methods.split(",") if name.strip()]
    if not names:
        raise SettingsError(f"methods = {methods!r} names no method; there are {', '.join(METHODS)}")
    named: dict[str, Value | None] = {"task": task, "clients": clients, "num-rounds": rounds, "fraction": fraction}
    with progress("runs done") as bar:
        shown = bar.add_task("comparing", total=len(names) * seeds)
        comparison = run_all(
            merged(named, settings), list(dict.fromkeys(names)), range(seeds), out, jobs, lambda: bar.advance(shown)
        )
    figures = sorted_clients(comparison, out / "clients")
    show_comparison(comparison, figures, out)


@app.command()
def methods(as_json: JsonOption = False) -> None:
    """List the methods with their parameters, ranges, defaults and source."""
    described = [describe(name) for name in METHODS]
    if as_json:
        print(json.dumps([asdict(method) for method in described], indent=2))
    else:
        show_methods(described)


@app.command()
def tasks(as_json: JsonOption = False) -> None:
    """List the tasks with their models and partitions."""
    if as_json:
        print(json.dumps([asdict(task) for task in TASKS.values()], indent=2))
    else:
        show_tasks(TASKS.values())


@app.command()
def settings(as_json: JsonOption = False) -> None:
    """List every setting with its default; any of them can be given by --set KEY=VALUE."""
    defaults = default_config()
    if as_json:
        print(json.dumps(defaults, indent=2))
    else:
        show_settings(defaults)


app.add_typer(deployment.client, name="client")
app.command()(deployment.server)
app.add_typer(deployment.app, name="deploy")


def merged(named: Mapping[str, Value | None], assignments: Iterable[str]) -> dict[str, Value]:
    """Return the settings of the named options that were given, and of KEY=VALUE assignments, which win."""
    return {key: value for key, value in named.items() if value is not None} | assigned(assignments)


def progress(measures: str) -> Progress:
    """Return a progress bar that shows `measures` beside the count; nothing is drawn where nobody watches."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(measures),
        TimeElapsedColumn(),
        console=errors,
        disable=not errors.is_terminal,
    )


class Interrupted(BaseException):
    """Ctrl-C; the command-line library would end with a word of its own on KeyboardInterrupt."""


def interrupt(signal_number: int, frame: object) -> None:
    """Raise Interrupted."""
    raise Interrupted


def main() -> None:
    """Run the command line; what a user can mend is one red line and exit code 2, never a traceback."""
    logging.getLogger("flwr").setLevel(logging.WARNING)
    signal.signal(signal.SIGINT, interrupt)
    try:
        app()
    except Interrupted:
        errors.print("[yellow]interrupted[/]: the same command continues after the last finished round")
        sys.exit(INTERRUPTED)
    except ValueError as error:
        errors.print(f"[red]error[/]: {escape(str(error))}", soft_wrap=True)
        sys.exit(2)
