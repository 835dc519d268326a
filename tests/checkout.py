"""This checkout, and copies of its packages that tests change."""

from pathlib import Path

ROOT = Path(__file__).parents[1]

# The packages that lie beside `fairbloom` here, with a link there, and inside it in a wheel.
BESIDE = {"client", "deploy", "server", "strategies"}

# The packages that lie in `fairbloom`.
INSIDE = {
    path.parent.name
    for path in (ROOT / "fairbloom").glob("*/__init__.py")
    if not path.parent.is_symlink()
}
