"""The command `fairbloom check`."""

from typing import Annotated

import typer

from fairbloom.errors import FairbloomError
from fairbloom.strategies import find_method

from ..battery import check as battery
from ..render.terminal import console
from .options import SetOption, settings_of


def check(
    method: Annotated[
        str,
        typer.Argument(metavar="METHOD", help="The method or rule: your own as my_module:Mine, or a built-in method."),
    ],
    settings: SetOption = [],  # noqa: B006 (typer reads it, nothing changes it)
) -> None:
    """Test a method or client-side rule of your own, and report what is wrong with it.

    The exit code is 1 if a test fails.
    """
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
