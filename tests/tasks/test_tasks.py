"""Tasks by name: the registered task is loaded, with its own settings, from its own folder."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fairbloom.errors import FairbloomError
from fairbloom.protocol.parameters import Choices, Parameter, Range
from fairbloom.protocol.settings import RunSettings
from fairbloom.server.settings import Settings
from fairbloom.tasks import (
    TASKS,
    Examples,
    Setup,
    Splits,
    Task,
    TaskInfo,
    check_data,
    describe_data,
    load_task,
)
from fairbloom.tasks.datasets.adult import CATEGORIES

from . import made

loaded: list[tuple[Setup, dict[str, Any]]] = []
opened: list[str] = []


def load(setup: Setup, **own: Any) -> Task:
    """Load a task; client "n" has n ones."""
    loaded.append((setup, own))

    def splits(client: str) -> Splits:
        opened.append(client)
        ones = torch.ones(int(client) + 1, 1)
        return Splits(Examples(ones, ones), Examples(ones[:1], ones[:1]))

    def squared_error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return ((outputs - targets) ** 2).sum(dim=1)

    return Task(
        tuple(map(str, range(setup.clients))), lambda: nn.Linear(1, 1), squared_error, splits
    )


SETTINGS = (
    Parameter("noise", float, 0.5, "Noise that is added to the targets", Range("[0, 2]")),
    Parameter("shift", int, 0, "Shift of the inputs"),
    Parameter("kind", str, "plain", "Kind of the data", Choices("plain", "bent", "torn")),
    Parameter("folded", bool, False, "Whether the inputs are folded"),
)


@pytest.fixture(autouse=True)
def two_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register one task with settings of its own and one that reads a folder."""
    loaded.clear()
    opened.clear()
    for info in (
        TaskInfo("ones", "Ones", "made up", f"{__name__}:load", settings=SETTINGS),
        TaskInfo("files", "Ones from files", "made up", f"{__name__}:load", reads=(".txt",)),
    ):
        monkeypatch.setitem(TASKS, info.name, info)


def config(**settings: Any) -> dict[str, Any]:
    return Settings.of({"clients": 3, **settings}).run_config()


# By name ------------------------------------------------------------------------------------------


def test_the_task_that_is_named_is_the_one_that_is_loaded() -> None:
    assert load_task(config(task="ones", seed=7)).clients == ("0", "1", "2")
    ((setup, own),) = loaded
    assert setup == Setup.of({"task": "ones", "clients": 3, "partition": "shards", "seed": 7})
    assert own == {"noise": 0.5, "shift": 0, "kind": "plain", "folded": False}


def test_a_task_that_is_not_installed_is_refused_by_name() -> None:
    with pytest.raises(
        FairbloomError,
        match=r"task = 'quartz': unknown task: there are digits, .*, ones, files, and yours",
    ):
        load_task({**config(), "task": "quartz"})


def test_equal_settings_give_the_same_task() -> None:
    first = load_task(config(task="ones"))
    assert (
        load_task(config(task="ones", **{"learning-rate": 0.7, "method": "fedfv", "out": "x"}))
        is first
    )
    assert load_task(config(task="ones", **{"ones.noise": 0.1})) is not first
    assert load_task(config(task="ones", seed=1)) is not first


# Settings of a task's own -------------------------------------------------------------------------


def test_a_tasks_own_settings_reach_it_in_their_type() -> None:
    own = {"ones.noise": 1, "ones.shift": -4, "ones.kind": "bent", "ones.folded": True}
    load_task(config(task="ones", **own))
    assert loaded[0][1] == {"noise": 1.0, "shift": -4, "kind": "bent", "folded": True}
    assert [type(value) for value in loaded[0][1].values()] == [float, int, str, bool]


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("ones.noise", 2.1, "float in [0, 2]"),
        ("ones.noise", float("nan"), "float in [0, 2]"),
        ("ones.shift", 0.5, "int"),
        ("ones.kind", "round", "plain, bent or torn"),
        ("ones.folded", 1, "bool"),
    ],
)
def test_an_impossible_task_setting_is_refused_everywhere(
    key: str, value: Any, allowed: str
) -> None:
    with pytest.raises(FairbloomError) as of_settings:
        Settings.of({"task": "ones", key: value})
    with pytest.raises(FairbloomError) as of_load:
        load_task({**config(task="ones"), key: value})
    assert (
        str(of_settings.value) == str(of_load.value) == f"{key} = {value!r}: allowed is {allowed}"
    )


def test_another_tasks_settings_are_no_part_of_a_run() -> None:
    assert "ones.noise" not in config(task="digits")
    assert "digits.rotated-clients" not in config(task="ones", **{"digits.rotated-clients": 2})


