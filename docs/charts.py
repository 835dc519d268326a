"""Save the charts of the gallery's examples as pictures."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sphinx_gallery.scrapers import figure_rst

from fairbloom.experiments.render.figures import VegaLite, draw_svg

from .figures import follow_dark_mode


def save_chart(block: Any, variables: Mapping[str, Any], gallery: Mapping[str, Any]) -> str:
    """Save the chart that a block's last line returns, and return the directive that shows it."""
    chart = variables["example_globals"].get("___")
    if not isinstance(chart, VegaLite):
        return ""
    file = Path(next(variables["image_path_iterator"])).with_suffix(".svg")
    file.write_bytes(follow_dark_mode(draw_svg(chart)))
    return str(figure_rst([str(file)], gallery["src_dir"]))
