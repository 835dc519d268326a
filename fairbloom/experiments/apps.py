"""A Flower app of a user's that a comparison runs: its pyproject.toml, and its runs."""

import os
from collections.abc import Mapping
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairbloom.errors import FairbloomError, did_you_mean, join_names
from fairbloom.logs import log
from fairbloom.own_code import digest_own_code
from fairbloom.protocol.settings import SettingsError, Value, flatten_tables
from fairbloom.strategies import FairStrategy
from fairbloom.strategies.named import (
    COMMON,
    RUN_FOLDER_OPTIONS,
    STRATEGY_OPTIONS,
    describe_taken,
    method_parameters,
    strategy_of,
)
from fairbloom.system.files import read_toml

from .arms import label_of

CONFIG = "[tool.flwr.app.config]"

# The key of the number of rounds: that of Fairbloom, and that of Flower's templates.
ROUNDS = ("num-rounds", "num-server-rounds")

# What an app needs in its run config, with a value to begin with.
NEEDED: Mapping[str, str] = {
    "method": '"fedavg"',
    "seed": "0",
    "num-rounds": "20",
    "out": '"runs/app"',
}

SERVER_APP = """\
from fairbloom import RunFolder
from fairbloom.strategies import from_config

config = context.run_config
strategy = from_config(config)
RunFolder(config["out"]).start(strategy, grid, arrays, num_rounds=config["num-rounds"])"""


@dataclass(frozen=True)
class AppRun:
    """A run of an app in a process of its own."""

    app: "App"
    config: Mapping[str, Value]  # its run config

    @property
    def out(self) -> str:
        """The run folder."""
        return str(self.config["out"])

    @property
    def num_rounds(self) -> int:
        """The number of rounds."""
        return int(self.config[self.app.rounds])


@dataclass(frozen=True)
class App:
    """A Flower app, with all that its runs share."""

    folder: str
    server: str  # the import strings of the ServerApp and the ClientApp
    client: str
    clients: int  # how many clients take part
    config: Mapping[str, Value]  # the run config
    code: Mapping[str, str]  # the checksums of its modules

    @property
    def rounds(self) -> str:
        """The key of the number of rounds."""
        return _rounds_in(self.config)

    def split(self, given: Mapping[str, Value]) -> dict[str, Value]:
        """Return the settings that runs get besides the run config: of methods, and the rounds."""
        return {
            key: value
            for key, value in given.items()
            if key in NEEDED or (key not in self.config and key != "clients")
        } | {"num-rounds": self.config[self.rounds]}

    def strategy(self, settings: Mapping[str, Value]) -> FairStrategy:
        """Return the strategy of a run with a method and its settings."""
        return strategy_of(self.run(settings, 0, Path()).config)

    def run(self, settings: Mapping[str, Value], seed: int, out: Path) -> AppRun:
        """Return the run with a method and its settings, a seed and a run folder."""
        method = str(settings["method"])
        own = method_parameters(method)
        config = dict(self.config)
        inside: dict[str, Value] = {}
        for key, value in settings.items():
            if key in own or (key in STRATEGY_OPTIONS and key not in config):
                inside[key] = value
            elif key in config:
                config[key] = check_type(key, value, config[key])
            elif key in RUN_FOLDER_OPTIONS:
                config[key] = value
            elif key not in ROUNDS:
                raise SettingsError(
                    f"{key} = {value!r} of {method}: add {key} to {CONFIG} of the app, and use it"
                    " in its clients"
                )
        config |= {"method": label_of(method, inside), "seed": seed, "out": str(out)}
        return AppRun(self, {**config, self.rounds: settings["num-rounds"]})

    def check_same(self, before: "App", out: Path) -> None:
        """Raise FairbloomError if its runs in a folder were begun by another app or other code."""
        code = [
            name
            for name in {**self.code, **before.code}
            if self.code.get(name) != before.code.get(name)
        ]
        if code:
            raise FairbloomError(
                f"your app has changed since the runs in {out} were begun"
                f" ({join_names(sorted(code))}): choose another folder (--out) for runs with the"
                " new code"
            )
        here, there = ({**app.config, "clients": app.clients} for app in (self, before))
        for key in sorted({*here, *there}.difference(NEEDED, ROUNDS)):
            if here.get(key) != there.get(key):
                raise FairbloomError(
                    f"the runs in {out} were begun with {key} = {there.get(key)!r}, and not"
                    f" {here.get(key)!r}: choose another folder (--out) for other settings"
                )


