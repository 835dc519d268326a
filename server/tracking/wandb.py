"""Weights & Biases: online for who is logged in, else in files in the run folder that `wandb sync` sends later."""

import netrc
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

# Both are read when wandb is imported: it would say who is logged in, and send its errors to its makers.
os.environ.setdefault("WANDB_SILENT", "true")
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")

import wandb

from fairbloom.logs import log

from .tracker import TrackedRun

WAIT_SECONDS = 30.0
"""How long the server is waited for, when a run begins and when it ends."""


class WandbTracker:
    """Shows a run as a run of Weights & Biases; a continued run goes on under the same id."""

    def __init__(self, run: TrackedRun) -> None:
        mode = os.environ.get("WANDB_MODE") or "online"
        if mode == "online" and not _is_logged_in():
            mode = "offline"
        try:
            self._run = _begin(run, mode)
        except wandb.errors.Error as error:
            if mode != "online":
                raise
            log.warning("Weights & Biases cannot be reached, so the run is kept in files for wandb sync: %s", error)
            self._run = _begin(run, "offline")
        run.write_id("wandb", self._run.id)

    def log(self, number: int, metrics: Mapping[str, float]) -> None:
        """Take in the metrics of a round."""
        self._run.log(dict(metrics), step=number)

    def end(self, files: Sequence[Path], *, finished: bool) -> None:
        """Attach these files, and end."""
        if finished:
            attached = wandb.Artifact(f"run-folder-{self._run.id}", type="run-folder")
            for path in files:
                attached.add_file(str(path))
            self._run.log_artifact(attached)
        self._run.finish(exit_code=0 if finished else 1)


def _begin(run: TrackedRun, mode: str) -> wandb.Run:
    """Begin, or continue, a run; nothing is asked on the terminal, and nothing of the code or the output is taken."""
    return wandb.init(
        mode=mode,  # type: ignore[arg-type]
        project=os.environ.get("WANDB_PROJECT") or re.sub(r"[/\\#?%:]", "-", run.experiment),
        name=run.name,
        id=run.read_id("wandb"),
        resume="allow" if mode == "online" else None,
        dir=run.folder,
        config=dict(run.settings),
        settings=wandb.Settings(
            silent=True,
            console="off",
            disable_code=True,
            disable_git=True,
            x_save_requirements=False,
            init_timeout=WAIT_SECONDS,
            login_timeout=WAIT_SECONDS,
            finish_timeout=WAIT_SECONDS,
        ),
    )


def _is_logged_in() -> bool:
    """Return whether there is a key for the server, which `wandb login` stores and the environment may have."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(wandb.setup().settings.base_url).hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
