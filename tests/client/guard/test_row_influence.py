"""No settings make a device send a model that shows a single row, as far as limits can."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import example, given, strategies as st
from torch import nn

from fairbloom.client.guard.disclosure import Gate
from fairbloom.client.local import LocalClient
from fairbloom.client.local_round import train_client
from fairbloom.client.plan import global_work, work_of_client
from fairbloom.client.training import batches
from fairbloom.client.work import LocalWork
from fairbloom.errors import ReportableError
from fairbloom.protocol.terms import Terms
from fairbloom.server.settings import Settings
from fairbloom.tasks import Examples, Splits, Task

from ..hospital import PATIENTS, RUN, SCHEMA, write_hospital

TRAINED = PATIENTS * 4 // 5
"""Rows to train on."""


class Attack(NamedTuple):
    """Settings and terms, and a part of the refusal."""

    settings: dict[str, Any]
    terms: dict[str, Any]
    refusal: str


DECAY = {"weight-decay": 1000.0, "learning-rate": 0.001}
FORGETS = r"0\.001 × \((1000 \+ 0|0 \+ 1000)\) / 1 = 1 is above 0\.5"
ENDED = r"of 1 training rows, and 5 are needed.*after 1 of its steps with batch-size = 1"

ATTACKS = {
    "weight decay": Attack({"batch-size": 1, **DECAY}, {}, FORGETS),
    "a last batch of one row": Attack({"batch-size": TRAINED - 1, **DECAY}, {}, FORGETS),
    "another last batch of one row": Attack({"batch-size": 9, **DECAY}, {}, FORGETS),
    "FedProx": Attack({"batch-size": 1, "learning-rate": 0.001}, {"proximal_mu": 1000.0}, FORGETS),
    "FedDyn": Attack(
        {"batch-size": 1, "learning-rate": 0.001},
        {"dynamic_alpha": 1000.0, "state_round": 0},
        FORGETS,
    ),
    "a time budget": Attack({"batch-size": 1, "time-budget": 1e-9}, {}, ENDED),
    "one step": Attack({"batch-size": 1}, {"local_steps": 1}, ENDED),
}
"""Each makes the update the gradient of one row."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hospital")
    write_hospital(folder)
    return folder


def client(data: Path, min_rows: int, **settings: Any) -> LocalClient:
    config = {**RUN, "data-dir": str(data), **settings}
    return LocalClient.of(Settings.of(config), 0, min_rows=min_rows)


def read_row(local: LocalClient, terms: Terms, keep: float = 1.0) -> float:
    """Return by how much a reading of the last step's row is wrong, in standard deviations.

    The reading is that of a client's update of logistic regression as if the row were alone: the
    gradients of weights and biases differ by the factor of the row's values. `keep` is the part of
    the received model that is left in the update.
    """
    received = {name: array.clone() for name, array in local.model.state_dict().items()}
    update = train_client(local, received, terms)
    weight, bias = (
        update.arrays[name].double() - keep * array.double() for name, array in received.items()
    )
    reading = weight[0] / bias[0]
    work = work_of_client(global_work(local.settings, terms), local.settings, terms, local.key)
    order = list(batches(len(local.splits.train), work))
    steps = work.steps or len(order)
    row = local.splits.train[order[0 if steps == 1 or work.time_budget < 1.0 else -1]][0][0]
    return float((reading - row).norm())


@pytest.mark.parametrize("attack", ATTACKS)
def test_settings_that_show_one_row_are_refused(data: Path, attack: str) -> None:
    settings, terms, refusal = ATTACKS[attack]
    asked = Terms(server_round=1, **terms)
    keep = 0.0 if "weight-decay" in settings else 1.0
    assert read_row(client(data, 1, **settings), asked, keep) < 1e-3  # what the floor prevents
    with pytest.raises(ReportableError, match=refusal):
        train_client(client(data, 5, **settings), client(data, 5).model.state_dict(), asked)


def test_a_snapshot_after_few_rows_does_not_leave(data: Path) -> None:
    terms = Terms(server_round=1, local_steps=20, snapshot_step=1)
    with pytest.raises(ReportableError, match=r"the snapshot is of 2 .* after 1 of its steps"):
        train_client(
            client(data, 5, **{"batch-size": 2}), client(data, 5).model.state_dict(), terms
        )
    later = Terms(server_round=1, local_steps=20, snapshot_step=3)
    local = client(data, 5, **{"batch-size": 2})
    assert train_client(local, local.model.state_dict(), later).second


