"""Fixtures of several tests: a federation's folder, a client's bundle, and an app on the path."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairbloom.deploy.device.client import ClientSettings
from fairbloom.deploy.fleet.enrolment import enroll
from fairbloom.deploy.fleet.federation import Federation
from tests.deploy.served import Served, make_place
from tests.experiments.helpers import fairbloom


@pytest.fixture
def made(here: Path) -> Path:
    """The folder of a federation, in the current folder."""
    assert (
        fairbloom("deploy", "init", "federation", "--host", "fl.example.org", "--host", "10.0.0.7")
        == 0
    )
    return here / "federation"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """The bundle of a client with partition 3, next to the federation's folder `fed`."""
    return enroll(Federation.init(tmp_path / "fed", ["localhost"], 1), "site-a", partition=3)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with an `app` that is on the path, also in processes that are started."""
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "app"), prepend=os.pathsep)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "app"), *sys.path])
    yield tmp_path
    sys.modules.pop("tried_app", None)


@pytest.fixture
def own_client(home: Path) -> ClientSettings:
    """The settings of a client with the app of `home`; the files that they name are never read."""
    files = {key: home / key for key in ("ca", "key", "certificate")}
    for file in files.values():
        file.touch()
    given = {key: str(file) for key, file in files.items()}
    return ClientSettings(server="a:1", app="tried_app:app", state_dir="/own", **given)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A fleet port in this process, with the clients a and b."""
    port = Served(make_place(tmp_path / "place"))
    yield port
    port.stop()
