from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fairbloom.rounds.arrays import FloatArray
from fairbloom.rounds.cohort import Cohort, Decision, Kept, MethodError
from fairbloom.strategies import FedMDFG

from .helpers import advance, cohort_of, step_of as step


class Run:
    """Rounds of FedMDFG over vectors: its memory goes through its decisions alone, as in a run."""

    def __init__(self) -> None:
        self.strategy = FedMDFG()
        self.rounds = 0

    def round(
        self, updates: dict[str, Sequence[float]], losses: dict[str, float] | None = None
    ) -> FloatArray:
        """Return the step of the next round; equal losses where none are given."""
        self.rounds += 1
        kept = self.strategy.run_state.kept
        names = sorted(updates)
        t = self.rounds
        U = np.array([updates[name] for name in names], np.float64)
        F = [1.0 if losses is None else losses[name] for name in names]
        memory = {key: kept[key].blocks[0][0] for key in self.strategy.recalls(kept, names, t)}
        cohort = cohort_of(
            U, losses=F, names=names, round=t, memory=memory, past=self.strategy.past
        )
        rows = np.vstack([U, *memory.values()])
        return advance(self.strategy, cohort, rows) @ rows


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
    before = {kept: row.blocks[0][0].tobytes() for kept, row in run.strategy.run_state.kept.items()}
    remembered = {
        "expected": {"a": 2.0, "b": 3.0},
        "joined": {"a": 2, "b": 2},
        "length": run.strategy.past.memory["length"],
    }
    assert run.round({"a": [0.0, 0.0], "b": [0.0, 0.0]}, {"a": 1.0, "b": 5.0}).tolist() == [
        0.0,
        0.0,
    ]
    assert {
        kept: row.blocks[0][0].tobytes() for kept, row in run.strategy.run_state.kept.items()
    } == before
    assert run.strategy.past.memory == remembered
    assert run.round({"a": [1.0, 0.0]}) @ [-1.0, 1.0] > 0.0


def test_a_round_without_a_step_is_remembered(run: Run) -> None:
    assert not run.round({"a": [1.0, 0.0], "b": [-1.0, 0.0]}).any()
    assert {kept.key for kept in run.strategy.run_state.kept} == {"a", "b"}


def test_a_row_that_is_not_there_cannot_stay_as_it_is() -> None:
    class Keeping(FedMDFG):
        def weigh(self, cohort: Cohort) -> Decision:
            return replace(super().weigh(cohort), keep={Kept("a", 1): None})

    with pytest.raises(MethodError, match=r"Keeping.weigh, in round 1, keeps .*key='a'"):
        advance(Keeping(), cohort_of(np.eye(2)))


# Edge cases ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("left", "moves"), [(0.9e-3, False), (1.1e-3, True)])
def test_what_is_short_beside_the_live_updates_is_no_step(left: float, moves: bool) -> None:
    U = np.array([[np.sqrt(1.0 - left**2), left], [-np.sqrt(1.0 - left**2), left], [0.0, 0.0]])
    np.testing.assert_allclose(
        step(FedMDFG(), 7.0 * U, losses=[1.0, 1.0, 1.0]), [0.0, 7.0 * left * moves], atol=1e-6
    )


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
