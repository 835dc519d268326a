"""Rows with an account are read by a permit only: by its own work, and by their owner's commands."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fairbloom.client.local import LocalClient
from fairbloom.errors import ReportableError
from fairbloom.protocol.settings import RunSettings
from fairbloom.tasks import infer_schema, load_task
from fairbloom.tasks.permit import permit_reading
from tests.experiments.helpers import fairbloom

from .device import MARKER, SCHEMA, Device, write_table

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Return rows, by nothing but the functions that read them."""
    config = {**context.run_config, "data-dir": context.node_config["data-dir"]}
    if context.node_config["partition-id"]:
        rows = LocalClient.of(config, None, "site").splits.train
    else:
        task = load_task(config)
        rows = task.splits(task.clients[0]).train
    assert len(rows)
    return Message(RecordDict(), reply_to=message)


def read(device: Device, number: int = 0) -> Message:
    device.own = {"data-dir": str(device.data), "partition-id": number, "limit-privacy": ""}
    return app(device.message(), device.context())


def link_file(device: Device) -> None:
    folder = device.folder / "linked"
    folder.mkdir()
    (folder / "x.csv").symlink_to(device.data / "site.csv")
    device.data = folder


def link_folder(device: Device) -> None:
    (device.folder / "linked").symlink_to(device.data)
    device.data = device.folder / "linked"


def copy(device: Device) -> None:
    folder = device.folder / "copied"
    folder.mkdir()
    shutil.copy(device.data / "site.csv", folder / "y.csv")
    device.data = folder


def move_below(device: Device) -> None:
    (device.data / "site").mkdir()
    (device.data / "site.csv").rename(device.data / "site" / "site.csv")
    device.data = device.data / "site"


def name_file(device: Device) -> None:
    device.data = device.data / "site.csv"


WAYS: list[Callable[[Device], None]] = [
    lambda device: None,
    *(link_file, link_folder, move_below, name_file),
]


@pytest.fixture
def standard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Device:
    """Return a device whose accounts lie in the user's folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    device = Device(tmp_path)
    device.limits.pop("ledger")
    return device


@pytest.mark.parametrize("number", [0, 1], ids=["load_task", "LocalClient"])
@pytest.mark.parametrize("way", WAYS)
def test_a_strangers_app_reads_no_rows(
    tmp_path: Path, way: Callable[[Device], None], number: int
) -> None:
    """The account is known by its marker: its folder is the owner's choice."""
    device = Device(tmp_path)
    assert not read(device, number).has_error()
    device.own = {}
    device.open()
    way(device)
    with pytest.raises(ReportableError, match="have a privacy account"):
        read(device, number)
    with permit_reading():
        read(device, number)


def test_a_copy_without_a_marker_is_known_by_its_files(standard: Device) -> None:
    standard.open()
    copy(standard)
    write_table(standard.data / "z.csv", 20, seed=3)
    with pytest.raises(ReportableError, match="have a privacy account"):
        read(standard)
    settings = RunSettings.of({"task": "csv", "data-dir": str(standard.data)})
    with pytest.raises(ReportableError, match="have a privacy account"):
        infer_schema(settings)
    (standard.data / "y.csv").unlink()
    assert not read(standard).has_error()


def test_the_permit_ends_with_its_block(device: Device) -> None:
    with pytest.raises(ValueError, match="inside"), permit_reading():
        raise ValueError("inside")
    with pytest.raises(ReportableError):
        read(device)
    device.own = {}
    assert "arrays" in device.ask()
    with pytest.raises(ReportableError):
        read(device)


def test_without_accounts_no_file_is_hashed(
    standard: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairbloom.tasks.permit.digest_of", lambda *_: pytest.fail("hashed"))
    assert not read(standard).has_error()


def test_the_owners_commands_read(
    standard: Device, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = tmp_path / "schema.toml"
    schema.write_text(SCHEMA)
    data = str(standard.data)
    shared = ["--task", "csv", "--schema", str(schema), "--rounds", "1", "--set", "batch-size=0"]
    both = tmp_path / "both"
    shutil.copytree(data, both)
    write_table(both / "other.csv", 40, seed=1)
    run = str(tmp_path / "run")
    assert (
        fairbloom("run", *shared, "--data-dir", str(both), "--out", run, "--method", "fedavg") == 0
    )
    standard.open()
    assert fairbloom("data", data, "--schema", str(schema), "--json") == 0
    written = str(tmp_path / "written.toml")
    target = ["--set", "csv.target=outcome"]
    assert fairbloom("data", data, "--write-schema", written, *target) == 0
    assert fairbloom("evaluate", run, "--data-dir", data) == 0
    predicted = ["predict", run, f"{data}/site.csv", "--out", str(tmp_path / "p.csv")]
    assert fairbloom(*predicted, "--client", "site", "--split", "test") == 0
    shutil.copy(standard.data / MARKER, both)
    again = ["--out", str(tmp_path / "again"), "--data-dir", str(both)]
    capsys.readouterr()
    assert fairbloom("run", *shared, *again, "--method", "fedavg") != 0
    assert "have a privacy account" in capsys.readouterr().err
    assert fairbloom("compare", *shared, *again, "--methods", "fedavg") != 0
    assert "have a privacy account" in capsys.readouterr().err
