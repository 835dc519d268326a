"""The command `fairbloom`: a command's module is imported when that command is called."""

from typing import Annotated, Any, NamedTuple

import click
import typer
from typer.core import TyperGroup

from fairbloom import __version__
from fairbloom.command import import_command, run_command
from fairbloom.help import restore_help


class Place(NamedTuple):
    """A command's function or app as module:name, what `fairbloom --help` says of it, and an example."""

    name: str
    summary: str
    example: str = ""


OURS = "fairbloom.experiments.commands"

COMMANDS = {
    "run": Place(
        f"{OURS}.run:run",
        "Train with one method, all clients on this machine.",
        "fairbloom run --method fedfv --set fedfv.alpha=0.2 --rounds 50 --out runs/a",
    ),
    "compare": Place(
        f"{OURS}.compare:compare",
        "Train with several methods over several seeds and see who gains and who loses.",
        "fairbloom compare --methods 'fedavg,qfedavg(q=1),fedfv' --seeds 3 --out runs/cmp",
    ),
    "sweep": Place(
        f"{OURS}.sweep:sweep",
        "Try values of settings, choose the best on validation examples, and test that one alone.",
        "fairbloom sweep --method fedfv --grid alpha=0,0.1,0.5 --grid learning-rate=0.01,0.1 --baseline fedavg",
    ),
    "recommend": Place(
        f"{OURS}.recommend:recommend",
        "Search for the method that best meets a goal, within a time budget.",
        "fairbloom recommend --task digits --wish 'worst as high as possible, mean within 1 point of FedAvg' "
        "--budget 10m",
    ),
    "reproduce": Place(
        f"{OURS}.reproduce:reproduce",
        "Run a published experiment, and print its numbers next to the published ones.",
        "fairbloom reproduce fedfv-table3 --seeds 5",
    ),
    "show": Place(
        f"{OURS}.show:show",
        "Show a run, a comparison or a sweep, finished or not: tables, progress, absences, settings.",
        "fairbloom show runs/a",
    ),
    "list": Place(
        f"{OURS}.listing:list_runs",
        "List the runs in a folder: their settings, their progress, and how their models serve the clients.",
    ),
    "methods": Place(
        f"{OURS}.catalogue:methods",
        "List the methods with their parameters, ranges, defaults and source.",
    ),
    "tasks": Place(
        f"{OURS}.catalogue:tasks",
        "List the tasks with their models, partitions and settings.",
    ),
    "data": Place(
        f"{OURS}.data:data",
        "Show what the data of a task hold, client by client, and what is wrong with them.",
        "fairbloom data hospitals --set csv.target=outcome",
    ),
    "settings": Place(
        f"{OURS}.catalogue:settings",
        "List every setting with its default; any of them can be given by --set KEY=VALUE.",
    ),
    "tune": Place(
        f"{OURS}.tune:tune",
        "Measure how fast each engine computes the clients of a task here, and say which one to set.",
        "fairbloom tune --model mlp --clients 100 --set batch-size=20",
    ),
    "check": Place(
        f"{OURS}.check:check",
        "Try a method, or a client-side rule, in made-up and real rounds, and say what is wrong with it.",
        "fairbloom check my_module:Mine --set mine.share=0.3",
    ),
    "watch": Place(
        f"{OURS}.watch:watch",
        "Follow a run or a study while it goes on: rounds, clients (worst first), absences.",
        "fairbloom watch runs/a",
    ),
    "report": Place(
        f"{OURS}.report:report",
        "Write a page of charts and tables: one HTML file, which needs no network.",
        "fairbloom report runs/comparison --svg",
    ),
    "predict": Place(
        f"{OURS}.predict:predict",
        "Predict for new data: the file's columns, the prediction, and the probability of each class.",
        "fairbloom predict runs/a new.csv --out predictions.csv",
    ),
    "evaluate": Place(
        f"{OURS}.evaluate:evaluate",
        "Measure a finished run's model on data of a site that took no part in the run.",
        "fairbloom evaluate runs/a --data-dir new-hospital --personalise --out site",
    ),
    "export": Place(
        f"{OURS}.export:export",
        "Write the trained model with its preprocessing for other programs, and a model card.",
        "fairbloom export runs/a --to onnx",
    ),
    "client": Place(
        "fairbloom.deploy.cli:client",
        "Run a client of a federation, make its key, or use the models that it keeps.",
    ),
    "server": Place(
        "fairbloom.deploy.cli:server",
        "Run the server of a federation: SuperLink and SuperExec, each started again when it ends.",
    ),
    "deploy": Place(
        "fairbloom.deploy.cli:app",
        "Operate a federation of real devices: certificates, clients, runs.",
    ),
    "new": Place(
        "fairbloom.scaffold.new:new",
        "Write a small Flower app that runs: model and data, a fair method, a run folder.",
        "fairbloom new my-app",
    ),
}
"""The commands in the order in which they are listed."""


class LateCommand(click.Command):
    """A command as --help lists it; its module is imported when the command is called."""

    def __init__(self, name: str, place: Place) -> None:
        super().__init__(name, help=place.summary)
        self._place = place

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Return the context of the imported command."""
        return self.imported().make_context(info_name, args, parent, **extra)

    def imported(self) -> click.Command:
        """Return the command itself."""
        found = import_command(self._place.name)
        if isinstance(found, typer.Typer):
            command: click.Command = typer.main.get_group(found)
            command.name = self.name
        else:
            command = _command_of(found, str(self.name), self._place.example)
        restore_help(command)
        return command


def _command_of(function: Any, name: str, example: str) -> click.Command:
    """Return the command that a function stands for; one with --set explains options that are settings."""
    from fairbloom.experiments.commands.options import SettingsCommand  # imported late: it declares all settings

    alone = typer.Typer(add_completion=False, rich_markup_mode="rich")
    cls = SettingsCommand if "settings" in function.__annotations__ else None
    alone.command(name, cls=cls, epilog=f"Example: {example}" if example else None)(function)
    return typer.main.get_command(alone)


class Commands(TyperGroup):
    """All commands, none of them imported."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = {name: LateCommand(name, place) for name, place in COMMANDS.items()}


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    suggest_commands=False,  # click does
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


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


def main() -> None:
    """Run the command line."""
    run_command(app)
