"""Write formulas as MathML when the pages are built: browsers need no script and no network."""

import re
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError, unichar2tex
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

OPENING = ("(", "[", r"\{", r"\lVert", r"\langle")


def mathml(latex: str, *, block: bool) -> str:
    """Return a formula in LaTeX as MathML.

    Raises
    ------
    ExtensionError
        If docutils does not know one of its commands.
    """
    text = re.sub(
        r"\\([Bb]igg?)\s*(\\[A-Za-z]+|\\?[^\sA-Za-z])",
        _sided,
        latex.translate(unichar2tex.uni2tex_table),
    )
    try:
        written: str = tex2mathml(text, as_block=block)
    except MathError as error:
        raise ExtensionError(
            f"The formula {latex!r} cannot be written as MathML: {error}"
        ) from error
    return written


def _sided(sized: re.Match[str]) -> str:
    r"""Return \big( as \bigl( and \big) as \bigr), the only forms that docutils knows."""
    size, bracket = sized.groups()
    side = "l" if bracket in OPENING else "r"
    return rf"\{size}{side}{bracket}"


def visit_math(writer: Any, node: nodes.math) -> None:
    """Write a formula in a line of text."""
    writer.body.append(mathml(node.astext(), block=False))
    raise nodes.SkipNode


def visit_math_block(writer: Any, node: nodes.math_block) -> None:
    """Write a formula on its own line; a wide one is scrolled on a narrow screen."""
    writer.body.append(f'<div class="math">{mathml(node.astext(), block=True)}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer with Sphinx."""
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
