"""A client that runs the app that comes with a run: its bundle (FAB) is unpacked and imported in this process."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from flwr.app import Context
from flwr.cli.install import install_from_fab
from flwr.clientapp import ClientApp
from flwr.clientapp.utils import get_load_client_app_fn
from flwr.common.config import get_project_dir

from ...device.bundles import own_places

PACKAGE = "fairbloom"
THIS = "fairbloom.deploy"
"""The package that runs this client. A bundle's copy of it is not imported: it would come between the two."""


@dataclass
class Loaded:
    """A bundle that is imported from its folder, with the modules of the installed Fairbloom that it replaced."""

    hashed: str
    folder: Path
    replaced: Mapping[str, ModuleType] = field(default_factory=dict)
    app: ClientApp | None = None


class Unpacked:
    """The app that comes with a run, kept until a run with another one comes."""

    def __init__(self) -> None:
        self._loaded: Loaded | None = None

    def __call__(self, fab: Any, run: Any, context: Context) -> tuple[ClientApp, dict[str, Any]]:
        """Return the bundle's app and all settings of the run."""
        loaded = self._loaded
        if loaded is None or loaded.hashed != fab.hash_str or loaded.app is None:
            if loaded is not None:
                forget(loaded)
            self._loaded = loaded = self._unpack(fab, run)
            loaded.app = self._import(loaded, run)
        return loaded.app, {**context.run_config, **own_places(context)}

    def _unpack(self, fab: Any, run: Any) -> Loaded:
        install_from_fab(fab.content, skip_prompt=True)
        return Loaded(fab.hash_str, get_project_dir(run.fab_id, run.fab_version, fab.hash_str).absolute())

    def _import(self, loaded: Loaded, run: Any) -> ClientApp:
        loaded.replaced = set_installed_aside(loaded.folder)
        return get_load_client_app_fn("", None, multi_app=True)(run.fab_id, run.fab_version, loaded.hashed)


def set_installed_aside(folder: Path) -> dict[str, ModuleType]:
    """Remove the installed Fairbloom's modules where a bundle has its own; return them.

    The bundle is then imported as in a new process: its own copy runs, including what is imported later.
    """
    found = PathFinder.find_spec(PACKAGE, [str(folder)])
    if found is None or found.loader is None:  # a folder without __init__.py is none: an installed package wins over it
        return {}
    names = [name for name in sys.modules if _is_in(PACKAGE, name) and not _is_in(THIS, name)]
    return {name: sys.modules.pop(name) for name in names}


def forget(loaded: Loaded) -> None:
    """Drop what was imported from a bundle, with which Flower would go on, and bring back what it had replaced."""
    for name, module in list(sys.modules.items()):
        if _lies_in(loaded.folder, module):
            del sys.modules[name]
    sys.modules.update(loaded.replaced)
    sys.path[:] = [entry for entry in sys.path if entry != str(loaded.folder)]
    loaded.app = None
    importlib.invalidate_caches()
    gc.collect()  # models and data of the old bundle, before the new one loads its own


def _is_in(package: str, name: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def _lies_in(folder: Path, module: ModuleType) -> bool:
    """Return whether a module, or a folder of modules without __init__.py, is a bundle's."""
    about = getattr(module, "__dict__", {})  # some libraries' modules make up whatever attribute they are asked for
    places = [about.get("__file__"), *about.get("__path__", ())]
    return any(Path(place).is_relative_to(folder) for place in places if isinstance(place, str))
