"""Stack Overflow by its users, in the layout of TensorFlow Federated: predict the next word.

A row of the table is a sentence: its user, and its words with spaces between them. An example is
the last 20 words before a word; a sentence has a mark at either end, and the last one is a target.
The accuracy is over all targets: Reddi et al. leave out ends of sentences and unknown words.

The file has 135 million sentences. It is read twice: to count them, and for those of the run's
users, which are kept.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pandas
import torch
from torch import Tensor

from fairbloom.errors import FairbloomError

from ..catalogue import TASKS
from ..partition import MIN_EXAMPLES, Indices, draw_held_out, split
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

    The vocabulary has the `words` most frequent words of the run's clients in training.
    """
    (path,) = locate(TASKS["stackoverflow"], setup)
    counts = pandas.concat(map(count_by_user, read_sentences(path))).groupby(level=0).sum()
    large = counts.loc[counts["examples"] >= smallest, "sentences"]
    drawn = draw_clients(
        {user: range(count) for user, count in large.items()},
        setup,
        "users",
        lambda count: count >= MIN_EXAMPLES,
    )
    theirs = pandas.concat(
        sentences[sentences["client_id"].isin(drawn)] for sentences in read_sentences(path)
    )
    texts = {user: each.tolist() for user, each in theirs.groupby("client_id")["tokens"]}

    @cache
    def numbers() -> dict[str, int]:
        held_out = draw_held_out(setup, tuple(drawn))
        training = (texts[user] for user in drawn if user not in held_out)
        counts = Counter(word for of_user in training for text in of_user for word in text.split())
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


def read_sentences(path: Path) -> Iterator[pandas.DataFrame]:
    """Yield the sentences with their users, some at a time."""
    for batch in read_batches(path, "client_id", "tokens"):
        tokens = batch.column("tokens")
        if tokens.null_count or str(tokens.type) not in ("string", "large_string"):
            raise FairbloomError(f"{path}: tokens must be texts: put the original in its place")
        yield batch.to_pandas()


def count_by_user(sentences: pandas.DataFrame) -> pandas.DataFrame:
    """Return the numbers of sentences and of examples of each user."""
    examples = sentences["tokens"].str.count(" ") + 2
    return examples.groupby(sentences["client_id"]).agg(sentences="size", examples="sum")


def windows(sentences: Iterable[Sequence[str]], numbers: dict[str, int]) -> tuple[Tensor, Tensor]:
    """Return the examples of sentences, shape (n, 20), and the next words, shape (n,)."""
    inputs = [torch.empty(0, LENGTH, dtype=torch.int64)]  # there may be no sentence
    targets: list[int] = []
    for sentence in sentences:
        codes = [BEGIN, *(numbers.get(word, UNKNOWN) for word in sentence), END]
        inputs.append(torch.tensor([PADDING] * (LENGTH - 1) + codes).unfold(0, LENGTH, 1)[:-1])
        targets += codes[1:]
    return torch.cat(inputs), torch.tensor(targets, dtype=torch.int64)
