"""Commands made of API functions: their parameters are options, and their docstrings the help."""

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from rich.markup import escape

from fairbloom.command import TrustOption

from ..options import optional
from .options import COMMON, DEFAULT_JOBS, JobsOption, JsonOption, SetOption, TaskOption, settings_of

DECLARED: Mapping[str, Any] = {
    **{"task": TaskOption, "settings": SetOption, "jobs": JobsOption, "trust": TrustOption},
}
"""The options beside the common ones whose help and range are declared once for all commands."""

DEFAULTS = {"jobs": DEFAULT_JOBS, "settings": list[str]()}
"""The defaults of options that are other than the function's."""

IN_PYTHON = ("progress", "on_round")
"""Parameters that no command has."""


def make_command(
    function: Callable[..., Any],
    carry_out: Callable[..., None],
    *,
    arguments: Mapping[str, str] = {},
    declared: Mapping[str, Any] = {},
    metavars: Mapping[str, str] = {},
    more: Mapping[str, tuple[Any, Any]] = {},
    without: tuple[str, ...] = (),
) -> Callable[..., None]:
    """Return the command of an API function; typer reads its signature and docstring.

    Parameters
    ----------
    function
        What is called.
    carry_out
        Is given all values by their names, and calls it.
    arguments
        The parameters that stand without a name, and what the help calls their values; [NAME] may be left out.
    declared
        The annotations of options beside `DECLARED`.
    metavars
        What the help calls the values of options, where their type says too little.
    more
        Options of the command alone: by name the annotation and the default.
    without
        Parameters of the function that the command does not have.
    """
    said, parameters = _read_parameters(str(function.__doc__)), []
    for each in inspect.signature(function).parameters.values():
        if each.name in (*IN_PYTHON, *without):
            continue
        known = {**(COMMON if each.default is None else {}), **DECLARED, **declared}
        annotation = known.get(each.name) or _declare(each, said[each.name], arguments, metavars)
        default = DEFAULTS.get(each.name, [] if each.default == () else each.default)
        if arguments.get(each.name, "").startswith("["):
            default = None
        parameters.append(each.replace(kind=each.KEYWORD_ONLY, annotation=annotation, default=default))
    parameters += [optional(name, annotation).replace(default=default) for name, (annotation, default) in more.items()]

    def command(**values: Any) -> None:
        if "settings" in values:
            values["settings"] = settings_of(values["settings"])
        carry_out(**values)

    command.__doc__ = _read_description(str(function.__doc__))
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    vars(command)["__signature__"] = inspect.Signature(parameters)
    return command


JSON: Mapping[str, tuple[Any, Any]] = {"as_json": (JsonOption, False)}
"""The option of commands that can print JSON."""


def _declare(parameter: inspect.Parameter, said: str, arguments: Mapping[str, str], metavars: Mapping[str, str]) -> Any:
    """Return the annotation of an option, or of an argument."""
    kind, said = _kind_of(parameter.annotation), escape(said.replace("`", ""))
    if (name := arguments.get(parameter.name)) is not None:
        return Annotated[kind | None if name.startswith("[") else kind, typer.Argument(metavar=name, help=said)]
    option = f"--{parameter.name.replace('_', '-')}"
    return Annotated[kind, typer.Option(option, metavar=metavars.get(parameter.name), help=said)]


def _kind_of(annotation: Any) -> Any:
    """Return the type of an option's value on the command line."""
    kinds = get_args(annotation) if get_origin(annotation) is not Literal else ()
    if get_origin(annotation) is Literal or annotation in (bool, int, float, str):
        return annotation
    plain: Any = next((each for each in (int, float, str) if each in kinds), None)
    if plain is None or get_origin(annotation) not in UNIONS:
        return list[str]
    return plain | None if type(None) in kinds else plain


UNIONS = (type(int | str),)


def _read_parameters(docstring: str) -> dict[str, str]:
    """Return what a docstring in NumPy's style says of each parameter, on one line each."""
    text = inspect.cleandoc(docstring).partition("\nParameters\n----------\n")[2]
    text = re.split(r"\n\n[A-Z]\w+\n-+\n", text)[0]
    found: dict[str, str] = {}
    for names, said in re.findall(r"^(\w[\w, ]*)\n((?:    .*\n?|\n(?=    ))+)", text, re.MULTILINE):
        found |= {name.strip(): " ".join(said.split()) for name in names.split(",")}
    return found


def _read_description(docstring: str) -> str:
    """Return what comes before the parameters, without the sentence that refers to those of another function."""
    text = inspect.cleandoc(docstring).partition("\nParameters\n----------\n")[0].replace("`", "")
    parts = [" ".join(part.split()) for part in text.strip().split("\n\n")]
    said = "\n\n".join(part for part in parts if not part.startswith("The parameters that are not"))
    return said.replace("The same call", "The same command")
