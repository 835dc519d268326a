"""Where examples have units, persons say, the owner's floor counts different units, not rows."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import example, given, strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fairbloom.client.group_metrics import measure_groups
from fairbloom.client.guard.disclosure import Gate
from fairbloom.client.local import LocalClient
from fairbloom.client.local_round import own_work
from fairbloom.client.metrics import AFTER, ON_TESTS
from fairbloom.client.plan import global_work
from fairbloom.client.training import measure
from fairbloom.client.work import LocalWork, batches
from fairbloom.errors import FairbloomError, ReportableError
from fairbloom.protocol.names import NUM_EXAMPLES
from fairbloom.protocol.scores import GroupScore
from fairbloom.protocol.terms import Terms
from fairbloom.simulation.stacked.batched_metrics import measure_clients
from fairbloom.tasks import Examples, Splits, Task
from fairbloom.tasks.pooled import join
from fairbloom.tasks.task import is_highest

from ..helpers import run_config

SOME_UNITS = st.lists(st.integers(0, 6), min_size=1, max_size=30)


def of_units(units: Sequence[int], targets: Tensor | None = None) -> Examples:
    count = len(units)
    chosen = torch.zeros(count, dtype=torch.int64) if targets is None else targets
    return Examples(torch.zeros(count, 1), chosen, units=np.array(units))


def task_of(examples: Examples) -> Task:
    return Task(
        ("lund",),
        nn.Identity,
        nn.CrossEntropyLoss(),
        lambda client: Splits(examples, examples),
        classes=2,
    )


@given(units=SOME_UNITS, fewest=st.integers(0, 8))
@example(units=[3, 3, 3, 1], fewest=2)
def test_so_many_rows_are_of_so_many_units(units: list[int], fewest: int) -> None:
    """Whichever they are; of one row less, some choice has fewer units."""
    rows = of_units(units).rows_of_units(fewest)
    by_size = sorted(units, key=lambda unit: (-units.count(unit), unit))
    if rows <= len(units):
        assert len({*by_size[:rows]}) >= fewest
    assert len({*by_size[: rows - 1]}) < max(fewest, 1)
    assert Examples(torch.zeros(3, 1), torch.zeros(3)).rows_of_units(fewest) == fewest


@given(units=SOME_UNITS, floor=st.integers(1, 6), classes=st.data())
@example(units=[1] * 20, floor=2, classes=None)
def test_numbers_leave_if_they_are_of_enough_units(
    units: list[int], floor: int, classes: st.DataObject | None
) -> None:
    drawn = [place % 2 for place in range(len(units))]
    if classes is not None:
        drawn = classes.draw(st.lists(st.integers(0, 1), min_size=len(units), max_size=len(units)))
    task = task_of(of_units(units, torch.tensor(drawn)))
    gate = Gate(floor, task, task.splits("lund"))
    enough = len({*units}) >= floor
    counted = {NUM_EXAMPLES: len(units)} if enough else {}
    assert gate.pass_count("train", task.splits("lund").train) == counted
    assert gate.pass_count("test", task.splits("lund").test) == counted
    passed = gate.pass_scores(ON_TESTS, {"loss": 1.0, "auc": 1.0})
    assert ("loss" in passed) == enough
    of_classes = [
        {unit for unit, own in zip(units, drawn, strict=True) if own == each} for each in (0, 1)
    ]
    assert ("auc" in passed) == (min(map(len, of_classes)) >= floor)
    for check in (gate.check_training, lambda: gate.pass_scores(AFTER, {"loss": 1.0})):
        with nullcontext() if enough else pytest.raises(FairbloomError):
            check()


@given(
    units=st.lists(st.integers(0, 9), min_size=5, max_size=60).filter(lambda u: len({*u}) > 4),
    batch=st.integers(0, 60),
    rows=st.integers(2, 5),
)
@example(units=[1] * 30 + [2, 3, 4, 5], batch=33, rows=5)
def test_a_last_batch_of_few_units_joins_another(units: list[int], batch: int, rows: int) -> None:
    """However its rows are drawn, as a batch has as many rows as the floor."""
    task = task_of(of_units(units))
    local = replace(
        LocalClient.of(run_config(batch_size=batch), 0),
        splits=task.splits("lund"),
        gate=Gate(rows, task, task.splits("lund")),
    )
    work = own_work(
        local, global_work(local.settings, Terms(server_round=1)), Terms(server_round=1)
    )
    steps = list(batches(len(units), work))
    if len(steps) > 1 and batch >= rows and len(units) % batch:
        assert len({*np.array(units)[steps[-1].numpy()].tolist()}) >= rows
    assert sorted(torch.cat(steps).tolist()) == list(range(len(units)))


@pytest.mark.parametrize(("steps", "shown"), [(1, True), (2, True), (3, False)])
def test_a_model_is_of_enough_units_after_its_steps(steps: int, shown: bool) -> None:
    """Of 12 persons with three rows each, six rows may be of two of them, nine of three."""
    task = task_of(of_units([place // 3 for place in range(36)]))
    gate = Gate(3, task, task.splits("lund"))
    work = LocalWork(epochs=1, batch_size=3, learning_rate=0.1)
    with pytest.raises(ReportableError, match="and 3 rows, or units") if shown else nullcontext():
        gate.check_steps(work, steps, nn.Identity())
    of_rows = replace(work, batch_size=6)
    with pytest.raises(ReportableError, match=r"below the 3 rows.* that a snapshot"):
        gate.check_work(of_rows, Terms(server_round=1, snapshot_step=1))
    gate.check_work(replace(work, batch_size=7), Terms(server_round=1, snapshot_step=1))


def test_a_step_on_a_disparity_is_carried_by_units() -> None:
    """Six rows of two persons carry as much as two rows."""
    task = task_of(of_units([0, 0, 0, 1, 1, 1]))
    factors = torch.full((6,), 0.5, dtype=torch.float64)
    Gate(2, task, task.splits("lund")).check_carried(factors)
    with pytest.raises(ReportableError, match="carried by fewer than 3 training rows"):
        Gate(3, task, task.splits("lund")).check_carried(factors)


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(0, 8), st.booleans()),
        min_size=1,
        max_size=60,
    ),
    smallest=st.integers(1, 3),
)
def test_groups_are_reported_by_their_units(
    rows: list[tuple[int, int, int, bool]], smallest: int
) -> None:
    """With one row a unit, by their rows."""
    score = GroupScore("hit-rate", over="positives")
    names = ("f", "m", "x")

    def reported(
        chosen: Sequence[tuple[int, int, int, bool]], *, by_unit: bool
    ) -> list[dict[str, int | float]]:
        chosen = sorted(chosen)  # one client after the other
        counts = [sum(client == each for client, *_ in chosen) for each in (0, 1)]
        numbers = torch.tensor([1.0 if scored else np.nan for *_, scored in chosen])
        units = np.array([unit for _, _, unit, _ in chosen]) if by_unit else None
        task = replace(task_of(of_units([0])), groupings={"sex": names})
        groups = torch.tensor([[group] for _, group, _, _ in chosen])
        return measure_groups(task, {score: numbers}, groups, counts, smallest, units)

    for client, found in enumerate(reported(rows, by_unit=True)):
        for place, name in enumerate(names):
            mine = [
                (unit, scored)
                for who, group, unit, scored in rows
                if (who, group) == (client, place)
            ]
            if f"count[sex:{name}]" in found:
                assert found[f"count[sex:{name}]"] == len(mine)
                assert len({unit for unit, _ in mine}) >= smallest
            if f"positives[sex:{name}]" in found:
                assert len({unit for unit, scored in mine if scored}) >= smallest
                others = {unit for unit, scored in mine if not scored}
                assert smallest == 1 or len(others) >= smallest
            elif smallest == 1:  # holds nothing back
                assert not any(scored for _, scored in mine)
    one_each = {each[:3]: each for each in rows}.values()
    assert reported([*one_each], by_unit=True) == reported([*one_each], by_unit=False)


def test_joined_clients_keep_their_units() -> None:
    first, second = of_units([0, 0, 1]), of_units([4, 5])
    joined = join([first, second])
    assert isinstance(joined, Examples)
    assert joined.units.tolist() == [0, 0, 1, 4, 5]
    shared = replace(first, rows=torch.tensor([0, 2]), units=np.array([0, 1]))
    again = join([shared, replace(shared, rows=torch.tensor([1]), units=np.array([0]))])
    assert isinstance(again, Examples)
    assert (again.units.tolist(), len(again)) == ([0, 1, 0], 3)


def test_clients_at_once_have_the_groups_of_each() -> None:
    """With units, too: their indices in two files may be equal."""
    random = np.random.default_rng(2)
    parts = [
        Examples(
            torch.randn(40, 2),
            torch.from_numpy(random.integers(0, 2, 40)),
            groups=torch.from_numpy(random.integers(0, 3, (40, 1))),
            units=random.integers(0, each, 40),
        )
        for each in (4, 12, 30)
    ]
    task = replace(
        task_of(parts[0]),
        loss=partial(cross_entropy, reduction="none"),
        groupings={"sex": ("f", "m", "x")},
        group_scores={GroupScore("accuracy"): is_highest},
    )
    model = nn.Linear(2, 2)
    together = measure_clients(model, task, parts, 5)
    apart = [measure(model, task, part, 5) for part in parts]
    assert len({len(each) for each in apart}) > 1
    assert together == [pytest.approx(other) for other in apart]
