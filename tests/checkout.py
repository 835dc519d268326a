"""This checkout, and copies of its packages that tests change."""

import subprocess
from collections.abc import Iterator
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

# The folders that hold no package.
OUTSIDE = ("tests", "docs", "benchmarks", "locks")


def tracked(ending: str) -> list[Path]:
    """Return the paths, relative to the checkout, of the files that git knows or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", f"*{ending}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [Path(line) for line in listed.stdout.splitlines() if Path(ROOT, line).exists()]


def package_files() -> Iterator[Path]:
    """Yield the files of the packages, relative to the checkout."""
    for path in tracked(".py"):
        if path.parts[0] not in OUTSIDE and not Path(ROOT, path).is_symlink():
            yield path
