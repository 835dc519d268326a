"""The digits, split into clients."""

from collections import Counter

import pytest
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

from fairbloom.server.settings import Settings, Value
from fairbloom.tasks import TASKS, Task, digits, load_task

SPLITS: list[dict[str, Value]] = [
    {"partition": "shards", "clients": 20},
    {"partition": "shards", "clients": 7, "shards-per-client": 3},
    {"partition": "dirichlet", "clients": 12, "dirichlet-alpha": 0.2},
    {"partition": "iid", "clients": 359},
]


def load(**config: Value) -> Task:
    return load_task(Settings.of({key.replace("_", "-"): value for key, value in config.items()}).run_config())


def images_of(task: Task) -> Counter[tuple[bytes, int]]:
    """Return how often each pair of image and label occurs over all clients and both splits."""
    parts = [*task.train.values(), *task.test.values()]
    return Counter(
        (image.numpy().tobytes(), int(target))
        for part in parts
        for image, target in zip(part.inputs, part.targets, strict=True)
    )


@pytest.mark.parametrize("config", SPLITS, ids=lambda config: f"{config['partition']}-{config['clients']}")
def test_every_digit_is_with_exactly_one_client(config: dict[str, Value]) -> None:
    pixels, labels = load_digits(return_X_y=True)
    inputs = torch.from_numpy((pixels / 16.0).astype("float32"))
    expected = Counter((image.numpy().tobytes(), int(label)) for image, label in zip(inputs, labels, strict=True))
    assert images_of(load(**config)) == expected


@pytest.mark.parametrize("config", SPLITS, ids=lambda config: f"{config['partition']}-{config['clients']}")
def test_every_client_tests_on_a_fifth_of_its_digits(config: dict[str, Value]) -> None:
    task = load(**config)
    for name in task.clients:
        train, test = len(task.train[name]), len(task.test[name])
        assert test == (train + test) // 5 >= 1


def test_the_same_settings_give_the_same_split_and_another_seed_another() -> None:
    once = load(seed=3)
    digits.load.cache_clear()
    again, other = load(seed=3), load(seed=4)
    name = once.clients[5]
    assert once is not again
    assert torch.equal(once.train[name].inputs, again.train[name].inputs)
    assert not torch.equal(once.train[name].targets, other.train[name].targets)


def test_clients_are_named_so_that_names_sort_as_partition_ids() -> None:
    names = load(clients=120, partition="iid").clients
    assert names[7] == "client-007"
    assert list(names) == sorted(names)


def test_two_shards_a_client_leave_most_clients_few_labels() -> None:
    task = load(clients=20)
    numbers = [len(set(task.train[name].targets.tolist())) for name in task.clients]
    assert max(numbers) <= 4
    assert sum(numbers) <= 2 * 20 + 9


def test_rotated_clients_are_the_unrotated_ones_turned_by_90_degrees() -> None:
    upright, task = load(clients=10), load(clients=10, rotated_clients=3)
    turned = [name for name in task.clients if not torch.equal(task.train[name].inputs, upright.train[name].inputs)]
    assert len(turned) == 3
    for name in task.clients:
        for ours, theirs in ((task.train, upright.train), (task.test, upright.test)):
            expected = torch.rot90(theirs[name].inputs, dims=(2, 3)) if name in turned else theirs[name].inputs
            assert torch.equal(ours[name].inputs, expected)
            assert torch.equal(ours[name].targets, theirs[name].targets)


def test_the_loss_is_one_number_an_example() -> None:
    task = load()
    part = task.train[task.clients[0]]
    outputs = task.model()(part.inputs).detach()
    losses = task.loss(outputs, part.targets)
    assert losses.shape == (len(part),)
    assert losses.mean().item() == pytest.approx(cross_entropy(outputs, part.targets).item(), rel=1e-6)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"clients": 1000}, ("clients = 1000", "shards-per-client = 2", "1797 examples", "lower")),
        ({"clients": 360, "partition": "iid"}, ("clients = 360", "1797 examples", "at most 359")),
        ({"clients": 360, "partition": "dirichlet"}, ("clients = 360", "1797 examples", "at most 359")),
        ({"clients": 360, "shards-per-client": 1}, ("clients = 360", "at most 359")),
    ],
)
def test_an_impossible_split_is_refused_with_setting_value_and_remedy(
    config: dict[str, Value], words: tuple[str, ...]
) -> None:
    with pytest.raises(ValueError, match="clients") as refusal:
        load(**config)
    for word in words:
        assert word in str(refusal.value)


def test_what_the_task_says_of_itself_is_so() -> None:
    info = TASKS["digits"]
    assert "1,797" in info.summary
    targets = torch.cat([part.targets for part in load().train.values()])
    assert sorted(set(targets.tolist())) == list(range(info.classes))
    for model in info.models:
        for partition in info.partitions:
            assert load(model=model, partition=partition).clients
