"""Configuration of the documentation."""

import sys
from pathlib import Path

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parents[1]))  # this checkout, whatever is installed

project = "Fairbloom"
extensions = ["myst_parser", "sphinx.ext.mathjax"]
html_theme = "furo"
html_title = "Fairbloom"
html_show_copyright = False
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]


def write_methods(app: Sphinx) -> None:
    """Write the pages on the methods, before Sphinx looks for pages."""
    from docs.methods import write

    write(Path(app.srcdir) / "methods")


def setup(app: Sphinx) -> None:
    """Let Sphinx write the pages on the methods when it starts."""
    app.connect("builder-inited", write_methods)
