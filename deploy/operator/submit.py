"""A run on a federation: submitted, watched to its end, with an exit code that tells the truth."""

import contextlib
import json
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fairbloom.server.settings import Settings, SettingsError, Value, check_used

from ..errors import DeployError, RefusedError
from .federation import CONNECTION, Federation
from .flower_commands import environment, flwr_command, flwr_json

COMPLETED = "finished:completed"
AGAIN_SECONDS, PATIENCE_SECONDS = 2.0, 600.0
"""Pause between two looks for a SuperLink that is away, and how long they go on."""

WAITING_SECONDS = 15.0
"""How long a run may wait to be started before we say that nobody seems to be there to do it."""

ON_DEVICES = ("state-dir", "data-dir")
"""Settings that each device makes for itself, and no run for it."""

SIZES = "enrolled-sizes"


def app_folder(given: Path | None) -> tuple[Path, bool]:
    """Return the folder of the app, and whether it is Fairbloom's own.

    It is the folder that is given; else the current one, or the one this package lies in.

    Raises
    ------
    DeployError
        When there is no app in it.
    """
    candidates = [given] if given else [Path.cwd(), Path(__file__).parents[2]]
    for folder in candidates:
        with contextlib.suppress(OSError, tomllib.TOMLDecodeError, KeyError):
            about = tomllib.loads((folder / "pyproject.toml").read_text())
            return folder, about["tool"]["flwr"]["app"]["publisher"] == about["project"]["name"] == "fairbloom"
    raise DeployError(
        f"{candidates[0]} holds no Flower app (a pyproject.toml with [tool.flwr.app]): name the checkout by --app"
    )


def prepared(federation: Federation, given: Mapping[str, Value]) -> dict[str, Value]:
    """Return the settings of a run of our app, checked before anything is sent, with the clients' enrolled sizes.

    Raises
    ------
    SettingsError
        When one is unknown, impossible, or has no effect on a federation of devices.
    """
    for key in ON_DEVICES:
        if key in given:
            raise SettingsError(
                f"{key} = {given[key]!r} has no effect on devices: each has its own, {key} in its client.toml"
            )
    sizes = [
        f"{client.name}={client.examples}" for client in federation.clients if client.examples and not client.revoked
    ]
    config = {SIZES: " ".join(sizes), **given} if sizes else dict(given)
    settings = Settings.of(config)
    check_used(config, [settings.method], settings.task)
    return config


def submit(federation: Federation, app: Path, run_config: Mapping[str, object]) -> str:
    """Submit a run; return its id.

    Raises
    ------
    DeployError
        When the SuperLink does not take it.
    """
    config = " ".join(f"{key}={json.dumps(value)}" for key, value in run_config.items())
    with federation.noted("submit", method=str(run_config.get("method", "")), settings=config) as about:
        answer = flwr_json(federation, "run", str(app), CONNECTION, *(["--run-config", config] if config else []))
        about["run-id"] = str(answer["run-id"])
    return str(answer["run-id"])


def watch(federation: Federation, run_id: str) -> str:
    """Print a run's log as it comes, over interruptions of the SuperLink and of the run; return its final status.

    Raises
    ------
    DeployError
        When the SuperLink stays away for ten minutes, or no longer accepts the operator's credential.
    """
    printed, last_seen, away = 0, time.monotonic(), False
    while True:
        with _waiting_noticed(federation, run_id):
            printed = _stream(federation, run_id, printed)
        try:
            status = status_of(federation, run_id)
        except RefusedError:
            raise
        except DeployError as error:
            if time.monotonic() - last_seen > PATIENCE_SECONDS:
                raise
            if not away:
                _say(f"lost sight of run {run_id}: {error}; looking for it until it is back")
            away = True
        else:
            if away:
                _say(f"run {run_id} is back in sight: {status}")
            if ended(status):
                return status
            last_seen, away = time.monotonic(), False
        time.sleep(AGAIN_SECONDS)


def stop(federation: Federation, run_id: str = "") -> list[str]:
    """Stop a run, or without one all that have not ended; return which were stopped.

    Raises
    ------
    DeployError
        When there is no such run, or it has ended.
    """
    going = [run_id] if run_id else [str(run["run-id"]) for run in runs(federation) if not ended(str(run["status"]))]
    for each in going:
        with federation.noted("stop", **{"run-id": each}):
            flwr_json(federation, "stop", each, CONNECTION)
    return going


def ended(status: str) -> bool:
    """Return whether a run of this status is over."""
    return status.startswith("finished")


def status_of(federation: Federation, run_id: str) -> str:
    """Return a run's status, as finished:completed."""
    return str(runs(federation, run_id)[0]["status"])


def runs(federation: Federation, run_id: str = "") -> list[dict[str, Any]]:
    """Return what the SuperLink knows of one run, or of all, the latest first."""
    listed = flwr_json(federation, "list", CONNECTION, *(["--run-id", run_id] if run_id else []))["runs"]
    return list(listed)


def waits_alone(listed: list[dict[str, Any]], run_id: str) -> bool | None:
    """Return whether a run has not begun though no other goes on; None where it has begun."""
    status = {str(run["run-id"]): str(run["status"]) for run in listed}
    if status.get(run_id) != "pending":
        return None
    return not any(each in ("starting", "running") for each in status.values())


@contextlib.contextmanager
def _waiting_noticed(federation: Federation, run_id: str) -> Iterator[None]:
    """Say it, once, when a run waits to be started for long though no other goes on."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(WAITING_SECONDS):
            with contextlib.suppress(DeployError):
                alone = waits_alone(runs(federation), run_id)
                if alone and not over.is_set():
                    _say(
                        f"run {run_id} has been waiting for {WAITING_SECONDS:.0f} s: nobody is there to run the "
                        "server's side; is fairbloom server up on the server? (fairbloom deploy doctor)"
                    )
                if alone is not False:
                    return

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def _stream(federation: Federation, run_id: str, skip: int) -> int:
    """Print the log's lines from line `skip` on until the stream ends; return how many lines there were."""
    seen = 0
    with (
        environment(federation) as variables,
        subprocess.Popen(  # noqa: S603 (Flower's own command)
            [flwr_command(), "log", run_id, CONNECTION],
            env=variables | {"PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # its own words about the connection; ours come from the status
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


def exit_code(status: str) -> int:
    """Return 0 where a run has completed, else 1."""
    return 0 if status == COMPLETED else 1
