"""Draw README's figure: `python -m docs.demo` runs the command of `make demo`."""

import shlex
import tempfile
from contextlib import chdir
from pathlib import Path

from fairbloom.cli.main import app

from .figures import follow_dark_mode

IMAGES = Path(__file__).parent / "images"

# Twenty clients read digits, three of them with a camera mounted sideways.
COMMAND = (
    "fairbloom compare --task digits --clients 20 --set partition=iid --set"
    " digits.rotated-clients=3 --methods fedavg,qfedavg,fedmgdaplus,fedfv --seeds 10 --rounds 50"
    " --set evaluate-every=10 --out runs/demo"
)


def draw(command: str = COMMAND) -> bytes:
    """Run a comparison into runs/demo of the current folder, and return its figure as SVG."""
    app(shlex.split(command)[1:], standalone_mode=False)
    return follow_dark_mode(Path("runs/demo/clients.svg").read_bytes())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        svg = draw()
    (IMAGES / "demo.svg").write_bytes(svg)
