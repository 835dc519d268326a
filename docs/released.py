"""Say in README, pages and new apps how Fairbloom is installed, by `fairbloom.errors.RELEASED`.

`make settings` runs it: before the first release the repository is named, since anybody may take
the name on the package index; afterwards the index is.
"""

from pathlib import Path

from fairbloom.errors import RELEASED, REPOSITORY

ROOT = Path(__file__).parents[1]

# The words before the first release, and those after it.
WORDS = [
    (f"pip install git+{REPOSITORY}", "pip install fairbloom"),
    (f'"fairbloom @ git+{REPOSITORY}"', '"fairbloom>=0.1"'),
    *(
        (
            f'pip install "fairbloom[{extra}] @ git+{REPOSITORY}"',
            f'pip install "fairbloom[{extra}]"',
        )
        for extra in ("excel", "images")
    ),
    (
        "Do not write `fairbloom>=0.1`: no index has it, and whoever registers the name there runs"
        " code on every node.",
        "`fairbloom>=0.1` is the name on the index.",
    ),
    ("names its repository, as in a new app", "names it, as in a new app"),
    ("from its repository or from a checkout", "from the index or from a checkout"),
    ("into your project's environment, from its repository:", "into your project's environment:"),
    (
        "# no index has it: a package of this name there is another",
        "# from the package index",
    ),
]


# The files that say how Fairbloom is installed.
FILES = [
    ROOT / "README.md",
    ROOT / "fairbloom" / "scaffold" / "template" / "pyproject.toml",
    *sorted((ROOT / "docs").glob("*.md")),
]


def say(text: str, *, released: bool) -> str:
    """Return a text with the words of before, or after, the first release."""
    for before, after in WORDS:
        text = text.replace(before, after) if released else text.replace(after, before)
    return text


if __name__ == "__main__":
    for file in FILES:
        written = file.read_text()
        if (said := say(written, released=RELEASED)) != written:
            file.write_text(said)
