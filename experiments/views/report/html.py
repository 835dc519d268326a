"""A page as one HTML file that needs no network, or as a part of a notebook."""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from fairbloom import __version__

from .charts import COLOURS, CONFIG
from .page import Block, Charts, Listing, Page, Table

HERE = Path(__file__).parent


def render(page: Page, *, live: str = "") -> str:
    """Return the page as one HTML file; `live` is a script that renews it from where the page came from."""
    style = _theme() + (HERE / "page.css").read_text(encoding="utf-8")
    scripts = [*([_library()] if page.charts or live else []), (HERE / "page.js").read_text(encoding="utf-8")]
    scripts += [live] if live else []
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template("page.html").render(
        page=page,
        style=Markup(style),  # noqa: S704 (ours)
        scripts=[Markup(script) for script in scripts],  # noqa: S704 (ours and the library's)
        policy=policy(scripts, live=bool(live)),
        live=bool(live),
        config=as_script_data(CONFIG),
        specs={chart.name: as_script_data(chart.spec) for chart in page.charts},
        version=__version__,
    )


def policy(scripts: Sequence[str], *, live: bool = False) -> str:
    """Return a Content-Security-Policy that allows no address and no script but these, by their digests.

    What a client's name says is never run. A live page may ask where it came from.
    """
    allowed = " ".join(f"'sha256-{digest_of(script)}'" for script in scripts)
    asked = "connect-src 'self'; " if live else ""
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        f"{asked}base-uri 'none'; form-action 'none'"
    )


def digest_of(script: str) -> str:
    """Return the digest by which a Content-Security-Policy names a script."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def as_script_data(value: Mapping[str, Any]) -> Markup:
    """Return JSON that may stand in a <script>, whatever its texts are."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    escaped: dict[str, str | int | None] = {
        "<": r"\u003c",
        ">": r"\u003e",
        "&": r"\u0026",
        "\u2028": r"\u2028",
        "\u2029": r"\u2029",
    }
    return Markup(text.translate(str.maketrans(escaped)))  # noqa: S704 (escaped above)


def render_fragment(page: Page) -> str:
    """Return what a notebook shows of a page, without its charts."""
    parts = [f"<p>{escape(page.title)}</p>"] if page.title else []
    parts += [f"<p><b>{escape(page.headline)}</b> {escape(' '.join(page.sentences))}</p>"] if page.headline else []
    parts += [_fragment(block) for section in page.sections for block in section.blocks]
    parts += [f"<p>{escape(name)}: <code>{escape(value)}</code></p>" for name, value in page.facts]
    return "\n".join(parts)


def _fragment(block: Block) -> str:
    """Return a table or a note; a colour is that of the reader's system, and what it means is said in words as well."""
    if isinstance(block, Charts):
        return ""
    if isinstance(block, Listing):
        return f"<pre>{escape(block.code)}</pre>"
    if not isinstance(block, Table):
        return "".join(f"<p>{escape(sentence)}</p>" for sentence in block.sentences)
    style = {tone: f' style="color:{name};font-weight:bold"' for tone, name in (("better", "green"), ("worse", "red"))}
    cells = [[f"<td{style.get(cell.tone, '')}>{escape(cell.text)}</td>" for cell in row] for row in block.rows]
    rows = "".join(f"<tr>{''.join(row)}</tr>" for row in cells)
    headings = "".join(f"<th>{escape(heading)}</th>" for heading in block.headings)
    note = f"<p><small>{escape(block.note)}</small></p>".replace("\n", "<br>") if block.note else ""
    caption = f"<p><b>{escape(block.caption)}</b></p>"
    return f"{caption}<table><thead><tr>{headings}</tr></thead><tbody>{rows}</tbody></table>{note}"


def _theme() -> str:
    """Return the colours of the page, light and dark, as CSS variables; print is light."""
    light, dark = ("".join(f"--{name}:{pair[i]};" for name, pair in COLOURS.items()) for i in (0, 1))
    return f":root{{color-scheme:light dark;{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"


@cache
def _library() -> str:
    """Return Vega-Lite and all that it needs, as a script for a page."""
    import vl_convert  # imported late: it starts a JavaScript engine, which takes a second

    script: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    if "</script" in script.lower() or "<!--" in script:
        raise RuntimeError(f"vl-convert-python {version('vl-convert-python')} has a library that ends its own script")
    return script
