"""Charts of the report that stand alone: as a specification, as files, and in notebooks."""

import base64
import re
from pathlib import Path
from typing import Any

import vl_convert

from fairbloom.server.run_folder.errors import explain_write_errors
from fairbloom.system.files import write_whole

from ..results.presentation import page_of
from .report.charts import Spec, for_paper
from .report.page import Charts


class VegaLite(dict[str, Any]):
    """A Vega-Lite specification, which a notebook draws."""

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        picture = base64.b64encode(draw_png(self)).decode()
        return {"application/vnd.vegalite.v5+json": dict(self), "image/png": picture}


def spec_of(charts: Charts) -> VegaLite:
    """Return charts as one specification that stands alone."""
    return VegaLite(for_paper(*((chart.title, chart.spec) for chart in charts.charts)))


def draw_png(spec: Spec) -> bytes:
    """Return a chart as a PNG file."""
    png: bytes = vl_convert.vegalite_to_png(spec, scale=2.0)  # pixels for a unit of the chart
    return png


def draw_svg(spec: Spec) -> bytes:
    """Return a chart as an SVG file, the same chart as the same bytes."""
    svg: str = vl_convert.vegalite_to_svg(spec)
    # Vega numbers gradients and clips over all charts of a process.
    numbers: dict[str, str] = {}

    def renumber(name: re.Match[str]) -> str:
        return name[1] + numbers.setdefault(name[2], str(len(numbers)))

    return re.sub(r'((?:id="|url\(#)(?:gradient_|clip))(\d+)', renumber, svg).encode()


def render_image(charts: Charts) -> str:
    """Return charts as an HTML image that holds its file."""
    picture = base64.b64encode(draw_png(spec_of(charts))).decode()
    return f'<img alt="figure" style="max-width:100%" src="data:image/png;base64,{picture}">'


def write_figure(result: object, path: Path) -> list[Path]:
    """Write the chart of a result as `path`.png and .svg, the same chart as the same bytes; return these files."""
    return write_charts(page_of(result).make_figure(), path)


def write_charts(charts: Charts, path: Path) -> list[Path]:
    """Write charts beside each other as `path`.png and .svg; return these files."""
    spec = spec_of(charts)
    files = {path.with_name(f"{path.name}{end}"): draw for end, draw in ((".png", draw_png), (".svg", draw_svg))}
    with explain_write_errors("the figure", path.parent):
        for file, draw in files.items():
            write_whole(file, draw(spec))
    return list(files)
