from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fairbloom.rounds.aggregation import update_kept_rows
from fairbloom.rounds.arrays import FloatArray
from fairbloom.rounds.cohort import Kept, MethodError
from fairbloom.rounds.vectors import Vectors
from fairbloom.strategies import FedMDFG

from .helpers import cohort_of, step_of as step


class Run:
    """Rounds of FedMDFG over vectors: its memory goes through `remember` alone, as in a run."""

    def __init__(self) -> None:
        self.strategy = FedMDFG()
        self.rounds = 0

    def round(
        self, updates: dict[str, Sequence[float]], losses: dict[str, float] | None = None
    ) -> FloatArray:
        """Return the step of the next round; equal losses where none are given."""
        self.rounds += 1
        progress = self.strategy.progress
        names = sorted(updates)
        t = self.rounds
        U = np.array([updates[name] for name in names], np.float64)
        F = [1.0 if losses is None else losses[name] for name in names]
        needed = self.strategy.recalls(progress.kept, names, t)
        memory = {key: progress.kept[key].blocks[0][0] for key in needed}
        cohort = cohort_of(U, losses=F, names=names, round=t, memory=memory)
        rows = np.vstack([U, *memory.values()])
        c = self.strategy.weigh(cohort)
        remembered = self.strategy.remember(cohort, c, {})
        progress.kept = update_kept_rows(self.strategy, remembered, Vectors((rows,)))
        return c @ rows


# By hand ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("angle", "guided"), [(26.5, True), (26.6, False)])
def test_guidance_begins_beyond_the_angle_in_degrees(angle: float, guided: bool) -> None:
    """Losses of 1 and 3 are arctan ½ = 26.57 degrees from equal ones."""
    assert is_guided(step(FedMDFG(angle=angle), np.eye(2), losses=[1.0, 3.0])) is guided


# Expected losses ----------------------------------------------------------------------------------

PAIR = {"a": [1.0, 0.0], "b": [0.0, 1.0]}


def is_guided(d: FloatArray) -> bool:
    return bool(abs(d[0] - d[1]) > 1e-3)


@pytest.fixture
def run() -> Run:
    return Run()


@pytest.mark.parametrize(
    ("second", "forced"),
    [
        ({"a": 1.0, "b": 1.1}, True),  # some rise
        ({"a": 1.1, "b": 1.2}, False),  # all rise
        ({"a": 0.9, "b": 1.0}, False),  # none does: an equal loss has not risen
    ],
)
def test_guidance_is_forced_where_only_some_losses_have_risen(
    second: dict[str, float], forced: bool, run: Run
) -> None:
    assert not is_guided(run.round(PAIR, {"a": 1.0, "b": 1.0}))
    assert is_guided(run.round(PAIR, second)) is forced


@pytest.mark.parametrize("loss", [0.7, 0.1, 1.0 / 3.0, 2.3])
def test_rounding_of_a_loss_that_stays_the_same_is_no_rise(loss: float, run: Run) -> None:
    assert not any(is_guided(run.round(PAIR, {"a": loss, "b": loss * 1.01})) for _ in range(20))


def test_forced_guidance_at_equal_losses_is_none(run: Run) -> None:
    """The authors' code divides 0 by 0 there."""
    run.round(PAIR, {"a": 1.0, "b": 2.0})
    np.testing.assert_allclose(run.round(PAIR, {"a": 1.5, "b": 1.5}), [0.5, 0.5], rtol=1e-9)


# Absent clients -----------------------------------------------------------------------------------


def test_a_round_in_which_nobody_moves_takes_no_step(run: Run) -> None:
    run.round({"a": [2.0, 0.0], "b": [-1.0, 1.0]}, {"a": 3.0, "b": 3.0})
    before = {kept: row.blocks[0][0].tobytes() for kept, row in run.strategy.progress.kept.items()}
    remembered = {
        "expected": {"a": 2.0, "b": 3.0},
        "joined": {"a": 2, "b": 2},
        "length": run.strategy.memory["length"],
    }
    assert run.round({"a": [0.0, 0.0], "b": [0.0, 0.0]}, {"a": 1.0, "b": 5.0}).tolist() == [
        0.0,
        0.0,
    ]
    assert {
        kept: row.blocks[0][0].tobytes() for kept, row in run.strategy.progress.kept.items()
    } == before
    assert run.strategy.memory == remembered
    assert run.round({"a": [1.0, 0.0]}) @ [-1.0, 1.0] > 0.0


def test_a_round_without_a_step_is_remembered(run: Run) -> None:
    assert not run.round({"a": [1.0, 0.0], "b": [-1.0, 0.0]}).any()
    assert {kept.key for kept in run.strategy.progress.kept} == {"a", "b"}


def test_a_row_that_is_not_there_cannot_stay_as_it_is() -> None:
    with pytest.raises(
        MethodError, match=r"FedMDFG.remember returned None for .*key='a'.*no kept row"
    ):
        update_kept_rows(FedMDFG(), {Kept("a", 1): None}, Vectors.of(np.ones((1, 2))))


# Edge cases ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("left", "moves"), [(0.9e-3, False), (1.1e-3, True)])
def test_what_is_short_beside_the_live_updates_is_no_step(left: float, moves: bool) -> None:
    U = np.array([[np.sqrt(1.0 - left**2), left], [-np.sqrt(1.0 - left**2), left], [0.0, 0.0]])
    d = step(FedMDFG(), 7.0 * U, losses=[1.0, 1.0, 1.0])
    np.testing.assert_allclose(d, [0.0, 7.0 * left * moves], atol=1e-6)


@given(seed=st.integers(0, 2**32 - 1), guidance=st.sampled_from(("scaled", "gradient")))
def test_a_guidance_that_cancels_out_stops_the_step(seed: int, guidance: str) -> None:
    """Losses of (0, 0, 5) guide along −u_1 − u_2, and these cancel; the rest is rounding, with a
    square that may be negative."""
    U = np.random.default_rng(seed).normal(size=(3, 9))
    U[1] = -U[0]
    assert step(FedMDFG(guidance=guidance), U, losses=[0.0, 0.0, 5.0]).tolist() == [0.0] * 9


def test_negative_losses_are_used_as_they_are() -> None:
    # h = (−3, −1)/√10 for losses of −1 and 3: both rows and h have 0 in their hull
    assert step(FedMDFG(), np.eye(2), losses=[-1.0, 3.0]).tolist() == [0.0, 0.0]
