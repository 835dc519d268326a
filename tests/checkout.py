"""This checkout, and copies of its packages that tests change."""

import shutil
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]

PACKAGES = {link.name for link in (ROOT / "fairbloom").iterdir() if link.is_symlink()}
"""The packages that lie beside `fairbloom` here, and inside it in a wheel."""


def copy_packages(names: Iterable[str], to: Path) -> None:
    """Copy packages of the checkout without the links between them, as Flower's bundles have them."""

    def left_out(folder: str, entries: list[str]) -> set[str]:
        return {name for name in entries if name in {"__pycache__", "_build"} or Path(folder, name).is_symlink()}

    for name in names:
        shutil.copytree(ROOT / name, to / name, ignore=left_out)
