"""A deployed device under refused runs: what left it stays in its owner's log."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.deployment import Deployment, federation
from tests.client.hospital import SCHEMA, grouped, write_hospital

pytestmark = pytest.mark.slow

SETTINGS: dict[str, Any] = {
    "task": "csv",
    "clients": 1,
    "fraction": 1.0,
    "num-rounds": 1,
    "device": "cpu",
}


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with federation(tmp_path_factory.mktemp("deployed") / "home") as runtime:
        runtime.enroll("lund")
        write_hospital(runtime.home / "data")
        runtime.start_client("lund", "--data-dir", str(runtime.home / "data"))
        runtime.wait_for_clients("lund")
        yield runtime


def submit(there: Deployment, schema: str, code: int = 0) -> None:
    """Submit a run with a schema and a folder of its own."""
    number = len([*there.home.glob("schema-*.toml")])
    path = there.home / f"schema-{number}.toml"
    path.write_text(schema)
    out = str(there.home / f"run-{number}")
    there.submit({**SETTINGS, "schema": str(path), "out": out}, code=code)


def owner(there: Deployment, *words: str) -> str:
    command, *rest = words
    return there.fairbloom("client", command, str(there.home / "state-lund"), *rest).stdout


def files_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


def test_refused_runs_leave_what_was_sent_in_the_log(there: Deployment) -> None:
    submit(there, SCHEMA, code=1)  # not accepted yet
    assert "can reveal single rows" in owner(there, "accept", "--yes")
    submit(there, SCHEMA)
    before = owner(there, "log")
    assert "asked: train; sent: arrays: " in before
    for number in range(3):
        submit(there, f"{SCHEMA}# {str(number) * 950_000}\n", code=1)
    after = owner(there, "log")
    assert "asked: train; sent: arrays: " in after
    assert after.splitlines()[0] == before.splitlines()[0]
    assert after.count("the run's schema is not one that this device's owner has accepted") == 4
    assert files_of(there.home / "state-lund") < 1_000_000


def test_a_new_schema_ends_the_old_one_for_later_runs(there: Deployment) -> None:
    (there.home / "new.toml").write_text(grouped("age>=60"))
    said = owner(there, "accept", "--schema", str(there.home / "new.toml"), "--yes")
    assert "This ends schema " in said
    submit(there, SCHEMA, code=1)
    states = [line.partition(":")[0] for line in owner(there, "schemas").splitlines()]
    assert states == ["ended", "accepted"]
