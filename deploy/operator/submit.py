"""Submit, follow and stop a run, through files that the server shares: order, log, status."""

import contextlib
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fairbloom import __version__
from fairbloom.client.guard.accepted_settings import SCHEMA_KEY, settings_to_allow
from fairbloom.imports import is_import_string
from fairbloom.logs import print_lines, print_part
from fairbloom.protocol.settings import (
    Mark,
    RunSettings,
    SettingsError,
    Value,
    check_app_config,
    flatten_tables,
    marked,
)
from fairbloom.server.progress import find_announced
from fairbloom.server.run_folder.files import is_finished
from fairbloom.server.settings import Settings, check_pace, check_used, default_config
from fairbloom.system.files import read_toml
from fairbloom.tasks import find_task
from fairbloom.text import text_if

from ..device.accepted import distribution_of
from ..errors import DeployError
from ..fleet.enrolment import describe_clients_beyond
from ..fleet.federation import Federation
from ..fleet.members import Member
from ..fleet.messages import MAX_SETTINGS_BYTES
from ..fleet.runs import (
    DRAIN,
    END_SECONDS,
    STOPPED,
    Order,
    RunEnd,
    RunFiles,
    list_runs,
    submit,
)

# Pause in seconds between two looks at a run's log.
LOG_POLL_SECONDS = 0.2

# Bytes that the app's name and version may add to a run's settings on their way to a device.
ROOM_BYTES = 1000


@dataclass(frozen=True)
class SubmittedApp:
    """A Flower app: the import strings of its parts, distribution, default settings and folder.

    `folder` is None for an installed app. Its `config` is None: its default settings are unknown.
    `clientapp` is "" if it is not named.
    """

    serverapp: str
    distribution: str
    version: str
    config: Mapping[str, Any] | None
    folder: Path | None = None
    clientapp: str = ""

    def order(self, federation: Federation, given: Mapping[str, Value]) -> Order:
        """Return the order of a run of this app with the checked settings."""
        settings = prepare(federation, given) if self is OURS else self.check(given)
        settings = {**(self.config or {}), **settings}
        size = len(json.dumps(settings).encode())
        if size > MAX_SETTINGS_BYTES - ROOM_BYTES:
            raise SettingsError(
                f"the settings have {size:,} bytes as JSON, and devices take at most"
                f" {MAX_SETTINGS_BYTES - ROOM_BYTES:,}: shorten them, for example the schema"
            )
        return Order(
            app=self.serverapp,
            distribution=self.distribution,
            version=self.version,
            settings=settings,
            folder="" if self.folder is None else str(self.folder.absolute()),
        )

    def check(self, given: Mapping[str, Value]) -> dict[str, Value]:
        """Return settings of a user's app, converted to the types of their defaults.

        Raise SettingsError for a setting without a default, or of another type. The settings of an
        installed app are returned unchanged.
        """
        if self.config is None or self.folder is None:
            return dict(given)
        where = f"[tool.flwr.app.config] in {self.folder / 'pyproject.toml'}"
        return check_app_config(given, self.config, where)


OURS = SubmittedApp("fairbloom.serverapp:app", "fairbloom", __version__, default_config())


def choose_app(given: str | None) -> SubmittedApp:
    """Return the app that --app names: a folder, or the import string of an installed ServerApp.

    Without --app, it is the app in the current folder, or else Fairbloom's.
    """
    if given is None:
        return read_app(Path.cwd()) or OURS
    app = read_app(Path(given)) if Path(given).is_dir() else None
    if app:
        return app
    package = given.partition(":")[0]
    installed = distribution_of(package) if is_import_string(given) else None
    if installed:
        name, version = installed
        return OURS if name == "fairbloom" else SubmittedApp(given, name, version, config=None)
    raise DeployError(
        f"--app {given}: it is neither a folder with [tool.flwr.app] in its pyproject.toml nor a"
        " module:attribute of an installed package"
    )


