"""Other versions of Flower than the one that is installed."""

import functools
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version

import pytest


@pytest.fixture(scope="session")
def flower_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """A function that returns a folder, for PYTHONPATH, with a version of Flower; "" for the one
    that is installed.

    It skips the test where pip cannot install that version, as without a package index.
    """

    @functools.cache
    def folder_of(flower: str) -> str:
        if flower == version("flwr"):
            return ""
        folder = tmp_path_factory.mktemp(f"flower-{flower}")
        pip = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--target",
            str(folder),
        ]
        done = subprocess.run(
            [*pip, f"flwr=={flower}"], capture_output=True, text=True, timeout=300
        )
        if done.returncode != 0:
            pytest.skip(f"Flower {flower} cannot be installed: {done.stderr.strip()[-200:]}")
        return str(folder)

    return folder_of
