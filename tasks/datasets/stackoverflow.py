"""Stack Overflow by its users, in the layout of TensorFlow Federated: predict the next word.

A row of the table is a sentence: its user, and its words with spaces between them. An example is
the last 20 words before a word; a sentence has a mark at either end, and the last one is a target.
The accuracy is over all targets: Reddi et al. leave out ends of sentences and unknown words.

The file has 135 million sentences. It is read twice: to count them, and for those of the run's
users, which are kept.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow
import torch
from pyarrow import compute
from torch import Tensor

from fairbloom.errors import FairbloomError

from ..catalogue import TASKS
from ..partition import MIN_EXAMPLES, Indices, split
from ..task import Examples, Setup, Splits, Task
from .classification import classify, draw_clients, numbered
from .hub import read_batches
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
    sentences, examples = count_by_user(path)
    large = {user: range(count) for user, count in sentences.items() if examples[user] >= smallest}
    drawn = draw_clients(large, setup, "users", lambda count: count >= MIN_EXAMPLES)
    texts = read_texts(path, drawn)

    @cache
    def numbers() -> dict[str, int]:
        counts = Counter(
            word for of_user in texts.values() for text in of_user for word in text.split()
        )
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        return {word: number for number, word in enumerate(ranked[:words], MARKS)}

    def splits(client: str) -> Splits:
        def chosen(rows: Indices) -> Examples:
            return Examples(*windows([texts[client][row].split() for row in rows], numbers()))

        train, test, validation = split(np.arange(len(texts[client])), setup, client)
        return Splits(chosen(train), chosen(test), chosen(validation) if len(validation) else None)

    return classify(
        setup, tuple(drawn), (LENGTH,), numbered(MARKS + words), splits, dtype=torch.int64
    )


def count_by_user(path: Path) -> tuple[Counter[str], Counter[str]]:
    """Return the numbers of sentences and of examples of each user."""
    sentences = Counter[str]()
    examples = Counter[str]()
    for owners, tokens in read_batches(path, "client_id", "tokens"):
        if tokens.null_count or str(tokens.type) not in ("string", "large_string"):
            raise FairbloomError(f"{path}: tokens must be texts: put the original in its place")
        users = owners.to_pylist()
        sentences.update(users)
        for user, spaces in zip(
            users, compute.count_substring(tokens, " ").to_pylist(), strict=True
        ):
            examples[user] += spaces + 2
    return sentences, examples


def read_texts(path: Path, users: Collection[str]) -> dict[str, list[str]]:
    """Return the sentences of users in the order of the file; the others are not kept."""
    texts: dict[str, list[str]] = {user: [] for user in users}
    for owners, tokens in read_batches(path, "client_id", "tokens"):
        theirs = compute.is_in(owners, value_set=pyarrow.array(users, owners.type))
        for user, text in zip(
            owners.filter(theirs).to_pylist(), tokens.filter(theirs).to_pylist(), strict=True
        ):
            texts[user].append(text)
    return texts


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
