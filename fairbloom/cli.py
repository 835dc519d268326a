"""The command `fairbloom`."""

import json
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Unpack

import typer

from fairbloom import __version__
from fairbloom.command import CORRECTABLE, errors, new_app, run_command
from fairbloom.deploy import cli as deployment
from fairbloom.deploy.cli import FromRoundOption
from fairbloom.errors import FairbloomError
from fairbloom.experiments import api
from fairbloom.experiments.commands.evaluate import EXAMPLE as EVALUATE_EXAMPLE
from fairbloom.experiments.commands.evaluate import evaluate
from fairbloom.experiments.commands.export import export
from fairbloom.experiments.commands.options import (
    DEFAULT_JOBS,
    ClientsOption,
    DataOption,
    DeviceOption,
    FractionOption,
    JobsOption,
    JsonOption,
    MethodOption,
    ModelOption,
    PartitionOption,
    SeedOption,
    SetOption,
    SettingsCommand,
    SpreadOption,
    TaskOption,
    offer_common_options,
    setting_option,
    settings_of,
    show_result,
)
from fairbloom.experiments.commands.predict import predict
from fairbloom.experiments.commands.recommend import EXAMPLE_COMMAND, recommend
from fairbloom.experiments.commands.report import report
from fairbloom.experiments.commands.show import draw_split, show
from fairbloom.experiments.commands.sweep import EXAMPLE as SWEEP_EXAMPLE
from fairbloom.experiments.commands.sweep import sweep
from fairbloom.experiments.commands.watch import watch
from fairbloom.experiments.options import CommonOptions, merge_settings
from fairbloom.experiments.recipes.recipe import load_shipped
from fairbloom.experiments.views import progress
from fairbloom.experiments.views.catalogue import about, describe
from fairbloom.experiments.views.listing import find_runs, table_rows
from fairbloom.experiments.views.tables import (
    console,
    show_data,
    show_methods,
    show_recipes,
    show_runs,
    show_settings,
    show_tasks,
    show_tuned,
    show_wrappers,
)
from fairbloom.protocol.settings import SettingsError, Value
from fairbloom.scaffold.new import new
from fairbloom.server.settings import Settings, check_used, default_config
from fairbloom.strategies import METHODS, find_method
from fairbloom.tasks import TASKS, describe_data, find_task, load_task

app = new_app()


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


@contextmanager
def uncaught(debug: bool) -> Iterator[None]:
    """Where a command debugs, print the traceback of an error that a user can correct, too."""
    try:
        yield
    except FairbloomError:
        if not debug:
            raise
        traceback.print_exc()
        raise typer.Exit(CORRECTABLE) from None


@app.command(
    cls=SettingsCommand, epilog="Example: fairbloom run --method fedfv --set fedfv.alpha=0.2 --rounds 50 --out runs/a"
)
@offer_common_options(method="data_dir", seed="fraction", out="memory")
def run(
    task: TaskOption = None,
    method: MethodOption = None,
    seed: SeedOption = None,
    out: Annotated[
        str | None, typer.Option(help="The run folder; by default one under runs/ that the settings name.")
    ] = None,
    from_round: FromRoundOption = None,
    debug: Annotated[
        bool,
        typer.Option(
            "--debug",
            help="Compute one client after the other in this process, and end with the traceback of the first error: "
            "breakpoint() works in a model, loss or task.",
        ),
    ] = False,
    settings: SetOption = [],  # noqa: B006 (typer reads it, nothing changes it)
    **options: Unpack[CommonOptions],
) -> None:
    """Train with one method, all clients on this machine.

    The same command continues a run that was interrupted; a finished run is shown, or extended by higher --rounds.
    """
    with uncaught(debug):
        api.run(
            task,
            method=method,
            seed=seed,
            out=out,
            from_round=from_round,
            settings=settings_of(settings),
            debug=debug,
            **options,
        ).show()


