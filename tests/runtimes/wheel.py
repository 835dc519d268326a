"""A Python of its own in which Fairbloom is installed from its wheel, beside the libraries of the one that tests."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

from benchmarks.flower import ROOT

FLOWER = importlib.metadata.distribution("flwr")


def installed_wheel(folder: Path) -> Path:
    """Make the environment in `folder`; return where its commands are."""
    wheels, venv = folder / "wheels", folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", wheels, ROOT], check=True)
    (wheel,) = wheels.glob("fairbloom-*.whl")
    python = venv / "bin" / "python"
    subprocess.run([*pip, "--python", python, "install", "--no-deps", "--no-index", wheel], check=True)
    # A path that a .pth file adds is one whose own .pth files are not read: the checkout is not on it.
    (site,) = venv.glob("lib/python3*/site-packages")
    (site / "libraries.pth").write_text(f"{FLOWER.locate_file('')}\n")
    for command in FLOWER.entry_points.select(group="console_scripts"):
        script = venv / "bin" / command.name
        script.write_text(
            f"#!{python}\nimport sys\nfrom {command.module} import {command.attr}\nsys.exit({command.attr}())\n"
        )
        script.chmod(0o755)
    return venv / "bin"
