"""A user's function that deals examples to clients, named by an import string."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fairbloom.errors import FairbloomError
from fairbloom.server.settings import Settings
from fairbloom.tasks import Setup, Task, load_task
from fairbloom.tasks.partition import deal
from fairbloom.tasks.split import Split

MINE = """
import numpy as np


def halves(labels, clients, random):
    shuffled = random.permutation(len(labels))
    return np.array_split(shuffled[: len(labels) // 2], clients)


def by_label(labels, clients, random):
    return [np.flatnonzero(labels % clients == client) for client in range(clients)]


too_many = lambda labels, clients, random: np.array_split(np.arange(len(labels)), clients + 1)
too_few = lambda labels, clients, random: [np.arange(4), *np.array_split(np.arange(4, len(labels)), clients - 1)]
twice = lambda labels, clients, random: [np.arange(9)] * clients
twice_alone = lambda labels, clients, random: [[7] * 9, *np.array_split(np.arange(8, len(labels)), clients - 1)]
beyond = lambda labels, clients, random: np.array_split(np.arange(len(labels)) + 1, clients)
below = lambda labels, clients, random: np.array_split(np.arange(len(labels)) - 1, clients)
floats = lambda labels, clients, random: [np.arange(9) / 2] * clients
masks = lambda labels, clients, random: [labels == client for client in range(clients)]
fails = lambda labels, clients, random: {}["share"]
nothing = lambda labels, clients, random: None


def changes(labels, clients, random):
    labels[:] = 0
    return np.array_split(random.permutation(len(labels)), clients)


number = 3
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    name = f"dealing_{abs(hash(request.node.nodeid))}"
    (tmp_path / f"{name}.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return name


def dealt(partition: str, clients: int = 4, **others: Any) -> Task:
    return load_task(Settings.of({"task": "digits", "partition": partition, "clients": clients, **others}).run_config())


def rows_of(task: Task) -> list[NDArray[np.int64]]:
    split = Split.of(task)
    return [np.sort(split.row[split.client == client]) for client in range(len(split.clients))]


def test_each_client_has_what_the_function_deals(mine: str) -> None:
    whole = Split.of(dealt("iid"))
    labels = np.empty(len(whole.row), np.int64)
    labels[whole.row] = whole.label
    found = rows_of(dealt(f"{mine}:by_label"))
    for client, rows in enumerate(found):
        np.testing.assert_array_equal(rows, np.flatnonzero(labels % 4 == client))


def test_the_seed_decides_what_is_dealt(mine: str) -> None:
    first, again, other = (rows_of(dealt(f"{mine}:halves", seed=seed)) for seed in (1, 1, 2))
    assert all(map(np.array_equal, first, again))
    assert not any(map(np.array_equal, first, other))
    assert len(np.concatenate(first)) == 1797 // 2


def test_a_function_cannot_change_the_labels(mine: str) -> None:
    assert set(Split.of(dealt(f"{mine}:changes")).label.tolist()) == set(range(10))


IMPOSSIBLE = {
    "too_many": "4 arrays .* 5: int64",
    "too_few": "4 examples, .* 5 ",
    "twice": "place 0, .* 0 to 1796",
    "twice_alone": "place 7, ",
    "beyond": "place 1797, .* 0 to 1796",
    "below": "place -1, ",
    "floats": "4 arrays .*: float64",
    "masks": "4 arrays .*: bool",
    "fails": "KeyError: 'share'",
    "nothing": "TypeError: .*NoneType",
    "number": "got int",
    "shards": "no shards",
}
"""What an error says of each function, beside its name."""


def test_an_impossible_deal_is_refused_with_the_function(mine: str) -> None:
    for function, said in IMPOSSIBLE.items():
        with pytest.raises(FairbloomError, match=rf"partition = '{mine}:{function}': .*{said}"):
            dealt(f"{mine}:{function}")


def test_a_data_set_with_tests_apart_has_both_dealt_alike(mine: str) -> None:
    """A client has a test example in any case: one of its neighbour's where the function deals it none."""
    labels, tested = np.arange(400) % 8, np.arange(80) % 8
    setup = Setup.of({"partition": f"{mine}:by_label", "clients": 4})
    for client, (examples, tests) in enumerate(deal(labels, setup, tested)):
        assert set(labels[examples] % 4) == set(tested[tests] % 4) == {client}
    assert [len(each.tested) for each in deal(labels, setup, np.repeat([1, 2, 3], 5))] == [1, 4, 5, 5]


def test_a_task_with_given_clients_takes_no_function(mine: str) -> None:
    with pytest.raises(FairbloomError, match=r"partition = .*task heart-disease has hospital$"):
        load_task(Settings.of({"task": "heart-disease", "partition": f"{mine}:halves"}).run_config())


@pytest.mark.parametrize("taken", [lambda name: f"{name}:halves", lambda name: "os:system"])
def test_a_device_refuses_a_function_its_owner_has_not_allowed(mine: str, taken: Callable[[str], str]) -> None:
    from fairbloom.client.settings import SettingRefusedError, accepted_settings

    config = Settings.of({"task": "digits", "partition": f"{mine}:halves"}).run_config() | {"partition": taken(mine)}
    with pytest.raises(SettingRefusedError, match="the run sets partition = "):
        accepted_settings(config)
    assert accepted_settings(config, allow=[taken(mine)])["partition"] == taken(mine)
