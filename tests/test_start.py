"""Starting is quick, as long as each entry point imports no more than it needs."""

import subprocess
import sys

import pytest

from tests.checkout import ROOT

LARGE = (
    *("torch", "pandas", "scipy", "sklearn", "pyarrow", "vl_convert", "jinja2", "PIL"),
    *("statsmodels", "ray", "flwr", "grpc", "numpy", "cvxopt", "safetensors", "pydantic"),
)
"""The libraries that take long to import."""


def imported_by(code: str) -> list[str]:
    """Return which of the large libraries a program has imported when it ends."""
    program = f"import sys\ntry:\n    {code}\nexcept SystemExit:\n    pass\nprint(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in LARGE if name in done.stderr.split()]


@pytest.mark.parametrize(
    ("code", "libraries"),
    [
        ("import fairbloom", []),
        ("import fairbloom.cli", []),
        ("sys.argv = ['fairbloom', '--help']; import fairbloom.__main__ as program; program.main()", []),
        ("import fairbloom.strategies", ["flwr", "grpc", "numpy", "cvxopt"]),
        ("import fairbloom.deploy.cli", []),
        ("import fairbloom.tasks", ["numpy", "pydantic"]),
    ],
)
def test_an_entry_point_imports_what_it_needs(code: str, libraries: list[str]) -> None:
    assert imported_by(code) == libraries
