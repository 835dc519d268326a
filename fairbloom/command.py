"""What all commands of `fairbloom` have in common: how errors, Ctrl-C and Flower's log lines reach the user."""

import logging
import os
import signal
import sys

import typer
from flwr.app import Message  # noqa: F401 (with Flower comes its logger, whose level and colours are set below)
from rich.console import Console
from rich.markup import escape

from fairbloom.errors import FairbloomError
from fairbloom.help import restore_help
from fairbloom.logs import colour_on_terminals_alone

errors = Console(stderr=True)

CORRECTABLE, INTERRUPTED = 2, 130
"""Exit codes: the user can correct what was wrong, and Ctrl-C ended the command."""


class Interrupted(BaseException):
    """The user has pressed Ctrl-C; on KeyboardInterrupt the command-line library would end with its word for it."""


def interrupt(signal_number: int, frame: object) -> None:
    """Raise Interrupted; Ctrl-C once more ends the process at once, wherever the first one has brought it."""
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(INTERRUPTED))
    raise Interrupted


def new_app() -> typer.Typer:
    """Return the command line without its commands."""
    return typer.Typer(
        no_args_is_help=True,
        rich_markup_mode="rich",
        suggest_commands=False,  # click does
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
    )


def run_command(app: typer.Typer) -> None:
    """Run the command line: what a user can correct is one red line and exit code 2; a bug keeps its traceback."""
    logging.getLogger("flwr").setLevel(logging.WARNING)
    colour_on_terminals_alone()
    signal.signal(signal.SIGINT, interrupt)
    command = typer.main.get_command(app)
    restore_help(command)
    try:
        command()
    except Interrupted:
        what = "the same command begins again; a run continues after its last finished round"
        errors.print(f"[yellow]interrupted[/]: {what}", soft_wrap=True)
        sys.exit(INTERRUPTED)
    except FairbloomError as error:
        errors.print(f"[red]error[/]: {escape(str(error))}", soft_wrap=True)
        sys.exit(CORRECTABLE)
