"""Write the figures of these pages as SVG files that follow dark mode in any browser."""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager

from matplotlib import rc_context
from matplotlib.figure import Figure

from fairbloom.experiments.render.theme import COLOURS

# The colours of lines and letters, and of the background.
INK = "#1f2328"
PAPER = "#ffffff"

# Replacements of colours on a dark page, in lower case; other colours are visible on both.
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

STYLE = {
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), INK),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "none"),
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Helvetica", "Arial"],
    "svg.fonttype": "none",  # letters stay text: a fifth of the size, and searchable
    "svg.hashsalt": "fairbloom",
}


@contextmanager
def themed() -> Iterator[None]:
    """Give figures that are made inside the colours that `svg_of` replaces."""
    with rc_context(STYLE):
        yield


def svg_of(figure: Figure) -> bytes:
    """Return a figure, made within `themed`, as SVG; the same figure gives the same bytes.

    Its colours follow the page around it.
    """
    drawn = io.BytesIO()
    with themed():
        figure.savefig(
            drawn, format="svg", metadata={"Date": None, "Creator": None}, transparent=True
        )
    return follow_dark_mode(drawn.getvalue())


def follow_dark_mode(svg: bytes) -> bytes:
    """Return an SVG of Fairbloom, or of `themed`, smaller, and with colours for dark pages."""
    text = re.sub(r' d="[^"]*"', _shorten, svg.decode()).replace('fill="white"', 'fill="none"')
    return re.sub("(<svg[^>]*>)", rf"\1<style>{dark_rules()}</style>\n", text, count=1).encode()


def _shorten(path: re.Match[str]) -> str:
    """Return a path with two decimals: a hundredth of a point is invisible."""
    return re.sub(r"(\.\d\d)\d+", r"\1", path[0])


def dark_rules() -> str:
    """Return the CSS rules that replace colours on dark pages."""
    rules = (
        f'[style*="{kind}: {light}"],[{kind}="{light}"]{{{kind}:{dark}!important}}'
        for light, dark in DARK.items()
        for kind in ("fill", "stroke")
    )
    return f"@media(prefers-color-scheme:dark){{{''.join(rules)}}}"