@app.command(
    cls=SettingsCommand,
    epilog="Example: fairbloom compare --methods 'fedavg,qfedavg(q=1),fedfv' --seeds 3 --out runs/cmp",
)
@offer_common_options(methods="data_dir", out="memory")
def compare(
    task: TaskOption = None,
    methods: Annotated[
        str,
        typer.Option(
            help="The methods with commas between them, each with its parameters in parentheses where you like: "
            "'fedavg,qfedavg(q=1),my_module:Mine'."
        ),
    ] = api.METHODS,
    baseline: Annotated[
        str | None, typer.Option(help="The method that the others are compared with; by default FedAvg, or the first.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="The number of seeds.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="The first seed; the others count on from there.")] = 0,
    out: Annotated[str, typer.Option(help="The folder of the tables, the figure and the runs.")] = "runs/comparison",
    jobs: JobsOption = DEFAULT_JOBS,
    spread: SpreadOption = "interval",
    settings: SetOption = [],  # noqa: B006 (typer reads it, nothing changes it)
    **options: Unpack[CommonOptions],
) -> None:
    """Train with several methods over several seeds and see who gains and who loses.

    All methods meet the same clients, draws and batches at the same seed, so differences are paired.
    """
    api.compare(
        task,
        methods=methods,
        baseline=baseline,
        seeds=seeds,
        seed=seed,
        out=out,
        jobs=jobs,
        settings=settings_of(settings),
        **options,
    ).show(spread)


app.command(cls=SettingsCommand, epilog=SWEEP_EXAMPLE)(sweep)
app.command(cls=SettingsCommand, epilog=f"Example: {EXAMPLE_COMMAND}")(recommend)


@app.command(cls=SettingsCommand, epilog="Example: fairbloom reproduce fedfv-table3 --seeds 5")
def reproduce(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The recipe: --list names them; or the path of your TOML file.")
    ] = None,
    as_list: Annotated[bool, typer.Option("--list", help="List the recipes, and run nothing.")] = False,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="The number of seeds, from 0; by default the recipe's.")
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="One seed and a tenth of the rounds, at most 20: a trial that is not comparable."),
    ] = False,
    rows: Annotated[
        list[str],
        typer.Option(
            metavar="TEXT",
            help="Only rows whose name contains this; table and figure are not written then. May be repeated.",
        ),
    ] = [],  # noqa: B006 (typer reads it, nothing changes it)
    finished: Annotated[
        bool, typer.Option("--show", help="Run nothing: print the table of what is finished so far.")
    ] = False,
    data_dir: DataOption = None,
    out: Annotated[
        str | None,
        typer.Option(help="The folder of the table, the figure and the runs; by default runs/reproduce/NAME."),
    ] = None,
    jobs: JobsOption = DEFAULT_JOBS,
    settings: SetOption = [],  # noqa: B006 (typer reads it, nothing changes it)
    as_json: JsonOption = False,
) -> None:
    """Run a published experiment, and print what comes out beside what was printed.

    The same command continues what was interrupted.
    """
    if as_list:
        recipes = list(load_shipped())
        if as_json:
            print(json.dumps([recipe.summary for recipe in recipes], indent=2))
        else:
            show_recipes(recipes)
        return
    if name is None:
        raise SettingsError("no recipe is named: fairbloom reproduce --list names them")
    done = api.reproduce(
        name,
        seeds=seeds,
        quick=quick,
        rows=rows,
        settings=settings_of(settings),
        data_dir=data_dir,
        out=out,
        jobs=jobs,
        run=not finished,
    )
    show_result(done, as_json)


app.command(epilog="Example: fairbloom show runs/a")(show)


@app.command("list")
def list_runs(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where the run folders lie.")] = Path("runs"),
    as_json: JsonOption = False,
) -> None:
    """List the runs in a folder: what each is, how far it is, and how its model serves the clients."""
    runs = find_runs(folder)
    if as_json:
        print(json.dumps(runs, indent=2))
    else:
        show_runs(table_rows(runs), folder)


NamesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[NAME]...", help="Describe these alone; yours too, as my_module:Mine.")
]


