"""Commands made of functions: their parameters are options, and their docstrings the help."""

import inspect
from collections.abc import Callable, Iterable
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import click
import typer
from rich.markup import escape
from typer.core import TyperCommand

from fairbloom.errors import find_nearest
from fairbloom.experiments import api
from fairbloom.experiments.options import StudyOptions, as_settings, merge_settings
from fairbloom.protocol.parameters import described
from fairbloom.protocol.settings import SETTINGS, Value, key_of, parse_assignments, parsed
from fairbloom.server.settings import default_config
from fairbloom.system.machine import processors_here

# Parameters of API functions that no command has.
IN_PYTHON = ("progress", "on_round", "on_run", "data", "target")

# What the help calls the values of options, where their type says too little.
METAVARS = {
    "app": "FOLDER",
    "settings": "KEY=VALUE",
    "grid": "KEY=VALUES",
    "budget": "MINUTES",
    "memory": "GB",
    "figure": "PATH",
    "schema": "FILE",
    "rows": "TEXT",
}

# The defaults of options that are other than the function's.
DEFAULTS = {"jobs": processors_here(), "settings": list[str]()}

# The settings of the options of all studies.
STUDY_KEYS = as_settings(dict.fromkeys(StudyOptions.__annotations__))

# The help of options that several commands share.
SAID = {
    **{
        name: SETTINGS[key].description
        for name, key in zip(StudyOptions.__annotations__, STUDY_KEYS, strict=True)
    },
    **{name: SETTINGS[name].description for name in ("task", "method", "seed")},
    "data_dir": "The folder that the task reads its data from",
    "settings": "Set any setting; fairbloom settings lists them. May be repeated",
    "as_json": "Print JSON instead of a table",
}

# What the help adds to a setting's description.
MORE = {
    "method": " Its parameters may follow in parentheses: 'fedfv(alpha=0.2)'.",
    "engine": (
        " loop computes one client at a time, stacked many as one tensor. Both give the same"
        " numbers, up to rounding."
    ),
}


class SettingsCommand(TyperCommand):
    """A command with --set: for a setting given as an option, the error shows how to set it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line."""
        try:
            return super().parse_args(ctx, join_words(args))
        except click.NoSuchOption as error:
            key = key_of(error.option_name.lstrip("-"))
            settings = default_config()
            options = {name.lstrip("-") for param in self.params for name in param.opts}
            # A run has --method and --seed, a study --methods, and a recipe --rows.
            others = [f"{key}s", key.removesuffix("s")]
            if key.startswith("method"):
                others.append("rows")
            for other in others:
                if other in options:
                    raise click.NoSuchOption(
                        error.option_name,
                        f"No such option {error.option_name!r}: write --{other}.",
                        ctx=ctx,
                    ) from None
            nearest = key if key in settings else find_nearest(key, [*options, *settings])
            if nearest is None or nearest in options:
                raise
            say = f"did you mean --set {nearest}=VALUE?"
            if nearest == key:
                say = f"write --set {key}=VALUE."
            raise click.NoSuchOption(
                error.option_name, f"No such option {error.option_name!r}: {say}", ctx=ctx
            ) from None


def join_words(words: Iterable[str]) -> list[str]:
    """Return the words with --runs before each folder that follows it, and --methods as one list.

    A shell makes several words of --runs runs/* and of --methods fedavg, fedfv.
    """
    joined = list[str]()
    option = ""
    for word in words:
        if word.startswith("-"):
            option = word.partition("=")[0]
        elif option == "--runs" != joined[-1]:
            joined.append(option)
        elif option == "--methods" != joined[-1]:
            word = f"{joined.pop().rstrip(',')},{word}"
        joined.append(word)
    return joined


