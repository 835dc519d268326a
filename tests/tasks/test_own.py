"""A user's own task, named by an import string: run, compared, checked."""

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fairbloom.errors import FairbloomError
from fairbloom.experiments.api import compare, load
from fairbloom.experiments.results.presentation import page_of
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from fairbloom.tasks import Examples, Setup, Splits, Task, find_task, load_task
from fairbloom.tasks.checks import guard_task
from fairbloom.tasks.task import is_highest
from tests.simulation.helpers import table
from tests.tables.helpers import refused_with

from . import mine

LINE = f"{mine.__name__}:line"
WARDS = f"{mine.__name__}:Wards"


def settings(**given: Any) -> Settings:
    return Settings.of(
        {"num-rounds": 5, "device": "cpu"}
        | {key.replace("_", "-"): value for key, value in given.items()}
    )


# A function, and a class --------------------------------------------------------------------------


def test_a_functions_settings_are_its_keyword_parameters() -> None:
    info = find_task(LINE)
    assert info.name == "line"
    assert info.summary == "Points on a line, a line for each client."
    assert [(each.key, each.default, each.description) for each in info.settings] == [
        ("line.noise", 0.1, "Standard deviation of the targets."),
        ("line.slope", 2, "Slope of the line."),
        ("line.bent", False, "Whether it is a parabola."),
    ]


def test_a_regression_of_ones_own_is_run_by_its_measures(tmp_path: Path) -> None:
    run = simulate(settings(task=LINE, clients=4, out=str(tmp_path / "run"), **{"line.noise": 0.5}))
    rows = table(run / "clients.csv")
    first = rows[0]
    last = rows[-1]
    assert {"test_mae_of_global_model", "test_r2_of_global_model"} < set(first)
    assert "test_accuracy_of_global_model" not in first
    assert float(first["test_mae_of_global_model"]) > 0.0
    assert float(last["test_r2_of_global_model"]) < 1.0
    scores = json.loads((run / "scores.json").read_text())
    assert [(each["name"], each["higher_is_better"]) for each in scores] == [
        ("mae", False),
        ("r2", True),
    ]


def test_a_class_with_a_measure_of_its_own_is_run_by_it(tmp_path: Path) -> None:
    run = simulate(settings(task=WARDS, out=str(tmp_path / "run"), **{"wards.apart": 4}))
    rows = table(run / "clients.csv")
    assert {row["client"] for row in rows} == {"east", "north", "west"}
    assert float(rows[-1]["test_recall_of_global_model"]) > 50.0


def test_only_those_who_are_drawn_or_evaluated_load_their_data(tmp_path: Path) -> None:
    mine.asked.clear()
    simulate(
        settings(
            task=LINE,
            clients=30,
            fraction=0.1,
            evaluate_every=0,
            num_rounds=1,
            out=str(tmp_path / "a"),
        )
    )
    assert len(mine.asked) == len(set(mine.asked))  # each once
    mine.asked.clear()
    task = load_task(settings(task=LINE, clients=30, seed=7).run_config()).to(torch.device("cpu"))
    assert mine.asked == []
    task.splits("line-3")
    task.splits("line-3")
    assert mine.asked == ["line-3"]


# What is wrong with it ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "given", "words"),
    [
        ("no_such_module:task", {}, ("task = 'no_such_module:task'", "no module no_such_module")),
        (f"{mine.__name__}:lines", {}, ("has no lines", "line, recall, Wards")),
        (f"{mine.__name__}:number", {}, ("it is a int",)),
        (
            f"{mine.__name__}:nothing",
            {},
            ("the task is a NoneType without clients, model, loss, splits",),
        ),
        (f"{mine.__name__}:without_default", {}, ("its parameter share",)),
        (f"{mine.__name__}:of_lists", {}, ("parameter sizes",)),
        (LINE, {"line.nose": 1}, ("line.nose = 1", "line.noise")),
        (LINE, {"line.noise": "loud"}, ("line.noise = 'loud'", "float")),
        (LINE, {"line.bent": 1}, ("line.bent = 1", "bool")),
    ],
)
def test_what_is_wrong_with_a_task_is_said_before_it_is_run(
    task: str, given: dict[str, Any], words: tuple[str, ...]
) -> None:
    with refused_with(*words):
        load_task(settings(task=task, **given).run_config())


