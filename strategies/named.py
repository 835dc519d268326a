"""A method and its parameters as text, such as fedfv(alpha=0.1), and the strategy of that text."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from fairbloom.imports import is_import_string
from fairbloom.logs import log
from fairbloom.protocol.parameters import Parameter, parameters_of
from fairbloom.protocol.settings import SETTINGS, Mark, SettingsError, Value, key_of, parsed
from fairbloom.rounds.options import OPTIONS

from .flowers import RENAMED
from .registry import METHODS, canonical, find_method
from .strategy import FairStrategy
from .torchjd import TORCHJD, by_name

# The settings of every method that may be part of its text.
COMMON = {key: setting for key, setting in SETTINGS.items() if Mark.VARIANT in setting.marks}

# The options of every strategy that a run config may set, by their keys there.
STRATEGY_OPTIONS = {key_of(name): name for name in (*OPTIONS, "weighting", "server_optimizer_lr")}

# The settings of a run that RunFolder takes from the strategy that `from_config` returns.
RUN_FOLDER_OPTIONS = ("best-model", "early-stopping")

# Keys that are no options in a run config, and the arguments that have their effect.
ARGUMENTS_ONLY = {
    **{key_of(old): new for old, new in RENAMED.items()},
    "training-clients": "training_clients",
    "enrolled-sizes": "enrolled_sizes",
}

# A part between commas: a method with its parameters, or a parameter with its value.
QUOTED = r"\"[^\"]*\"|'[^']*'"
PART = rf"(?:[^,()\"']|{QUOTED}|\((?:[^()\"']|{QUOTED})*\))*"


def from_config(run_config: Mapping[str, Any], **given: Any) -> FairStrategy:
    """Return the strategy that a run config names, as method = "fedfv(alpha=0.1)".

    The run config may also have options of every strategy, such as seed, weighting or
    fraction-train, which are logged. Parameters of the text come before these. RunFolder takes
    best-model and early-stopping from the strategy.

    Parameters
    ----------
    run_config
        The run config of a ServerApp, context.run_config.
    given
        Further arguments of the strategy, such as min_available_nodes=5. They come before the
        options of the run config, and must not be part of the text.

    Raises
    ------
    FairbloomError
        When no method is named, the method is unknown, or a value is impossible.
    """
    refuse_without_effect(run_config, given)
    text = run_config.get("method")
    if not isinstance(text, str) or not text:
        raise SettingsError(
            f"method = {text!r}: name a method in [tool.flwr.app.config] of pyproject.toml, as in"
            ' method = "fedfv(alpha=0.1)"'
        )
    method, own = parse_method(text)
    known = method_parameters(method)
    names = {**STRATEGY_OPTIONS, **{key: each.argument for key, each in known.items()}}
    others = [key for key in own if key not in names]
    if others:
        raise SettingsError(
            f"method = {text!r}: {others[0]} is not an option of a strategy: give it as a key of"
            " its own in the run config, and use it in your app"
        )
    twice = [names[key] for key in own if names[key] in given]
    if twice:
        raise SettingsError(
            f"method = {text!r}: {twice[0]} is given twice, here and as an argument of from_config:"
            " give it once"
        )
    options = {key: value for key, value in run_config.items() if key in STRATEGY_OPTIONS}
    arguments = {}
    for key, value in {**options, **own}.items():
        # a method may refuse an option that it sets itself, even at its default
        if key in known or key not in SETTINGS or value != SETTINGS[key].default:
            arguments[names[key]] = value
    arguments |= given
    for parameter in known.values():
        if parameter.default is None and parameter.argument not in arguments:
            raise SettingsError(
                f"method = {text!r} needs {parameter.name} ({parameter.range}), which has no"
                f" default: write {method}({parameter.name}=…)"
            )
    try:
        strategy = build(method, arguments)
    except ValueError as error:  # the constructor refused a value
        raise SettingsError(f"method = {text!r}: {error}") from error
    strategy.adapt(
        run_folder_options={
            key: SETTINGS[key].checked(run_config[key])
            for key in RUN_FOLDER_OPTIONS
            if run_config.get(key, SETTINGS[key].default) != SETTINGS[key].default
        }
    )
    taken = ", ".join(
        f"{key} = {value!r}"
        for key, value in run_config.items()
        if key in STRATEGY_OPTIONS or key in RUN_FOLDER_OPTIONS
    )
    if taken:
        log.info("the strategy takes these keys of the run config: %s", taken)
    return strategy


def refuse_without_effect(run_config: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raise SettingsError if a run config has an option of ours that would change nothing.

    `given` are the arguments of `from_config`: the app may read such a key itself.
    """
    for name, value in run_config.items():
        argument = ARGUMENTS_ONLY.get(key_of(name), STRATEGY_OPTIONS.get(key_of(name), ""))
        remedy = f"name it {key_of(argument)}"
        if key_of(argument) not in STRATEGY_OPTIONS:
            remedy = f"give it as an argument, as in from_config(config, {argument}=…)"
        method = name.partition(".")[0]
        if method in METHODS and name in method_parameters(method):
            remedy = f'write it in the method, as in method = "{method}({short_key(name)}=…)"'
        elif name in STRATEGY_OPTIONS or not argument or argument in given:
            continue
        raise SettingsError(f"{name} = {value!r} has no effect in an app's run config: {remedy}")


