"""The installed Fairbloom runs a user's method and task on real processes."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.deployment import Deployment, federation, names, rounds
from tests.simulation.helpers import table
from tests.test_import_strings import THEIRS

pytestmark = pytest.mark.federation

ALLOWED, OTHER = names(2)
SETTINGS = ("clients=2", "num-rounds=2", "fraction=1.0")


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A federation with the user's module on the server; the owner of one client allows it."""
    home = tmp_path_factory.mktemp("own") / "home"
    with federation(home, 2) as runtime:
        (home / "theirs.py").write_text(THEIRS)
        (runtime.bundle(ALLOWED) / "owner.toml").write_text('allow = ["theirs:slopes"]\n')
        runtime.start_client(ALLOWED)
        runtime.start_client(OTHER)
        runtime.wait_for_clients(ALLOWED, OTHER)
        yield runtime


def submit(there: Deployment, *settings: str) -> str:
    """Submit a run from a directory without an app, wait for its end, and return its log."""
    words = [word for setting in (*SETTINGS, *settings) for word in ("--set", setting)]
    submitted = there.start("fairbloom", "deploy", "submit", *words)
    there.wait_for_end(submitted)
    return there.log(submitted)


def test_a_users_method_needs_nothing_on_the_clients(there: Deployment) -> None:
    out = there.home / "method"
    submit(there, "method=theirs:WorstHalf", "worsthalf.share=0.3", f"out={out}")
    assert [row["replies_used"] for row in rounds(out)] == ["2", "2"]
    assert "worsthalf.share = 0.3" in (out / "config.toml").read_text().replace('"', "")


def test_a_users_task_runs_only_where_the_owner_allows_it(there: Deployment) -> None:
    out = there.home / "task"
    log = submit(
        there, "task=theirs:slopes", "slopes.noise=0.2", "learning-rate=0.01", f"out={out}"
    )
    assert [row["replies_used"] for row in rounds(out)] == ["1", "1"]
    assert {row["client"] for row in table(out / "clients.csv")} == {ALLOWED}
    assert f"{OTHER}" in log
    assert (
        "the run sets task = 'theirs:slopes', and this client allows no path and no import string"
        " there" in log
    )


def test_a_module_that_the_server_lacks_is_named_in_the_log(
    there: Deployment, tmp_path: Path
) -> None:
    """The operator has the module in the current directory; the server was started elsewhere."""
    (tmp_path / "hers_alone.py").write_text(THEIRS)
    command = [
        there.scripts / "fairbloom",
        "deploy",
        "submit",
        "--set",
        "method=hers_alone:WorstHalf",
    ]
    done = subprocess.run(
        command, env=there.environment, cwd=tmp_path, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 1
    assert f"there is no module hers_alone, neither in {there.home}" in done.stdout
