"""The command `fairbloom check`."""

from collections.abc import Mapping

import typer
from rich.markup import escape

from fairbloom.checks.method import check_method
from fairbloom.checks.report import CheckFailedError
from fairbloom.errors import FairbloomError
from fairbloom.experiments.render.terminal import console
from fairbloom.protocol.parameters import parameters_of
from fairbloom.protocol.settings import Value
from fairbloom.strategies import FairStrategy, find_method

from .settings_command import command


@command(method="METHOD")
def check(method: str, *, settings: Mapping[str, Value] = {}) -> None:
    """Test a method of your own, and report what is wrong with it.

    The exit code is 1 if a test fails.

    Parameters
    ----------
    method
        The method: your own as my_module:Mine, or a built-in one.
    """
    cls = find_method(method)
    try:
        found = check_method(cls, arguments_of(cls, settings))
    except CheckFailedError as error:
        console.print(escape(str(error)))
        raise typer.Exit(1) from None
    for name, said in found.items():
        console.print(escape(f"{name}: {said}"))


def arguments_of(method: type[FairStrategy], settings: Mapping[str, Value]) -> dict[str, Value]:
    """Return the arguments of a method that settings such as worsthalf.share=0.5 give it."""
    known = (
        {parameter.key: parameter for parameter in parameters_of(method.__name__.lower(), method)}
        if settings
        else {}
    )
    for key in settings:
        if key not in known:
            raise FairbloomError(
                f"{key} = {settings[key]!r}: {method.__name__} has no such parameter; there are"
                f" {', '.join(known) or 'none'}"
            )
    return {known[key].argument: known[key].checked(value) for key, value in settings.items()}
