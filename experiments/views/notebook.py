"""What a notebook shows of a run and of a comparison: tables and a figure, as HTML."""

import base64
import io
from html import escape

from matplotlib.figure import Figure
from rich.text import Text

from ..results.caveats import caveats_of_run
from ..results.comparison import Comparison
from ..results.run import Run
from .tables import Grid, client_grid, method_grid, run_grid, sentence


def html_of_run(run: Run) -> str:
    """Return a run with its figure."""
    parts = [f"<p>{escape(repr(run))}</p>"]
    if run.final():
        lines = [f"<p>{escape(line)}</p>" for line in caveats_of_run(run)]
        parts += [_table(run_grid(run)), *lines, _image(run.figure())]
    return "\n".join(parts)


def html_of_comparison(comparison: Comparison) -> str:
    """Return a comparison with its figure."""
    tables = [_table(method_grid(comparison)), _table(client_grid(comparison))]
    lines = [f"<p>{escape(line)}</p>" for line in (sentence(comparison), *comparison.caveats)]
    return "\n".join([*tables, *lines, _image(comparison.figure())])


def _table(grid: Grid) -> str:
    rows = "".join(f"<tr>{''.join(f'<td>{_html(cell)}</td>' for cell in row)}</tr>" for row in grid.rows)
    headings = "".join(f"<th>{_html(heading)}</th>" for heading in grid.headings)
    caption = f"<p><small>{_html(grid.caption)}</small></p>" if grid.caption else ""
    title = f"<p><b>{_html(grid.title)}</b></p>"
    return f"{title}<table><thead><tr>{headings}</tr></thead><tbody>{rows}</tbody></table>{caption}"


def _html(markup: str) -> str:
    """Return a cell with its colours; rich's markup has no others than a style for all of it."""
    text = Text.from_markup(markup)
    colour = next((str(span.style) for span in text.spans if str(span.style) in ("green", "red")), "")
    plain = escape(text.plain).replace("\n", "<br>")
    return f'<span style="color:{colour}">{plain}</span>' if colour else plain


def _image(figure: Figure) -> str:
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=110)
    return f'<img alt="figure" src="data:image/png;base64,{base64.b64encode(drawn.getvalue()).decode()}">'
