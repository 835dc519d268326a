"""A Python environment with Fairbloom's wheel and the libraries of the Python that runs tests."""

import importlib.metadata
import shutil
import subprocess
import sys
from pathlib import Path

from fairbloom.protocol.version import PROTOCOL
from tests.checkout import BESIDE, ROOT

FLOWER = importlib.metadata.distribution("flwr")


def changed_source(folder: Path, version: str, protocol: int) -> Path:
    """Copy the sources of a wheel, changed to this version and protocol."""
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("fairbloom", *BESIDE):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    here = importlib.metadata.version("fairbloom")
    for file, before, after in (
        ("pyproject.toml", f'\nversion = "{here}"\n', f'\nversion = "{version}"\n'),
        (
            "fairbloom/protocol/version.py",
            f"\nPROTOCOL = {PROTOCOL}\n",
            f"\nPROTOCOL = {protocol}\n",
        ),
    ):
        text = (folder / file).read_text()
        assert before in text
        (folder / file).write_text(text.replace(before, after))
    return folder


def installed_wheel(folder: Path, source: Path | str = ROOT) -> Path:
    """Make the environment in `folder`, with a wheel of `source`; return the commands' folder.

    `source` is a folder, a wheel, an archive of sources, or a repository.
    """
    wheels = folder / "wheels"
    venv = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", wheels, source],
        check=True,
    )
    (wheel,) = wheels.glob("fairbloom-*.whl")
    python = venv / "bin" / "python"
    subprocess.run(
        [*pip, "--python", python, "install", "--no-deps", "--no-index", wheel], check=True
    )
    # Python reads no .pth files in a folder that a .pth file adds, so the checkout stays off the path
    (site,) = venv.glob("lib/python3*/site-packages")
    (site / "libraries.pth").write_text(f"{FLOWER.locate_file('')}\n")
    for command in FLOWER.entry_points.select(group="console_scripts"):
        script = venv / "bin" / command.name
        script.write_text(
            f"#!{python}\nimport sys\nfrom {command.module} import"
            f" {command.attr}\nsys.exit({command.attr}())\n"
        )
        script.chmod(0o755)
    return venv / "bin"
