"""The commands that run a method with its settings, as a shell takes them."""

import shlex
from collections.abc import Mapping

from fairbloom.protocol.settings import SETTINGS, Mark, Value, parsed

from .labels import format_value

OPTIONS = (
    *("task", "data-dir", "method", "model", "clients", "partition", "num-rounds", "fraction"),
    *("score", "engine", "device", "memory"),
)
"""The settings that have an option of their own in `fairbloom run`."""


def run_command(config: Mapping[str, Value]) -> str:
    """Return the command that runs a method on this machine with these settings."""
    words = ["fairbloom", "run"]
    for key in OPTIONS:
        if key in config:
            words += [f"--{key.removeprefix('num-')}", format_value(config[key])]
    for key, value in config.items():
        if key not in OPTIONS:
            words += ["--set", _assignment(key, value)]
    return shlex.join(words)


def deploy_command(config: Mapping[str, Value]) -> str:
    """Return the command that submits a run with these settings to deployed clients."""
    words = ["fairbloom", "deploy", "submit"]
    for key, value in config.items():
        marks = SETTINGS[key].marks if key in SETTINGS else frozenset[Mark]()
        if key not in ("engine", "memory", "pooled") and Mark.PLACE not in marks:  # which are of one machine
            words += ["--set", _assignment(key, value)]
    return shlex.join(words)


def _assignment(key: str, value: Value) -> str:
    """Return KEY=VALUE as `--set` reads it back: a text that looks like a number, say, stands in quotation marks."""
    text = format_value(value)
    if isinstance(value, str) and parsed(text) != value:
        text = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"{key}={text}"
