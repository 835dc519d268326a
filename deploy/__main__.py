"""`python -m fairbloom.deploy`: the commands of client and operator, where libraries for figures are not installed."""

import sys

from fairbloom.errors import FairbloomError

from .cli import app, client

app.add_typer(client, name="client")
try:
    app(prog_name="python -m fairbloom.deploy")
except FairbloomError as error:
    print(f"fairbloom: {error}", file=sys.stderr)
    sys.exit(2)
