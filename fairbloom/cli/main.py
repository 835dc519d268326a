"""The command `fairbloom`: a command's module is imported when that command is called."""

from typing import Annotated, Any, NamedTuple

import click
import typer
from typer.core import TyperGroup

from fairbloom import __version__
from fairbloom.cli.help import restore_help
from fairbloom.command import import_command, run_command
from fairbloom.logs import print_lines
from fairbloom.system.streams import write_any_text


class CommandPlace(NamedTuple):
    """A command's function or app as module:name, its line in `fairbloom --help`, an example."""

    name: str
    summary: str
    example: str = ""


OURS = "fairbloom.cli"

# The commands in the order in which they are listed.
COMMANDS = {
    "run": CommandPlace(
        f"{OURS}.studies:run",
        "Train with one method, all clients on this machine.",
        "fairbloom run --method fedfv --set fedfv.alpha=0.2 --rounds 50 --out runs/a",
    ),
    "compare": CommandPlace(
        f"{OURS}.studies:compare",
        "Train with several methods and seeds, and show which clients gain or lose.",
        "fairbloom compare --methods 'fedavg,qfedavg(q=1),fedfv' --seeds 3 --out runs/cmp",
    ),
    "refit": CommandPlace(
        f"{OURS}.studies:refit",
        "Train a method of a comparison on all rows, for a model to use.",
        "fairbloom refit runs/cmp --method qfedavg",
    ),
    "search": CommandPlace(
        f"{OURS}.studies:search",
        "Try values of methods' parameters, and test the best of each method with fresh seeds.",
        "fairbloom search --methods fedfv,qfedavg --grid alpha=0,0.1,0.5 --out runs/search",
    ),
    "reproduce": CommandPlace(
        f"{OURS}.studies:reproduce",
        "Repeat a published experiment, and print its numbers next to the published ones.",
        "fairbloom reproduce fedfv-table3 --seeds 5",
    ),
    "show": CommandPlace(
        f"{OURS}.results:show",
        "Show the results, progress and settings of a run or a study; list the runs of a folder.",
        "fairbloom show runs/a",
    ),
    "methods": CommandPlace(
        f"{OURS}.lists:methods",
        "List the methods with their parameters, ranges, defaults and source.",
    ),
    "tasks": CommandPlace(
        f"{OURS}.lists:tasks",
        "List the tasks with their models, partitions and settings.",
    ),
    "data": CommandPlace(
        f"{OURS}.data:data",
        "Check a task's data: show what each client has, and report faults.",
        "fairbloom data hospitals --set csv.target=outcome",
    ),
    "settings": CommandPlace(
        f"{OURS}.lists:settings",
        "List all settings with their defaults. Change one with --set KEY=VALUE.",
    ),
    "report": CommandPlace(
        f"{OURS}.results:report",
        "Write a report with charts and tables as one HTML file.",
        "fairbloom report runs/comparison",
    ),
    "predict": CommandPlace(
        f"{OURS}.predict:predict",
        "Predict for new data, and write a CSV file with predictions and class probabilities.",
        "fairbloom predict runs/a new.csv --out predictions.csv",
    ),
    "evaluate": CommandPlace(
        f"{OURS}.studies:evaluate",
        "Evaluate a run's model on the data of a site that did not take part.",
        "fairbloom evaluate runs/a --data-dir new-hospital",
    ),
    "client": CommandPlace(
        "fairbloom.cli.deploy:client",
        "Run a client of a federation, profile its tables, accept a schema, or read its log.",
    ),
    "server": CommandPlace(
        "fairbloom.cli.deploy:server",
        "Run the server of a federation: devices connect to it, and it carries out runs.",
    ),
    "deploy": CommandPlace(
        "fairbloom.cli.deploy:app",
        "Operate a federation of real devices: certificates, clients and runs.",
    ),
    "new": CommandPlace(
        "fairbloom.scaffold.new:new",
        "Create a small, runnable Flower app with a fair method.",
        "fairbloom new my-app",
    ),
}


class LateCommand(click.Command):
    """A command as --help lists it; its module is imported when the command is called."""

    def __init__(self, name: str, place: CommandPlace) -> None:
        super().__init__(name, help=place.summary)
        self._place = place

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
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
            single = typer.Typer(add_completion=False, rich_markup_mode="rich")
            cls = None
            # with --set, options that are settings are explained
            if "settings" in found.__annotations__:
                # devices lack its dependencies
                from fairbloom.cli.settings_command import SettingsCommand

                cls = SettingsCommand
            single.command(
                str(self.name),
                cls=cls,
                epilog=f"Example: {self._place.example}" if self._place.example else None,
            )(found)
            command = typer.main.get_command(single)
        restore_help(command)
        return command


class Commands(TyperGroup):
    """All commands, without importing them."""

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
        print_lines(f"fairbloom {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Fair federated learning on Flower: train, compare methods, see how each client is served."""


def main() -> None:
    """Run the command line."""
    write_any_text()
    run_command(app)
