"""Contributors find the files that CONTRIBUTING.md names, and need no others."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkout import BESIDE, ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text()

METHOD = '''"""The plain mean of the updates."""

import numpy as np

from .strategy import FairStrategy


class PlainMean(FairStrategy):
    """The plain mean of the updates."""

    def weigh(self, cohort):
        return np.full(cohort.size, 1.0 / cohort.size)
'''


def rows() -> dict[str, list[str]]:
    """Return the files in the table by kind of addition; a name in <> stands for any name."""
    table = re.findall(r"^\| (an? [^|]+) \| ([^|]+) \|$", TEXT, re.MULTILINE)
    return {added: re.findall(r"`([^`]+/[^`]*)`", files) for added, files in table}


def test_the_files_that_are_named_exist(subtests: pytest.Subtests) -> None:
    found = rows()
    assert len(found) == 12
    for added, files in found.items():
        with subtests.test(added=added):
            assert files
            for file in files:
                if "<name>" in file:
                    assert (ROOT / file).parent.is_dir(), file
                else:
                    assert (ROOT / file).exists(), file


@pytest.mark.slow
def test_a_method_needs_the_two_files_that_are_named(tmp_path: Path) -> None:
    own, registry = rows()["a method"][:2]
    # with what Python has compiled, as times are copied too
    for package in BESIDE:
        shutil.copytree(ROOT / package, tmp_path / package)
    shutil.copytree(ROOT / "fairbloom", tmp_path / "fairbloom", symlinks=True)
    (tmp_path / own.replace("<name>", "plainmean")).write_text(METHOD)
    changed = (ROOT / registry).read_text()
    changed = changed.replace(
        "from .propfair import", "from .plainmean import PlainMean\nfrom .propfair import", 1
    )
    changed = changed.replace("        FedAvg,\n", "        FedAvg,\n        PlainMean,\n", 1)
    (tmp_path / registry).write_text(changed)
    command = [sys.executable, "-m", "fairbloom", "run", "--method", "plainmean", "--rounds", "1"]
    done = subprocess.run(
        [*command, "--clients", "2", "--out", str(tmp_path / "run")],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert 'method = "plainmean"' in (tmp_path / "run" / "config.toml").read_text()
