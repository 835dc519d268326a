"""What a notebook shows of a run, a comparison and a sweep: tables and a figure, as HTML."""

import base64
from html import escape

from rich.text import Text

from ..results.caveats import caveats_of_run
from ..results.comparison import Comparison
from ..results.recommendation import Recommendation
from ..results.run import Run
from ..results.scored import scores_of, sentences_of
from ..results.sweep import Sweep
from .figures import draw_png, spec_of
from .recommendation import tried_grid
from .sweep_table import points_grid
from .tables import Grid, client_grid, gap_grids, group_grid, method_grid, run_grid


def html_of_run(run: Run) -> str:
    """Return a run with its figure."""
    parts = [f"<p>{escape(repr(run))}</p>"]
    if run.final():
        over = sentences_of(scores_of(run))
        lines = [f"<p>{escape(line)}</p>" for line in (*over, *caveats_of_run(run))]
        report = run.by_group()
        groups = [] if report is None else [_table(group_grid(report, each)) for each in report.grouped.groupings]
        parts += [_table(run_grid(run)), *groups, *lines, _image(run)]
    return "\n".join(parts)


def html_of_comparison(comparison: Comparison) -> str:
    """Return a comparison with its figure."""
    verdict = comparison.verdict
    said = f"<p><b>{escape(verdict.headline)}</b> {escape(' '.join(verdict.sentences))}</p>"
    grids = [method_grid(comparison), client_grid(comparison), *gap_grids(comparison)]
    tables = [_table(grid) for grid in grids]
    lines = [f"<p>{escape(line)}</p>" for line in comparison.caveats]
    return "\n".join([said, *tables, *lines, _image(comparison)])


def html_of_sweep(swept: Sweep) -> str:
    """Return a sweep with its figure."""
    lines = [f"<p>{escape(line)}</p>" for line in swept.sentences()]
    tested = [] if swept.test is None else [_table(method_grid(swept.test))]
    return "\n".join([_table(points_grid(swept)), *lines, *tested, _image(swept)])


def html_of_recommendation(found: Recommendation) -> str:
    """Return the answer in sentences, how far the candidates came, and the command that runs it."""
    lines = [f"<p>{escape(sentence)}</p>" for sentence in found.sentences]
    tried = [_table(tried_grid(found))] if found.tried else []
    return "\n".join([*lines, *tried, f"<pre>{escape(found.command)}</pre>"])


def _table(grid: Grid) -> str:
    rows = "".join(f"<tr>{''.join(f'<td>{_html(cell)}</td>' for cell in row)}</tr>" for row in grid.rows)
    headings = "".join(f"<th>{_html(heading)}</th>" for heading in grid.headings)
    caption = f"<p><small>{_html(grid.caption)}</small></p>" if grid.caption else ""
    title = f"<p><b>{_html(grid.title)}</b></p>"
    return f"{title}<table><thead><tr>{headings}</tr></thead><tbody>{rows}</tbody></table>{caption}"


def _html(markup: str) -> str:
    """Return a cell with its colour, which rich's markup gives to all of it, beside bold letters."""
    text = Text.from_markup(markup)
    styles = {word for span in text.spans for word in str(span.style).split()}
    colour = next((word for word in ("green", "red") if word in styles), "")
    plain = escape(text.plain).replace("\n", "<br>")
    return f'<span style="color:{colour};font-weight:bold">{plain}</span>' if colour else plain


def _image(result: object) -> str:
    picture = base64.b64encode(draw_png(spec_of(result))).decode()
    return f'<img alt="figure" style="max-width:100%" src="data:image/png;base64,{picture}">'
