"""A device with its own data reports faults of its files, and none of their content."""

import json
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, MessageType, RecordDict

from fairbloom.client.app import app
from fairbloom.errors import FairbloomError, reportable
from fairbloom.tasks.schema import OWN_FILES
from tests.tasks.tables import SCHEMA, config, csv_of


def device(folder: Path, **node: int | str) -> Context:
    """Return the context of a deployed client; one of a simulation has num-partitions."""
    run_config = {key: value for key, value in config(folder, SCHEMA).items() if key != "data-dir"}
    where = {"partition-id": 3, "data-dir": str(folder), **node}
    return Context(
        run_id=1, node_id=2, node_config=where, state=RecordDict(), run_config=run_config
    )


def asked(context: Context) -> Message:
    return app(Message(RecordDict(), dst_node_id=2, message_type=MessageType.QUERY), context)


def test_a_devices_only_file_is_its_own_whatever_its_number(tmp_path: Path) -> None:
    nowhere = device(tmp_path)
    nowhere.node_config = {"partition-id": 0}
    with pytest.raises(
        FairbloomError,
        match=r"task csv reads its data from a folder: .* data-dir in its client\.toml",
    ):
        asked(nowhere)
    (tmp_path / "lund.csv").write_text(csv_of(20))
    assert asked(device(tmp_path)).content["client"]["name"] == "lund"
    (tmp_path / "oslo.csv").write_text(csv_of(20))
    with pytest.raises(
        FairbloomError,
        match=r"holds the data of 2 clients, none with this client's name: .* client\.toml",
    ):
        asked(device(tmp_path))


def test_a_simulation_tells_all_and_a_numbered_device_does_not(tmp_path: Path) -> None:
    lines = csv_of(20).splitlines()
    (tmp_path / "lund.csv").write_text(
        "\n".join([lines[0], "Anna Svensson,0.2,north,1", *lines[1:]]) + "\n"
    )
    numbered = device(tmp_path, **{"num-partitions": 1, "partition-id": 0})
    with pytest.raises(FairbloomError) as refusal:
        asked(numbered)
    assert "Svensson" not in str(refusal.value)
    numbered.run_config = config(tmp_path)
    numbered.node_config = {"partition-id": 0, "num-partitions": 1}
    with pytest.raises(FairbloomError, match="Svensson"):
        asked(numbered)


def test_the_owner_says_how_the_devices_files_are_written(tmp_path: Path) -> None:
    german = csv_of(20).replace(",", ";").replace(".", ",").replace("age", "Alter", 1)
    (tmp_path / "lund.csv").write_text(german)
    with pytest.raises(FairbloomError, match="no column 'age'"):
        asked(device(tmp_path))
    files = {"lund.csv": {"decimalChar": ",", "fields": {"age": {"name": "Alter"}}}}
    own = device(tmp_path, files=json.dumps(files))
    assert asked(own).content["client"]["num-examples"] == 16


@pytest.mark.parametrize(
    "table",
    [
        {"fields": {"Zebrafish, MRN 1931": {"unit": "mg"}}},
        {"fields": {"age": {"name": "Alter", "factor": 0}}},
        {"groupChar": ",", "decimalChar": ","},
        {"Zebrafish, MRN 1931": 1},
    ],
    ids=["column", "factor", "marks", "key"],
)
def test_names_in_owner_toml_stay_on_the_device(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, table: dict[str, Any]
) -> None:
    (tmp_path / "lund.csv").write_text(csv_of(20))
    own = device(tmp_path, files=json.dumps({"aa_Quasimodo.csv": table}))
    with pytest.raises(FairbloomError) as refusal:
        asked(own)
    assert reportable(refusal.value) == OWN_FILES
    assert "owner.toml: files.aa_Quasimodo.csv" in caplog.text
