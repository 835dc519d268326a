"""Fairbloom's app as a bundle without code, which refers to the installed Fairbloom.

Flower submits a folder. A checkout is a folder of an app; an installation is not, so this one is
made.
"""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomli_w

from fairbloom import __version__
from fairbloom.server.settings import default_config

# Not fairbloom: this name would hide the installed package wherever the bundle is unpacked.
PACKAGE = "fairbloom_run"

APPS = {"server": "serverapp", "client": "clientapp"}
MODULE = (
    "from fairbloom.{app} import app as installed\n\napp = installed  # Flower looks for an"
    " assignment\n"
)


@contextlib.contextmanager
def temporary_app() -> Iterator[Path]:
    """Give the bundle's folder during the block."""
    with tempfile.TemporaryDirectory(prefix="fairbloom-") as folder:
        package = Path(folder, PACKAGE)
        package.mkdir()
        (package / "__init__.py").write_text(
            '"""The installed Fairbloom, where Flower looks for a run\'s apps."""\n'
        )
        for module, app in APPS.items():
            (package / f"{module}.py").write_text(MODULE.format(app=app))
        Path(folder, "pyproject.toml").write_text(tomli_w.dumps(_make_pyproject()))
        yield Path(folder)


def _make_pyproject() -> dict[str, Any]:
    """Return the bundle's pyproject.toml.

    Clients compare its name and version with what they have installed.
    """
    app = {
        "publisher": "fairbloom",
        "components": {app: f"{PACKAGE}.{module}:app" for module, app in APPS.items()},
        "config": dict(default_config()),
    }
    about = {"description": "The installed Fairbloom", "license": "Apache-2.0", "dependencies": []}
    return {
        "project": {"name": "fairbloom", "version": __version__, **about},
        "tool": {"flwr": {"app": app}},
    }
