"""A run on a federation: submitted, watched to its end, with an exit code that tells the truth."""

import contextlib
import math
import shlex
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from fairbloom.errors import did_you_mean
from fairbloom.protocol.parameters import of_kind
from fairbloom.protocol.settings import OWN_SETTINGS, Mark, RunSettings, SettingsError, Value, marked, parsed
from fairbloom.server.settings import Settings, check_used, default_config

from ..device.bundles import flatten
from ..errors import DeployError, LostRunError, UnauthorizedError
from ..flower.gate import check_flower
from ..flower.operator import control_api
from ..flower.operator.commands import environment, flwr_command, flwr_json, packed_files
from . import run_bundle
from .federation import CONNECTION, Federation, explain_os_errors, warn
from .honoured import check_honoured, check_not_pythons

COMPLETED = "finished:completed"
AGAIN_SECONDS, PATIENCE_SECONDS = 2.0, 600.0
"""Pause between two looks for a SuperLink that is away, and how long they go on."""

LOOK_SECONDS, WAITING_SECONDS = 0.5, 15.0
"""Pause between two looks whether a run has begun, and how long it may wait before we say that nobody is there."""

SIZES = "enrolled-sizes"


@dataclass(frozen=True)
class App:
    """The folder of a Flower app to submit, and its run config's defaults by flat keys; Fairbloom's if `ours`."""

    folder: Path
    config: Mapping[str, Any]
    ours: bool

    def prepare(self, federation: Federation, given: Mapping[str, Value]) -> dict[str, Value]:
        """Return a run's settings, checked before anything is sent; no secret of the federation may travel with it."""
        self._check_secrets_stay(federation)
        return prepare(federation, given) if self.ours else self._checked(given)

    def _check_secrets_stay(self, federation: Federation) -> None:
        """Raise DeployError when Flower would pack files of the federation's folder, which every client then gets."""
        folder, place = self.folder.resolve(), federation.path.resolve()
        if not place.is_relative_to(folder):
            return
        if any(Path(name).is_relative_to(place.relative_to(folder)) for name in packed_files(folder)):
            raise DeployError(
                f"{federation.path} lies in the app's folder, and its secrets would go to every client with the run: "
                f"move it, or name in {self.folder / 'pyproject.toml'} what travels, "
                'fab-include = ["my_app/*.py"] under [tool.flwr.app]'
            )

    def _checked(self, given: Mapping[str, Value]) -> dict[str, Value]:
        """Return settings of a user's app, each with the type of its default."""
        checked: dict[str, Value] = {}
        where = f"[tool.flwr.app.config] in {self.folder / 'pyproject.toml'}"
        for key, value in given.items():
            if key not in self.config:
                hint = did_you_mean(key, self.config)
                there = ", ".join(self.config) or "no key"
                raise SettingsError(f"unknown setting {key} = {value!r}: {hint}{where} has {there}")
            kind = type(self.config[key])
            if not of_kind(value, kind):
                raise SettingsError(
                    f"{key} = {value!r}: it must be of type {kind.__name__}, as its default in {where} is"
                )
            checked[key] = kind(value)
        return checked


@contextlib.contextmanager
def choose_app(given: Path | None) -> Iterator[App]:
    """Give the app in a folder; without one, that in the current directory, or else the Fairbloom that is installed."""
    app = app_in(given or Path.cwd())
    if app is not None:
        yield app
    elif given is not None:
        raise DeployError(f"--app {given} holds no Flower app: name a folder whose pyproject.toml has [tool.flwr.app]")
    else:
        with run_bundle.temporary_app() as folder:
            yield App(folder, default_config(), ours=True)