def test_just_below_the_limit_no_row_can_be_read(tmp_path: Path, subtests: pytest.Subtests) -> None:
    write_north(tmp_path)
    for size in (319, 11, 29):
        assert 320 % size == 1
        for seed in range(4):
            with subtests.test(size=size, seed=seed):
                settings = {"batch-size": size, "weight-decay": 499.0, "learning-rate": 0.001}
                local = client(tmp_path, 5, seed=seed, schema=NORTH, **settings)
                left = 0.501 ** -(-320 // size)
                assert read_row(local, Terms(server_round=1), left) > 0.2


def write_north(folder: Path) -> None:
    """Write the hospital "north" of the tutorial, whose patients a model can tell apart."""
    random = np.random.default_rng(0)
    age = random.normal(60, 10, 400).round()
    pressure = random.normal(130, 15, 400).round()
    smokes = random.random(400) < 0.5
    risk = (age - 60) / 10 + 1.5 * (pressure - 130) / 15 + smokes + random.normal(0, 0.5, 400)
    table = np.column_stack([age, pressure, smokes, risk > 0.5])
    path = folder / "north.csv"
    np.savetxt(path, table, "%d", ",", header="age,pressure,smoker,target", comments="")


NORTH = """
target = "target"
[fields.age]
type = "number"
[fields.pressure]
type = "number"
[fields.smoker]
type = "number"
[fields.target]
type = "integer"
categories = [0, 1]
"""


def test_momentum_counts_for_sgd_but_not_for_adamw(data: Path) -> None:
    settings = {"learning-rate": 0.01, "weight-decay": 10.0}
    local = client(data, 5, optimizer="adamw", **settings)
    assert train_client(local, local.model.state_dict(), Terms(server_round=1)).arrays
    fast = client(data, 5, momentum=0.9, **settings)
    with pytest.raises(ReportableError, match=r"0\.01 × \(10 \+ 0\) / 0\.1 = 1 is above 0\.5"):
        train_client(fast, fast.model.state_dict(), Terms(server_round=1))


PLAIN = Terms(server_round=1)


@given(rows=st.integers(1, 40), batch=st.integers(0, 45), floor=st.integers(1, 10))
@example(rows=12, batch=2, floor=2)
@example(rows=12, batch=5, floor=5)
def test_steps_of_fewer_rows_than_the_floor_have_limits(rows: int, batch: int, floor: int) -> None:
    examples = Examples(torch.zeros(rows, 1), torch.zeros(rows))
    task = Task(("lund",), nn.Identity, nn.MSELoss(), lambda client: Splits(examples, examples))
    gate = Gate(floor, task, task.splits("lund"))
    work = LocalWork(1, batch, 1.0, random=np.random.default_rng(0))
    sizes = [len(each) for each in batches(rows, work)]

    def is_refused(terms: Terms = PLAIN, **changes: Any) -> bool:
        try:
            gate.check_work(replace(work, **changes), terms)
        except ReportableError:
            return True
        return False

    def steep(ratio: float) -> Terms:
        return Terms(server_round=1, propfair_baseline=ratio, propfair_epsilon=1.0)

    of_few = min(sizes) < floor
    assert not is_refused(weight_decay=0.05)
    assert is_refused(weight_decay=0.06) == is_refused(weight_decay=0.5) == (max(sizes) < floor)
    assert is_refused(weight_decay=0.6) == (floor > 1)
    assert not is_refused(weight_decay=0.6, idle=True)
    assert is_refused(learning_rate=1.1) == of_few
    assert is_refused(steep(101.0)) == of_few
    assert not is_refused(steep(100.0))
    assert not is_refused(replace(PLAIN, propfair_baseline=1e9))
    for number in range(len(sizes) + 2):
        snapshot = replace(PLAIN, snapshot_step=number)
        for steps, terms in ((number, PLAIN), (len(sizes), snapshot)):
            seen = {sum(sizes[:each]) for each in (steps, number)}
            is_shown = any(0 < each < floor for each in seen)
            with pytest.raises(ReportableError) if is_shown else nullcontext():
                gate.check_steps(work, terms, steps, nn.Identity())


# Steps of few rows that are much larger than the others ------------------------------------------

LARGE: dict[str, Any] = {"learning-rate": 1e4, "batch-size": TRAINED - 1}


def test_a_large_rate_shows_the_last_row_of_a_regression(data: Path) -> None:
    of_quantity = SCHEMA.replace('target = "target"', 'target = "chol"').replace(
        "[fields.chol]", "[fields.chol]\ncenter = 240.0\nscale = 35.0"
    )
    settings = {**LARGE, "schema": of_quantity}
    assert read_row(client(data, 1, **settings), Terms(server_round=1)) < 1e-3
    local = client(data, 5, **settings)
    with pytest.raises(ReportableError, match=r"learning-rate = 10000 is above 1, and a step here"):
        train_client(local, local.model.state_dict(), Terms(server_round=1))
