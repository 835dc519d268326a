"""The common part of all commands: errors, Ctrl-C and Flower's log lines."""

import errno
import json
import logging
import os
import signal
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment

from fairbloom.errors import FairbloomError
from fairbloom.logs import (
    colour_on_terminals_alone,
    escape_unprintable,
    print_lines,
    print_traceback,
)


class Terminal(Console):
    """A console that prints control characters as text: names come from others."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Yield the printed segments with control characters replaced."""
        for part in super().render(renderable, options):
            yield (
                part
                if part.control
                else part._replace(text=escape_unprintable(part.text, but="\n"))
            )


errors = Terminal(stderr=True)


def print_json(value: object) -> None:
    """Print a value as JSON for another program; a terminal obeys nothing in it."""
    written = json.dumps(value, indent=2).replace("\x7f", "\\u007f")  # the rest is escaped
    print_lines(*written.splitlines())


TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust",
        help=(
            "Import the modules that the settings of the run or study name. Importing runs their"
            " code."
        ),
    ),
]

# Exit codes: the user can correct what was wrong, and Ctrl-C ended the command.
CORRECTABLE = 2
INTERRUPTED = 130


class Interrupted(BaseException):
    """The user has pressed Ctrl-C.

    On KeyboardInterrupt the command-line library would end with its word for it.
    """


def interrupt(signal_number: int, frame: object) -> None:
    """Raise Interrupted; a second Ctrl-C ends the process at once."""
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(INTERRUPTED))
    raise Interrupted


def import_command(name: str) -> Any:
    """Return the function or app that `module:name` names.

    Until it is imported, Ctrl-C ends the process in silence.
    """
    module, _, attribute = name.partition(":")
    if module != "fairbloom.cli.deploy":  # monitoring calls deploy status --check often
        # Late, as it takes half a second, and before the level of its logger is set.
        import flwr.app  # noqa: F401
    found = getattr(import_module(module), attribute)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    colour_on_terminals_alone()
    signal.signal(signal.SIGINT, interrupt)
    return found


def run_command(app: typer.Typer) -> None:
    """Run the command line: what a user can correct is one red line and exit code 2.

    A bug keeps its traceback.
    """
    try:
        app()
    except Interrupted:
        errors.print(
            "[yellow]interrupted[/]: the same command begins again; a run continues after its last"
            " finished round",
            soft_wrap=True,
        )
        sys.exit(INTERRUPTED)
    except FairbloomError as error:
        _end_with(str(error))
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        _end_with(f"{error.filename}: no file can have so long a name: give a shorter one")
    except Exception:
        sys.excepthook = print_traceback  # here, as typer has set its own
        raise


def _end_with(text: str) -> NoReturn:
    errors.print(f"[red]error[/]: {escape(text)}", soft_wrap=True)
    sys.exit(CORRECTABLE)
