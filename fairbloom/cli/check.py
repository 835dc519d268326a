"""The command `fairbloom check`."""

from collections.abc import Mapping

import typer
from rich.markup import escape

from fairbloom.check import CheckFailedError, check_method
from fairbloom.experiments.render.terminal import console
from fairbloom.protocol.settings import Value
from fairbloom.strategies import find_method

from .settings_command import command


@command(method="METHOD")
def check(method: str, *, settings: Mapping[str, Value] = {}) -> None:
    """Train with a method of your own, once more and from a checkpoint; report what is wrong.

    The exit code is 1 if a check fails.

    Parameters
    ----------
    method
        The method: your own as my_module:Mine, or a built-in one.
    """
    try:
        arguments = {key.partition(".")[2]: value for key, value in settings.items()}
        found = check_method(find_method(method), arguments)
    except CheckFailedError as error:
        console.print(escape(str(error)))
        raise typer.Exit(1) from None
    for name, said in found.items():
        console.print(escape(f"{name}: {said}"))