X = torch.randn(6, 3)
Y = torch.arange(6) % 2
GOOD = Examples(X, Y)

BROKEN: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (GOOD, ("splits('site')", "got Examples")),
    ((X, Y), ("splits('site')", "got Splits of Tensor")),
    (
        Splits(Examples(X.double(), Y), GOOD),
        ("training examples of client site", "float64", ".float()"),
    ),
    (
        Splits(GOOD, Examples(X, Y.int())),
        ("test examples of client site", "torch.int32", "targets.long()"),
    ),
    (Splits(Examples(X.numpy(), Y), GOOD), ("inputs must be a torch.Tensor, got ndarray",)),  # type: ignore[arg-type]
    (
        Splits(Examples(X.clone().index_fill(0, torch.tensor(4), torch.nan), Y), GOOD),
        ("inputs hold NaN", "in row 4"),
    ),
    (Splits(GOOD, Examples(X, X[:, 0] / 0)), ("targets hold NaN or infinite", "in row 0")),
    (Splits(GOOD, Examples(X[:0], Y[:0])), ("test examples of client site: there are none",)),
    (
        Splits(GOOD, Examples(X, Y, torch.arange(0))),
        ("test examples of client site: there are none",),
    ),
    (Splits(GOOD, Examples(X, Y[:5])), ("6 inputs and 5 targets",)),
    (
        Splits(GOOD, Examples(X, Y, torch.tensor([0, 6]))),
        ("rows must be torch.int64 from 0 to 5", "got 1 of 2 outside"),
    ),
    (
        Splits(GOOD, Examples(X, Y, torch.tensor([True, False]))),
        ("rows must be torch.int64", "got torch.bool"),
    ),
    (Splits(GOOD, Examples(torch.tensor(1.0), Y)), ("inputs", "got a single number")),
)


def task_with(made: Any, **others: Any) -> Task:
    loss = partial(cross_entropy, reduction="none")
    plain = Task(("site",), lambda: torch.nn.Linear(3, 2), loss, lambda client: made)
    return guard_task("hers:task", replace(plain, **others))


@pytest.mark.parametrize(("made", "words"), BROKEN)
def test_faulty_examples_are_named_with_client_and_remedy(
    made: Any, words: tuple[str, ...]
) -> None:
    with refused_with("task = 'hers:task': ", *words):
        task_with(made).splits("site")


def test_float64_fits_a_float64_model_and_integers_are_inputs() -> None:
    made = Splits(Examples(X.double(), Y), Examples(X.double(), Y))
    assert task_with(made, model=lambda: torch.nn.Linear(3, 2).double()).splits("site") == made
    tokens = Splits(Examples(Y, Y), Examples(Y, Y))
    assert task_with(tokens).splits("site") == tokens


