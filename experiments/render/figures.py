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

# Charts per row.
COLUMNS = 3

# The width of the narrowest plot, in points.
NARROWEST_PLOT = 80.0

# The widths that a figure may have, in centimetres.
NARROWEST = 3.0
WIDEST = 100.0

POINTS_PER_CM = 72.0 / 2.54

# The resolution of PNG files with a width in centimetres, as journals ask for.
PIXELS_PER_INCH = 300.0


class VegaLite(dict[str, Any]):
    """A Vega-Lite specification, which a notebook draws."""

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        picture = base64.b64encode(draw_png(self)).decode()
        return {"application/vnd.vegalite.v5+json": dict(self), "image/png": picture}


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
        return name[1] + numbers.setdefault(name[2], str(len(numbers)))

    return re.sub(r'((?:id="|url\(#)(?:gradient_|clip))(\d+)', renumber, svg).encode()


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


def check_figure(path: Path, width: float | None) -> None:
    """Raise SettingsError if a figure's file has no known ending, or its width is impossible."""
    if path.suffix.lower() not in DRAWN:
        raise SettingsError(f"--figure {path}: end the name in {', '.join(DRAWN)}")
    if width is not None and not NARROWEST <= width <= WIDEST:
        raise SettingsError(
            f"--width {width:g}: give between {NARROWEST:g} and {WIDEST:g} centimetres"
        )


def write_charts(charts: Charts, path: Path, width: float | None = None) -> None:
    """Write charts side by side into a file; its ending says how it is drawn.

    `width` is in centimetres, by default as wide as the charts need.
    """
    ending = path.suffix.lower()
    if width is None:
        content = DRAWN[ending](spec_of(charts))
    else:
        content = _draw_within(charts, ending, width)
    with explain_write_errors("the figure", path.parent):
        write_whole(path, content)


def _draw_within(charts: Charts, ending: str, width: float) -> bytes:
    """Return charts as a file with a width in centimetres.

    The plots become narrower or wider first, so that texts keep their size as far as possible.
    """
    import vl_convert

    points = width * POINTS_PER_CM
    excess = _size_of(draw_svg(spec_of(charts)).decode())[0] - points
    svg = draw_svg(spec_of(charts, narrower=excess)).decode()
    natural, high = _size_of(svg)
    height = high * points / natural
    if ending == ".svg":
        return _resize(svg, f"{width:g}cm", f"{height / POINTS_PER_CM:.4g}cm").encode()
    sized = _resize(svg, f"{points:.4f}", f"{height:.4f}")
    drawn: bytes = (
        vl_convert.svg_to_pdf(sized)
        if ending == ".pdf"
        else vl_convert.svg_to_png(sized, ppi=PIXELS_PER_INCH)
    )
    return drawn


# The size of an SVG file in its first element, which comes before any text.
SVG_SIZE = re.compile(r'width="([\d.]+)" height="([\d.]+)"')


def _size_of(svg: str) -> tuple[float, float]:
    """Return width and height of an SVG file, in points."""
    width, height = SVG_SIZE.search(svg).groups()  # type: ignore[union-attr]  # Vega writes both
    return float(width), float(height)


def _resize(svg: str, width: str, height: str) -> str:
    return SVG_SIZE.sub(f'width="{width}" height="{height}"', svg, count=1)


def spec_of(charts: Charts, *, narrower: float = 0.0) -> VegaLite:
    """Return charts as one self-contained specification for a paper: light, with a legend.

    Several charts are laid out in rows of three, with their titles. A row of plots is `narrower`
    points narrower than usual.
    """
    config = {
        **CONFIG,
        "font": "sans-serif",
        "background": "white",
        "concat": {"columns": COLUMNS, "spacing": 24},
    }
    config["legend"] = {**CONFIG["legend"], "symbolLimit": 0, "labelLimit": 300}
    # Each label's look by channel, over all charts: side by side they share their legends.
    looks = dict[str, dict[str, Any]]()
    parts = []
    for layer in (layer for chart in charts.charts for layer in chart.spec["layer"]):
        for channel, each in layer["encoding"].items():
            if isinstance(each, dict) and each.get("legend", ...) is None:
                looks.setdefault(channel, {}).update(
                    zip(each["scale"]["domain"], each["scale"]["range"], strict=True)
                )
    for chart in charts.charts:
        part = {
            key: value for key, value in chart.spec.items() if key not in ("autosize", "params")
        }
        if len(charts.charts) == 1:
            part["width"] = max(NARROWEST_PLOT, 520.0 - narrower)
        else:
            columns = min(COLUMNS, len(charts.charts))
            part["width"] = max(NARROWEST_PLOT, 190.0 - narrower / columns)
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
                    scale = {"domain": list(look), "range": list(look.values())}
                    legend = {"orient": "bottom", "title": None, "columns": 3}
                    encoding[channel] = {**encoding[channel], "scale": scale, "legend": legend}
            part["layer"].append({**layer, "mark": mark, "encoding": encoding})
        parts.append(part)
    whole = parts[0] if len(parts) == 1 else {"concat": parts}
    text = json.dumps({"params": [PICKED], **whole, "config": config})
    for name, (light, _) in COLOURS.items():
        text = text.replace(colour(name), light)
    return VegaLite(json.loads(text))
