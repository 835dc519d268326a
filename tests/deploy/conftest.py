"""What several of these tests begin with: a federation's folder, a client's bundle, Flower's home."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairbloom.deploy import pki
from fairbloom.deploy.flower.operator import commands as flower_commands
from fairbloom.deploy.flower.operator import control_api
from fairbloom.system.files import write_private
from tests.experiments.helpers import fairbloom

from .commands import Machine, answering


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    (tmp_path / "machine").mkdir()
    there = Machine(tmp_path / "machine")
    monkeypatch.setattr(flower_commands, "flwr_command", lambda: str(there.path))
    monkeypatch.setattr("fairbloom.deploy.operator.submit.flwr_command", lambda: str(there.path))
    monkeypatch.setattr(control_api, "connected", answering)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return there


@pytest.fixture
def made(machine: Machine, tmp_path: Path) -> Path:
    assert fairbloom("deploy", "init", "federation", "--host", "fl.example.org", "--host", "10.0.0.7") == 0
    return tmp_path / "federation"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    pki.make_authority(tmp_path / "ca.crt", tmp_path / "ca.key")
    write_private(tmp_path / "key", pki.make_node_key().private)
    settings = 'superlink = "localhost:1"\nca = "ca.crt"\nkey = "key"\npartition-id = 3\n'
    (tmp_path / "client.toml").write_text(settings)
    return tmp_path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose `app` is on the path, also of processes that are started."""
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "app"), prepend=os.pathsep)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "app"), *sys.path])
    yield tmp_path
    sys.modules.pop("tried_app", None)
