"""A user's tasks of today, in float64: several tensors as inputs, outputs by name, a Dataset."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from fairbloom.protocol.scores import ACCURACY
from fairbloom.tasks import Examples, Setup, Splits, Task, model_loss
from fairbloom.tasks.inputs import Inputs

TOKENS = 11
CLASSES = 3
LONGEST = 7
TESTED = 3


# Models -------------------------------------------------------------------------------------------


class Sequences(nn.Module):
    """Means of the embeddings of the tokens that a mask lets through; a layer; two outputs by
    name."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, 4)
        self.last = nn.Linear(4, CLASSES)

    def forward(self, tokens: Tensor, mask: Tensor) -> dict[str, Tensor]:
        pooled = (self.embedding(tokens) * mask.unsqueeze(-1)).sum(-2) / mask.sum(-1, keepdim=True)
        return {"pooled": pooled, "logits": self.last(pooled)}


class Tagger(nn.Module):
    """A class of each token, by the token and all tokens that a mask lets through."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, 4)
        self.last = nn.Linear(8, CLASSES)

    def forward(self, tokens: Tensor, mask: Tensor) -> dict[str, Tensor]:
        vectors = self.embedding(tokens) * mask.unsqueeze(-1)
        pooled = vectors.sum(-2, keepdim=True) / mask.sum(-1)[..., None, None]
        return {"scores": self.last(torch.cat([vectors, pooled.expand_as(vectors)], -1))}


class OfItself(Sequences):
    """The same as Sequences, which takes the loss of each example itself."""

    def forward(
        self, tokens: Tensor, mask: Tensor, labels: Tensor | None = None
    ) -> dict[str, Tensor]:  # type: ignore[override]
        outputs = super().forward(tokens, mask)
        if labels is None:
            return outputs
        return outputs | {"loss": cross_entropy(outputs["logits"], labels, reduction="none")}


class Pairs(nn.Module):
    """Two linear layers, of an input each, added up."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, CLASSES)
        self.second = nn.Linear(2, CLASSES)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        outputs: Tensor = self.first(first) + self.second(second)
        return outputs


# Examples -----------------------------------------------------------------------------------------


def sentences(random: torch.Generator, count: int) -> Inputs:
    """Return padded sequences with masks."""
    lengths = torch.randint(1, LONGEST + 1, (count, 1), generator=random)
    mask = (torch.arange(LONGEST) < lengths).double()
    return {
        "tokens": (torch.randint(TOKENS, (count, LONGEST), generator=random) * mask).long(),
        "mask": mask,
    }


def pairs(random: torch.Generator, count: int) -> Inputs:
    return tuple(
        torch.randn(count, width, generator=random, dtype=torch.float64) for width in (4, 2)
    )


class Lines(Dataset[tuple[Tensor, Tensor]]):
    """The sequences of some padded ones, each as long as it is, with its target."""

    def __init__(self, padded: Examples) -> None:
        inputs: Any = padded.inputs
        self.lengths = inputs["mask"].sum(1).long().tolist()
        self.tokens = inputs["tokens"]
        self.targets = padded.targets

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        return self.tokens[place, : self.lengths[place]], self.targets[place]


def pad(examples: Sequence[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """Fill a batch up to its longest sequence."""
    tokens, targets = zip(*examples, strict=True)
    return {
        "tokens": pad_sequence(list(tokens), batch_first=True),
        "mask": pad_sequence(
            [torch.ones(len(each), dtype=torch.float64) for each in tokens], batch_first=True
        ),
        "labels": torch.stack(targets),
    }


def pad_tokens(examples: Sequence[tuple[Tensor, Tensor]]) -> tuple[dict[str, Tensor], Tensor]:
    """Fill a batch up to its longest sequence; the targets are classes of each token, and -100
    behind its end."""
    batch = pad(examples)
    del batch["labels"]
    return batch, torch.where(batch["mask"] > 0, batch["tokens"] % CLASSES, -100)


def token_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss over the tokens of each sequence."""
    of_each = cross_entropy(outputs.transpose(1, 2), targets, reduction="none")
    return of_each.sum(1) / (targets >= 0).sum(1)


def token_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the share of each sequence's tokens that are classified correctly."""
    return ((outputs.argmax(2) == targets).double()).sum(1) / (targets >= 0).sum(1)


# Tasks --------------------------------------------------------------------------------------------


def task_of(
    setup: Setup,
    model: Callable[[], nn.Module],
    inputs: Callable[[torch.Generator, int], Inputs],
    change: Callable[[Examples], Any] = lambda examples: examples,
    **more: Any,
) -> Task:
    """Return a task of a few examples a client, each split of which is changed."""
    names = tuple(f"client-{number}" for number in range(setup.clients or 4))

    def made() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(setup.seed)
            return model()

    def splits(client: str) -> Splits:
        count = 5 + names.index(client)
        random = torch.Generator().manual_seed(names.index(client))
        whole = Examples(
            inputs(random, count + TESTED),
            torch.randint(CLASSES, (count + TESTED,), generator=random),
        )
        rows = torch.arange(count + TESTED)
        return Splits(*(change(replace(whole, rows=part)) for part in (rows[:count], rows[count:])))

    given: dict[str, Any] = {"loss": partial(cross_entropy, reduction="none")}
    return Task(clients=names, model=made, splits=splits, **given | more)


def of_lines(padded: Examples, collate: Callable[..., Any] = pad) -> Any:
    return Examples.of(Lines(padded), collate, padded.rows)


def masked(setup: Setup) -> Task:
    """Sequences with masks by name; the outputs have names too."""
    return task_of(setup, lambda: Sequences().double(), sentences)


def uneven(setup: Setup) -> Task:
    """Sequences that are filled up to the longest of each client, so that clients' tensors do not
    fit together."""

    def cut(padded: Examples) -> Examples:
        inputs: Any = padded.inputs
        longest = int(inputs["mask"].sum(1).max())
        # some clients have one token more
        longest += longest == LONGEST and padded.targets.shape[0] % 2
        wide = {
            name: torch.nn.functional.pad(each, (0, 1))[:, :longest]
            for name, each in inputs.items()
        }
        return replace(padded, inputs=wide)

    return task_of(setup, lambda: Sequences().double(), sentences, cut)


def paired(setup: Setup) -> Task:
    """Two tensors in order."""
    return task_of(setup, lambda: Pairs().double(), pairs)


def collated(setup: Setup) -> Task:
    """The sequences of `masked` from a Dataset, filled up batch by batch."""
    return task_of(setup, lambda: Sequences().double(), sentences, of_lines)


def tokens(setup: Setup) -> Task:
    """A class of each token, so that outputs and targets of batches have several lengths; the
    output is named."""
    return task_of(
        setup,
        lambda: Tagger().double(),
        sentences,
        partial(of_lines, collate=pad_tokens),
        loss=token_losses,
        scores={ACCURACY: token_accuracy},
        output="scores",
    )


def of_itself(setup: Setup) -> Task:
    """Return a task of sequences with a model that computes its own loss."""

    def with_labels(padded: Examples) -> Examples:
        inputs: Any = padded.inputs
        return replace(padded, inputs={**inputs, "labels": padded.targets})

    return task_of(setup, lambda: OfItself().double(), sentences, with_labels, loss=model_loss)
