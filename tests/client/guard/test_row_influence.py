"""No settings make a device send a model that shows a single row, as far as limits can."""

import math
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import example, given, strategies as st
from torch import nn

from fairbloom.client.guard.disclosure import Gate, guarded
from fairbloom.client.guard.limits import DEFAULT_MIN_ROWS
from fairbloom.client.local import LocalClient
from fairbloom.client.local_round import evaluate_client, own_work, train_client
from fairbloom.client.plan import global_work
from fairbloom.client.work import LocalWork, batches
from fairbloom.errors import FairbloomError, ReportableError
from fairbloom.experiments.recipe import FOLDER, load_recipe
from fairbloom.protocol.terms import Terms
from fairbloom.server.settings import Settings
from fairbloom.tasks import Examples, Splits, Task, load_task

from ..hospital import PATIENTS, RUN, SCHEMA, write_hospital

# Rows to train on.
TRAINED = PATIENTS * 4 // 5


class Attack(NamedTuple):
    """Settings and terms, and a part of the refusal."""

    settings: dict[str, Any]
    terms: dict[str, Any]
    refusal: str


DECAY = {"weight-decay": 1000.0, "learning-rate": 0.001}
FORGETS = r"0\.001 × \((1000 \+ 0|0 \+ 1000)\) / 1 = 1 is above 0\.5"
ENDED = r"after 1 of its steps with batch-size = 1, is of 1 training rows, and 5 rows"

# Each makes the update the gradient of one row.
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
    "a time budget": Attack({"batch-size": 1, "time-budget": 1e-9}, {}, "that a time-budget needs"),
    "one step": Attack({"batch-size": 1}, {"local_steps": 1}, ENDED),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hospital")
    write_hospital(folder)
    return folder


def client(data: Path, min_rows: int, **settings: Any) -> LocalClient:
    """Return a device's client, with an order of rows that follows from the run's seed alone.

    Whether one row can be read depends on the row; a secret's would be another in each run.
    """
    asked = Settings.of({**RUN, "data-dir": str(data), **settings})
    order = f"order {asked.run_config()['seed']}"
    return guarded(LocalClient.of(asked, 0), min_rows, order=order)


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
    work = own_work(local, global_work(local.settings, terms), terms)
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


