from . import environment  # noqa: F401, I001 (before all else, which reads it)

import gc
import logging
import os
import random
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from fairbloom.system import versions

from .checkout import BESIDE, ROOT

# typer's, about click, when imported
with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
    from flwr.supercore.task_identity import TaskIdentity

settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    max_examples=20,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("repeatable")


BEGUN = time.monotonic()

# The secrets of state folders, on which the sides of rows and their order depend: in this process a
# test draws the same ones in each run.
SECRETS = random.Random()
versions.token_bytes = SECRETS.randbytes


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slow-within",
        type=float,
        metavar="MINUTES",
        help="skip what is slow and has not begun after so many minutes",
    )
    parser.addoption(
        "--device",
        default="cuda",
        help="compute the tests with the marker gpu on this device",
    )


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Return the folder of a run, which does not exist."""
    return tmp_path / "run"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, which is empty; the terminal is wide and without colours."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.setenv("NO_COLOR", "1")
    return tmp_path


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Let garbage collection pass over what collection leaves, modules and tests, which stay until
    the end."""
    gc.disable()
    if session.config.args == session.config.getini("testpaths"):
        import_share()
    yield
    gc.freeze()
    gc.enable()
    gc.set_threshold(
        20_000
    )  # a collection after every 700 objects would take a twentieth of the time


def import_share() -> None:
    """Import the n-th part of the test files first, as one of n workers.

    In a fresh checkout, pytest rewrites the asserts of each file and keeps the result. This takes
    half of the time of collection, and the workers would all do it at once: so each rewrites its
    part, and reads the others'.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers == 1:
        return
    own = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
    for path in sorted(Path(__file__).parent.rglob("test_*.py"))[own::workers]:
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        with suppress(Exception, pytest.skip.Exception):  # collection says what is wrong with it
            import_module(name)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put slow tests last in their file; files of nothing else come last of all, the one with most
    tests first."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    items[:] = [
        item for own in sorted(files.values(), key=place_of) for item in sorted(own, key=is_slow)
    ]


def place_of(own: list[pytest.Item]) -> tuple[bool, bool, int]:
    """Return a sort key, which is smaller for a file that is run earlier."""
    slow = [is_slow(item) for item in own]
    return any(slow), all(slow), -len(slow) if all(slow) else 0


@pytest.hookimpl(tryfirst=True)  # before any fixture is set up
def pytest_runtest_setup(item: pytest.Item) -> None:
    SECRETS.seed(item.nodeid)
    minutes = item.config.getoption("--slow-within")
    if minutes is not None and is_slow(item) and time.monotonic() - BEGUN > 60 * minutes:
        file = item.path.relative_to(item.config.rootpath)
        pytest.skip(f"{minutes:g} minutes were over before this slow test of {file}")


def is_slow(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None


@pytest.fixture(autouse=True, scope="module")
def no_module_of_ours_has_two_names() -> Iterator[None]:
    """A checkout lies on the path, so that `import strategies` would make everything a second
    time."""
    yield
    assert not BESIDE & {name.partition(".")[0] for name in sys.modules}


@pytest.fixture(autouse=True, scope="module")
def modules_of_users_are_forgotten(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Files of tests write users' modules of the same names, my_task say, which one process
    imports, and from folders that commands put on the path."""
    path = [*sys.path]
    yield
    sys.path[:] = path
    written = str(tmp_path_factory.getbasetemp())
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(written):
            del sys.modules[name]


@pytest.fixture(autouse=True)
def task_identity() -> Iterator[None]:
    """Flower writes messages only inside a run, or as if inside one."""
    before = (TaskIdentity._run_id, TaskIdentity._node_id, TaskIdentity._task_id)
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    yield
    TaskIdentity._run_id, TaskIdentity._node_id, TaskIdentity._task_id = before


@pytest.fixture(autouse=True, scope="session")
def quiet_rounds() -> None:
    """Keep the lines that every round logs out of what tests capture: `said` and `at_level` let
    them in."""
    logging.getLogger("flwr").setLevel(logging.WARNING)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What Flower's logger, which is ours, too, says from INFO on."""
    logger = logging.getLogger("flwr")
    logger.addHandler(caplog.handler)
    with caplog.at_level(logging.INFO, "flwr"):
        yield caplog
    logger.removeHandler(caplog.handler)
