"""Configuration of the documentation."""

import shutil
import sys
from pathlib import Path

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parents[1]))  # this checkout, not an installed package

from docs.source_links import source_link as linkcode_resolve  # noqa: F401 (linkcode)
from fairbloom import __version__
from fairbloom.errors import REPOSITORY
from fairbloom.protocol.parameters import parameters_of
from fairbloom.rounds.method import Method
from fairbloom.rounds.options import OPTIONS, Options
from fairbloom.strategies import FromTorchJD

project = "Fairbloom"
release = __version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.linkcode",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
    "docs.mathml",
]
exclude_patterns = ["_build", "gallery"]
smartquotes_action = "De"  # only dashes and dots: "" in a docstring is an empty text
# `name` in a docstring is code, and a link if it is a name of ours
default_role = "py:obj"

html_theme = "furo"
html_title = "Fairbloom"
html_math_renderer = "mathml"
html_favicon = "_static/favicon.svg"
html_static_path = ["_static"]
html_css_files = ["fairbloom.css"]
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
html_theme_options = {
    "footer_icons": [
        {
            "name": "GitHub",
            "url": REPOSITORY,
            "html": Path(__file__).with_name("_static").joinpath("repository.svg").read_text(),
            "class": "",
        }
    ]
}

myst_enable_extensions = ["attrs_inline", "colon_fence", "dollarmath"]
myst_heading_anchors = 3
myst_html_meta = {
    "description": "Federated learning that leaves no client behind: fair methods for Flower and"
    " PyTorch, seen client by client",
    "property=og:title": "Fairbloom",
    "property=og:image": f"{REPOSITORY}/raw/main/docs/_static/preview.png",
}

sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "examples",
    "within_subsection_order": "FileNameSortKey",
    "image_scrapers": ("docs.charts.save_chart",),
    "ignore_repr_types": "VegaLite",  # the charts are saved as pictures
    "abort_on_example_error": True,
    "write_computation_times": False,
    "show_signature": False,
}

copybutton_exclude = ".linenos, .gp, .go"
# not from outputs
copybutton_selector = "div:not(.highlight-text) > div.highlight > pre"

autodoc_member_order = "bysource"
napoleon_google_docstring = False
# a list in their class, not entries of their own
napoleon_custom_sections = [("Attributes", "params_style")]
python_maximum_signature_line_length = 90


def write_methods(app: Sphinx) -> None:
    """Write the pages on the methods, before Sphinx looks for pages."""
    from docs.methods import write

    write(Path(app.srcdir) / "methods")


def forget_runs(app: Sphinx) -> None:
    """Delete what the examples of an earlier build have left: a finished run is not repeated."""
    shutil.rmtree(Path(app.srcdir) / "gallery" / "runs", ignore_errors=True)


# Stands for a colon while napoleon reads a docstring.
HELD = "\ue000"


def hold_colons(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Hide colons in docstrings of properties: napoleon takes the words before them as a type."""
    if what in ("attribute", "data", "property"):
        lines[:] = [line.replace(":", HELD) for line in lines]


def keep_signs(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Put colons back, and escape |x|, which reStructuredText takes as a substitution."""
    lines[:] = [line.replace(HELD, ":").replace("|", r"\|") for line in lines]


def say_ranges(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Add range and default to a method's parameters and the common options, for napoleon."""
    if obj is Options:
        known = dict(OPTIONS)
    elif isinstance(obj, type) and issubclass(obj, Method) and obj not in (Method, FromTorchJD):
        known = {each.argument: each for each in parameters_of("", obj)}
    else:
        return
    for place, line in enumerate(lines):
        if (parameter := known.pop(line, None)) is not None:
            lines[place] = f"{line} : {parameter.range}, default {parameter.default}"
    if known and obj is not Options:  # options of several methods, with a meaning of their own
        lines += ["", "Parameters", "----------"]
        for name, parameter in known.items():
            lines += [
                f"{name} : {parameter.range}, default {parameter.default}",
                f"    {parameter.description}.",
            ]


def setup(app: Sphinx) -> None:
    """Make Sphinx write the pages on the methods first, and connect the docstrings' hooks."""
    app.connect("builder-inited", write_methods)
    app.connect("builder-inited", forget_runs, priority=100)  # the gallery has 500
    app.connect("autodoc-process-docstring", hold_colons, priority=400)  # napoleon has 500
    app.connect("autodoc-process-docstring", say_ranges, priority=400)
    app.connect("autodoc-process-docstring", keep_signs, priority=600)
