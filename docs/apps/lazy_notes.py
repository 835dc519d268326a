"""The notes of notes.py as a Dataset, of which a collate_fn makes each batch."""

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

from fairbloom.tasks import Examples, Setup, Splits, Task
from notes import WARDS, Reader, draw, fill


class Notes(Dataset):
    def __init__(self, client, count):
        self.notes, self.targets = draw(client, count)  # or the names of files

    def __len__(self):
        return len(self.notes)

    def __getitem__(self, place):
        return self.notes[place], self.targets[place]


def collate(examples):
    notes, targets = zip(*examples, strict=True)
    return fill(notes), torch.stack(targets)


def urgent(setup: Setup) -> Task:
    def splits(client):
        notes = Notes(client, 60)
        return Splits(
            train=Examples.of(notes, collate, rows=torch.arange(40)),
            test=Examples.of(notes, collate, rows=torch.arange(40, 60)),
        )

    def model():
        torch.manual_seed(setup.seed)
        return Reader()

    return Task(
        WARDS,
        model,
        lambda outputs, targets: cross_entropy(outputs, targets, reduction="none"),
        splits,
    )
