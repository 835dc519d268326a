"""Stack Overflow by its users, in the layout of TensorFlow Federated: predict the next word.

A row of the table is a sentence: its user, and its words with spaces between them. An example is
the last 20 words before a word; a sentence has a mark at either end, and the last one is a target.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np
import torch
from pyarrow import compute
from torch import Tensor

from fairbloom.errors import FairbloomError

from ..catalogue import TASKS
from ..partition import MIN_EXAMPLES, Indices, split
from ..task import Examples, Setup, Splits, Task
from .classification import classify, draw_clients, group_rows, numbered
from .hub import read_columns
from .store import locate

# The number of words of an example; shorter beginnings of sentences are padded in front.
LENGTH = 20

# The numbers of the marks; words follow, the most frequent ones first.
PADDING, BEGIN, END, UNKNOWN = range(4)
MARKS = 4


def load(setup: Setup, *, smallest: int, words: int) -> Task:
    """Return the task, with one client per user of at least `smallest` examples.

    The vocabulary has the `words` most frequent words of the run's clients.
    """
    (path,) = locate(TASKS["stackoverflow"], setup)
    columns = read_columns(path, "client_id", "tokens")
    sentences = columns["tokens"]
    if sentences.null_count or str(sentences.type) not in ("string", "large_string"):
        raise FairbloomError(f"{path}: tokens must be texts: put the original in its place")
    of_users = group_rows(columns["client_id"].to_pylist())
    spaces = compute.count_substring(sentences, " ").to_numpy()
    large = {name: rows for name, rows in of_users.items() if (spaces[rows] + 2).sum() >= smallest}
    rows = draw_clients(large, setup, "users", lambda count: count >= MIN_EXAMPLES)

    @cache
    def numbers() -> dict[str, int]:
        texts = sentences.take(np.concatenate([*rows.values()])).to_pylist()
        counts = Counter(word for text in texts for word in text.split())
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        return {word: number for number, word in enumerate(ranked[:words], MARKS)}

    def examples(chosen: Indices) -> Examples:
        texts = sentences.take(chosen).to_pylist()
        return Examples(*windows([text.split() for text in texts], numbers()))

    def splits(client: str) -> Splits:
        train, test, validation = split(rows[client], setup, client)
        return Splits(
            examples(train), examples(test), examples(validation) if len(validation) else None
        )

    return classify(
        setup, tuple(rows), (LENGTH,), numbered(MARKS + words), splits, dtype=torch.int64
    )


def windows(sentences: Iterable[Sequence[str]], numbers: dict[str, int]) -> tuple[Tensor, Tensor]:
    """Return the examples of sentences, shape (n, 20), and the next words, shape (n,)."""
    inputs: list[Tensor] = []
    targets: list[int] = []
    for sentence in sentences:
        codes = [BEGIN, *(numbers.get(word, UNKNOWN) for word in sentence), END]
        padded = torch.tensor([PADDING] * (LENGTH - 1) + codes)
        inputs.append(padded.unfold(0, LENGTH, 1)[:-1])
        targets += codes[1:]
    return torch.cat(inputs), torch.tensor(targets)
