"""The gallery: figures as Fairbloom's own commands draw them, and the page that shows each with its command.

`python -m docs.gallery` runs the commands, writes the figures into docs/images and the page docs/gallery.md. With names
of figures behind it, it draws these alone.
"""

import os
import shlex
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fairbloom.cli import app

from .figures import follow_dark_mode

HERE = Path(__file__).parent
PAGE, IMAGES = HERE / "gallery.md", HERE / "images"

SIDEWAYS = "--task digits --clients 20 --set partition=iid --set digits.rotated-clients=3"
"""Twenty clients read digits, three of them with a camera mounted sideways."""


@dataclass(frozen=True)
class Picture:
    """A figure of the gallery.

    Attributes
    ----------
    name
        Of its file in docs/images, without the ending.
    title
        The heading above it.
    commands
        What draws it, from an empty folder.
    drawn
        The file that the last command leaves.
    alt
        What is to be seen, for those who cannot see it.
    caption
        How to read it.
    """

    name: str
    title: str
    commands: tuple[str, ...]
    drawn: str
    alt: str
    caption: str


PICTURES = (
    Picture(
        "demo",
        "Who is served how well",
        (
            f"fairbloom compare {SIDEWAYS} --methods fedavg,qfedavg,fedmgdaplus,fedfv --seeds 10 --rounds 50 "
            "--set evaluate-every=10 --out runs/demo",
        ),
        "runs/demo/clients.svg",
        "Test accuracy of each of 20 clients, from the worst served to the best, under four methods",
        "A line is a method, a point a client, with the worst served on the left; bands are the range over the seeds. "
        "Look at the left end first: it shows whom a method leaves behind. The right end shows who pays. `make demo` "
        "draws this figure.",
    ),
    Picture(
        "personal",
        "Personal models",
        (
            "fairbloom compare --task digits --clients 12 --partition classes --methods fedavg,ditto,local --seeds 3 "
            "--rounds 30 --set evaluate-every=10 --out runs/personal",
        ),
        "runs/personal/clients.svg",
        "Test accuracy of each of 12 clients under FedAvg, and with personal models of Ditto and Local",
        "Lines of personal models are dashed. Each client has two of ten classes, so a model that "
        "knows these two is enough, and a global one has to know all.",
    ),
    Picture(
        "panels",
        "Many methods",
        (
            f"fairbloom compare {SIDEWAYS} --methods "
            '"fedavg,qfedavg(q=1),qfedavg(q=5),drfa,fedmgda,fedmgdaplus,fedfv" '
            "--seeds 3 --rounds 30 --set evaluate-every=10 --out runs/panels",
        ),
        "runs/panels/clients.svg",
        "Test accuracy of 20 clients in a panel for each of six methods, with FedAvg in grey behind each",
        "More than six methods have a panel each, with the baseline in grey behind it.",
    ),
    Picture(
        "rounds",
        "A run over its rounds",
        (
            f"fairbloom run {SIDEWAYS} --method fedmgdaplus --rounds 60 --set evaluate-every=2 --out runs/rounds",
            "fairbloom show runs/rounds --figure rounds",
        ),
        "rounds.svg",
        "Accuracy of the worst and of the best tenth of the clients, and their mean, over 60 rounds",
        "The mean rises within a few rounds; the worst tenth needs longer.",
    ),
)

HEAD = """\
# Gallery

Figures with their commands, which run on a laptop without a download and write PNG and SVG, in colours that suit
colour-blind readers.
"""

FOOT = """\
## Methods on two clients

Each [method](methods/index.md) has a page with a figure of how it moves a model of two numbers between two clients.
This one shows FedFV; `make docs` draws them all.

```{image} methods/fedfv.svg
:alt: Course of the model and losses of two clients under FedFV
```

## The report

The [report](report.md) of a comparison has these and more as interactive charts. `fairbloom reproduce` draws what [a
paper](reproducing.md) prints next to what was measured.
"""


def page() -> str:
    """Return the text of the page."""
    return "\n".join([HEAD, *map(section, PICTURES), FOOT])


def section(picture: Picture) -> str:
    """Return the part of the page about one figure."""
    commands = "\n".join(wrapped(command) for command in picture.commands)
    caption = textwrap.fill(picture.caption, 120)
    figure = f"```{{figure}} images/{picture.name}.svg\n:alt: {picture.alt}\n\n{caption}\n```"
    return f"## {picture.title}\n\n```sh\n{commands}\n```\n\n{figure}\n"


def wrapped(command: str, width: int = 88) -> str:
    """Return a command in lines that a page has room for, each but the first beginning with an option."""
    first, *options = command.split(" --")
    lines = [first]
    for option in options:
        if len(lines[-1]) + len(option) < width:
            lines[-1] += f" --{option}"
        else:
            lines.append(f"    --{option}")
    return " \\\n".join(lines)


def draw(picture: Picture) -> bytes:
    """Run the commands of a figure in the current folder, and return the SVG that they leave."""
    for command in picture.commands:
        app(shlex.split(command)[1:], standalone_mode=False)
    return follow_dark_mode(Path(picture.drawn).read_bytes())


@contextmanager
def _empty_folder() -> Iterator[None]:
    """Stand in an empty folder for a while."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


if __name__ == "__main__":
    with _empty_folder():
        for each in PICTURES:
            if each.name in sys.argv[1:] or not sys.argv[1:]:
                (IMAGES / f"{each.name}.svg").write_bytes(draw(each))
    PAGE.write_text(page())
