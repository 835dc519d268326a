"""Shakespeare's plays, a client for each speaker: predict the next character from 80 characters.

The text has a million characters.
"""

from collections import defaultdict
from collections.abc import Mapping
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fairbloom.errors import FairbloomError

from ..catalogue import TASKS
from ..partition import Indices, Parts, splits_of
from ..task import Setup, Splits, Task
from .classification import classify, draw_clients, numbered
from .store import locate

# The number of characters of an example; the next one is predicted.
LENGTH = 80

# The 80 characters of LEAF, in its order; any other becomes the last one, which the plays hardly
# have.
CHARACTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"

# The number of each character of Latin-1, as bytes.translate takes it.
CODES = bytes(CHARACTERS.find(chr(byte)) % len(CHARACTERS) for byte in range(256))


class Lines(NamedTuple):
    """Speakers' examples: `inputs`, shape (n, 80), and the next character `targets`, shape (n,).

    Characters are numbers; `rows` has each speaker's examples in the order of the text.
    """

    inputs: Tensor
    targets: Tensor
    rows: Mapping[str, Indices]


def load(setup: Setup, *, smallest: int) -> Task:
    """Return the task, with one client per speaker of at least `smallest` examples."""
    (path,) = locate(TASKS["shakespeare"], setup)
    lines = make_lines(read_speeches(path))

    def enough(count: int) -> bool:
        train, test, validation = map(len, split_in_time(np.arange(count), setup))
        used = train + test + validation  # without those between two parts
        return (
            used >= smallest
            and min(
                train,
                test if setup.test_share else 1,
                validation if setup.validation_share else 1,
            )
            > 0
        )

    rows = draw_clients(lines.rows, setup, "speakers", enough)

    def splits(client: str) -> Splits:
        return splits_of(lines.inputs, lines.targets, split_in_time(rows[client], setup))

    return classify(
        setup, tuple(rows), (LENGTH,), numbered(len(CHARACTERS)), splits, dtype=torch.int64
    )


def split_in_time(rows: Indices, setup: Setup) -> Parts:
    """Split a speaker's examples as LEAF does: first training, then validation, then test examples.

    Between two parts, 79 examples are left out, which share characters with both.
    """
    test = Fraction(str(setup.test_share))
    train_end = int((1 - test - Fraction(str(setup.validation_share))) * len(rows))
    test_start = int((1 - test) * len(rows))
    gap = LENGTH - 1
    return Parts(rows[:train_end], rows[test_start + gap :], rows[train_end + gap : test_start])


# The files ----------------------------------------------------------------------------------------


def read_speeches(path: Path) -> dict[str, str]:
    """Return each speaker's speeches, joined, of a text with a line NAME: above each speech."""
    speeches = defaultdict(list)
    for number, block in enumerate(path.read_text("latin-1").strip().split("\n\n"), 1):
        name, _, speech = block.strip("\n").partition("\n")
        if not name.endswith(":"):
            raise FairbloomError(
                f"{path}: speech {number} begins with {name[:40]!r}, not with the speaker's name"
                " and a colon: put the original in its place"
            )
        speeches[name.removesuffix(":")].append(speech)
    return {name: "\n".join(filter(None, spoken)) for name, spoken in speeches.items()}


def make_lines(texts: Mapping[str, str]) -> Lines:
    """Return all 80 characters with a next one in each speaker's text, as windows of one tensor."""
    characters = "".join(texts.values()).encode("latin-1")
    text = torch.tensor(list(characters.translate(CODES)), dtype=torch.int64)
    if len(text) <= LENGTH:
        return Lines(
            text.new_empty(0, LENGTH),
            text.new_empty(0),
            dict.fromkeys(texts, np.empty(0, np.intp)),
        )
    ends = np.cumsum([0, *map(len, texts.values())])
    rows = [np.arange(start, max(end - LENGTH, start)) for start, end in pairwise(ends)]
    return Lines(text.unfold(0, LENGTH, 1)[:-1], text[LENGTH:], dict(zip(texts, rows, strict=True)))
