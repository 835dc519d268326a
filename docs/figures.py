"""Figures of these pages as SVG files that follow dark mode, wherever a browser shows them."""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager

from matplotlib import rc_context
from matplotlib.figure import Figure

from fairbloom.experiments.render.theme import COLOURS

INK = "#1f2328"
PAPER = "#ffffff"
"""What lines and letters are drawn with, and what is behind them."""

DARK = {
    **dict(COLOURS.values()),
    INK: "#e6e6e6",
    PAPER: "#131416",
    "#000000": "#e6e6e6",
    "#0072b2": "#4aa8e0",
    "#333333": "#dddddd",
    "#56b4e9": "#b9e3f8",
    "#666666": "#a8a8a8",
    "#b0b0b0": "#5a5a5a",
    "#cccccc": "#555555",
    "#d3d3d3": "#4a4a4a",
}
"""The colours that are others on a dark page, in lower case; all that are not here are seen on
both."""

STYLE = {
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), INK),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "none"),
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Helvetica", "Arial"],
    "svg.fonttype": "none",  # letters stay letters: a fifth of the size, and they can be searched
    "svg.hashsalt": "fairbloom",
}


@contextmanager
def themed() -> Iterator[None]:
    """Let figures that are made within have colours that `svg_of` knows."""
    with rc_context(STYLE):
        yield


def svg_of(figure: Figure) -> bytes:
    """Return a figure as SVG, the same figure as the same bytes.

    Its colours follow those of the page around it.

    The figure must have been made within `themed`.
    """
    drawn = io.BytesIO()
    with themed():
        figure.savefig(
            drawn, format="svg", metadata={"Date": None, "Creator": None}, transparent=True
        )
    return follow_dark_mode(drawn.getvalue())


def follow_dark_mode(svg: bytes) -> bytes:
    """Return an SVG of Fairbloom, or of matplotlib within `themed`, smaller, with colours for dark pages too."""
    text = re.sub(r' d="[^"]*"', _shorten, svg.decode()).replace('fill="white"', 'fill="none"')
    return re.sub("(<svg[^>]*>)", rf"\1<style>{dark_rules()}</style>\n", text, count=1).encode()


def _shorten(path: re.Match[str]) -> str:
    """Return a path with two decimals: nobody sees a hundredth of a point."""
    return re.sub(r"(\.\d\d)\d+", r"\1", path[0])


def dark_rules() -> str:
    """Return the rules that exchange colours where the page is dark."""
    rules = (
        f'[style*="{kind}: {light}"],[{kind}="{light}"]{{{kind}:{dark}!important}}'
        for light, dark in DARK.items()
        for kind in ("fill", "stroke")
    )
    return f"@media(prefers-color-scheme:dark){{{''.join(rules)}}}"