@app.command()
def methods(names: NamesArgument = None, as_json: JsonOption = False) -> None:
    """List the methods with their parameters, ranges, defaults and source."""
    described = [describe(name) for name in names or METHODS]
    if as_json:
        print(
            json.dumps([{**vars(each), "parameters": [*map(about, each.parameters)]} for each in described], indent=2)
        )
    else:
        show_methods(described)
        if not names:
            show_wrappers()


@app.command()
def tasks(names: NamesArgument = None, as_json: JsonOption = False) -> None:
    """List the tasks with their models, partitions and settings."""
    described = [find_task(name) for name in names or TASKS]
    if as_json:
        print(json.dumps([{**vars(each), "settings": [*map(about, each.settings)]} for each in described], indent=2))
    else:
        show_tasks(described)


@app.command(cls=SettingsCommand, epilog="Example: fairbloom data hospitals --set csv.target=outcome")
def data(
    folder: Annotated[
        str | None, typer.Argument(metavar="[DIR]", help="The folder or file that the task reads its data from.")
    ] = None,
    task: Annotated[str, setting_option("task")] = "csv",
    clients: ClientsOption = None,
    partition: PartitionOption = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the split.")] = None,
    data_dir: DataOption = None,
    figure: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Draw who has how many examples of each class into PATH.png and PATH.svg."),
    ] = None,
    leaves: Annotated[
        bool,
        typer.Option(
            "--leaves",
            help="Print all that deployed clients with these data would send, but for the numbers of models. On a "
            "device, DIR may be its client.toml.",
        ),
    ] = False,
    settings: SetOption = [],  # noqa: B006 (typer reads it, nothing changes it)
    as_json: JsonOption = False,
) -> None:
    """Show what the data of a task hold, client by client, and what is wrong with them; nothing is trained.

    The exit code is 1 where something is.
    """
    if leaves:
        show_leaving(task, data_dir or folder, settings_of(settings), as_json)
        return
    options = {"task": task, "data-dir": folder, "clients": clients, "partition": partition, "seed": seed}
    config = merge_settings(options, merge_settings({"data-dir": data_dir}, settings_of(settings)))
    check_used(config, ["fedavg"], task)
    chosen = Settings.of(config)
    described = describe_data(chosen)
    if as_json:
        print(json.dumps(described, indent=2))
    else:
        show_data(described)
    if figure is not None:
        from fairbloom.tasks.split import Split  # imported late: PyTorch takes seconds

        draw_split(Split.of(load_task(chosen)), figure, as_json)
    if any("problem" in row for row in described["clients"]):
        raise typer.Exit(1)


def show_leaving(task: str, place: str | None, settings: dict[str, Value], as_json: bool) -> None:
    """Print what clients with these data send in a run with these settings; exit with 1 where it is an error."""
    from fairbloom.deploy.device.client import ClientSettings  # imported late: Flower and PyTorch take seconds
    from fairbloom.experiments.views.leaving import as_json as leaving_json
    from fairbloom.experiments.views.leaving import sentences
    from fairbloom.simulation.rehearsal import rehearse

    device = ClientSettings.of({}, Path(place)) if place and place.endswith(".toml") else None
    config = merge_settings({"task": task, "data-dir": device.data_dir if device else place}, settings)
    chosen = Settings.of(config)
    check_used(config, [chosen.method], task)
    allow = device.allow if device else [value for value in config.values() if isinstance(value, str)]
    sent = rehearse(chosen, name=device.name if device else "", allow=allow)
    found = leaving_json(sent)
    if not as_json:
        least = int(find_task(chosen.task).check_parameters(chosen.parameters).get("csv.smallest-category", 0))
        for client in dict.fromkeys(each.client for each in sent):
            print(client)
            for sentence in sentences([each for each in sent if each.client == client], least):
                print(f"  {sentence}")
            print()
        print("The same as JSON, with the types and shapes of arrays in place of their numbers:")
    print(json.dumps(found, indent=2, ensure_ascii=False))
    if any("error" in each.content for each in sent):
        raise typer.Exit(1)


