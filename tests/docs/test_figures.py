"""Figures of the pages: the demo draws the first, and all follow dark mode."""

import re
import shlex
from pathlib import Path

import pytest

from docs.demo import COMMAND, IMAGES, draw
from docs.figures import INK, dark_rules, follow_dark_mode

from .pages import ROOT


@pytest.mark.slow
def test_the_demo_draws_its_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From an empty folder, with fewer rounds, seeds and clients."""
    monkeypatch.chdir(tmp_path)
    briefly = {"--rounds": "2", "--seeds": "2", "--clients": "6"}
    words = shlex.split(COMMAND)
    words = [briefly.get(before, word) for before, word in zip(["", *words], words, strict=False)]
    svg = draw(shlex.join(words)).decode()
    assert svg.count("<text") > 3
    assert "prefers-color-scheme" in svg


def test_figures_of_the_pages_are_small_and_follow_dark_mode(subtests: pytest.Subtests) -> None:
    for file in IMAGES.iterdir():
        with subtests.test(file=file):
            svg = file.read_text()
            assert file.suffix == ".svg"
            assert len(svg) < 100_000, file
            assert dark_rules() in svg, (
                f"{file}: python -m docs.demo and python -m docs.hospitals draw the figures"
            )
            assert INK in svg


def test_make_demo_runs_the_command_of_the_first_figure() -> None:
    (demo,) = re.findall(r"^demo:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    made = demo.replace("\\\n", "").replace("$(DEMO)", "runs/demo")
    shown = COMMAND
    assert sorted(shlex.split(made)[1:]) == sorted(shlex.split(shown)[1:])


def test_a_figures_numbers_keep_their_digits() -> None:
    svg = b'<svg><defs></defs><path d="M 1.23456 2.5"/><text x="1.23456">0.12345</text></svg>'
    small = follow_dark_mode(svg).decode()
    assert 'd="M 1.23 2.5"' in small
    assert ">0.12345<" in small
