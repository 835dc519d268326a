"""The model card of a run: Markdown in the form that the Hugging Face hub reads, from what clients have reported.

Front matter is YAML whose values are written as JSON, which YAML contains. Every name of a client, column, class or
setting is escaped, since others have chosen it.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from fairbloom import __version__
from fairbloom.errors import FairbloomError
from fairbloom.protocol.settings import SETTINGS, Mark
from fairbloom.server.fairness import summarize
from fairbloom.server.run_folder.files import BEST, ENVIRONMENT, SPLIT
from fairbloom.tasks import find_task
from fairbloom.tasks.files.agreement import make_printable
from fairbloom.tasks.preprocessing import CATEGORY, TABLE, Preprocessing

from ..recipes.labels import format_value
from ..results.caveats import caveats_of_run
from ..results.comparison import COMPARISON, Plan
from ..results.groups import ALL, GroupReport
from ..results.measured import measure_title
from ..results.run import Run, load, measures
from ..results.scored import scores_of
from .tables import SHOWN, Digits

if TYPE_CHECKING:
    from fairbloom.prediction.export.export import Exported
    from fairbloom.prediction.export.form import Form
    from fairbloom.prediction.predictor import Predictor

LISTED = 50
"""Of more clients, only so many have a row: those that are served worst."""

IMAGE = 3
"""An example of so many dimensions is an image."""

ONE_SEED = (
    "This is one model of one run with one seed. It tells how this model serves these clients, and not whether another "
    "method would serve them better, nor how it serves anybody else."
)