def test_two_models_of_a_round_differ_by_enough_rows(data: Path) -> None:
    """DRFA's snapshot and final model: with few rows in a batch, they are refused."""
    local = client(data, 5, **{"batch-size": 5})
    received = local.model.state_dict()
    last = -(-TRAINED // 5)
    for steps, snapshot in ((last, 1), (last - 1, last - 2), (20, 20), (2 * last + 1, last)):
        assert train_client(
            local, received, Terms(server_round=1, local_steps=steps, snapshot_step=snapshot)
        ).second
    few = client(data, 5, **{"batch-size": 4})
    with pytest.raises(
        ReportableError, match=r"batch-size = 4 is below the 5 rows.* that a snapshot"
    ):
        train_client(few, received, Terms(server_round=1, local_steps=9, snapshot_step=3))


@pytest.mark.parametrize("own", [1, 7])
def test_batches_below_the_floor_stay_as_they_are(data: Path, own: int) -> None:
    """Other limits are for them."""
    local = client(data, 5, **{"batch-size": 3, "smallest-batch": own})
    terms = Terms(server_round=1)
    work = own_work(local, global_work(local.settings, terms), terms)
    assert [len(each) for each in batches(TRAINED, work)][-2:] == [3, TRAINED % 3]


@given(batch=st.integers(5, TRAINED), own=st.sampled_from([1, 7]))
def test_each_step_is_of_enough_rows(data: Path, batch: int, own: int) -> None:
    """A run's smallest-batch may be larger than the owner's rows."""
    local = client(data, 5, **{"batch-size": batch, "smallest-batch": own})
    terms = Terms(server_round=1)
    work = own_work(local, global_work(local.settings, terms), terms)
    assert min(map(len, batches(TRAINED, work))) >= min(max(5, own) if batch >= own else 5, batch)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("size", [319, 11, 29])
def test_just_below_the_limit_no_row_can_be_read(tmp_path: Path, size: int, seed: int) -> None:
    write_north(tmp_path)
    assert 320 % size == 1
    settings = {"batch-size": size, "weight-decay": 499.0, "learning-rate": 0.001}
    local = client(tmp_path, 5, seed=seed, schema=NORTH, **settings)
    assert read_row(local, Terms(server_round=1), 0.501 ** -(-320 // size)) > 0.2


def write_north(folder: Path) -> None:
    """Write the hospital "north" of the tutorial, whose patients a model can tell apart."""
    random = np.random.default_rng(0)
    age = random.normal(60, 10, 400).round()
    pressure = random.normal(130, 15, 400).round()
    smokes = random.random(400) < 0.5
    risk = (age - 60) / 10 + 1.5 * (pressure - 130) / 15 + smokes + random.normal(0, 0.5, 400)
    table = np.column_stack([age, pressure, smokes, risk > 0.5])
    np.savetxt(
        folder / "north.csv", table, "%d", ",", header="age,pressure,smoker,target", comments=""
    )


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
    assert is_refused(learning_rate=1.1) == is_refused(learning_rate=math.nan) == (floor > 1)
    assert is_refused(replace(PLAIN, snapshot_step=1)) == (max(sizes) < floor)
    assert is_refused(steep(101.0)) == of_few
    assert not is_refused(steep(100.0))
    assert not is_refused(replace(PLAIN, propfair_baseline=1e9))
    for number in range(len(sizes) + 2):
        is_shown = 0 < sum(sizes[:number]) < floor
        with pytest.raises(ReportableError) if is_shown else nullcontext():
            gate.check_steps(work, number, nn.Identity())


# Steps of few rows that are much larger than the others ------------------------------------------

LARGE: dict[str, Any] = {"learning-rate": 1e4, "batch-size": TRAINED - 1}


def test_a_large_rate_shows_the_last_row_of_a_regression(data: Path) -> None:
    of_quantity = SCHEMA.replace('target = "target"', 'target = "chol"').replace(
        "[fields.chol]", "[fields.chol]\ncenter = 240.0\nscale = 35.0"
    )
    settings = {**LARGE, "schema": of_quantity}
    assert read_row(client(data, 1, **settings), Terms(server_round=1)) < 1e-3
    local = client(data, 5, **settings)
    with pytest.raises(ReportableError, match=r"learning-rate = 10000 is above 1, and single rows"):
        train_client(local, local.model.state_dict(), Terms(server_round=1))


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.toml")), ids=lambda path: path.stem)
def test_no_published_recipe_is_refused_by_devices(path: Path) -> None:
    """Of sites with 40 or 400 rows to train on, at the owner's defaults."""
    any_task = load_task(Settings.of({}).run_config())
    recipe = load_recipe(str(path))
    for row in recipe.rows:
        settings = Settings.of({**recipe.settings, **row.settings})
        terms = settings.strategy().terms(1)
        work = global_work(settings, terms)
        for count in (40, 400):
            examples = Examples(torch.zeros(count, 1), torch.zeros(count))
            gate = Gate(DEFAULT_MIN_ROWS, any_task, Splits(examples, examples))
            small = 0 < work.batch_size < DEFAULT_MIN_ROWS
            gate.check_work(replace(work, smallest_batch=1 if small else DEFAULT_MIN_ROWS), terms)


@pytest.mark.parametrize("attack", [name for name, each in ATTACKS.items() if not each.terms])
@pytest.mark.parametrize(
    "own", [{"fine_tune_epochs": 1}, {"personal_lambda": 1.0, "personal_epochs": 1}]
)
def test_models_that_stay_are_of_enough_rows_too(
    data: Path, attack: str, own: dict[str, Any]
) -> None:
    """Their losses and scores leave."""
    local = client(data, 5, **ATTACKS[attack].settings)
    terms = Terms(server_round=1, **own)
    received = {name: each.clone() for name, each in local.model.state_dict().items()}
    ask = evaluate_client if "fine_tune_epochs" in own else train_client
    with pytest.raises(ReportableError, match=ATTACKS[attack].refusal):
        ask(local, received, terms)


@pytest.mark.parametrize(("share", "refused"), [(0.985, True), (0.2, False)])
def test_a_model_that_stays_needs_the_rows_of_one_that_leaves(
    data: Path, share: float, refused: bool
) -> None:
    local = client(data, 5, **{"test-share": share})
    terms = Terms(server_round=1, fine_tune_epochs=1)
    with pytest.raises(FairbloomError, match="training rows") if refused else nullcontext():
        assert "loss-personal" in evaluate_client(local, local.model.state_dict(), terms)


def test_steps_that_differ_by_one_have_another_order(data: Path) -> None:
    """Else the difference of two messages of a round is the gradient of one row."""
    local = client(data, 5, **{"batch-size": 1})
    orders = []
    for steps in (20, 21):
        terms = Terms(server_round=1, local_steps=steps)
        work = own_work(local, global_work(local.settings, terms), terms)
        orders.append([int(each) for each in batches(TRAINED, work)])
    assert orders[0] != orders[1][:20]
    again = Terms(server_round=1, local_steps=20)
    work = own_work(local, global_work(local.settings, again), again)
    assert [int(each) for each in batches(TRAINED, work)] == orders[0]
