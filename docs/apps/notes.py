"""Notes of hospital wards: sequences of different lengths with a mask, as two inputs by name."""

from functools import partial

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fairbloom.tasks import Examples, Setup, Splits, Task

WARDS = ("east", "south", "west")
WORDS = 50
LONGEST = 12


class Reader(nn.Module):
    """A transformer's layer over the words of a note, and the mean of those that the mask lets
    through."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.last = nn.Linear(16, 2)

    def forward(self, words, mask):
        hidden = self.layer(self.embedding(words), src_key_padding_mask=mask == 0)
        mean = (hidden * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
        return {"hidden": mean, "logits": self.last(mean)}


def draw(client, count):
    """Notes of 3 to LONGEST words, and whether a word below 5 is in them."""
    random = torch.Generator().manual_seed(WARDS.index(client))
    lengths = torch.randint(3, LONGEST + 1, (count,), generator=random).tolist()
    notes = [torch.randint(WORDS, (length,), generator=random) for length in lengths]
    return notes, torch.tensor([int((note < 5).any()) for note in notes])


def fill(notes):
    """Notes as one tensor, filled up to the longest, and a mask."""
    words = nn.utils.rnn.pad_sequence(notes, batch_first=True)
    mask = nn.utils.rnn.pad_sequence([torch.ones(len(note)) for note in notes], batch_first=True)
    return {"words": words, "mask": mask}


def urgent(setup: Setup) -> Task:
    """Which notes are urgent?"""

    def splits(client):
        notes, is_urgent = draw(client, 60)
        inputs = fill(notes)
        return Splits(
            train=Examples(inputs, is_urgent, rows=torch.arange(40)),
            test=Examples(inputs, is_urgent, rows=torch.arange(40, 60)),
        )

    def model():
        torch.manual_seed(setup.seed)
        return Reader()

    return Task(WARDS, model, partial(cross_entropy, reduction="none"), splits)