class OneValue(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.2 on
    """The value of an option for a setting; the setting's description has its range."""

    def __init__(self, key: str) -> None:
        self._setting = SETTINGS[key]
        self.name = {int: "integer", float: "float"}[self._setting.kind]

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Value:
        """Return the value; raise SettingsError where the setting cannot have it."""
        return self._setting.checked(
            parsed(value) if isinstance(value, str) else value, param.opts[0] if param else ""
        )


def settings_of(assignments: Iterable[str]) -> dict[str, Value]:
    """Return the settings of KEY=VALUE assignments.

    Raise FairbloomError for an unknown setting, or one with two values.
    """
    return reduce(
        merge_settings, (parse_assignments([assignment]) for assignment in assignments), {}
    )


def command(
    of: Callable[..., Any] | None = None,
    *,
    like: Callable[..., Any] | None = None,
    **arguments: str,
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Return a decorator that makes a command of a function.

    The decorated function carries it out, by default the function itself.

    The function's parameters are options, and its docstring is the help; `like` is another one
    with a docstring that describes parameters; others are described in `fairbloom.run`.
    What carries it out is given all values by their names; its own parameters are options as well,
    after the function's. `arguments` are the positional parameters, with the names of their values
    in the help; [NAME] may be left out.
    """

    def decorate(carry_out: Callable[..., Any]) -> Callable[..., None]:
        function = of or carry_out
        own = [
            described(inspect.getdoc(each) or "")
            for each in (api.run, api.load, like, function, carry_out)
        ]
        common = {name: f"{text}.{MORE.get(name, '')}" for name, text in SAID.items()}
        of_others = [] if function is api.run else own[2:]
        said = reduce(or_, [*own[:2], common, *of_others])
        signatures = [inspect.signature(each).parameters for each in (function, carry_out)]
        said["settings"] = common["settings"]
        parameters = [
            _declare(parameter, said[parameter.name], arguments.get(parameter.name))
            for parameter in {**signatures[0], **signatures[1]}.values()
            if parameter.kind is not parameter.VAR_KEYWORD and parameter.name not in IN_PYTHON
        ]

        def called(**values: Any) -> None:
            if "settings" in values:
                values["settings"] = settings_of(values["settings"])
            carry_out(**values)

        # The text before the parameters, without the sentence that refers to another function's.
        documented = inspect.cleandoc(str(function.__doc__))
        text = documented.partition("\nParameters\n----------\n")[0].replace("`", "")
        parts = [" ".join(part.split()) for part in text.strip().split("\n\n")]
        kept = [part for part in parts if not part.startswith("The parameters that are not")]
        called.__doc__ = "\n\n".join(kept).replace("The same call", "The same command")
        called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        vars(called)["__signature__"] = inspect.Signature(parameters)
        return called

    return decorate


def _declare(parameter: inspect.Parameter, said: str, argument: str | None) -> inspect.Parameter:
    """Return a parameter as typer reads it: a positional argument or an option."""
    name = parameter.name
    kind = parameter.annotation
    kinds = get_args(parameter.annotation)
    if get_origin(kind) is not Literal and kind not in (bool, int, float, str, Path):
        plain: Any = next((each for each in (int, float, str, Path) if each in kinds), None)
        if plain is None or get_origin(kind) is not type(int | str):
            kind = list[str]
        else:
            kind = plain | None if type(None) in kinds else plain
    default = DEFAULTS.get(name, [] if parameter.default == () else parameter.default)
    said = escape(said.partition(" In Python")[0].replace("`", ""))
    declared: Any
    if argument is not None:
        declared = typer.Argument(metavar=argument, help=said)
        if argument.startswith("[") and default is parameter.empty:
            kind = kind | None
            default = None
    else:
        (key,) = as_settings({name: None})
        number = (
            parameter.default is None and key in SETTINGS and SETTINGS[key].kind in (int, float)
        )
        declared = typer.Option(
            "--set" if name == "settings" else f"--{name.removeprefix('as_').replace('_', '-')}",
            metavar=METAVARS.get(name, "FILE" if Path in (kind, *get_args(kind)) else None),
            click_type=OneValue(key) if number else None,
            min=1 if name == "jobs" else None,
            help=said,
        )
    return parameter.replace(
        kind=parameter.KEYWORD_ONLY, annotation=Annotated[kind, declared], default=default
    )
