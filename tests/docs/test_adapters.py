"""The page on adapters: its blocks run, and its numbers are those of the run folders."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from fairbloom import load
from tests.commands import forked

from .pages import ROOT
from .reader import follow

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (find_spec("transformers") and find_spec("peft")), reason="transformers or peft is not installed"
    ),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of a reader who has done what the page says."""
    folder = tmp_path_factory.mktemp("adapters")
    page = (ROOT / "docs" / "adapters.md").read_text()
    first, _, after = page.partition("## Deployed\n")
    (folder / "adapters.md").write_text(first + after[after.index("## Limits") :])
    done = forked(folder, follow, str(folder / "adapters.md"))
    assert done.returncode == 0, done.stderr[-5000:]
    return folder / "runs"


def test_what_the_page_shows_works(runs: Path) -> None:
    assert {folder.name for folder in runs.iterdir()} == {"adapter", "whole"}


def test_a_round_takes_six_per_cent_and_the_model_learns(runs: Path) -> None:
    adapter, whole = load(runs / "adapter"), load(runs / "whole")
    for column in ("bytes_sent", "bytes_received"):
        share = adapter.rounds[column] / whole.rounds[column][0]
        assert (share.round(2) == 0.06).all()
    losses = adapter.over_rounds("clinic-1")
    assert losses[6] > losses[1]
