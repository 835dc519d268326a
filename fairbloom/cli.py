"""The command `fairbloom`."""

import json
import logging
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fairbloom import __version__
from fairbloom.deploy import cli as deployment
from fairbloom.errors import FairbloomError
from fairbloom.experiments.catalogue import describe, title
from fairbloom.experiments.tables import show_comparison, show_methods, show_run, show_settings, show_tasks
from fairbloom.server.rows import ACCURACY
from fairbloom.server.settings import Settings, SettingsError, Value, assigned, check_used, default_config
from fairbloom.strategies import METHODS
from fairbloom.tasks import TASKS

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
errors = Console(stderr=True)

MENDABLE, INTERRUPTED = 2, 130
"""Exit codes: the user can mend what was wrong, and Ctrl-C ended the command."""

SetOption = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help="Set any setting; fairbloom settings lists them. May be repeated."),
]
TaskOption = Annotated[str | None, typer.Option(help="The task to learn; fairbloom tasks lists them.")]
DataOption = Annotated[str | None, typer.Option("--data-dir", help="The folder that the task reads its data from.")]
RoundsOption = Annotated[int | None, typer.Option("--rounds", help="The number of rounds of a run.")]
FractionOption = Annotated[float | None, typer.Option(help="The share of the clients that train in a round.")]
ClientsOption = Annotated[int | None, typer.Option(help="The number of clients that the data is split into.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def print_version(wanted: bool) -> None:
    """Print the installed version and end, where it is wanted."""
    if wanted:
        print(f"fairbloom {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Federated learning that leaves no client behind: run a fair method, compare several, see who gains."""


@app.command(epilog="Example: fairbloom run --method fedfv --set fedfv.alpha=0.2 --rounds 50 --out runs/a")
def run(
    task: TaskOption = None,
    data_dir: DataOption = None,
    method: Annotated[str | None, typer.Option(help="The method; fairbloom methods lists them.")] = None,
    model: Annotated[str | None, typer.Option(help="One of the task's models; fairbloom tasks lists them.")] = None,
    clients: ClientsOption = None,
    partition: Annotated[
        str | None, typer.Option(help="How the data is split among the clients: shards, dirichlet or iid, say.")
    ] = None,
    rounds: RoundsOption = None,
    fraction: FractionOption = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the data split, initial model, client sampling and batch order.")
    ] = None,
    engine: Annotated[str | None, typer.Option(help="How the clients are computed in this process: loop.")] = None,
    device: Annotated[str | None, typer.Option(help="What the clients compute on: auto, cpu, cuda or mps.")] = None,
    out: Annotated[
        str | None, typer.Option(help="The run folder; by default one under runs/ that the settings name.")
    ] = None,
    settings: SetOption = [],  # noqa: B006 (typer reads it, nothing changes it)
) -> None:
    """Train with one method, all clients in this process.

    The same command continues a run that was interrupted; a finished run is shown, not run again.
    """
    from fairbloom.simulation.run import simulate

    options: dict[str, Value | None] = {"task": task, "data-dir": data_dir, "method": method, "model": model}
    options |= {"clients": clients, "partition": partition, "num-rounds": rounds, "fraction": fraction, "seed": seed}
    options |= {"engine": engine, "device": device, "out": out}
    config = merged(options, settings)
    chosen = Settings.of(config)
    check_used(config, [chosen.method], chosen.task)
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
    data_dir: DataOption = None,
    methods: Annotated[
        str, typer.Option(help="The methods, separated by commas; fairbloom methods lists them.")
    ] = "fedavg,qfedavg,fedmgdaplus,fedfv",
    seeds: Annotated[int, typer.Option(min=1, help="The number of seeds, counted from 0.")] = 3,
    clients: ClientsOption = None,
    rounds: RoundsOption = None,
    fraction: FractionOption = None,
    out: Annotated[Path, typer.Option(help="The folder of the tables, the figure and the runs.")] = Path(
        "runs/comparison"
    ),
    jobs: Annotated[int, typer.Option(min=1, help="The number of runs at a time.")] = os.cpu_count() or 1,
    settings: SetOption = [],  # noqa: B006 (typer reads it, nothing changes it)
) -> None:
    """Train with several methods over several seeds and see who gains and who loses.

    All methods meet the same clients, draws and batches at the same seed, so differences are paired.
    """
    from fairbloom.experiments.compare import compare as run_all
    from fairbloom.experiments.figures import sorted_clients

    names = list(dict.fromkeys(name.strip() for name in methods.split(",") if name.strip()))
    if not names:
        raise SettingsError(f"methods = {methods!r} names no method; there are {', '.join(METHODS)}")
    options: dict[str, Value | None] = {"task": task, "data-dir": data_dir, "clients": clients}
    options |= {"num-rounds": rounds, "fraction": fraction}
    config = merged(options, settings)
    with progress("runs done") as bar:
        shown = bar.add_task("comparing", total=len(names) * seeds)
        comparison = run_all(config, names, range(seeds), out, jobs, lambda: bar.advance(shown))
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


def merged(options: Mapping[str, Value | None], assignments: Iterable[str]) -> dict[str, Value]:
    """Return the settings of the options that were given and of the KEY=VALUE assignments.

    Raises
    ------
    SettingsError
        When an assignment is none, or a setting is given two values.
    """
    config = {key: value for key, value in options.items() if value is not None}
    for assignment in assignments:
        for key, value in assigned([assignment]).items():
            if key in config and config[key] != value:
                raise SettingsError(f"{key} is given two values, {config[key]!r} and {value!r}: give it one")
            config[key] = value
    return config


@contextmanager
def progress(measures: str) -> Iterator[Progress]:
    """Show a progress bar with `measures` beside the count; nothing is drawn where nobody watches.

    An error that the user can mend takes the bar away, so that its line stands alone.
    """
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(measures),
        TimeElapsedColumn(),
        console=errors,
        disable=not errors.is_terminal,
    )
    with bar:
        try:
            yield bar
        except FairbloomError:
            bar.live.transient = True
            raise


class Interrupted(BaseException):
    """The user has pressed Ctrl-C; on KeyboardInterrupt the command-line library would end with a word of its own."""


def interrupt(signal_number: int, frame: object) -> None:
    """Raise Interrupted."""
    raise Interrupted


def main() -> None:
    """Run the command line: what a user can mend is one red line and exit code 2, a bug of ours keeps its traceback."""
    logging.getLogger("flwr").setLevel(logging.WARNING)
    signal.signal(signal.SIGINT, interrupt)
    try:
        app()
    except Interrupted:
        errors.print("[yellow]interrupted[/]: the same command continues after the last finished round")
        sys.exit(INTERRUPTED)
    except FairbloomError as error:
        errors.print(f"[red]error[/]: {escape(str(error))}", soft_wrap=True)
        sys.exit(MENDABLE)
