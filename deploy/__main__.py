"""`python -m fairbloom.deploy`: client and operator commands without figure libraries."""

import sys

import typer

from fairbloom.cli.deploy import app, client
from fairbloom.cli.help import restore_help
from fairbloom.errors import FairbloomError
from fairbloom.logs import print_lines, print_traceback
from fairbloom.system.streams import write_any_text

write_any_text()
sys.excepthook = print_traceback
app.add_typer(client, name="client")
command = typer.main.get_command(app)
restore_help(command)
try:
    command(prog_name="python -m fairbloom.deploy")
except FairbloomError as error:
    print_lines(f"fairbloom: {error}", to=sys.stderr)
    sys.exit(2)
