"""Configuration of the documentation."""

import sys
from pathlib import Path

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parents[1]))  # this checkout, whatever is installed

from docs.source_links import source_link as linkcode_resolve  # noqa: F401 (sphinx.ext.linkcode asks it)
from fairbloom import __version__
from fairbloom.protocol.parameters import parameters_of
from fairbloom.rounds.method import Method
from fairbloom.rounds.options import OPTIONS
from fairbloom.strategies import FromTorchJD

project = "Fairbloom"
release = __version__
extensions = [
    *(
        "myst_parser",
        "sphinx.ext.autodoc",
        "sphinx.ext.napoleon",
        "sphinx.ext.linkcode",
        "sphinx_copybutton",
    ),
    "docs.mathml",
]
exclude_patterns = ["_build"]
smartquotes_action = "De"  # dashes and dots alone: "" in a docstring is an empty text
# what stands between backticks in a docstring is code, and a link where it is a name of ours
default_role = "py:obj"

html_theme = "furo"
html_title = "Fairbloom"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["fairbloom.css"]
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False

myst_enable_extensions = ["attrs_inline", "colon_fence", "dollarmath"]
myst_heading_anchors = 3

copybutton_exclude = ".linenos, .gp, .go"
# what is printed is not typed
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


HELD = "\ue000"
"""Stands for a colon while napoleon reads a docstring."""


def hold_colons(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Let what stands before a colon in a property's docstring be words, where napoleon takes it for a type."""
    if what in ("attribute", "data", "property"):
        lines[:] = [line.replace(":", HELD) for line in lines]


def keep_signs(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Put colons back; let |x| be an absolute value, where reStructuredText takes it for a substitution."""
    lines[:] = [line.replace(HELD, ":").replace("|", r"\|") for line in lines]


def say_ranges(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Put range and default behind the names of a method's parameters and of the common options, for napoleon."""
    if (
        what == "class"
        and isinstance(obj, type)
        and issubclass(obj, Method)
        and obj is not FromTorchJD
    ):
        known = (
            dict(OPTIONS)
            if obj is Method
            else {each.argument: each for each in parameters_of("", obj)}
        )
        lines[:] = [
            f"{line} : {each.range}, default {each.default}" if (each := known.get(line)) else line
            for line in lines
        ]


def setup(app: Sphinx) -> None:
    """Let Sphinx write the pages on the methods when it starts, and read docstrings as they are meant."""
    app.connect("builder-inited", write_methods)
    app.connect("autodoc-process-docstring", hold_colons, priority=400)  # napoleon has 500
    app.connect("autodoc-process-docstring", say_ranges, priority=400)
    app.connect("autodoc-process-docstring", keep_signs, priority=600)
