"""Figures of the pages: the demo draws the first, and all follow dark mode."""

import re
import shlex
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from docs.demo import COMMAND, IMAGES, draw
from docs.figures import DARK, INK, PAPER, dark_rules, follow_dark_mode, svg_of, themed

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


def test_each_colour_hidden_on_dark_pages_has_another() -> None:
    with themed():
        figure = Figure()
        axes = figure.subplots()
        axes.set_title("A title")
        axes.plot([0, 1], color=INK, markerfacecolor=PAPER, marker="o")
        svg = svg_of(figure).decode()
    colours = set(re.findall(r'style="[^"]*?(?:fill|stroke): (#\w{6})', svg))
    assert {INK, PAPER} <= colours
    assert {each for each in colours if luminance(each) < 0.2} <= set(DARK)
    assert all(luminance(dark) > 0.25 for light, dark in DARK.items() if luminance(light) < 0.02)


def luminance(colour: str) -> float:
    """Return the relative luminance of WCAG, from 0 to 1."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
