"""The help of commands' arguments, which one click of those that Flower takes leaves out."""

import inspect
from collections.abc import Mapping

import click
from typer.core import TyperArgument
from typer.models import ArgumentInfo


def restore_help(command: click.Command) -> None:
    """Restore the help of arguments, which click 8.5 loses from commands of typer 0.20.

    Flower needs a typer before 0.21, and any click 8.
    """
    for subcommand in command.commands.values() if isinstance(command, click.Group) else ():
        restore_help(subcommand)
    declared: Mapping[str, inspect.Parameter] = {}
    if command.callback:
        declared = inspect.signature(command.callback, eval_str=True).parameters
    for argument in command.params:
        if isinstance(argument, TyperArgument) and argument.help is None:
            notes = getattr(declared[str(argument.name)].annotation, "__metadata__", ())
            argument.help = next(
                (note.help for note in notes if isinstance(note, ArgumentInfo)), None
            )
