"""Charts that stand alone: as a specification, as files, and in notebooks."""

import base64
import json
import re
from pathlib import Path
from typing import Any

from fairbloom.server.run_folder.errors import explain_write_errors
from fairbloom.system.files import write_whole

from .page import Charts
from .theme import COLOURS, CONFIG, PICKED, Spec, colour

# Number of points up to which a figure marks those of lines; a report shows the ones under the
# pointer.
MARKED_POINTS = 240


class VegaLite(dict[str, Any]):
    """A Vega-Lite specification, which a notebook draws."""

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        picture = base64.b64encode(draw_png(self)).decode()
        return {"application/vnd.vegalite.v5+json": dict(self), "image/png": picture}


def draw_png(spec: Spec) -> bytes:
    """Return a chart as a PNG file."""
    import vl_convert  # imported late: it starts a JavaScript engine, which takes a second

    png: bytes = vl_convert.vegalite_to_png(spec, scale=2.0)  # pixels for a unit of the chart
    return png


def draw_svg(spec: Spec) -> bytes:
    """Return a chart as an SVG file, the same chart as the same bytes."""
    import vl_convert

    svg: str = vl_convert.vegalite_to_svg(spec)
    # Vega numbers gradients and clips over all charts of a process.
    numbers: dict[str, str] = {}

    def renumber(name: re.Match[str]) -> str:
        return name[1] + numbers.setdefault(name[2], str(len(numbers)))

    return re.sub(r'((?:id="|url\(#)(?:gradient_|clip))(\d+)', renumber, svg).encode()


def write_charts(charts: Charts, path: Path) -> list[Path]:
    """Write charts side by side as `path`.png and .svg; return these files."""
    spec = spec_of(charts)
    files = {
        path.with_name(f"{path.name}{end}"): draw
        for end, draw in ((".png", draw_png), (".svg", draw_svg))
    }
    with explain_write_errors("the figure", path.parent):
        for file, draw in files.items():
            write_whole(file, draw(spec))
    return list(files)


def spec_of(charts: Charts) -> VegaLite:
    """Return charts as one self-contained specification for a paper: light, with a legend.

    More than one chart stand in rows of three, with their titles.
    """
    config = {
        **CONFIG,
        "font": "sans-serif",
        "background": "white",
        "concat": {"columns": 3, "spacing": 24},
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
        part |= {"width": 520} if len(charts.charts) == 1 else {"width": 190, "title": chart.title}
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
