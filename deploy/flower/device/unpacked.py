"""A client that runs the app that comes with a run: its bundle (FAB) is unpacked and imported in the worker's process.

The process is ended with the run, and the next bundle comes to another one.
"""

from __future__ import annotations

import hashlib
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.cli.install import install_from_fab
from flwr.clientapp import ClientApp
from flwr.clientapp.utils import get_load_client_app_fn

from ...device.bundles import config_of, own_places

PACKAGE = "fairbloom"
THIS = "fairbloom.deploy"
"""The package that runs this client. A bundle's copy of it is not imported: it would come between the two."""


class Unpacked:
    """The app that comes with a run, which is imported once."""

    def __init__(self) -> None:
        self._app: ClientApp | None = None

    def __call__(self, bundle: bytes, run: Any, context: Context) -> tuple[ClientApp, dict[str, Any]]:
        """Return the bundle's app and all settings of the run."""
        settings = {**config_of(bundle), **run.override_config, **own_places(context)}
        if self._app is None:
            folder = install_from_fab(bundle, skip_prompt=True).absolute()
            set_installed_aside(folder)
            load = get_load_client_app_fn("", None, multi_app=True)
            self._app = load(run.fab_id, run.fab_version, hashlib.sha256(bundle).hexdigest())
        return self._app, settings


def set_installed_aside(folder: Path) -> None:
    """Take the installed Fairbloom out of Python's memory where a bundle has its own.

    The bundle is then imported as in a new process: its own copy runs, including what is imported later.
    """
    found = PathFinder.find_spec(PACKAGE, [str(folder)])
    if found is None or found.loader is None:  # a folder without __init__.py is none: an installed package wins over it
        return
    for name in [name for name in sys.modules if _is_in(PACKAGE, name) and not _is_in(THIS, name)]:
        del sys.modules[name]


def _is_in(package: str, name: str) -> bool:
    return name == package or name.startswith(f"{package}.")
