"""Deployed devices with privacy accounts: what is spent stays spent over runs, kills and restarts."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.deployment import Deployment, federation, rounds
from fairbloom.server.run_folder.files import PRIVACY
from tests.client.private.device import SCHEMA, write_table
from tests.experiments.helpers import fairbloom
from tests.simulation.helpers import table

pytestmark = pytest.mark.slow

OWNERS = {
    "north": "[limits.privacy]\nepsilon = 3.0\nsteps = 6\n",
    "south": "[limits.privacy]\nepsilon = 8.0\n",
    "east": "",
}
SETTINGS: dict[str, Any] = {
    "task": "csv",
    "schema": SCHEMA,
    "batch-size": 0,
    "num-rounds": 4,
    "device": "cpu",
}


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with federation(tmp_path_factory.mktemp("deployed") / "home") as runtime:
        runtime.enroll(*OWNERS)
        schema = runtime.home / "schema.toml"
        schema.write_text(SCHEMA)
        for seed, (name, owner) in enumerate(OWNERS.items()):
            data = runtime.home / f"data-{name}"
            data.mkdir()
            write_table(data / f"{name}.csv", 60, seed)
            about = f'data-dir = "{data}"\n[limits]\nrows = 1\nschema = "any"\n'
            place = f'ledger = "{runtime.home / "accounts"}"\n' if owner else ""
            (runtime.bundle(name) / "owner.toml").write_text(f"{about}{owner}{place}")
            config = runtime.bundle(name) / "client.toml"
            if owner:
                opened = fairbloom(
                    "client", "account", "open", str(config), "--schema", str(schema)
                )
                assert opened == 0
            runtime.start_client(name)
        runtime.wait_for_clients(*OWNERS)
        yield runtime


def spent(there: Deployment) -> dict[str, int]:
    """Return the units and reports of each account, by its client."""
    return {
        place.parent.name: sum(json.loads(line)["units"] for line in place.read_text().splitlines())
        for place in (there.home / "accounts").glob("*/ledger.jsonl")
    }


def test_three_runs_spend_one_budget(
    there: Deployment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """North's is for seven steps without losses: four, three and none."""
    first = tmp_path / "first"
    there.submit({**SETTINGS, "out": str(first)})
    about = PRIVACY.read(first)
    assert not about["simulated"]
    assert about["clients"].keys() == {"north", "south"}
    assert sorted(spent(there).values()) == [16, 16]
    tested = [row for row in table(first / "clients.csv") if row["test_accuracy_of_global_model"]]
    of_accounts = {(row["round"], row["client"]) for row in tested if row["client"] != "east"}
    assert of_accounts == {("4", "north"), ("4", "south")}

    capsys.readouterr()
    assert fairbloom("client", "account", "show", str(there.bundle("north") / "client.toml")) == 0
    assert fairbloom("client", "log", str(there.home / "state-north")) == 0
    said = capsys.readouterr().out
    assert "left: 14 of 30 units" in said
    assert "spent: 4 units" in said
    assert "left of the privacy account: 14 units, 0 reports" in said

    there.stop(there.clients["north"])  # its certificate, its state and its ledger stay
    there.start_client("north")
    there.wait_for_clients("north")
    second = tmp_path / "second"
    # north's account does not last, and nothing says that it may
    there.submit({**SETTINGS, "seed": 1, "out": str(second)}, code=1)
    assert sorted(spent(there).values()) == [16, 16]
    lowest = {**SETTINGS, "privacy.spend": "lowest"}
    there.submit({**lowest, "seed": 1, "out": str(second)})
    # then it is asked no more
    assert [row["round"] for row in rounds(second) if "north" in row["refused"]] == ["4"]
    assert sorted(spent(there).values()) == [28, 32]

    there.submit({**lowest, "seed": 2, "out": str(tmp_path / "third")})
    assert sorted(spent(there).values()) == [28, 48]
