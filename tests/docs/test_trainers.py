"""The page on Opacus and Lightning: its apps run, resume, and are refused where they must be."""

import re
import shutil
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
        not (find_spec("opacus") and find_spec("pytorch_lightning")), reason="Opacus or Lightning is not installed"
    ),
]

PAGE = (ROOT / "docs" / "trainers.md").read_text()


def read(folder: Path, page: str) -> str:
    """Follow a page in a folder; return what was said where it could not be followed."""
    (folder / "trainers.md").write_text(page)
    done = forked(folder, follow, str(folder / "trainers.md"))
    return "" if done.returncode == 0 else done.stderr


def test_the_page_runs_and_its_numbers_are_those_printed(tmp_path: Path) -> None:
    assert read(tmp_path, PAGE) == ""
    for name in "lightning_app", "opacus_app":
        run = load(tmp_path / "runs" / name)
        assert min(run.final().values()) > 0.5
        assert run.rounds["clients_scored"].eq(4).all()


def test_a_run_of_lightning_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    alone = re.sub(r"for app, model in .*:", "for app, model in [(lightning_app, lightning_app.Lit())]:", PAGE)
    alone = re.sub(r"\n\{'client-0': ….*", "", alone)
    short = alone.replace("num_rounds=10", "num_rounds=4")
    assert read(tmp_path, re.sub(r"```text.*?```", "", short, flags=re.DOTALL)) == ""
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
    assert read(tmp_path, alone) == ""  # which shows the numbers of ten rounds in one go


def test_seeded_noise_of_opacus_is_refused_with_the_remedy(tmp_path: Path) -> None:
    assert "seeded=False" in read(tmp_path, PAGE.replace(", seeded=False", ""))