@app.command()
def settings(as_json: JsonOption = False) -> None:
    """List every setting with its default; any of them can be given by --set KEY=VALUE."""
    defaults = default_config()
    if as_json:
        print(json.dumps(defaults, indent=2))
    else:
        show_settings(defaults)


@app.command(cls=SettingsCommand, epilog="Example: fairbloom tune --model mlp --clients 100 --set batch-size=20")
def tune(
    task: TaskOption = None,
    data_dir: DataOption = None,
    method: MethodOption = None,
    model: ModelOption = None,
    clients: ClientsOption = None,
    partition: PartitionOption = None,
    fraction: FractionOption = None,
    device: DeviceOption = None,
    seconds: Annotated[
        float, typer.Option(min=0.0, help="How long each engine is measured; at least three rounds are.")
    ] = 3.0,
    ray: Annotated[bool, typer.Option("--ray", help="Measure Ray too, which takes ten seconds to start.")] = False,
    settings: SetOption = [],  # noqa: B006 (typer reads it, nothing changes it)
    as_json: JsonOption = False,
) -> None:
    """Measure how fast each engine computes the clients of a task here, and say which one to set.

    Each computes a few rounds of real training on the real data, in turn; nothing is written.
    """
    from fairbloom.simulation.tune import tune as measured  # imported late, as PyTorch is with it

    options: dict[str, Value | None] = {"task": task, "data-dir": data_dir, "method": method, "model": model}
    options |= {"clients": clients, "partition": partition, "fraction": fraction, "device": device}
    config = merge_settings(options, settings_of(settings))
    if "engine" in config:
        raise SettingsError(f"engine = {config['engine']!r}: fairbloom tune measures all engines: leave it out")
    chosen = Settings.of(config)
    check_used(config, [chosen.method], chosen.task)
    with progress.quiet_log(), errors.status("measuring rounds"):
        tuned = measured(chosen, ("loop", "stacked", "workers", *(("ray",) if ray else ())), seconds)
    if as_json:
        engines = [{**asdict(timing), "times_as_fast_as_loop": tuned.speed(timing)} for timing in tuned.timings]
        print(json.dumps({"engines": engines, "auto": asdict(tuned.auto), "set": tuned.better or "auto"}, indent=2))
    else:
        show_tuned(tuned)


@app.command(cls=SettingsCommand, epilog="Example: fairbloom check my_module:Mine --set mine.share=0.3")
def check(
    method: Annotated[
        str,
        typer.Argument(metavar="METHOD", help="A method or a rule: yours as my_module:Mine, or one of our methods."),
    ],
    settings: SetOption = [],  # noqa: B006 (typer reads it, nothing changes it)
) -> None:
    """Try a method, or a client-side rule, in made-up and real rounds, and say in words what is wrong with it.

    The exit code is 1 where something is.
    """
    from fairbloom.experiments.battery import check as battery  # imported late, as PyTorch is with it

    if battery.is_rule(method):
        if settings:
            raise FairbloomError(f"--set {settings[0]}: a client-side rule has no settings: leave it out")
        report = battery.check_rule(method)
    else:
        cls = find_method(method)
        report = battery.check(cls, battery.arguments_of(cls, settings_of(settings)))
    battery.show_report(report, console)
    if not report.passed:
        raise typer.Exit(1)


app.command(epilog="Example: fairbloom watch runs/a")(watch)
app.command(epilog="Example: fairbloom report runs/comparison --svg")(report)
app.command(epilog="Example: fairbloom predict runs/a new.csv --out predictions.csv")(predict)
app.command(epilog=f"Example: {EVALUATE_EXAMPLE}")(evaluate)
app.command(epilog="Example: fairbloom export runs/a --to onnx")(export)
deployment.add_commands(app)
app.command(epilog="Example: fairbloom new my-app")(new)


def main() -> None:
    """Run the command line."""
    run_command(app)
