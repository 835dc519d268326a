"""Who has which examples, as it is saved and drawn."""

import numpy as np
import pytest
import torch
from torch import nn

from fairbloom.errors import FairbloomError
from fairbloom.protocol.settings import Value
from fairbloom.server.settings import Settings
from fairbloom.tasks import Examples, Splits, Task, load_task
from fairbloom.tasks.split import PARTS, Split


def split_of(**settings: Value) -> tuple[Split, Task]:
    task = load_task(Settings.of({"clients": 6, **settings}).run_config())
    return Split.of(task), task


def test_every_example_is_with_exactly_one_client() -> None:
    split, _ = split_of(**{"validation-share": 0.1})
    assert sorted(split.row) == [*range(1797)]
    assert split.counts().sum() == 1797
    assert set(split.part) == {0, 1, 2}


def test_a_split_has_a_clients_examples_whatever_its_camera(subtests: pytest.Subtests) -> None:
    split, task = split_of(**{"digits.rotated-clients": 2, "validation-share": 0.2})
    plain = load_task(Settings.of({"clients": 6, "validation-share": 0.2}).run_config())
    for place, client in enumerate(split.clients):
        with subtests.test(place=place, client=client):
            splits = task.splits(client)
            for part, examples in enumerate((splits.train, splits.test, splits.validation)):
                assert examples is not None
                own = (split.client == place) & (split.part == part)
                images, labels = examples[slice(0, len(examples))]
                assert split.label[own].tolist() == labels.tolist()
                upright, _ = next(iter(plain.splits(client)))[slice(0, 1)]
                assert images.shape[1:] == upright.shape[1:]
    assert np.array_equal(split.row, Split.of(plain).row)


def test_it_is_read_as_it_was_written(subtests: pytest.Subtests) -> None:
    split, task = split_of(**{"digits.rotated-clients": 2})
    again = Split.from_bytes(split.to_bytes())
    assert (again.clients, again.marks) == (split.clients, split.marks)
    assert [split.clients[place] for place, mark in enumerate(split.marks) if mark] == sorted(
        task.marks
    )
    for name in ("client", "part", "row", "label"):
        with subtests.test(name=name):
            assert np.array_equal(getattr(again, name), getattr(split, name))
    assert split.to_bytes() == split.to_bytes()


@pytest.mark.parametrize("content", [b"", b"PK", b"no file of arrays at all"])
def test_what_is_no_split_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (NumPy has words of its own)
        Split.from_bytes(content)


def task_with(targets: torch.Tensor) -> Task:
    examples = Examples(torch.zeros(len(targets), 2), targets)
    one = Examples(torch.zeros(1, 2), targets[:1])
    return Task(
        ("site",),
        lambda: nn.Linear(2, 2),
        nn.CrossEntropyLoss(),
        lambda client: Splits(examples, examples, one),
    )


def test_a_task_that_deals_nothing_is_counted_by_its_targets() -> None:
    split = Split.of(task_with(torch.tensor([0, 2, 2])))
    assert split.counts().tolist() == [[3, 0, 4]]
    assert [PARTS[part] for part in split.part] == (["train"] * 3 + ["test"] * 3 + ["validation"])


def test_targets_that_are_no_classes_cannot_be_drawn() -> None:
    with pytest.raises(FairbloomError, match="the targets of client site are not classes"):
        Split.of(task_with(torch.tensor([0.5, 1.0])))
