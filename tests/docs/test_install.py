"""The page on the installation has every extra, and says which of them `all` leaves out."""

import re
import tomllib

from .pages import ROOT

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
ROWS = re.findall(r"^\| (`fairbloom\[.+?) \| (.+) \|$", (ROOT / "docs" / "install.md").read_text(), re.MULTILINE)
BELOW = {"client", "server"}
"""The extras that the page explains below its table."""


def test_the_table_has_every_extra() -> None:
    listed = {name: what for cell, what in ROWS for name in re.findall(r"\[(\w+)\]", cell)}
    (of_all,) = EXTRAS["all"]
    part_of_all = set(re.findall(r"\w+", of_all)) - {"fairbloom"}
    assert listed.keys() == EXTRAS.keys() - BELOW
    assert {name for name, what in listed.items() if "not part of `all`" not in what} == {"all", *part_of_all}