@pytest.mark.parametrize(
    ("loss", "shape"),
    [
        (cross_entropy, "()"),
        (lambda outputs, targets: (outputs[:, :1] - targets) ** 2, "(6, 6)"),
    ],
)
def test_a_loss_that_is_not_of_each_example_is_said(loss: Any, shape: str) -> None:
    task = task_with(Splits(GOOD, GOOD), loss=loss)
    with refused_with("its loss", "6 examples", f"got shape {shape}", "reduction='none'"):
        task.loss(torch.zeros(6, 2), Y)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"clients": ()}, "no clients"),
        ({"clients": ("a", "a")}, "'a'"),
        ({"clients": ("a", 3)}, "3"),
        ({"clients": ("",)}, "''"),
        ({"clients": "ward"}, "clients = 'ward'"),
        ({"class_names": "no"}, "class_names = 'no'"),
        ({"groupings": {"sex": "mf"}}, "groupings['sex'] = 'mf'"),
    ],
)
def test_clients_classes_and_groups_need_names(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(FairbloomError, match=re.escape(words)):
        task_with(Splits(GOOD, GOOD), **wrong)


def test_clients_may_be_a_list() -> None:
    listed = mine.Wards(Setup.of({"clients": 1}))
    listed.clients = ["east"]  # type: ignore[assignment]
    assert guard_task("hers:Wards", Task.of(listed)).clients == ("east",)


def test_one_bad_client_of_an_own_task_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: mine.Wards, client: str) -> Splits:
        made = splits(self, client)
        return (
            made
            if client != "west"
            else Splits(made.train, Examples(made.test.inputs * torch.nan, made.test.targets))
        )

    splits = mine.Wards.splits
    monkeypatch.setattr(mine.Wards, "splits", broken)
    run = simulate(
        settings(task=WARDS, seed=5, fraction=1.0, num_rounds=2, out=str(tmp_path / "run"))
    )
    assert {row["client"] for row in table(run / "clients.csv") if row["test_examples"]} == {
        "east",
        "north",
    }
    assert "the test examples of client west: inputs hold NaN" in caplog.text


PAIRS = torch.utils.data.TensorDataset(X, Y)
HALF = torch.arange(3)


@pytest.mark.parametrize(
    ("train", "test", "same"),
    [
        (GOOD, GOOD, True),
        (GOOD, Examples(X.clone(), Y.clone()), True),
        (GOOD, Examples(X, Y, torch.arange(6).flip(0)), True),
        (GOOD, Examples(X, 1 - Y), False),
        (GOOD, Examples(X + 1.0, Y), False),
        (GOOD, Examples(X, Y, torch.zeros(6, dtype=torch.int64)), False),
        (Examples(X, Y, HALF), Examples(X, Y, HALF + 3), False),
        (GOOD, Examples(X, Y, HALF), False),
        (Examples.of(PAIRS), Examples.of(PAIRS, rows=torch.arange(6).flip(0)), True),
        (Examples.of(PAIRS, rows=HALF), Examples.of(PAIRS, rows=HALF + 3), False),
        (Examples.of(PAIRS), GOOD, False),
    ],
)
def test_the_same_training_and_test_examples_are_said_once(
    train: Any, test: Any, same: bool, caplog: pytest.LogCaptureFixture
) -> None:
    task = task_with(Splits(train, test), clients=("a", "b"))
    for client in ("b", "a", "b"):
        task.splits(client)
    assert [*task.tested_on_training()] == (["b", "a"] if same else [])
    assert caplog.text.count("b tests on its training examples") == len(caplog.messages) == same


def test_a_test_on_training_examples_is_in_the_headline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def splits(self: mine.Wards, client: str) -> Splits:
        made = plain(self, client)
        return Splits(made.train, made.train if client == "west" else made.test)

    plain = mine.Wards.splits
    monkeypatch.setattr(mine.Wards, "splits", splits)
    simulate(settings(task=WARDS, num_rounds=1, out=str(tmp_path / "runs/a")))
    said = "west is tested on training examples"
    assert said in page_of(load(tmp_path / "runs/a")).headline
    compared = compare(runs=[tmp_path / "runs/a"], out=tmp_path / "all", progress=False)
    assert said in compared.verdict.headline


# Tasks without agreement --------------------------------------------------------------------------


def test_a_task_is_a_task_or_anything_with_its_attributes() -> None:
    made = mine.Wards(Setup.of({"clients": 3, "partition": "iid", "seed": 1}))
    task = Task.of(made)
    assert task.clients == ("east", "north", "west")
    assert task.score.name == "recall"
    assert Task.of(task) is task
    assert list(Task(("a",), made.model, made.loss, made.splits).scores.values()) == [is_highest]
    assert np.isfinite(mine.recall(torch.zeros(2, 2), torch.tensor([1, 0])))