def build(method: str, arguments: Mapping[str, Any]) -> FairStrategy:
    """Return the strategy of a method's name."""
    if method.startswith(TORCHJD):
        return by_name(method.removeprefix(TORCHJD), **arguments)
    return find_method(method)(**arguments)


def parse_method(text: str) -> tuple[str, dict[str, Value]]:
    """Return the method of a text, and its settings by their run-config keys."""
    match = re.fullmatch(r"([^\s(),=]+)\s*(?:\((.*)\))?", text.strip(), re.DOTALL)
    if match is None:
        raise SettingsError(
            f"method = {text!r}: write one method, with its parameters as in qfedavg(q=1)"
        )
    method = canonical(match[1])
    known = method_options(method)
    given: dict[str, Value] = {}
    for assignment in split_parts(match[2] or ""):
        name, equals, value = (part.strip() for part in assignment.partition("="))
        if not equals and given:
            *_, (last, first) = given.items()
            raise SettingsError(
                f"{text}: {assignment!r} has no name: write each parameter with its value, as in"
                f" qfedavg(q=1); fairbloom search --methods {method} --grid"
                f" {short_key(last)}={format_value(first)},{assignment} tries several values of one"
            )
        if not equals or not value:
            raise SettingsError(
                f"{text}: write {assignment!r} as a parameter with its value, as in qfedavg(q=1)"
            )
        key = find_key(name, known)
        if key is None and key_of(name) in SETTINGS:
            raise SettingsError(
                f"{text}: {key_of(name)} is the same for all methods of a comparison, as clients"
                f" and draws are then: set it for all by --set {key_of(name)}=…; methods may differ"
                f" in {', '.join(COMMON)}"
            )
        if key is None:
            own = ", ".join(map(short_key, method_parameters(method))) or "no parameters of its own"
            raise SettingsError(
                f"{text}: {title(method)} has no parameter {name}; there are {own}, and for all"
                f" {', '.join(COMMON)}"
            )
        if key in given:
            raise SettingsError(f"{text}: {name} is given twice: give it once")
        given[key] = known[key].checked(parsed(value))
    return method, given


def owner_of(method: str) -> str:
    """Return the prefix of the keys of a method's parameters."""
    return find_method(method).__name__.lower()


def method_parameters(method: str) -> Mapping[str, Parameter]:
    """Return the parameters of a method by their run-config keys."""
    if method.startswith(TORCHJD):
        return {}
    return {each.key: each for each in parameters_of(owner_of(method), find_method(method))}


def find_key(name: str, known: Iterable[str]) -> str | None:
    """Return the run-config key of a name: as in Python, as a setting, or without its method."""
    return next((key for key in known if key_of(name) in (key, short_key(key))), None)


def method_options(method: str) -> dict[str, Parameter]:
    """Return the keys that the text of a method may set: its parameters, and common settings."""
    return {**method_parameters(method), **COMMON}


def split_parts(text: str) -> list[str]:
    """Return the parts of a text between commas outside parentheses and quotes."""
    if not re.fullmatch(f"{PART}(?:,{PART})*", text):
        raise SettingsError(
            f"methods = {text!r}: a parenthesis or quote is open at one end: write"
            " fedavg,qfedavg(q=1)"
        )
    return [part.strip() for part in re.findall(PART, text) if part.strip()]


# Names in texts and tables ------------------------------------------------------------------------


def title(name: str) -> str:
    """Return a method's name in tables and figures: the name of its class.

    Names that are neither methods of ours nor import strings, such as TorchJD's, are unchanged.
    """
    if canonical(name) in METHODS:
        return METHODS[canonical(name)].__name__
    if is_import_string(name) and not name.startswith(TORCHJD):
        return name.rpartition(":")[2]
    return name


def format_value(value: Value | None) -> str:
    """Return a parameter's value as users write it: 5 for 5.0, true for True."""
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def short_key(key: str) -> str:
    """Return a parameter's name without its method; the name of a setting is unchanged."""
    return key if key in SETTINGS else key.rpartition(".")[2]
