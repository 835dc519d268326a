"""A comparison on devices whose tables the server never sees, by the command line."""

from pathlib import Path

import pytest

from benchmarks.deployment import federation
from fairbloom.errors import FairbloomError
from fairbloom.experiments.arms import parse_arms
from fairbloom.experiments.results.run import REPORT
from fairbloom.experiments.studies.compare import prepare
from fairbloom.experiments.study import Study
from fairbloom.protocol.settings import Value
from fairbloom.server.run_folder.files import CONFIG
from tests.client.private.device import SCHEMA, write_table
from tests.simulation.helpers import table

DEVICES = ("north", "south", "east")


def prepared(**settings: Value) -> Study:
    """Return the comparison of two methods over tables on devices, prepared on the server."""
    given: dict[str, Value] = {"task": "csv", **settings}
    arms = parse_arms("fedavg,fedfv", given)
    return prepare(Study("compare", arms, [0, 1], "fedavg", given), Path("study"), deployed=True)


def test_the_schema_alone_decides_the_score() -> None:
    """In one process the classes of the rows would decide; the server has no rows."""
    assert prepared(schema=SCHEMA).settings["score"] == "accuracy"
    assert prepared(schema=SCHEMA, score="auc").settings["score"] == "auc"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "name it by --schema FILE"),
        ({"schema": SCHEMA, "score": "acuracy"}, "did you mean accuracy?"),
        ({"schema": SCHEMA, "pooled": True}, "pooled = true"),
    ],
    ids=["no schema", "no such score", "in one process only"],
)
def test_faults_end_a_comparison_before_its_runs(settings: dict[str, Value], words: str) -> None:
    with pytest.raises(FairbloomError) as raised:
        prepared(**settings)
    assert words in str(raised.value)


@pytest.mark.slow
def test_devices_compare_methods_on_their_tables(tmp_path: Path) -> None:
    with federation(tmp_path / "home") as there:
        schema = there.home / "schema.toml"
        schema.write_text(SCHEMA)
        there.enroll(*DEVICES)
        for seed, name in enumerate(DEVICES):
            data = there.home / f"data-{name}"
            data.mkdir()
            write_table(data / f"{name}.csv", 60, seed)
            owner = f'data-dir = "{data}"\n[limits]\nrows = 1\nschema = "any"\n'
            (there.bundle(name) / "owner.toml").write_text(owner)
        there.start_clients(*DEVICES)
        out = there.home / "study"
        words = ["--methods", "fedavg,fedfv", "--seeds", "2", "--schema", str(schema)]
        for each in ("task=csv", "clients=3", "num-rounds=2"):
            words += ["--set", each]
        shown = there.fairbloom("deploy", "compare", *words, "--out", str(out)).stdout
    folders = sorted((out / "runs").iterdir())
    assert [path.name for path in folders] == [
        f"{method}-seed{seed}" for method in ("fedavg", "fedfv") for seed in (0, 1)
    ]
    assert {CONFIG.read(path).settings["score"] for path in folders} == {"accuracy"}
    assert {row["method"] for row in table(out / "comparison.csv")} == {"FedAvg", "FedFV"}
    assert "2 methods compared" in shown
    assert "fairbloom deploy submit --refit" in shown
    assert (out / REPORT).exists()
