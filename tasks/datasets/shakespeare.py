"""Shakespeare's plays, by who speaks: the next character is predicted from 80.

Two editions: that of a million characters known as tiny Shakespeare, and LEAF's of all plays, of which the papers'
numbers are.
"""

import csv
import re
from collections import defaultdict
from collections.abc import Mapping
from fractions import Fraction
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fairbloom.errors import FairbloomError

from ..known import TASKS
from ..partition import Indices, Parts, splits_of
from ..task import Setup, Splits, Task
from .classification import classify
from .clients import draw_clients, group_rows
from .downloads import fetch_from_address, fetch_from_hub
from .store import locate

TINY, LEAF = "shakespeare", "shakespeare-leaf"
"""The two editions' tasks."""

ADDRESS = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare"

REPOSITORY = "flwrlabs/shakespeare"

LENGTH = 80
"""The number of characters of an example, after which one is predicted."""

CHARACTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""The 80 characters of LEAF, in its order; any other becomes the last of them, which the plays hardly have."""

CODES = bytes(CHARACTERS.find(chr(byte)) % len(CHARACTERS) for byte in range(256))
"""The number of each character of Latin-1, as bytes.translate takes it."""

FOREIGN = re.compile(r"[^\x00-\xff]")
"""What Latin-1 has no byte for."""


class Lines(NamedTuple):
    """Speakers' examples: `inputs` are characters' numbers, shape (n, 80), `targets` the next character, shape (n,).

    `rows` has each speaker's examples in the order of the text.
    """

    inputs: Tensor
    targets: Tensor
    rows: Mapping[str, Indices]


def load(setup: Setup) -> Task:
    """Return tiny Shakespeare, a speaker a client."""
    info = TASKS[TINY]
    path = locate(info, setup, partial(fetch_from_address, info, ADDRESS)) / info.files[0].path
    lines = make_lines(read_speeches(path))
    return _task(lines._replace(rows=_draw_speakers(lines, setup)), setup)


def load_leaf(setup: Setup) -> Task:
    """Return LEAF's edition, a speaker in one of the plays a client."""
    info = TASKS[LEAF]
    path = locate(info, setup, partial(fetch_from_hub, info, REPOSITORY)) / info.files[0].path
    lines = read_lines(path)
    return _task(_keep_speakers(lines, _draw_speakers(lines, setup)), setup)


def _task(lines: Lines, setup: Setup) -> Task:
    def splits(client: str) -> Splits:
        return splits_of(lines.inputs, lines.targets, split_in_time(lines.rows[client], setup))

    return classify(setup, tuple(lines.rows), (LENGTH,), len(CHARACTERS), splits, dtype=torch.int64)


# Who is a client ------------------------------------------------------------------------------------------------------


def _draw_speakers(lines: Lines, setup: Setup) -> dict[str, Indices]:
    """Return the examples of those who take part: speakers who have at least one in each part that is asked for."""

    def enough(count: int) -> bool:
        train, test, validation = map(len, split_in_time(np.arange(count), setup))
        return min(train, test, validation if setup.validation_share else 1) > 0

    return draw_clients(lines.rows, setup, "speakers", enough)


def _keep_speakers(lines: Lines, rows: Mapping[str, Indices]) -> Lines:
    """Return the lines of these speakers alone, which are far fewer than all of LEAF's, as a network takes them."""
    kept = np.concatenate(list(rows.values()))
    ends = np.cumsum([0, *map(len, rows.values())])
    inputs, targets = (each[torch.from_numpy(kept)].long() for each in (lines.inputs, lines.targets))
    return Lines(inputs, targets, dict(zip(rows, (np.arange(*pair) for pair in pairwise(ends)), strict=True)))


def split_in_time(rows: Indices, setup: Setup) -> Parts:
    """Return a speaker's examples as LEAF splits them: the first part is for training, the last for testing.

    Validation examples lie between. Between parts 79 examples are left out, which share characters with both.
    """
    test, validation = Fraction(str(setup.test_share)), Fraction(str(setup.validation_share))
    chosen, tested = int((1 - test - validation) * len(rows)), int((1 - test) * len(rows))
    return Parts(rows[:chosen], rows[tested + LENGTH - 1 :], rows[chosen + LENGTH - 1 : tested])


# The files ------------------------------------------------------------------------------------------------------------


def read_speeches(path: Path) -> dict[str, str]:
    """Return what each speaker says, one speech after the other, in a text where NAME: stands above each speech."""
    speeches = defaultdict(list)
    for number, block in enumerate(path.read_text("latin-1").strip().split("\n\n"), 1):
        name, _, speech = block.strip("\n").partition("\n")
        if not name.endswith(":"):
            raise FairbloomError(
                f"{path}: speech {number} begins with {name[:40]!r}, not with the speaker's name and a colon: put "
                "the original in its place"
            )
        speeches[name.removesuffix(":")].append(speech)
    return {name: "\n".join(filter(None, said)) for name, said in speeches.items()}


def make_lines(texts: Mapping[str, str]) -> Lines:
    """Return every 80 characters of each speaker's text that one more follows, as windows of one tensor."""
    text = torch.tensor(list(_encode("".join(texts.values()))), dtype=torch.int64)
    if len(text) <= LENGTH:
        return Lines(text.new_empty(0, LENGTH), text.new_empty(0), dict.fromkeys(texts, np.empty(0, np.intp)))
    ends = np.cumsum([0, *map(len, texts.values())])
    rows = (np.arange(start, max(end - LENGTH, start)) for start, end in pairwise(ends))
    return Lines(text.unfold(0, LENGTH, 1)[:-1], text[LENGTH:], dict(zip(texts, rows, strict=True)))


def read_lines(path: Path) -> Lines:
    """Return the examples of a CSV file with the columns character_id, x and y, as bytes."""
    speakers, codes = [], bytearray()
    with path.open(newline="", encoding="utf-8") as content:
        rows = csv.DictReader(content)
        if lacking := {"character_id", "x", "y"} - {*(rows.fieldnames or ())}:
            raise FairbloomError(f"{path} lacks the column {min(lacking)}: put the original in its place")
        for number, row in enumerate(rows, 1):
            if len(row["x"] or "") != LENGTH or len(row["y"] or "") != 1:
                raise FairbloomError(f"{path}: example {number} must have {LENGTH} characters in x and one in y")
            speakers.append(row["character_id"])
            codes += _encode(row["x"] + row["y"])
    if not codes:
        raise FairbloomError(f"{path} has no example: put the original in its place")
    both = torch.frombuffer(codes, dtype=torch.uint8).reshape(-1, LENGTH + 1)
    return Lines(both[:, :LENGTH], both[:, LENGTH], group_rows(speakers))


def _encode(text: str) -> bytes:
    if not text.isascii():
        text = FOREIGN.sub("\0", text)
    return text.encode("latin-1").translate(CODES)
