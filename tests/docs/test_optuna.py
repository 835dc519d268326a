"""Optuna asks for the points of a search, as the page on comparisons shows."""

from pathlib import Path

import pytest

from .pages import blocks


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_optuna_asks_for_the_points_of_a_search() -> None:
    pytest.importorskip("optuna", reason="Optuna is not installed: the reader of the page installs it")
    (block,) = (each for each in blocks("docs/comparing.md") if each.section == "Larger spaces")
    names: dict[str, object] = {}
    exec(block.text, names)  # noqa: S102 (a page of ours)
    assert len(list(Path("runs/optuna").iterdir())) == 3
