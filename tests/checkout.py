"""This checkout, and copies of its packages that tests change."""

from pathlib import Path

ROOT = Path(__file__).parents[1]

PACKAGES = {link.name for link in (ROOT / "fairbloom").iterdir() if link.is_symlink()}
"""The packages that lie beside `fairbloom` here, and inside it in a wheel."""
