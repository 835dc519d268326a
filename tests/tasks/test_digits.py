"""The digits, split into clients."""

from collections import Counter

import pytest
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

from fairbloom.errors import FairbloomError
from fairbloom.protocol.scores import ACCURACY
from fairbloom.server.settings import Settings, Value
from fairbloom.tasks import TASKS, Task, load_task
from fairbloom.tasks.task import Setup

from .made import everything

SPLITS: list[dict[str, Value]] = [
    {"partition": "shards", "clients": 20},
    {"partition": "shards", "clients": 7, "shards-per-client": 3},
    {"partition": "dirichlet", "clients": 12, "dirichlet-alpha": 0.2},
    {"partition": "iid", "clients": 359},
]


def load(config: dict[str, Value] | None = None, **others: Value) -> Task:
    general = {key.replace("_", "-"): value for key, value in others.items()}
    return load_task(Settings.of({**(config or {}), **general}).run_config())


def images_of(task: Task) -> Counter[tuple[bytes, int]]:
    """Return how often each pair of image and label occurs over all clients and both splits."""
    return Counter(
        (image.numpy().tobytes(), int(target))
        for name in task.clients
        for split in task.splits(name)
        for image, target in zip(*everything(split), strict=True)
    )


def test_every_digit_is_with_one_client_which_tests_on_a_fifth() -> None:
    pixels, labels = load_digits(return_X_y=True)
    inputs = torch.from_numpy((pixels / 16.0).astype("float32"))
    expected = Counter((image.numpy().tobytes(), int(label)) for image, label in zip(inputs, labels, strict=True))
    for config in SPLITS:
        task = load(config)
        assert images_of(task) == expected
        for name in task.clients:
            train, test = map(len, task.splits(name))
            assert test == (train + test) // 5 >= 1


def test_settings_give_one_split_and_another_seed_another() -> None:
    setup = Setup.of({"model": "logistic", "clients": 20, "partition": "shards", "seed": 3})
    tasks = [TASKS["digits"].load(setup.model_copy(update={"seed": seed}), {}) for seed in (3, 3, 4)]
    images, labels = zip(*(everything(task.splits("client-05").train) for task in tasks), strict=True)
    assert torch.equal(images[0], images[1])
    assert torch.equal(labels[0], labels[1])
    assert not torch.equal(labels[0], labels[2])


def test_clients_share_the_images_and_turned_ones_have_their_own() -> None:
    for config, copies in (({}, 1), ({"digits.rotated-clients": 3}, 4)):
        task = load(config)
        splits = [split for name in task.clients for split in task.splits(name)]
        assert len({split.inputs.data_ptr() for split in splits}) == copies
        assert len({split.targets.data_ptr() for split in splits}) == copies


def test_clients_are_named_so_that_names_sort_as_partition_ids() -> None:
    names = load(clients=120, partition="iid").clients
    assert names[7] == "client-007"
    assert list(names) == sorted(names)


def test_the_loss_is_one_number_an_example() -> None:
    task = load()
    inputs, targets = everything(task.splits(task.clients[0]).train)
    outputs = task.model()(inputs).detach()
    losses = task.loss(outputs, targets)
    assert losses.shape == (len(targets),)
    assert losses.mean().item() == pytest.approx(cross_entropy(outputs, targets).item(), rel=1e-6)


def test_an_answer_is_right_by_its_highest_output() -> None:
    outputs = torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]])
    ((score, right),) = load().scores.items()
    assert score == ACCURACY
    assert torch.as_tensor(right(outputs, torch.tensor([1, 1, 1]))).tolist() == [True, False, True]


def test_an_impossible_split_is_refused_with_a_remedy() -> None:
    for config, words in (
        ({"clients": 1000}, ("clients = 1000", "shards-per-client = 2", "1797 examples")),
        ({"clients": 360, "partition": "iid"}, ("clients = 360", "1797 examples", "359")),
        ({"clients": 360, "shards-per-client": 1}, ("clients = 360", "359")),
        ({"clients": 5, "digits.rotated-clients": 6}, ("digits.rotated-clients = 6", "clients = 5")),
    ):
        with pytest.raises(FairbloomError, match="clients") as refusal:
            load(config)  # type: ignore[arg-type]
        assert all(word in str(refusal.value) for word in words), refusal.value


def test_what_the_task_says_of_itself_is_so() -> None:
    info = TASKS["digits"]
    assert "1,797" in info.summary
    task = load()
    labels = {int(label) for name in task.clients for label in everything(task.splits(name).train)[1]}
    assert sorted(labels) == list(range(10))
    for model in info.models:
        for partition in info.partitions:
            assert load(model=model, partition=partition).clients
