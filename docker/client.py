"""`fairbloom client`, in an image that has none of the server's libraries."""

import sys

import typer

from deploy.cli import client

try:
    typer.run(client)
except ValueError as error:
    print(f"fairbloom client: {error}", file=sys.stderr)
    sys.exit(2)
