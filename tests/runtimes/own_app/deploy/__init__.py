"""A package of this app with the name of fairbloom.deploy; it finds where modules come from."""

import importlib

OWN = ("client", "server", "strategies", "tasks.first", "deploy")
OURS = (
    "fairbloom",
    "fairbloom.client.app",
    "fairbloom.server.app",
    "fairbloom.strategies",
    "fairbloom.tasks.datasets.digits",
)


def places() -> dict[str, str]:
    """Return the files of modules of this app and of Fairbloom."""
    return {name: str(importlib.import_module(name).__file__) for name in (*OWN, *OURS)}
