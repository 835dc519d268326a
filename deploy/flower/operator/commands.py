"""Flower's own commands, run for a federation's operator: with the connection, the credential, and one-line errors."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...errors import DeployError, UnauthorizedError, UnreachableError
from ...operator.federation import Federation

COMMAND_SECONDS = 120.0
"""How long a command may take to answer."""

UNAVAILABLE = "Connection to the SuperLink is unavailable"
UNAUTHENTICATED = ("Authentication failed", "[code: 36]")
"""What Flower's commands say of a SuperLink that is not there, and of one that does not accept the credential."""


@contextlib.contextmanager
def environment(federation: Federation) -> Iterator[dict[str, str]]:
    """Give an environment in which Flower's commands know the connection, whatever is in the user's home."""
    with tempfile.TemporaryDirectory(prefix="fairbloom-") as home:
        federation.write_connection(Path(home))
        defaults = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "NO_COLOR": "1"}
        yield defaults | dict(os.environ) | {"FLWR_HOME": home}


def flwr_json(federation: Federation, *command: str) -> dict[str, Any]:
    """Run one of Flower's commands; return its answer.

    Raises
    ------
    DeployError
        When it did not succeed, in its own words and ours.
    """
    with environment(federation) as variables:
        try:
            done = subprocess.run(  # noqa: S603 (Flower's command)
                [flwr_command(), *command, "--format", "json"],
                env=variables,
                capture_output=True,
                text=True,
                timeout=COMMAND_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise UnreachableError(
                f"{federation.control} does not answer: is the SuperLink up? (fairbloom deploy doctor)"
            ) from None
    answer = _json_in(done.stdout)
    if answer.get("success"):
        return answer
    reason = str(answer.get("error-message") or done.stderr or done.stdout).strip()
    if UNAVAILABLE in reason:
        raise UnreachableError(
            f"the SuperLink's control API at {federation.control} cannot be reached: is fairbloom server up there? "
            f"fairbloom deploy doctor --dir {federation.path} says what is in the way"
        )
    if any(words in reason for words in UNAUTHENTICATED):
        raise UnauthorizedError(
            f"the control API at {federation.control} does not accept the credential in {federation.operator_token}: "
            "is it the one that operators.toml on the server is for?"
        )
    raise DeployError(f"flwr {' '.join(command[:2])}: {reason}")


def flwr_command() -> str:
    """Return the path of Flower's command that belongs to this Python."""
    beside = Path(sys.executable).parent
    found = shutil.which("flwr", path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        raise DeployError(f"the command flwr is not beside {sys.executable}: install fairbloom there")
    return found


def _json_in(text: str) -> dict[str, Any]:
    """Return the JSON object that a command printed, after other words perhaps."""
    start = text.find("{")
    try:
        found = json.loads(text[start:]) if start >= 0 else {}
    except json.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}
