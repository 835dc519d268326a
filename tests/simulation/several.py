"""A user's tasks whose models take several tensors, by name or in order, and whose outputs have names; in float64."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fairbloom.tasks import Examples, Setup, Splits, Task
from fairbloom.tasks.inputs import Inputs

TOKENS, CLASSES, LONGEST = 11, 3, 7


class Sequences(nn.Module):
    """Means of the embeddings of the tokens that a mask lets through; a layer; two outputs by name."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.last = nn.Embedding(TOKENS, 4), nn.Linear(4, CLASSES)

    def forward(self, tokens: Tensor, mask: Tensor) -> dict[str, Tensor]:
        vectors = self.embedding(tokens) * mask.unsqueeze(-1)
        pooled = vectors.sum(-2) / mask.sum(-1, keepdim=True)
        return {"pooled": pooled, "logits": self.last(pooled)}


class Pairs(nn.Module):
    """Two linear layers, of an input each, added up."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, CLASSES), nn.Linear(2, CLASSES)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        outputs: Tensor = self.first(first) + self.second(second)
        return outputs


def sentences(random: torch.Generator, count: int) -> Inputs:
    """Return padded sequences with masks."""
    lengths = torch.randint(1, LONGEST + 1, (count, 1), generator=random)
    mask = (torch.arange(LONGEST) < lengths).double()
    return {"tokens": torch.randint(TOKENS, (count, LONGEST), generator=random), "mask": mask}


def pairs(random: torch.Generator, count: int) -> Inputs:
    """Return two tensors."""
    return tuple(torch.randn(count, width, generator=random, dtype=torch.float64) for width in (4, 2))


def task_of(setup: Setup, model: type[nn.Module], inputs: Callable[[torch.Generator, int], Inputs]) -> Task:
    """Return a task of a few examples a client."""
    names = tuple(f"client-{number}" for number in range(setup.clients or 4))

    def made() -> nn.Module:
        torch.manual_seed(setup.seed)
        return model().double()

    def examples(client: str, count: int, seed: int) -> Examples:
        random = torch.Generator().manual_seed(100 * names.index(client) + seed)
        return Examples(inputs(random, count), torch.randint(CLASSES, (count,), generator=random))

    def splits(client: str) -> Splits:
        count = 5 + names.index(client)
        whole = examples(client, count + 3, 1)
        parts = (replace(whole, rows=rows) for rows in (torch.arange(count), torch.arange(count, count + 3)))
        return Splits(*parts)

    return Task(clients=names, model=made, loss=partial(cross_entropy, reduction="none"), splits=splits)


def masked(setup: Setup) -> Task:
    """Sequences with masks by name; the outputs have names too."""
    return task_of(setup, Sequences, sentences)


def paired(setup: Setup) -> Task:
    """Two tensors in order."""
    return task_of(setup, Pairs, pairs)
