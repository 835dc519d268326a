"""Figures of the pages: the demo draws the first, and all follow dark mode."""

import re
import shlex
from pathlib import Path

import pytest

from docs.demo import COMMAND, IMAGES, draw
from docs.figures import INK, dark_rules, follow_dark_mode

from .pages import ROOT

BRIEFLY = {"--rounds": "2", "--seeds": "2", "--clients": "6"}


@pytest.mark.slow
def test_the_demo_draws_its_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From an empty folder, with fewer rounds, seeds and clients."""
    monkeypatch.chdir(tmp_path)
    svg = draw(shortened(COMMAND)).decode()
    assert svg.count("<text") > 3
    assert "prefers-color-scheme" in svg


def shortened(command: str) -> str:
    """Return a command with small numbers, that makes the same kind of figure."""
    words = shlex.split(command)
    words = [BRIEFLY.get(before, word) for before, word in zip(["", *words], words, strict=False)]
    return shlex.join(words)


@pytest.mark.parametrize("file", sorted(IMAGES.iterdir()), ids=lambda file: file.name)
def test_a_figure_of_the_pages_is_small_and_follows_dark_mode(file: Path) -> None:
    svg = file.read_text()
    assert file.suffix == ".svg"
    assert len(svg) < 100_000
    assert dark_rules() in svg, "python -m docs.demo and python -m docs.hospitals draw the figures"
    assert INK in svg


def test_make_demo_runs_the_command_of_the_first_figure() -> None:
    (demo,) = re.findall(r"^demo:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    made, shown = demo.replace("\\\n", "").replace("$(DEMO)", "runs/demo"), COMMAND
    assert sorted(shlex.split(made)[1:]) == sorted(shlex.split(shown)[1:])


def test_a_figures_numbers_keep_their_digits() -> None:
    svg = b'<svg><defs></defs><path d="M 1.23456 2.5"/><text x="1.23456">0.12345</text></svg>'
    small = follow_dark_mode(svg).decode()
    assert 'd="M 1.23 2.5"' in small
    assert ">0.12345<" in small
