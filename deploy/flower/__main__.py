"""`python -m fairbloom.deploy.flower`: what the installed Flower lacks of what is relied on, and who needs it."""

import argparse
import sys
from importlib.metadata import version

from .relied_on import RELIED_ON, count_names, missing


def main(arguments: list[str] | None = None) -> int:
    """Print a line for each need, and what is missing of it; return 1 where anything is, else 0."""
    parser = argparse.ArgumentParser(prog="python -m fairbloom.deploy.flower", description=__doc__)
    parser.add_argument("--count", action="store_true", help="print how many names are relied on, and nothing else")
    if parser.parse_args(arguments).count:
        by_user = count_names()
        print(f"{sum(by_user.values())} names: " + ", ".join(f"{user} {number}" for user, number in by_user.items()))
        return 0
    unmet = False
    print(f"Flower {version('flwr')}")
    for need in RELIED_ON:
        lacking = missing([need])
        unmet |= bool(lacking)
        print(f"{'MISSING' if lacking else 'ok':7} {need.user:8} {need.without}")
        for names in lacking.values():
            print("".join(f"{'':17}{name}\n" for name in names), end="")
    return int(unmet)


if __name__ == "__main__":
    sys.exit(main())