def app_in(folder: Path) -> App | None:
    """Return the app in a folder, None where there is none."""
    file = folder / "pyproject.toml"
    try:
        project = tomllib.loads(file.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise DeployError(f"{file} cannot be read: {error}") from error
    app = project.get("tool", {}).get("flwr", {}).get("app")
    if app is None:
        return None
    ours = app.get("publisher") == project.get("project", {}).get("name") == "fairbloom"
    return App(folder, flatten(app.get("config", {})), ours)


def prepare(federation: Federation, given: Mapping[str, Value]) -> dict[str, Value]:
    """Return the checked settings of a run of our app, with the clients' enrolled sizes."""
    for key in marked(Mark.DEVICE):
        if key in given:
            raise SettingsError(
                f"{key} = {given[key]!r} has no effect on devices: each has its own, {key} in its client.toml"
            )
    sizes = [
        f"{client.name}={client.examples}" for client in federation.clients if client.examples and not client.revoked
    ]
    config = {SIZES: " ".join(sizes), **given} if sizes else dict(given)
    named = RunSettings.of(config).given()
    check_not_pythons(named)
    settings = Settings.of(config)
    check_used(named, [settings.method], settings.task, deployed=True)
    settings.check_deployed()
    for words in check_honoured(federation, settings, named):
        warn(words)
    return pack_own_settings(config)


def pack_own_settings(config: Mapping[str, Value]) -> dict[str, Value]:
    """Return a run config with the user-defined settings, which Flower has no keys for, in `own-settings`."""
    known = default_config()
    own = [f"{key}={format_value(value)}" for key, value in config.items() if key not in known]
    if not own:
        return dict(config)
    words = [str(config[OWN_SETTINGS])] if config.get(OWN_SETTINGS) else []
    rest = {key: value for key, value in config.items() if key in known}
    return {**rest, OWN_SETTINGS: " ".join([*words, *map(shlex.quote, own)])}


def format_value(value: Value) -> str:
    """Return a setting's value as a user would write it, so that it is read as the same again."""
    if isinstance(value, str) and parsed(value.strip()) == value:
        return value
    return tomli_w.dumps({"": value}).removeprefix('"" = ').rstrip("\n")


def submit(federation: Federation, app: Path, run_config: Mapping[str, Value]) -> str:
    """Submit a run; return its id."""
    check_flower("operator")
    with (
        tempfile.TemporaryDirectory(prefix="fairbloom-") as folder,
        explain_os_errors("submit"),
    ):
        file = Path(folder, "run.toml")  # on a command line, Flower takes no text that has quotes in it
        file.write_bytes(tomli_w.dumps(run_config).encode())
        answer = flwr_json(federation, "run", str(app), CONNECTION, "--run-config", str(file))
    return str(answer["run-id"])


def watch(federation: Federation, run_id: str) -> tuple[str, str]:
    """Print a run's log as it comes, over interruptions of the SuperLink and of the run; return how and why it ended.

    DeployError: the SuperLink is away for ten minutes, refuses the operator's credential, or does not know the run.
    """
    printed, last_seen, away = 0, time.monotonic(), False
    while True:
        _await_start(federation, run_id)
        printed = _stream(federation, run_id, printed)
        try:
            run = {each["run-id"]: each for each in list_runs(federation)}.get(run_id)
        except UnauthorizedError:
            raise
        except DeployError as error:
            if time.monotonic() - last_seen > PATIENCE_SECONDS:
                raise
            if not away:
                _say(f"lost sight of run {run_id}: {error}; looking for it until it is back")
            away = True
        else:
            if run is None:
                raise LostRunError(
                    f"the SuperLink at {federation.control} does not know run {run_id}: was its database lost, or "
                    "brought back from before? The same submit continues the run after its last finished round"
                )
            if away:
                _say(f"run {run_id} is back in sight: {run['status']}")
            if has_ended(run["status"]):
                return run["status"], run["status-details"]
            last_seen, away = time.monotonic(), False
        time.sleep(AGAIN_SECONDS)


def stop(federation: Federation, run_id: str = "") -> list[str]:
    """Stop a run, or by default all that have not ended; return which were stopped."""
    going = [run_id] if run_id else [run["run-id"] for run in list_runs(federation) if not has_ended(run["status"])]
    for each in going:
        with explain_os_errors("stop"):
            flwr_json(federation, "stop", each, CONNECTION)
    return going


def has_ended(status: str) -> bool:
    """Return whether a run of this status is over."""
    return status.startswith("finished")


def list_runs(federation: Federation) -> list[dict[str, Any]]:
    """Return what the SuperLink knows of all runs, the latest first."""
    with control_api.connected(federation) as api:
        return api.runs()


def waits_for_nobody(listed: list[dict[str, Any]], run_id: str) -> bool | None:
    """Return whether a run has not begun though no other goes on; None where it has begun."""
    status = {run["run-id"]: run["status"] for run in listed}
    if status.get(run_id) != "pending":
        return None
    return not any(each in ("starting", "running") for each in status.values())


def _await_start(federation: Federation, run_id: str) -> None:
    """Wait until a run has begun; say it, once, when it waits for long though no other goes on."""
    late = time.monotonic() + WAITING_SECONDS
    with contextlib.suppress(DeployError):  # which `watch` meets next, and reports
        while (alone := waits_for_nobody(list_runs(federation), run_id)) is not None:
            if alone and time.monotonic() > late:
                _say(
                    f"run {run_id} has been waiting for {WAITING_SECONDS:.0f} s because no SuperExec is "
                    "running: is fairbloom server up on the server? (fairbloom deploy doctor)"
                )
                late = math.inf
            time.sleep(LOOK_SECONDS)


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def _stream(federation: Federation, run_id: str, skip: int) -> int:
    """Print the log's lines from line `skip` on until the stream ends; return how many lines there were."""
    seen = 0
    with (
        environment(federation) as variables,
        subprocess.Popen(  # noqa: S603 (Flower's command)
            [flwr_command(), "log", run_id, CONNECTION],
            env=variables | {"PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # what it says about the connection; we report that by the status
            text=True,
        ) as log,
    ):
        try:
            for line in log.stdout or ():
                seen += 1
                if seen > skip:
                    print(line, end="", flush=True)
        finally:
            log.terminate()
    return max(seen, skip)
