"""Flower's own commands, run for a federation's operator: with the connection, the credential, and one-line errors."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from ...errors import DeployError, UnreachableError
from ...operator.federation import Federation
from ...operator.folder import write_flower_home
from ..environment import HOME, QUIET
from ..gate import check_version
from .control_api import credential_refused, unreachable

UNAVAILABLE = "Connection to the SuperLink is unavailable"
UNAUTHENTICATED = ("Authentication failed", "[code: 36]")
"""What Flower's commands say of a SuperLink that is not there, and of one that does not accept the credential."""


@contextlib.contextmanager
def environment(federation: Federation) -> Iterator[dict[str, str]]:
    """Give an environment in which Flower's commands know the connection, whatever is in the user's home."""
    check_version("operator")
    with tempfile.TemporaryDirectory(prefix="fairbloom-") as home:
        write_flower_home(Path(home), federation.control, federation.authority, federation.read_token())
        yield QUIET | {"NO_COLOR": "1"} | dict(os.environ) | {HOME: home}


def flwr_json(federation: Federation, *command: str) -> dict[str, Any]:
    """Run one of Flower's commands; return its answer, or raise DeployError with its words and ours."""
    with environment(federation) as variables:
        try:
            done = subprocess.run(  # noqa: S603 (Flower's command)
                [flwr_command(), *command, "--format", "json"],
                env=variables,
                capture_output=True,
                text=True,
                timeout=120.0,
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
        raise unreachable(federation)
    if any(words in reason for words in UNAUTHENTICATED):
        raise credential_refused(federation)
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


def packed_files(app: Path) -> list[str]:
    """Return the paths of the files in an app's folder that Flower packs, and every client gets."""
    from flwr.cli.build import build_fab_from_disk

    try:
        return ZipFile(BytesIO(build_fab_from_disk(app))).namelist()
    except ValueError as error:
        raise DeployError(f"{app} cannot be packed: {error}") from error
