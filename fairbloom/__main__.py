"""The program `fairbloom`: Ctrl-C during its imports ends it without a traceback."""

import signal
import sys
from importlib.util import find_spec


def main() -> None:
    """Run the command line."""
    if find_spec("fcntl") is None:
        sys.exit("error: Fairbloom runs on Linux and macOS, and on Windows in WSL: start it there")
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the command line replaces it
    from fairbloom.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
