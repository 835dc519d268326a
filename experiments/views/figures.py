"""The chart of each result, and its files: charts of the report, which stand alone."""

import base64
import re
from functools import singledispatch
from pathlib import Path
from typing import TYPE_CHECKING

import vl_convert

from fairbloom.server.run_folder.errors import explain_write_errors
from fairbloom.system.files import write_whole
from fairbloom.tasks.split import Split

from ..results.comparison import Comparison
from ..results.ranks import Ranks
from ..results.reproduction import Reproduction
from ..results.run import Run
from ..results.sweep import Sweep
from .report.charts import Spec, for_paper
from .report.lines import groups_of
from .report.of_comparison import sorted_charts
from .report.of_comparisons import rank_charts
from .report.of_reproduction import figure_charts, rows_charts
from .report.of_sweep import points_charts
from .report.page import Charts
from .report.sections import class_charts, run_rounds_charts

if TYPE_CHECKING:
    from altair.typing import ChartType


@singledispatch
def charts_of(result: object) -> Charts:
    """Return the chart of a result, or its charts beside each other."""
    raise NotImplementedError(f"there is no chart of {type(result).__name__}: register charts_of for it")


charts_of.register(Run, run_rounds_charts)
charts_of.register(Comparison, sorted_charts)
charts_of.register(Ranks, rank_charts)
charts_of.register(Sweep, points_charts)


@charts_of.register(Reproduction)
def _of_reproduction(done: Reproduction) -> Charts:
    """Return what was printed and measured, or the figure that was published, as measured."""
    return rows_charts(done) if done.recipe.figure is None else figure_charts(done, done.recipe.figure.x)


@charts_of.register(Split)
def _of_split(split: Split) -> Charts:
    """Return who has how many examples of each class."""
    return class_charts(dict(zip(split.clients, split.counts().tolist(), strict=True)), groups_of(split.clients))


def spec_of(result: object) -> Spec:
    """Return the chart of a result as a Vega-Lite specification that stands alone."""
    return for_paper(*((chart.title, chart.spec) for chart in charts_of(result).charts))


def build_chart(result: object) -> "ChartType":
    """Return the chart of a result as one of Altair's, which a notebook shows and a user can change."""
    import altair  # imported late: it takes half a second

    return altair.Chart.from_dict(spec_of(result))


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


def render_image(result: object) -> str:
    """Return the chart of a result as an HTML image that holds its file."""
    picture = base64.b64encode(draw_png(spec_of(result))).decode()
    return f'<img alt="figure" style="max-width:100%" src="data:image/png;base64,{picture}">'


def write_figure(result: object, path: Path) -> list[Path]:
    """Write the chart of a result as `path`.png and .svg, the same chart as the same bytes; return these files."""
    spec = spec_of(result)
    files = {path.with_name(f"{path.name}{end}"): draw for end, draw in ((".png", draw_png), (".svg", draw_svg))}
    with explain_write_errors("the figure", path.parent):
        for file, draw in files.items():
            write_whole(file, draw(spec))
    return list(files)
