"""A device sends no number of few rows, and reads its tables by schemas alone that its owner has
accepted."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from flwr.app import Context, RecordDict
from hypothesis import example, given, strategies as st
from torch import nn

from fairbloom.client.app import app
from fairbloom.client.gate import NOTED, OpenGate, hold_back
from fairbloom.client.guard.accepted_settings import SettingRefusedError, accepted_settings
from fairbloom.client.guard.disclosure import Gate
from fairbloom.client.guard.log_files import read_entries
from fairbloom.client.metrics import AFTER, ON_TESTS
from fairbloom.errors import FairbloomError
from fairbloom.server.app import app as server
from fairbloom.server.settings import Settings
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.tasks import Examples, Splits, Task, load_task
from tests.simulation.helpers import table
from tests.tables.helpers import SCHEMA as PLAIN, csv_of

from ..helpers import task_of
from ..hospital import PATIENTS, RUN, Device, grouped, write_hospital


@pytest.fixture
def device(tmp_path: Path) -> Device:
    write_hospital(tmp_path / "data")
    return Device(tmp_path)


# Floors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [1 / PATIENTS, 4 / PATIENTS])
def test_few_rows_of_tests_show_nothing_of_them(device: Device, share: float) -> None:
    assert device.evaluate(**{"test-share": share}) == {}


@pytest.mark.parametrize("share", [0.99, 0.995])
def test_few_training_rows_show_nothing_of_them(device: Device, share: float) -> None:
    with pytest.raises(FairbloomError, match=r"at least 5 training rows.*limits\.rows"):
        device.train(**{"test-share": share})
    assert "train-loss" not in device.evaluate("train-loss", **{"test-share": share})


@given(tests=st.integers(1, PATIENTS - 1), floor=st.integers(1, PATIENTS))
@example(tests=30, floor=PATIENTS - 30)
@example(tests=30, floor=30)
@example(tests=PATIENTS - 7, floor=50)
def test_a_number_of_examples_below_the_floor_stays(tests: int, floor: int) -> None:
    with TemporaryDirectory() as folder:
        write_hospital(Path(folder) / "data")
        device = Device(Path(folder), limit_rows=floor)
        split = {"test-share": tests / PATIENTS}
        about = device.ask("query", split, RecordDict())["client"]
        found = {"train": about, "test": device.evaluate(**split)}
        splits = load_task({**RUN, "data-dir": str(device.data), **split}).splits("lund")
        for part, numbers in found.items():
            rows = len(getattr(splits, part))
            assert numbers.get("num-examples") == (rows if rows >= floor else None), part
        query, evaluation = read_entries(device.state)
        assert bool(query.get("held-back")) == (len(splits.train) < floor)
        assert any("loss and scores of" in each for each in evaluation.get("held-back", ())) == (
            len(splits.test) < floor
        )


def test_scores_of_classes_need_five_rows_of_each(device: Device) -> None:
    few = device.evaluate(**{"test-share": 6 / PATIENTS, "seed": 1, "scores": "recall"})
    assert few.keys() == {"num-examples", "loss", "accuracy"}
    many = device.evaluate(**{"seed": 2, "scores": "recall", "smallest-group": 1})
    assert {"loss", "accuracy", "balanced-accuracy", "auc", "recall"} < many.keys()
    assert len([name for name in many if name.startswith("recall[class:")]) == 2


@given(
    counts=st.lists(st.integers(0, 7), min_size=2, max_size=4),
    floor=st.integers(1, 6),
    known=st.sampled_from(["number", "names"]),
)
@example(counts=[4, 3, 0], floor=3, known="number")
@example(counts=[4, 3, 0], floor=3, known="names")
@example(counts=[4, 3], floor=7, known="nothing")
@example(counts=[4, 3], floor=3, known="nothing")
@example(counts=[4, 3], floor=3, known="quantity")
@example(counts=[4, 0], floor=3, known="nothing")
def test_scores_of_classes_leave_if_each_has_enough_rows(
    counts: list[int], floor: int, known: str
) -> None:
    targets = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    if known == "quantity":
        targets = targets.double()
    examples = Examples(torch.zeros(len(targets), 1), targets)
    task = Task(
        ("lund",),
        nn.Identity,
        nn.CrossEntropyLoss(),
        lambda client: Splits(examples, examples),
        classes=len(counts) if known == "number" else None,
        class_names=tuple("abcd"[: len(counts)]) if known == "names" else (),
    )
    gate = Gate(floor, task, task.splits("lund"))
    passed = gate.pass_scores(ON_TESTS, {"loss": 1.0, "auc": 1.0})
    assert ("loss" in passed) == (sum(counts) >= floor)
    assert ("auc" in passed) == (min(counts) >= floor and known != "quantity")
    for check in (gate.check_training, lambda: gate.pass_scores(AFTER, {"loss": 1.0})):
        with nullcontext() if sum(counts) >= floor else pytest.raises(FairbloomError):
            check()


@pytest.mark.parametrize("name", [name for name in vars(OpenGate) if name[0] != "_"])
def test_a_device_decides_all_that_an_open_gate_passes(name: str) -> None:
    gate = Gate(
        5, task_of(nn.Identity()), Splits(*[Examples(torch.zeros(9, 1), torch.zeros(9))] * 2)
    )
    assert name in {**vars(Gate), **vars(gate)}


def test_the_owner_alone_changes_the_floor(tmp_path: Path) -> None:
    write_hospital(tmp_path / "data")
    asked = {"test-share": 10 / PATIENTS, "smallest-group": 1}
    assert "loss" in Device(tmp_path).evaluate(**asked)
    assert Device(tmp_path, limit_rows=20).evaluate(**asked) == {}
    assert "loss" in Device(tmp_path, limit_rows=1).evaluate(**{"test-share": 1 / PATIENTS})
    with pytest.raises(FairbloomError, match="at least 200 training rows"):
        Device(tmp_path, limit_rows=200).train(**{"test-share": 0.5})


@pytest.mark.parametrize("share", [0.02, 0.05, 0.2, 0.5, 0.9])
def test_groups_of_few_rows_are_held_back(device: Device, share: float) -> None:
    asked = {"schema": grouped("sex", "ward"), "smallest-group": 1}
    found = device.evaluate(**asked, **{"test-share": 0.5})
    assert {"count[sex:0]", "count[sex:1]"} <= found.keys()
    assert not any("ward" in name for name in found)  # three of the hospice
    for name, value in device.evaluate(**asked, **{"test-share": share}).items():
        assert not name.startswith(("count[", "positives[")) or value >= 5, (share, name)


def test_counts_of_fairfed_are_of_enough_rows_too(device: Device) -> None:
    names = ("positives-0", "positives-1", "hits-0", "hits-1")
    asked = {"schema": grouped("sex"), "smallest-group": 1}
    few = device.train(*names, **asked, **{"test-share": 0.95})
    assert [few[name] for name in names] == [0, 0, 0, 0]
    enough = device.train(*names, **asked, **{"test-share": 0.1})
    assert min(enough["positives-0"], enough["positives-1"]) >= 5


def test_a_device_with_few_rows_is_listed_without_scores(tmp_path: Path) -> None:
    asked = Settings.of(
        {
            **RUN,
            "schema": f"groups = ['ward']\n{PLAIN}",
            "clients": 2,
            "num-rounds": 2,
            "out": str(tmp_path / "run"),
        }
    )
    grid = InProcessGrid(app, accepted_settings(asked.run_config()), 2)
    for context, (name, rows) in zip(
        grid.contexts.values(), {"lund": 60, "oslo": 20}.items(), strict=True
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.csv").write_text(csv_of(rows, rows))
        context.node_config = {"partition-id": 0, "name": name, "data-dir": str(tmp_path / name)}
    server(grid, Context(1, 1, {}, RecordDict(), asked.run_config()))
    rows = {row["client"]: row for row in table(tmp_path / "run" / "clients.csv")}
    assert float(rows["lund"]["test_accuracy_of_global_model"]) > 0.0
    assert (
        rows["oslo"]["test_accuracy_of_global_model"],
        rows["oslo"]["test_loss_of_global_model"],
    ) == ("", "")
    assert (rows["lund"]["test_examples"], rows["oslo"]["test_examples"]) == ("12", "")
    assert not any(row["refused"] for row in table(tmp_path / "run" / "rounds.csv"))


def hostile() -> Iterator[dict[str, Any]]:
    """Yield settings by which a run may try to see single rows."""
    for share in (0.004, 0.02, 0.1, 0.5, 0.98, 0.995):
        for more in (
            {},
            {"validation-share": 0.004},
            {"schema": grouped("sex", "age>=30"), "smallest-group": 1},
        ):
            yield {"test-share": share, "scores": "f1,sensitivity,specificity,brier", **more}


def test_hostile_settings_show_no_few_rows(device: Device, subtests: pytest.Subtests) -> None:
    """What each number is behind is worked out in process from the file."""
    answered = 0
    for settings in hostile():
        with subtests.test(settings=settings):
            run = Settings.of({**RUN, "data-dir": str(device.data), **settings})
            try:
                splits = load_task(run).splits("lund")
                metrics = device.evaluate("train-loss", **settings)
            except FairbloomError:
                continue
            parts = {"": splits.test, "-validation": splits.validation}
            for name in metrics:
                answered += 1
                part = (
                    splits.train
                    if name.startswith("train")
                    else parts["-validation" if "-validation" in name else ""]
                )
                assert part is not None
                assert len(part) >= 5, (settings, name)
                if "[" in name and name.startswith("count"):
                    assert metrics[name] >= 5, (settings, name)
    assert answered > 25


# Schemas ------------------------------------------------------------------------------------------


def test_a_device_takes_the_text_of_a_schema_and_no_place(tmp_path: Path) -> None:
    config = {**Settings.of(RUN).run_config(), "schema": "/etc/passwd"}
    with pytest.raises(SettingRefusedError, match="schema = '/etc/passwd'"):
        accepted_settings(config)
    context = Context(1, 2, {"partition-id": 0, "data-dir": str(tmp_path)}, RecordDict(), config)
    with pytest.raises(FairbloomError, match="needs the text of a schema") as refusal:
        load_task({**context.run_config, "deployed": True})
    assert "root" not in str(refusal.value)


def test_a_reply_notes_each_reason_once() -> None:
    token = NOTED.set({})
    try:
        for words in ("a", "b", "a"):
            hold_back(words)
        assert NOTED.get() == {"held-back": ["a", "b"]}
    finally:
        NOTED.reset(token)