def read_app(place: str | os.PathLike[str] | None, given: Mapping[str, Value]) -> App | None:
    """Return the app in a folder, None without a folder.

    `given` may replace values of its run config. Parameters of methods among `given` are left to
    the methods. Raise SettingsError if the app does not take a value, or lacks what a comparison
    needs.
    """
    if place is None:
        return None
    folder = Path(place)
    table = _read_flwr(folder)
    config = flatten_tables(table["app"].get("config", {}))
    _check_keys(folder, config)
    nodes = [
        federation["options"]["num-supernodes"]
        for federation in table.get("federations", {}).values()
        if isinstance(federation, dict) and "num-supernodes" in federation.get("options", {})
    ]
    # Flower's newest template names no number of nodes; its earlier ones did: 10.
    clients = next(filter(None, (given.get("clients"), config.get("clients"), *nodes, 10)))
    if not isinstance(clients, int):
        raise SettingsError(
            f"clients = {clients!r}: give the number of the app's clients by --clients"
        )
    rounds = _rounds_in(config)
    for key, value in given.items():
        # "." is in the keys of methods' parameters
        of_methods = "." in key or (key in COMMON and key in STRATEGY_OPTIONS)
        of_methods |= key in RUN_FOLDER_OPTIONS
        if key in config:
            config[key] = check_type(key, value, config[key])
        elif key in ROUNDS:
            config[rounds] = check_type(rounds, value, config[rounds])
        elif key != "clients" and not of_methods:
            raise SettingsError(
                f"{key} = {value!r}: {CONFIG} of the app has no {key}:"
                f" {did_you_mean(key, config)}there are {', '.join(config)}"
            )
    if taken := describe_taken({key: config[key] for key in config if key not in NEEDED}):
        log.warning("all methods take these keys of the app's run config: %s", taken)
    names = table["app"]["components"]
    with chdir(folder):
        code = digest_own_code([names["serverapp"], names["clientapp"]])
    return App(
        str(folder.absolute()),
        names["serverapp"],
        names["clientapp"],
        clients,
        config,
        code,
    )


def _read_flwr(folder: Path) -> dict[str, Any]:
    """Return the table [tool.flwr] of the pyproject.toml of an app."""
    file = folder / "pyproject.toml"
    try:
        project = read_toml(file)
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"app = {str(folder)!r}: {file} cannot be read:"
            f" {getattr(error, 'strerror', None) or error}. Name the folder of a Flower app, such"
            " as fairbloom new writes"
        ) from error
    table: dict[str, Any] = project.get("tool", {}).get("flwr", {})
    named = table.get("app", {}).get("components", {})
    lacking = [key for key in ("clientapp", "serverapp") if not isinstance(named.get(key), str)]
    if lacking:
        raise SettingsError(
            f"app = {str(folder)!r}: [tool.flwr.app.components] of {file} has no"
            f" {' and no '.join(lacking)}: name it as in clientapp ="
            ' "my_app.client_app:app"'
        )
    return table


def _check_keys(folder: Path, config: Mapping[str, Value]) -> None:
    """Raise SettingsError with the lines that an app lacks."""
    has_rounds = any(key in config for key in ROUNDS)
    lacking = [
        key for key in NEEDED if key not in config and not (key == "num-rounds" and has_rounds)
    ]
    if lacking:
        lines = "\n".join(f"{key} = {NEEDED[key]}" for key in lacking)
        raise SettingsError(
            f"{CONFIG} of {folder / 'pyproject.toml'} has no {', '.join(lacking)}, which every run"
            f" of a comparison sets: add\n\n{lines}\n\nthere, and use it in the ServerApp:\n\n"
            f"{SERVER_APP}"
        )


def _rounds_in(config: Mapping[str, Value]) -> str:
    return next(key for key in ROUNDS if key in config)


def check_type(key: str, value: Value, default: Value) -> Value:
    """Return a value in the type that the app has for it; raise SettingsError for another type."""
    if type(default) is float and type(value) is int:
        return float(value)
    if type(value) is not type(default):
        raise SettingsError(
            f"{key} = {value!r}: {CONFIG} of the app has {key} = {default!r}: give a value of the"
            f" type {type(default).__name__}"
        )
    return value
