"""Figures of the documentation in a browser: they follow the page, whatever the reader's system
prefers."""

import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed"),
]

DOCS = Path(__file__).parents[2] / "docs"
STYLE = (DOCS / "_static" / "fairbloom.css").read_text()
PAGE = """<style>{style} img {{ width: 2100px }}</style><body data-theme="{theme}"><img src="demo.svg" alt=""></body>"""


@pytest.mark.parametrize("system", ["light", "dark"])
def test_letters_are_dark_on_light_pages_and_light_on_dark_ones(
    system: str, tmp_path: Path
) -> None:
    shutil.copy(DOCS / "images" / "demo.svg", tmp_path)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = chromium.new_page(color_scheme=system, viewport={"width": 2200, "height": 1400})
        inks = {
            theme: ink(tab, tmp_path / f"{theme}.html", theme)
            for theme in ("light", "dark", "auto")
        }
        chromium.close()
    assert inks["light"] < 60
    assert inks["dark"] > 180
    assert inks["auto"] == inks[system]


def ink(tab: Any, file: Path, theme: str) -> int:
    """Return how light the title of the figure's axis is drawn, from 0 to 255, on a page of this
    theme."""
    file.write_text(PAGE.format(style=STYLE, theme=theme))
    tab.goto(file.as_uri())
    tab.wait_for_function("document.images[0].naturalWidth > 0")
    title = (
        np.asarray(Image.open(io.BytesIO(tab.screenshot())).convert("L"))[:, :100]
        .astype(int)
        .ravel()
    )
    return int(title[np.abs(title - title[0]).argmax()])
