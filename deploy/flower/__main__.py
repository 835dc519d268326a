"""`python -m fairbloom.deploy.flower`: what the installed Flower lacks of what is relied on, and who needs it."""

import sys
from importlib.metadata import version

from .relied_on import RELIED_ON, missing


def main() -> int:
    """Print a line for each need, and what is missing of it; return 1 where anything is, else 0."""
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
