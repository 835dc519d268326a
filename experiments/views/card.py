"""The model card of a run: Markdown in the form that the Hugging Face hub reads, from what clients have reported.

Front matter is YAML whose values are written as JSON, which YAML contains. Every name of a client, column, class or
setting is escaped, since others have chosen it.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass

LISTED = 50
"""Of more clients, only so many have a row: those that are served worst."""

IMAGE = 3
"""An example of so many dimensions is an image."""

ONE_SEED = (
    "This is one model of one run with one seed. It tells how this model serves these clients, and not whether another "
    "method would serve them better, nor how it serves anybody else."
)
