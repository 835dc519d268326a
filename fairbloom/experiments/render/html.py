"""A page as one HTML file that needs no network, or as a part of a notebook."""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from fairbloom import __version__

from .figures import draw_png, spec_of
from .page import Chart, Charts, Page
from .theme import COLOURS, CONFIG

HERE = Path(__file__).parent


def render(page: Page) -> str:
    """Return the page, with its details, as one HTML file."""
    sections = [*page.about, *page.sections, *page.details()]
    blocks = [block for section in sections for block in section.blocks]
    charts: list[Chart] = []
    for block in blocks:
        if isinstance(block, Charts):
            charts += block.charts
    # print is light
    light = "".join(f"--{name}:{colour};" for name, (colour, _) in COLOURS.items())
    dark = "".join(f"--{name}:{colour};" for name, (_, colour) in COLOURS.items())
    style = (
        f":root{{color-scheme:light dark;{light}}}@media screen and"
        f" (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"
        f"{(HERE / 'page.css').read_text(encoding='utf-8')}"
    )
    scripts = [(HERE / "page.js").read_text(encoding="utf-8")]
    if charts:
        scripts.insert(0, _library())
    return _fill(
        "page.html",
        page=page,
        sections=sections,
        style=Markup(style),  # noqa: S704 (ours)
        scripts=[Markup(script) for script in scripts],  # noqa: S704 (ours and the library's)
        policy=policy(scripts),
        config=as_script_data(CONFIG),
        specs={chart.name: as_script_data(chart.spec) for chart in charts},
        version=__version__,
    )


def policy(scripts: Sequence[str]) -> str:
    """Return a Content-Security-Policy that allows only these scripts, by their digests.

    What a client's name says is never run.
    """
    digests = [hashlib.sha256(script.encode()).digest() for script in scripts]
    sources = [base64.b64encode(digest).decode() for digest in digests]
    allowed = " ".join(f"'sha256-{source}'" for source in sources)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def as_script_data(value: Mapping[str, Any]) -> Markup:
    """Return JSON that is safe in a <script>, whatever its texts are."""
    return htmlsafe_json_dumps(value, json.dumps, separators=(",", ":"), allow_nan=False)


def render_fragment(page: Page) -> str:
    """Return a page for a notebook: its brief part and its figure."""
    picture = ""
    if page.figure:
        drawn = draw_png(spec_of(page.figure()))
        picture = base64.b64encode(drawn).decode()
    return _fill("fragment.html", page=page, picture=picture)


def _fill(template: str, **values: Any) -> str:
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template(template).render(values)


@cache
def _library() -> str:
    """Return Vega-Lite and all that it needs, as a script for a page."""
    import vl_convert  # imported late: it starts a JavaScript engine, which takes a second

    script: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    if "</script" in script.lower() or "<!--" in script:
        raise RuntimeError(
            f"vl-convert-python {version('vl-convert-python')} has a library that ends its own"
            " script"
        )
    return script
