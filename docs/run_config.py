"""The run config's block in pyproject.toml, written from the settings, the methods' signatures and the tasks.

Flower takes no key of a run config that this block lacks. `make settings` writes it.
"""

import re
from pathlib import Path

import tomli_w

from fairbloom.protocol.settings import SETTINGS
from fairbloom.server.settings import default_config, parameters

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
HEAD = "[tool.flwr.app.config]\n"


def block() -> str:
    """Return the lines of the block: each setting with its default, and in words what it is."""
    known = {**SETTINGS, **parameters()}
    words = {key: f"{each.range}: {each.description.rstrip('.')}" for key, each in known.items()}
    default = {
        key: tomli_w.dumps({"": value}).removeprefix('"" = ').strip()
        for key, value in default_config().items()
    }
    return "".join(f"{key} = {value} # {words[key]}\n" for key, value in default.items())


def written_into(project: str) -> str:
    """Return the text of a pyproject.toml with its block written anew; it ends at an empty line."""
    return re.sub(rf"(?<={re.escape(HEAD)})(.+\n)+", lambda _: block(), project)


if __name__ == "__main__":
    before = PROJECT.read_text()
    if (after := written_into(before)) != before:  # else make would install everything anew
        PROJECT.write_text(after)
