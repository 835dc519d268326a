"""Stack Overflow by its users, in TensorFlow Federated's columns: predict the next word.

A row is a sentence: its user, and its words with spaces between them. An example is the last 20
words before a word; a sentence has a mark at either end, and the last one is a target. The accuracy
is over all targets: Reddi et al. leave out the ends of sentences and unknown words.

The original has 135 million sentences. They are read twice, a part at a time: to count each user's,
and to keep what the run's users wrote.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairbloom.errors import FairbloomError

from ..catalogue import TASKS
from ..partition import MIN_EXAMPLES, Indices, draw_held_out, split
from ..task import Examples, Setup, Splits, Task
from .classification import classify, draw_clients, numbered
from .hub import read_batches
from .store import locate

# The columns of users and of sentences.
USER = "client_id"
SENTENCE = "tokens"

# The number of words of an example; the beginnings of sentences are padded in front.
LENGTH = 20

# The numbers of the marks. Words follow, the most frequent ones first.
PADDING, BEGIN, END, UNKNOWN = range(4)
MARKS = 4


def load(setup: Setup, *, smallest: int, words: int) -> Task:
    """Return the task, with one client per user of at least `smallest` examples.

    The model knows the `words` most frequent words of the run's clients that are in training.
    """
    (path,) = locate(TASKS["stackoverflow"], setup)
    examples = {user: range(count) for user, count in count_examples(path).items()}
    drawn = draw_clients(examples, setup, "users", lambda count: count >= max(smallest, 1))
    texts = read_texts(path, drawn)

    @cache
    def numbers() -> Mapping[str, int]:
        held_out = draw_held_out(setup, tuple(drawn))
        training = [texts[user] for user in drawn if user not in held_out]
        counts = Counter(word for of_user in training for text in of_user for word in text.split())
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        return {word: number for number, word in enumerate(ranked[:words], MARKS)}

    def splits(client: str) -> Splits:
        def chosen(rows: Indices) -> Examples:
            sentences = [texts[client][row].split() for row in rows]
            return Examples(*windows(sentences, numbers()))

        train, test, validation = split(np.arange(len(texts[client])), setup, client)
        return Splits(chosen(train), chosen(test), chosen(validation) if len(validation) else None)

    return classify(
        setup, tuple(drawn), (LENGTH,), numbered(MARKS + words), splits, dtype=torch.int64
    )


def read_sentences(path: Path) -> Iterator[Any]:
    """Yield Arrow batches of sentences with their users; raise FairbloomError for other columns."""
    for batch in read_batches(path, USER, SENTENCE):
        for name in (USER, SENTENCE):
            column = batch.column(name)
            if column.null_count or str(column.type) not in ("string", "large_string"):
                raise FairbloomError(
                    f"{path}: column {name} must have texts only, got {column.type} with"
                    f" {column.null_count} missing: put the original in its place"
                )
        yield batch


def count_examples(path: Path) -> dict[str, int]:
    """Return the number of each user's examples; 0 for a user with too few sentences to split."""
    import pyarrow as pa  # imported late, both: only this data set needs them
    import pyarrow.compute as pc

    parts = []
    for batch in read_sentences(path):
        examples = pc.add(pc.count_substring(batch.column(SENTENCE), " "), 2)  # words and the end
        table = pa.table({USER: batch.column(USER), "examples": examples})
        parts.append(table.group_by(USER).aggregate([("examples", "sum"), ("examples", "count")]))
    # A user's sentences may lie in several batches.
    totals = (
        pa.concat_tables(parts)
        .group_by(USER)
        .aggregate([("examples_sum", "sum"), ("examples_count", "sum")])
    )
    return {
        row[USER]: row["examples_sum_sum"] if row["examples_count_sum"] >= MIN_EXAMPLES else 0
        for row in totals.to_pylist()
    }


def read_texts(path: Path, users: Iterable[str]) -> Mapping[str, Sequence[str]]:
    """Return the sentences of these users, in the order of the file."""
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted = pa.array(users, pa.string())
    texts = defaultdict[str, list[str]](list)
    for batch in read_sentences(path):
        theirs = batch.filter(pc.is_in(batch.column(USER), wanted))
        for user, text in zip(*(column.to_pylist() for column in theirs.columns), strict=True):
            texts[user].append(text)
    return texts


def windows(
    sentences: Iterable[Sequence[str]], numbers: Mapping[str, int]
) -> tuple[Tensor, Tensor]:
    """Return the examples of sentences, shape (n, 20), and the next words, shape (n,)."""
    inputs: list[Tensor] = []
    targets: list[int] = []
    for sentence in sentences:
        codes = [BEGIN, *(numbers.get(word, UNKNOWN) for word in sentence), END]
        inputs.append(torch.tensor([PADDING] * (LENGTH - 1) + codes).unfold(0, LENGTH, 1)[:-1])
        targets += codes[1:]
    if not inputs:
        return torch.empty(0, LENGTH, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
    return torch.cat(inputs), torch.tensor(targets)
