"""The 31 speakers of Shakespeare's plays with the most lines: 500 examples of each."""

import numpy as np
import torch

from fairbloom.tasks import Setup, Splits, Task
from fairbloom.tasks.catalogue import TASKS
from fairbloom.tasks.datasets.classification import classify, numbered
from fairbloom.tasks.datasets.shakespeare import CHARACTERS, LENGTH, make_lines, read_speeches
from fairbloom.tasks.datasets.store import locate
from fairbloom.tasks.partition import Parts, splits_of

SPEAKERS = 31
EXAMPLES = 500
TRAIN = 400


def speakers(setup: Setup) -> Task:
    """Return the task: a client's examples are spread over its text, the last ones for testing."""
    (path,) = locate(TASKS["shakespeare"], setup)
    texts = read_speeches(path)
    longest = sorted(texts, key=lambda name: len(texts[name]), reverse=True)[:SPEAKERS]
    lines = make_lines({name: texts[name] for name in longest})

    def splits(client: str) -> Splits:
        rows = lines.rows[client]
        rows = rows[np.linspace(0, len(rows) - 1, EXAMPLES).astype(np.intp)]
        # an example for testing shares no characters with one for training
        test = rows[rows >= rows[TRAIN - 1] + LENGTH]
        none = rows[:0]
        return splits_of(lines.inputs, lines.targets, Parts(rows[:TRAIN], test, none))

    return classify(
        setup,
        tuple(longest),
        (LENGTH,),
        numbered(len(CHARACTERS)),
        splits,
        dtype=torch.int64,
    )
