"""Write the run config's block in pyproject.toml, from settings, methods and tasks.

Flower accepts only keys of this block in a run config. `make settings` runs it.
"""

import re
from pathlib import Path

import tomli_w

from fairbloom.protocol.settings import SETTINGS
from fairbloom.server.settings import default_config, parameters

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
HEAD = "[tool.flwr.app.config]\n"


def block() -> str:
    """Return the lines of the block: each setting with its default and its description."""
    known = {**SETTINGS, **parameters()}
    words = {key: f"{each.range}: {each.description.rstrip('.')}" for key, each in known.items()}
    default = {
        key: tomli_w.dumps({"": value}).removeprefix('"" = ').strip()
        for key, value in default_config().items()
    }
    return "".join(f"{key} = {value} # {words[key]}\n" for key, value in default.items())


def replace_block(project: str) -> str:
    """Return the text of a pyproject.toml with its block updated; it ends at an empty line."""
    return re.sub(rf"(?<={re.escape(HEAD)})(.+\n)+", lambda _: block(), project)


if __name__ == "__main__":
    before = PROJECT.read_text()
    if (after := replace_block(before)) != before:  # a new time would make `make` install again
        PROJECT.write_text(after)
