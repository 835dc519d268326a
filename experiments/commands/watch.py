"""The command `fairbloom watch`."""

from pathlib import Path
from typing import Annotated

import typer

from fairbloom.command import INTERRUPTED
from fairbloom.system.interrupts import until_interrupted

from ..results.run import COMPARISON, SWEEP, load
from ..views.listing import find_runs
from ..views.lists import show_runs
from ..views.live import terminal
from ..views.live.state import Snapshot
from .show import load_result


def watch(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="The folder of a run or study, or a folder that contains runs. If it does not exist yet, the "
            "command waits.",
        ),
    ],
    page: Annotated[
        bool, typer.Option("--page", help="Serve a page for a browser on this machine instead of the terminal display.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of --page; 0 uses a free port.")] = 0,
    interval: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="Seconds between two updates.")] = 1.0,
) -> None:
    """Show the progress of a run or study: rounds, clients (worst served first), absences.

    The command only reads the folder and ends with the run: its exit code is 0 if the run finished, and 1 if it was
    interrupted.
    """
    ended = None
    with until_interrupted():
        if page:
            from ..views.live.page import serve  # imported late, as jinja2 is with it

            ended = serve(folder, port, interval)
        else:
            ended = terminal.watch(folder, interval)
    if ended is None:
        raise typer.Exit(INTERRUPTED)
    show_end(ended)
    print(terminal.describe_end(ended))
    if ended.state != "finished":
        raise typer.Exit(1)


def show_end(snapshot: Snapshot) -> None:
    """Print the table of what is over."""
    folder, finished = snapshot.folder, snapshot.state == "finished"
    if snapshot.alone:
        run = load(folder)
        if run.final():
            run.show()
    elif finished and any((folder / name).exists() for name in (COMPARISON, SWEEP)):
        load_result(folder).show()
    else:
        show_runs(find_runs(folder), folder)
