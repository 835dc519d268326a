"""The program `fairbloom`: it imports what its command needs, and Ctrl-C meanwhile ends it without a traceback."""

import signal
import sys

FEDERATIONS = ("server", "client", "deploy")
"""The commands that need no PyTorch, which takes seconds to import."""


def main() -> None:
    """Run the command line."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the command line replaces it
    if sys.argv[1:2] and sys.argv[1] in FEDERATIONS:
        from fairbloom.command import new_app, run_command
        from fairbloom.deploy.cli import add_commands

        app = new_app()
        add_commands(app)
        run_command(app)
    else:
        from fairbloom.cli import main as run

        run()


if __name__ == "__main__":
    main()
