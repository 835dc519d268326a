"""Colours, fonts and lines of pages and their charts, as theme.json has them.

Colours are CSS variables (`var(--ink)`), so that charts follow light, dark and print without being
drawn again.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# A Vega-Lite specification, or a part of one.
Spec = dict[str, Any]

_THEME = json.loads(Path(__file__).with_name("theme.json").read_text(encoding="utf-8"))

# The colours of a page and its charts by their names: in light and in dark. Colours of series are
# close to Okabe and Ito's, which colour-blind people tell apart, and dark enough for thin lines.
COLOURS: Mapping[str, tuple[str, str]] = {
    name: (light, dark) for name, (light, dark) in _THEME["colours"].items()
}

# How all charts look. The fonts are those that the reader's machine has; the page describes each
# chart as a whole.
CONFIG: Spec = _THEME["config"]

# The label that a page's legend emphasises; "" for all.
PICKED = {"name": "picked", "value": ""}


def colour(name: str) -> str:
    """Return a colour as specifications and style sheets have it."""
    return f"var(--{name})"


@dataclass(frozen=True)
class Series:
    """How a method, or any other line of a chart, looks.

    Lines of personal models are dashed with hollow points.
    """

    label: str
    colour: str
    shape: str = "circle"
    dashed: bool = False
