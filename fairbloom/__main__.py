"""The program `fairbloom`: Ctrl-C during its imports ends it without a traceback."""

import signal


def main() -> None:
    """Run the command line."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the command line replaces it
    from fairbloom.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
