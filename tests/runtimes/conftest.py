"""Other versions of Flower than the installed one."""

import functools
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version

import pytest


@pytest.fixture(scope="session")
def flower_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """A function that returns a folder with a version of Flower, for PYTHONPATH.

    The folder is "" for the installed version. The test is skipped if pip cannot install the
    version, for example without a package index.
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
