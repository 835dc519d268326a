"""A user's Flower app, which a study runs in place of a task: its run config, and its runs."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from fairbloom.errors import FairbloomError, join_names
from fairbloom.logs import log_from
from fairbloom.own_code import digest_own_code
from fairbloom.protocol.settings import SettingsError, Value, check_app_config, key_of
from fairbloom.strategies import FairStrategy
from fairbloom.strategies.named import COMMON, STRATEGY_OPTIONS, from_config, method_parameters

from .arms import Named, label_of, parse_arms

# The keys of a run config that a study sets in each run, with values for an app that lacks them.
OF_RUNS: Mapping[str, str] = {"method": '"fedavg"', "seed": "0", "out": '"runs/app"'}

# The key of the number of rounds: Fairbloom's, or that of Flower's templates.
ROUNDS = ("num-rounds", "num-server-rounds")

# What the text of any method may set besides its own parameters.
OF_METHODS = COMMON.keys() & STRATEGY_OPTIONS.keys()


@dataclass(frozen=True)
class AppRun:
    """A run of an app; `changed` are the values that replace some of the app's run config."""

    app: "App"
    changed: Mapping[str, Value]

    @property
    def config(self) -> dict[str, Value]:
        """The run config."""
        return {**self.app.config, **self.changed}

    @property
    def out(self) -> str:
        """The run folder."""
        return str(self.changed["out"])

    @property
    def method(self) -> str:
        """The method with its parameters, as in fedfv (alpha=0.1)."""
        return str(self.changed["method"])

    @property
    def num_rounds(self) -> int:
        """The number of rounds."""
        return int(self.config[self.app.rounds])

    def strategy(self) -> FairStrategy:
        """Return the strategy of the run config; raise FairbloomError if it names none."""
        with chdir(self.app.folder), log_from(logging.WARNING):
            return from_config(self.config)


@dataclass(frozen=True)
class App:
    """A Flower app, with what all its runs in a study share."""

    folder: str
    package: str  # `python -m` starts a run by it
    config: Mapping[str, Value]  # the run config of its pyproject.toml
    given: Mapping[str, Value]  # values of the run config that the study replaces
    code: Mapping[str, str]  # the digests of its modules
    flwr: bool = False  # whether `flwr run` starts a run
    needs_validation: bool = False  # whether clients must measure validation examples

    @property
    def rounds(self) -> str:
        """The key of the number of rounds."""
        return next(key for key in ROUNDS if key in self.config)

    def checked(self, settings: Mapping[str, Value]) -> dict[str, Value]:
        """Return settings by their keys in the run config, and in its types.

        Raise SettingsError for a setting that the run config lacks, or of another type.
        """
        spelled = {key_of(key): key for key in self.config} | dict.fromkeys(ROUNDS, self.rounds)
        own = {spelled.get(key_of(key), key): value for key, value in settings.items()}
        return check_app_config(own, self.config, _table_in(Path(self.folder)))

    def run(self, settings: Mapping[str, Value]) -> AppRun:
        """Return the run with the settings of a method, a seed, a folder and a number of rounds.

        Raise SettingsError for a setting that neither the method nor the run config has.
        """
        method = str(settings["method"])
        of_text = OF_METHODS.union(method_parameters(method)) - self.config.keys()
        inside = {key: value for key, value in settings.items() if key in of_text}
        others = {key: value for key, value in settings.items() if key not in of_text}
        others["method"] = label_of(method, inside)
        return AppRun(self, {**self.given, **self.checked(others)})

    def checks(self) -> dict[str, Callable[[Value], Value]]:
        """Return what a grid may vary: of methods, the rounds, and of the run config, with a check.

        A check returns the value in its type; it raises SettingsError for an impossible one.
        """
        found = {key: COMMON[key].checked for key in OF_METHODS}
        found |= {key: partial(self._check, key) for key in self.config if key not in ROUNDS}
        return {**found, ROUNDS[0]: partial(self._check, self.rounds)}

    def _check(self, key: str, value: Value) -> Value:
        return self.checked({key: value})[key]

    def check_same(self, before: "App", out: Path) -> None:
        """Raise FairbloomError if runs in a folder were begun with other code or settings."""
        changed = {name for name, _ in self.code.items() ^ before.code.items()}
        if changed:
            raise FairbloomError(
                f"your app has changed since the runs in {out} were begun"
                f" ({join_names(sorted(changed))}): choose another folder (--out) for runs"
                " with the new code"
            )
        now, then = ({**app.config, **app.given} for app in (self, before))
        for key in sorted({*now, *then}.difference(OF_RUNS, ROUNDS)):
            if now.get(key) != then.get(key):
                raise FairbloomError(
                    f"the runs in {out} were begun with {key} = {then.get(key)!r}, and not"
                    f" {now.get(key)!r}: choose another folder (--out) for other settings"
                )


def read_app(
    place: str | os.PathLike[str] | None,
    given: Mapping[str, Value],
    *methods: Named | Sequence[Named],
    flwr: bool = False,
) -> tuple[App, dict[str, Value]]:
    """Return the app in a folder, and the given settings that the methods take.

    The other settings replace values of its run config. Raise FairbloomError if the folder holds no
    app, a study cannot run the app, or neither the app nor a method has a setting.
    """
    # imported late: the parts of a deployment take a fifth of a second
    from fairbloom.deploy.operator.submit import OURS, read_app as read_submitted

    if place is None:
        raise SettingsError("flwr starts runs of a Flower app: name its folder by app (--app)")
    folder = Path(place).absolute()
    found = read_submitted(folder)
    if found is None or found is OURS:
        raise SettingsError(
            f"app = {os.fspath(place)!r}: {folder / 'pyproject.toml'} is not that of a Flower app"
            " of yours: name the folder of one, such as fairbloom new writes"
        )
    config = dict(found.config or {})
    package = found.serverapp.partition(":")[0].partition(".")[0]
    _check_startable(folder, config, "" if flwr else package)
    with chdir(folder):  # where a method of the app's own is found, as by its runs
        arms = [arm for words in methods for arm in parse_arms(words, given)]
        code = digest_own_code([found.serverapp, found.clientapp])
    of_text = OF_METHODS.union(*(method_parameters(arm.method) for arm in arms)) - config.keys()
    settings = {key: value for key, value in given.items() if key in of_text.union(OF_RUNS)}
    others = {key: value for key, value in given.items() if key not in settings}
    app = App(str(folder), package, config, {}, code, flwr)
    app = replace(app, given=app.checked(others))
    return app, {**settings, "num-rounds": {**config, **app.given}[app.rounds]}


def _check_startable(folder: Path, config: Mapping[str, Value], package: str) -> None:
    """Raise SettingsError if runs of an app cannot be started, or each with its own settings."""
    if package and not (folder / package / "__main__.py").is_file():
        raise SettingsError(
            f"{folder / package} has no __main__.py, which python -m {package} needs: write"
            " one as fairbloom new does, or give --flwr to start runs by flwr run"
        )
    lacking = [f"{key} = {value}" for key, value in OF_RUNS.items() if key not in config]
    if not any(key in config for key in ROUNDS):
        lacking.append(f"{ROUNDS[0]} = 20")
    if lacking:
        raise SettingsError(
            f"{_table_in(folder)} lacks {', '.join(lacking)}, which a study sets in each run: add"
            " it there, and use it in the ServerApp: the strategy by from_config(config), the"
            ' folder by RunFolder(config["out"])'
        )


def _table_in(folder: Path) -> str:
    return f"[tool.flwr.app.config] in {folder / 'pyproject.toml'}"
