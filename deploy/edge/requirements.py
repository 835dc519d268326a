"""Print what a client needs of the libraries that a Fairbloom wheel asks for; the rest is for servers and figures."""

import re
import sys
from zipfile import ZipFile

CLIENT = ("flwr", "numpy", "safetensors", "scikit-learn", "typer", "tomli-w", "rich")
"""PyTorch is chosen apart: a device may bring its own."""


def main() -> None:
    """Read the wheel that is named."""
    with ZipFile(sys.argv[1]) as wheel:
        metadata = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        lines = wheel.read(metadata).decode().splitlines()
    wanted = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]
    for requirement in wanted:
        name = re.split(r"[^A-Za-z0-9_.-]", requirement, maxsplit=1)[0]
        if name in CLIENT and "extra ==" not in requirement:
            print(re.sub(r"\[.*?\]", "", requirement))  # Flower's extra is its simulation


if __name__ == "__main__":
    main()
