"""Single charts: as a specification, as files, and in notebooks."""

import base64
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fairbloom.protocol.settings import SettingsError
from fairbloom.server.run_folder.errors import explain_write_errors
from fairbloom.system.files import write_whole

from .page import Charts
from .theme import COLOURS, CONFIG, PICKED, Spec, colour

# Most points of a figure with marks on its lines; a report marks the points under the pointer.
MARKED_POINTS = 240

# The channels of a legend. Dashes and widths of lines would break the outlines of its marks.
MARKED = ("color", "shape")

# Charts per row.
COLUMNS = 3

# The widths of charts by how many there are; of three or more, WIDTH.
WIDTHS = {1: 520.0, 2: 300.0}
WIDTH = 190.0


class VegaLite(dict[str, Any]):
    """A Vega-Lite specification, which a notebook draws."""

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        return {
            "application/vnd.vegalite.v5+json": dict(self),
            "image/png": base64.b64encode(draw_png(self)).decode(),
        }


def draw_png(spec: Spec) -> bytes:
    """Return a chart as a PNG file."""
    import vl_convert  # imported late: it starts a JavaScript engine, which takes a second

    return bytes(vl_convert.vegalite_to_png(spec, scale=2.0))  # pixels for a unit of the chart


def draw_svg(spec: Spec) -> bytes:
    """Return a chart as an SVG file, the same chart as the same bytes."""
    import vl_convert

    svg: str = vl_convert.vegalite_to_svg(spec)
    # Vega numbers gradients and clips over all charts of a process.
    numbers: dict[str, str] = {}

    def renumber(name: re.Match[str]) -> str:
        own = numbers.setdefault(name[2], str(len(numbers)))
        return name[1] + own

    renumbered = re.sub(r'((?:id="|url\(#)(?:gradient_|clip))(\d+)', renumber, svg)
    return renumbered.encode()


def draw_pdf(spec: Spec) -> bytes:
    """Return a chart as a PDF file with embedded fonts."""
    import vl_convert

    return bytes(vl_convert.vegalite_to_pdf(spec))


# How a figure is drawn, by the ending of its file's name.
DRAWN: Mapping[str, Callable[[Spec], bytes]] = {
    ".pdf": draw_pdf,
    ".svg": draw_svg,
    ".png": draw_png,
}


def check_figure(path: Path) -> None:
    """Raise SettingsError if a figure's file has no known ending."""
    if path.suffix.lower() not in DRAWN:
        raise SettingsError(f"--figure {path}: end the name in {', '.join(DRAWN)}")


def write_charts(charts: Charts, path: Path) -> None:
    """Write charts side by side into a file; its ending says how it is drawn."""
    content = DRAWN[path.suffix.lower()](spec_of(charts))
    with explain_write_errors("the figure", path.parent):
        write_whole(path, content)


def spec_of(charts: Charts) -> VegaLite:
    """Return charts as one self-contained specification for a paper: light, with a legend.

    Several charts are laid out in rows of three, with their titles.
    """
    config = {
        **CONFIG,
        "font": "sans-serif",
        "background": "white",
        "concat": {"columns": COLUMNS, "spacing": 24},
        "legend": {**CONFIG["legend"], "symbolLimit": 0, "labelLimit": 300},
    }
    # Each label's look by channel, over all charts: side by side they share their legends.
    looks = dict[str, dict[str, Any]]()
    parts = []
    for layer in (layer for chart in charts.charts for layer in chart.spec["layer"]):
        for channel, encoded in layer["encoding"].items():
            if channel in MARKED and "scale" in encoded:
                looks.setdefault(channel, {}).update(
                    zip(encoded["scale"]["domain"], encoded["scale"]["range"], strict=True)
                )
    for chart in charts.charts:
        part = {
            key: value for key, value in chart.spec.items() if key not in ("autosize", "params")
        }
        part["width"] = WIDTHS.get(len(charts.charts), WIDTH)
        if len(charts.charts) > 1:
            part["title"] = chart.title
        few = len(chart.spec["data"]["values"]) <= MARKED_POINTS
        part["layer"] = []
        for layer in chart.spec["layer"]:
            mark = layer["mark"]
            encoding = dict(layer["encoding"])
            if few and mark.get("opacity") == 0.0:
                mark = {**mark, "opacity": 1.0, "size": 32}
            for channel, look in looks.items():
                if channel in encoding:
                    encoding[channel] = {
                        **encoding[channel],
                        "scale": {"domain": list(look), "range": list(look.values())},
                        "legend": {"orient": "bottom", "title": None, "columns": 3},
                    }
            part["layer"].append({**layer, "mark": mark, "encoding": encoding})
        parts.append(part)
    whole = parts[0] if len(parts) == 1 else {"concat": parts}
    text = json.dumps({"params": [PICKED], **whole, "config": config})
    for name, (light, _) in COLOURS.items():
        text = text.replace(colour(name), light)
    return VegaLite(json.loads(text))
