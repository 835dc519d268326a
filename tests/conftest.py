import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy and PyTorch are imported: tests run side by side
os.environ.pop("COLUMNS", None)  # pytest-xdist sets it, and what is printed would have another width in its workers

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from .checkout import PACKAGES

with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # typer's, about click, when imported
    from flwr.supercore.task_identity import TaskIdentity

settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("repeatable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread the files whose tests start processes among the others, so that no worker has all of them at the end."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    slow = [own for own in files.values() if any("runtimes" in item.keywords for item in own)]
    slow.sort(key=len, reverse=True)  # the file that takes longest is begun first
    others = [own for own in files.values() if own not in slow]
    apart = len(others) // len(slow) if slow else 0
    for place, own in enumerate(slow):
        others.insert(place * (apart + 1), own)
    items[:] = [item for own in others for item in own]


@pytest.fixture(autouse=True, scope="module")
def no_module_of_ours_has_two_names() -> Iterator[None]:
    """A checkout lies on the path, so that `import strategies` would make everything a second time."""
    yield
    assert not PACKAGES & {name.partition(".")[0] for name in sys.modules}


@pytest.fixture(autouse=True)
def task_identity() -> Iterator[None]:
    """Flower writes messages only inside a run, or as if inside one."""
    before = (TaskIdentity._run_id, TaskIdentity._node_id, TaskIdentity._task_id)
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    yield
    TaskIdentity._run_id, TaskIdentity._node_id, TaskIdentity._task_id = before
