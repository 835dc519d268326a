"""The program `fairbloom`, which Ctrl-C ends without a traceback also while the command line is being imported."""

import signal


def main() -> None:
    """Import the command line and run it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the command line's own handler replaces it
    from fairbloom.cli import main as run

    run()


if __name__ == "__main__":
    main()
