"""Colours, fonts and lines of pages and their charts.

Colours are CSS variables (`var(--ink)`), so that charts follow light, dark and print without being drawn again.
"""

from dataclasses import dataclass
from typing import Any

Spec = dict[str, Any]
"""A Vega-Lite specification, or a part of one."""

COLOURS = {
    "ink": ("#1b2430", "#e8ebf0"),
    "muted": ("#566172", "#a3adbb"),
    "line": ("#d8dde5", "#36404e"),
    "grid": ("#e9ecf1", "#28313d"),
    "page": ("#ffffff", "#12171e"),
    "panel": ("#f6f8fa", "#1a212b"),
    "accent": ("#0b5cad", "#7cb8f5"),
    "better": ("#00714e", "#4fd0a1"),
    "worse": ("#b3480f", "#ff9d66"),
    "same": ("#697586", "#939eae"),
    "series-0": ("#5b6675", "#aab4c2"),
    "series-1": ("#0072b2", "#56b4e9"),
    "series-2": ("#d55e00", "#ff8f45"),
    "series-3": ("#008a63", "#35c89b"),
    "series-4": ("#b8568f", "#eb9bc8"),
    "series-5": ("#b07800", "#f0b93a"),
    "series-6": ("#5e4fa2", "#a99bf0"),
    "series-7": ("#8c2d04", "#e5a384"),
    "series-8": ("#1b7f8c", "#6fd3de"),
    "series-9": ("#6b7d00", "#c3d44a"),
}
"""The colours of a page and its charts by their names: in light and in dark. Those of series are close to Okabe and
Ito's, which colour-blind people tell apart, and dark enough for thin lines."""

PICKED = {"name": "picked", "value": ""}
"""The label that a page's legend emphasises; "" for all."""


def colour(name: str) -> str:
    """Return a colour as specifications and style sheets have it."""
    return f"var(--{name})"


@dataclass(frozen=True)
class Series:
    """How a method, or any other line of a chart, looks; those of personal models are dashed with hollow points."""

    label: str
    colour: str
    shape: str = "circle"
    dashed: bool = False


FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif"
"""What pages and charts are set in: fonts that the reader's machine has."""

CONFIG: Spec = {
    "background": None,
    "aria": False,  # the page describes each chart as a whole
    "font": FONT,
    "view": {"stroke": None},
    "title": {"color": colour("ink"), "fontSize": 12, "fontWeight": 600},
    "axis": {
        "labelColor": colour("muted"),
        "titleColor": colour("ink"),
        "gridColor": colour("grid"),
        "domainColor": colour("line"),
        "tickColor": colour("line"),
        "labelFontSize": 11.5,
        "titleFontSize": 12,
        "titleFontWeight": 500,
        "titlePadding": 8,
        "labelOverlap": True,
        "labelSeparation": 5,
        "tickCount": 6,
    },
    "legend": {
        "labelColor": colour("muted"),
        "titleColor": colour("ink"),
        "titleFontWeight": 500,
        "labelFontSize": 11,
        "titleFontSize": 11.5,
    },
    "point": {"filled": True, "size": 60, "opacity": 1.0},
}
"""How all charts look."""
