"""The command `fairbloom run`."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Unpack

import typer

from fairbloom.command import CORRECTABLE
from fairbloom.errors import FairbloomError

from .. import api
from ..options import CommonOptions
from ..results.run import final_of
from .options import MethodOption, SeedOption, SetOption, TaskOption, offer_common_options, settings_of


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


@offer_common_options(method="data_dir", seed="fraction", out="memory")
def run(
    task: TaskOption = None,
    method: MethodOption = None,
    seed: SeedOption = None,
    out: Annotated[
        str | None, typer.Option(help="The run folder. The default is a folder below runs/ named after the settings.")
    ] = None,
    debug: Annotated[
        bool,
        typer.Option(
            "--debug",
            help="Compute one client at a time in this process, and show the traceback of the first error. "
            "breakpoint() works in a model, loss or task.",
        ),
    ] = False,
    settings: SetOption = [],  # noqa: B006 (typer reads it, nothing changes it)
    **options: Unpack[CommonOptions],
) -> None:
    """Train with one method, all clients on this machine.

    The same command continues an interrupted run. It shows a finished run, or extends it if --rounds is higher.
    """
    with uncaught(debug):
        finished = api.run(
            task,
            method=method,
            seed=seed,
            out=out,
            settings=settings_of(settings),
            debug=debug,
            **options,
        )
        final_of(finished)  # a run that measured no client is an error, never a success
        finished.show()