# Its folder ---------------------------------------------------------------------------------------


def test_a_folder_that_the_task_does_not_read_is_refused() -> None:
    with pytest.raises(FairbloomError, match=r"data-dir = '/data': task digits"):
        Settings.of({"data-dir": "/data"})
    with pytest.raises(FairbloomError, match=r"data-dir = '/data': task digits"):
        load_task({**config(), "data-dir": "/data"})


@pytest.mark.parametrize(
    ("folder", "words"), [("", "by --data-dir, or"), ("/no/such", "'/no/such'")]
)
def test_a_missing_folder_matters_only_to_its_readers(folder: str, words: str) -> None:
    chosen = config(task="files", **{"data-dir": folder})
    task = load_task(chosen)
    assert task.model().weight.shape == (1, 1)
    for refuse in (lambda: check_data(RunSettings.of(chosen)), lambda: task.splits("0")):
        with pytest.raises(FairbloomError, match=words):
            refuse()
    assert not opened


def test_a_folder_may_be_named_by_its_home(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server needs the model alone, and the folders of deployed clients lie on their devices."""
    there = config(task="files", **{"data-dir": str(tmp_path)})
    check_data(RunSettings.of(there))
    assert len(load_task(there).splits("2").train) == 3
    assert loaded[-1][0].data_dir == str(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    check_data(RunSettings.of(config(task="files", **{"data-dir": f"~/{tmp_path.name}"})))


# Examples -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "partition", "clients", "shapes"),
    [
        ("adult", "phd", ("phd", "non-phd"), [(2, 99), (2,)]),
        ("adult", "education", CATEGORIES["education"], [(2, 99), (2,)]),
        (
            *("heart-disease", "hospital"),
            ("cleveland", "hungarian", "switzerland", "long-beach"),
            [(2, 13), (2,)],
        ),
        ("femnist", "dirichlet", tuple(f"client-{k:02}" for k in range(100)), [(62, 784), (62,)]),
    ],
)
def test_a_server_without_data_knows_clients_and_model(
    tmp_path: Path, name: str, partition: str, clients: tuple[str, ...], shapes: list[Any]
) -> None:
    task = made.load(name, tmp_path / "nowhere", partition=partition, model="logistic")
    assert task.clients == clients
    assert [tuple(value.shape) for value in task.model().state_dict().values()] == shapes


def test_the_scores_of_hospitals_are_known_without_data() -> None:
    assert [score.name for score in load_task({"task": "heart-disease"}).scores] == [
        "accuracy",
        "auc",
        "balanced-accuracy",
    ]


def test_chosen_examples_are_those_of_the_split(subtests: pytest.Subtests) -> None:
    inputs = torch.arange(10.0) * 2
    targets = torch.arange(10)
    whole = Examples(inputs, targets)
    part = Examples(inputs, targets, torch.tensor([7, 3, 5]))
    assert (len(whole), len(part)) == (10, 3)
    for examples, chosen, expected in (
        (whole, slice(2, 4), [2, 3]),
        (whole, torch.tensor([9, 0]), [9, 0]),
        (part, slice(0, 3), [7, 3, 5]),
        (part, slice(1, 9), [3, 5]),
        (part, torch.tensor([2, 0, 0]), [5, 7, 7]),
    ):
        with subtests.test(examples=examples, chosen=chosen):
            got, labels = examples[chosen]
            assert labels.tolist() == expected
            assert torch.equal(got, inputs[labels])
    assert whole[2:4][0].data_ptr() == inputs[2].data_ptr()  # not copied


def test_what_clients_share_is_moved_once() -> None:
    task = load_task(config(**{"digits.rotated-clients": 1})).to(torch.device("meta"))
    splits = [split for name in task.clients for split in task.splits(name)]
    assert {split.inputs.device.type for split in splits} == {"meta"}
    assert len({id(split.inputs) for split in splits}) == 2
    assert len({id(split.targets) for split in splits}) == 2
    assert task.splits(task.clients[0]) is task.splits(task.clients[0])


# What is shown of its data ------------------------------------------------------------------------


def test_sizes_of_splits_are_shown_by_default() -> None:
    assert describe_data(RunSettings.of(config(task="ones"))) == {
        "clients": [{"client": str(k), "train": k + 1, "test": 1} for k in range(3)]
    }


@pytest.mark.parametrize("info", TASKS.values())
def test_given_clients_are_not_counted_by_a_setting(info: TaskInfo) -> None:
    assert info.setup(RunSettings.of({"clients": 7})).clients == (0 if info.reads else 7)


def test_clients_and_model_have_defaults() -> None:
    assert TASKS["digits"].setup(RunSettings.of({})).clients == 20
    assert TASKS["csv"].setup(RunSettings.of({})).model == "logistic"
