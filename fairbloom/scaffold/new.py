"""`fairbloom new`: write a small Flower app that runs, for its user to continue from."""

import importlib.util
import keyword
import re
import shutil
from pathlib import Path
from typing import Annotated

import typer

from fairbloom.errors import FairbloomError
from fairbloom.logs import print_lines

# The app, under the name my-app.
TEMPLATE = Path(__file__).parent / "template"

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")

# Flower's limit.
LONGEST_NAME = 32


def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the app and its folder, such as my-app.")
    ],
) -> None:
    """Create a small, runnable Flower app with a fair method."""
    folder = Path(name)
    package = package_of(name)
    if folder.exists():
        raise FairbloomError(
            f"{folder} exists already: choose another name, or go to another directory"
        )
    write_app(folder, name, package)
    print_lines(
        f"{folder} is written; its README.md explains it. Begin with",
        f"  cd {folder}",
        f"  python -m {package}",
    )


def package_of(name: str) -> str:
    """Return the package name of an app.

    Raise FairbloomError if the app's name is invalid, or if its package would hide another one.
    """
    if not NAME.fullmatch(name) or len(name) > LONGEST_NAME:
        raise FairbloomError(
            f"{name!r} is not a valid app name: use up to {LONGEST_NAME} lower-case letters and"
            " digits, words joined by hyphens, as in my-app"
        )
    package = name.replace("-", "_")
    if keyword.iskeyword(package):
        raise FairbloomError(
            f"{name!r} is a keyword of Python, which cannot be the name of a package: choose"
            f" another name, for example my-{name}"
        )
    if importlib.util.find_spec(package) is not None:
        raise FairbloomError(
            f"{name!r}: a module {package} is installed already, and your app would hide it:"
            f" choose another name, for example my-{name}"
        )
    return package


def write_app(folder: Path, name: str, package: str) -> None:
    """Write the template's files with the app's names; the folder appears once it is complete."""
    draft = folder.with_name(f".{name}.draft")
    try:
        for file in sorted(TEMPLATE.rglob("*")):
            if file.is_dir() or "__pycache__" in file.parts:
                continue
            target = draft / str(file.relative_to(TEMPLATE)).replace("my_app", package)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(file.read_text().replace("my_app", package).replace("my-app", name))
        draft.rename(folder)
    except OSError as error:
        raise FairbloomError(
            f"{folder} cannot be written in this directory: {error.strerror}"
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
