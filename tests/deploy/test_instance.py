"""Which process a client's node is to its SuperLink."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fairbloom.deploy.device import instance
from fairbloom.deploy.device.instance import Instance
from tests.deploy.commands import ROOT

HOLD = """
import sys
from fairbloom.deploy.device.instance import Instance
held = Instance(sys.argv[1])
print(held.name, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text("a key")
    return path


def holding(key: Path) -> tuple[subprocess.Popen[str], str]:
    """Start a process that holds a key as a client does; return it, and the name of its instance."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(key)], env=environment, text=True, **pipes)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


@pytest.mark.skipif(not instance.BOOT.exists(), reason="this system names no boot")
def test_a_client_that_was_killed_and_started_again_is_the_same_instance(key: Path) -> None:
    first, name = holding(key)
    kill(first)
    second, again = holding(key)
    kill(second)
    assert name == again
    assert len(name) == 32


def test_a_second_one_at_the_same_time_is_another_instance(key: Path) -> None:
    first, name = holding(key)
    second, other = holding(key)
    kill(second)
    kill(first)
    assert name != other


def test_one_with_a_copy_of_the_key_is_another_instance_and_so_is_one_after_a_reboot(
    key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "copy").write_text(key.read_text())
    names = [Instance(str(tmp_path / "copy")).name]
    first, name = holding(key)
    kill(first)
    monkeypatch.setattr(instance, "BOOT", key)
    names.append(Instance(str(key)).name)
    assert len({name, *names}) == 3


@pytest.mark.parametrize("path", ["", "/nowhere/key"])
def test_without_a_key_each_process_is_another_instance(path: str) -> None:
    assert Instance(path).name != Instance(path).name