def read_app(folder: Path) -> SubmittedApp | None:
    """Read the app in a folder from its pyproject.toml; return None without an app."""
    file = folder / "pyproject.toml"
    try:
        project = read_toml(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise DeployError(f"{file} cannot be read: {error}") from error
    app = _table_in(project, "tool", "flwr", "app")
    metadata = _table_in(project, "project")
    if not app:
        return None
    if metadata.get("name") == "fairbloom":
        return OURS
    components = _table_in(app, "components")
    try:
        return SubmittedApp(
            serverapp=str(components["serverapp"]),
            distribution=str(metadata["name"]),
            version=str(metadata["version"]),
            config=flatten_tables(_table_in(app, "config")),
            folder=folder,
            clientapp=str(components.get("clientapp", "")),
        )
    except KeyError as error:
        raise DeployError(
            f"{file} lacks {error}: a run needs name and version of [project], and serverapp of "
            "[tool.flwr.app.components]"
        ) from None


def _table_in(tables: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """Return a table inside others, {} if it is missing."""
    for key in keys:
        tables = tables.get(key, {})
        if not isinstance(tables, Mapping):
            return {}
    return tables


def order_release(federation: Federation, run: str, model: str) -> Order:
    """Return the order that sends the last or the best model of a run to all devices.

    It is the run's own with `release`, as the run is over. `run` is its number or its run folder.
    Raise DeployError if there is no such run, or it is not finished.
    """
    for files in reversed(list_runs(federation.runs)):
        folder = find_announced(files.folder)
        if folder is not None and (run == str(files.number) or folder == Path(run).absolute()):
            order = Order.read(files.order)
            if order.app != OURS.serverapp or not is_finished(folder):
                raise DeployError(
                    f"run {run} has no final model of a task: the same submit continues an"
                    " unfinished run"
                )
            return replace(order, settings={**order.settings, "release": model, "out": str(folder)})
    raise DeployError(
        f"{run!r} is neither the number nor the folder of a run that the server has kept: fairbloom"
        " deploy status shows both"
    )


def prepare(federation: Federation, given: Mapping[str, Value]) -> dict[str, Value]:
    """Return the checked settings of a run of our app, with the clients' enrolled sizes.

    Print warnings about settings that some devices may refuse.
    """
    for key in marked(Mark.DEVICE):
        if key in given:
            raise SettingsError(
                f"{key} = {given[key]!r} has no effect on devices: each has its own, {key} in its"
                " owner.toml"
            )
    members = federation.enrolled()
    sizes = [f"{member.name}={member.examples}" for member in members if member.examples]
    config = {"enrolled-sizes": " ".join(sizes), **given} if sizes else dict(given)
    weights = str(config.get("initial-weights", ""))
    if weights and "weights-digest" not in config:
        # imported late: PyTorch
        from fairbloom.tasks.models.weights import digest_weights, find_all_rows

        config["weights-digest"] = digest_weights(weights)
        config["after-all-rows"] = find_all_rows(weights)
    named = RunSettings.of(config).given()
    check_not_pythons(named)
    settings = Settings.of(config)
    settings.check_deployed()
    check_used(named, [settings.method], settings.task, deployed=True)
    check_pace(settings)
    settings.check_schema()
    for warning in find_device_warnings(members, settings, named):
        say(warning)
    if settings.schema_:
        config["schema"] = settings.schema_  # its text, instead of the name of its file
    return config


def find_device_warnings(
    members: Sequence[Member], settings: Settings, given: Mapping[str, Any]
) -> Iterator[str]:
    """Yield a warning for each setting that only some devices accept, and for far partitions.

    Raise SettingsError if no device accepts a setting.
    """
    # devices get the text of a schema, and their owners accept it in another way
    refused = settings_to_allow({key: value for key, value in given.items() if key != SCHEMA_KEY})
    if "device" in refused:
        raise SettingsError(
            f"device = {refused['device']!r}: devices accept auto, cpu, cuda, cuda:1 or mps"
        )
    info = find_task(settings.task)
    for key, value in refused.items():
        module = text_if(is_import_string(value), ", and its module installed there")
        yield (
            f"{key} = {value!r} is accepted only by devices with owners who allow it (allow ="
            f" [{value!r}] in owner.toml{module}); the others are refused, by name in each round"
        )
    clients = info.setup(RunSettings.of(given)).clients
    if clients and not info.is_user_defined:
        far = describe_clients_beyond(members, clients)
        if far:
            yield far


def check_not_pythons(given: Mapping[str, Any]) -> None:
    """Raise SettingsError if an import string names a part of Python itself."""
    for key in ("task", "model", "optimizer", "partition", "client-rule"):
        value = str(given.get(key, ""))
        module = value.partition(":")[0].partition(".")[0]
        if is_import_string(value) and module in sys.stdlib_module_names:
            raise SettingsError(
                f"{key} = {value!r}: {module} belongs to Python and holds no {key}, so no device"
                f" allows it: name your own, as in my_module:{key}"
            )


def follow(federation: Federation, run: RunFiles) -> int:
    """Print a run's log as it is written, until the run ends; return its exit status."""
    position = 0
    printed = ""
    while True:
        status = run.status  # read before the log, so that the log of an ended run is complete
        content = b""
        with contextlib.suppress(OSError), run.log.open("rb") as file:  # missing at the start
            file.seek(position)
            content = file.read()
        # an app may print texts of clients
        print_part(content.decode(errors="replace"))
        position += len(content)
        if status is not None:
            return status
        if not run.folder.exists():
            raise DeployError(
                f"{run.folder} is gone: the same submit continues the run after its last finished"
                " round"
            )
        reason = describe_wait(federation, run)
        if reason and reason != printed:
            say(reason)
        printed = reason
        time.sleep(LOG_POLL_SECONDS)


def _out_of(run: RunFiles) -> Value | None:
    return Order.read(run.order).settings.get("out")


def carry_out(federation: Federation, given: Mapping[str, Value]) -> str:
    """Carry out a run of our app, and print its log; return why it failed, "" if it completed.

    A run into the same folder that has not ended is followed instead. Raise DeployError if the run
    is stopped.
    """
    running = (run for run in list_runs(federation.runs) if run.status is None)
    same = (run for run in running if _out_of(run) == given["out"])
    run = next(same, None)
    if run is None:
        run = submit(federation.runs, OURS.order(federation, given))
        federation.note("submit", run=run.number)
    say(f"run {run.number}: {given['method']} with seed {given['seed']}")
    status = follow(federation, run)
    if status == STOPPED:
        raise DeployError(
            f"run {run.number} was stopped, and the comparison with it: the same command continues"
            " both"
        )
    if not status:
        return ""
    return f"run {run.number} {describe_end(status)}: {run.last_line}"


def describe_wait(federation: Federation, run: RunFiles) -> str:
    """Return the reason why a run waits, "" if it is in progress."""
    if not federation.is_served:
        return (
            f"no server runs, and run {run.number} waits for it: start fairbloom server --dir"
            f" {federation.path}"
        )
    first = next((each for each in list_runs(federation.runs) if each.status is None), run)
    if first.number == run.number:
        return ""
    return f"run {run.number} waits for run {first.number}, which is in progress"


def describe_end(status: int) -> str:
    """Describe how a run ended by the exit status of its process."""
    end = RunEnd.of(status)
    return f"{end} (exit status {status})" if end is RunEnd.FAILED else end


def choose_run(federation: Federation, number: str | None) -> RunFiles:
    """Return the run with this number, or without a number the only run that has not ended."""
    runs = {str(run.number): run for run in list_runs(federation.runs)}
    open_runs = {each: run for each, run in runs.items() if run.status is None}
    names = ", ".join(open_runs)
    if number is not None:
        if number not in runs:
            raise DeployError(
                f"run {number!r} is not one of this federation; in progress or waiting:"
                f" {names or 'none'}"
            )
        return runs[number]
    if not open_runs:
        raise DeployError(
            "no run is in progress or waits; fairbloom deploy status lists those that ended"
        )
    if len(open_runs) > 1:
        raise DeployError(f"runs {names} are in progress or wait: name one")
    return next(iter(open_runs.values()))


def stop(federation: Federation, run: RunFiles) -> str:
    """Stop a run and, if a server runs, wait until it has ended; return its state as a sentence."""
    if run.status is not None:
        return f"run {run.number} has ended already: {describe_end(run.status)}"
    try:
        run.stop()
    except OSError as error:
        raise DeployError(f"stop: {error.filename}: {error.strerror}") from error
    federation.note("stop", run=run.number)
    until = time.monotonic() + 2 * END_SECONDS
    while run.status is None and federation.is_served and time.monotonic() < until:
        time.sleep(LOG_POLL_SECONDS)
    if run.status is None:
        return f"run {run.number} will not continue once a server runs"
    return f"run {run.number} is {describe_end(run.status)}"


def drain(federation: Federation) -> str:
    """Let the server begin no further run until its next start; return that as a sentence."""
    if not federation.is_served:
        raise DeployError("stop --after-run: no server runs, so there is no run to end after")
    (federation.state / DRAIN).touch(mode=0o600)
    federation.note("stop --after-run")
    return (
        "no further run begins until the server's next start; fairbloom deploy status shows when"
        " the current one has ended"
    )


def say(words: str) -> None:
    """Print a line for the operator on stderr."""
    print_lines(f"fairbloom deploy: {words}", to=sys.stderr)
