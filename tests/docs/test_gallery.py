"""Each example of the gallery runs alone, in an empty folder, and ends with a chart."""

from pathlib import Path
from shutil import copy

import pytest

from tests.commands import forked

from .pages import ROOT
from .reader import run_script

EXAMPLES = sorted((ROOT / "docs" / "gallery").glob("*.py"))
# On two free cores none takes half a minute.
MAX_SECONDS = 240.0


def test_the_eight_examples_are_numbered() -> None:
    assert [example.name.split("_")[1] for example in EXAMPLES] == [*"12345678"]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_a_cell_of_each_example_ends_with_a_chart(example: Path) -> None:
    cells = example.read_text().split("# %%")
    assert any(cell.rstrip().endswith(".chart()") for cell in cells)


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(example: Path, tmp_path: Path) -> None:
    copy(example, tmp_path)
    done = forked(tmp_path, run_script, example.name, seconds=MAX_SECONDS)
    assert done.returncode == 0, done.stderr[-5000:]
