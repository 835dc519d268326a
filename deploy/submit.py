"""A run on a federation: submitted, watched to its end, with an exit code that tells the truth."""

import contextlib
import json
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .federation import CONNECTION, DeployError, Federation, flwr_command

COMPLETED = "finished:completed"
AGAIN_SECONDS, PATIENCE_SECONDS = 2.0, 600.0
"""How often, and how long, a run is looked for again whose SuperLink is away."""


def app_folder(given: Path | None) -> tuple[Path, bool]:
    """Return the folder of the app, and whether it is Fairbloom's own.

    It is the folder that is given; else the current one, or the one this package lies in.

    Raises
    ------
    DeployError
        When there is no app in it.
    """
    candidates = [given] if given else [Path.cwd(), Path(__file__).parents[1]]
    for folder in candidates:
        with contextlib.suppress(OSError, tomllib.TOMLDecodeError, KeyError):
            about = tomllib.loads((folder / "pyproject.toml").read_text())
            return folder, about["tool"]["flwr"]["app"]["publisher"] == about["project"]["name"] == "fairbloom"
    raise DeployError(
        f"{candidates[0]} holds no Flower app (a pyproject.toml with [tool.flwr.app]): name the checkout by --app"
    )


def submit(federation: Federation, app: Path, run_config: Mapping[str, object]) -> str:
    """Submit a run; return its id.

    Raises
    ------
    DeployError
        When the SuperLink does not take it.
    """
    config = " ".join(f"{key}={json.dumps(value)}" for key, value in run_config.items())
    answer = federation.flwr_json("run", str(app), CONNECTION, *(["--run-config", config] if config else []))
    return str(answer["run-id"])


def watch(federation: Federation, run_id: str) -> str:
    """Print a run's log as it comes, over interruptions of the SuperLink; return its final status.

    Raises
    ------
    DeployError
        When the SuperLink stays away for ten minutes.
    """
    printed, last_seen = 0, time.monotonic()
    while True:
        printed = _stream(federation, run_id, printed)
        try:
            status = status_of(federation, run_id)
            last_seen = time.monotonic()
        except DeployError as error:
            if time.monotonic() - last_seen > PATIENCE_SECONDS:
                raise
            print(f"lost sight of run {run_id}: {error}; looking again", file=sys.stderr, flush=True)
        else:
            if ended(status):
                return status
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
        federation.flwr_json("stop", each, CONNECTION)
    return going


def ended(status: str) -> bool:
    """Return whether a run of this status is over."""
    return status.startswith("finished")


def status_of(federation: Federation, run_id: str) -> str:
    """Return a run's status, as finished:completed."""
    return str(runs(federation, run_id)[0]["status"])


def runs(federation: Federation, run_id: str = "") -> list[dict[str, Any]]:
    """Return what the SuperLink knows of one run, or of all, the latest first."""
    listed = federation.flwr_json("list", CONNECTION, *(["--run-id", run_id] if run_id else []))["runs"]
    return list(listed)


def _stream(federation: Federation, run_id: str, skip: int) -> int:
    """Print the log's lines from line `skip` on until the stream ends; return how many lines there were."""
    seen = 0
    with (
        federation.environment() as environment,
        subprocess.Popen(
            [flwr_command(), "log", run_id, CONNECTION],
            env=environment | {"PYTHONUNBUFFERED": "1"},
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
