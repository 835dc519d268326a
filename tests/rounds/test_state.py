"""The state of a run: complete, plain, and enough to continue to the same bits."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from fairbloom.rounds.arrays import FloatArray
from fairbloom.rounds.cohort import Cohort, Kept, Probed
from fairbloom.strategies import FedAvg, FedFV
from tests.federation import KINDS, OPTIONS, assert_resumes, bits, run
from tests.strategies.helpers import ARGUMENTS, CASES, make


class Counting(FedAvg):
    """Keeps a momentum row and changes its memory in place."""

    def weigh(self, cohort: Cohort) -> FloatArray:
        return np.concatenate([cohort.prior, [0.5] * len(cohort.memory)])

    def remember(
        self, cohort: Cohort, coefficients: FloatArray, probed: Probed
    ) -> dict[Kept, FloatArray]:
        seen = self.memory.setdefault("seen", {})
        for name in cohort.names:
            seen.setdefault(name, []).append(cohort.round)
        return {Kept("momentum", cohort.round): coefficients}


@pytest.mark.parametrize(
    "cases",
    [[(name, ARGUMENTS[name][0]) for name in KINDS], pytest.param(CASES, marks=pytest.mark.slow)],
)
def test_a_run_resumed_from_its_state_ends_with_the_same_bits(
    cases: list[tuple[str, dict[str, Any]]],
) -> None:
    for name, arguments in cases:
        assert_resumes(partial(make, name, arguments, **OPTIONS))


def test_a_state_does_not_change_while_the_run_goes_on() -> None:
    assert_resumes(lambda: Counting(**OPTIONS), 5, (2, 5))
    states: list[dict[str, Any]] = []
    strategy = Counting(**OPTIONS)
    run(strategy, rounds=5, evaluate_fn=lambda number, arrays: states.append(strategy.state_dict()))
    assert [sum(map(len, state["memory"].get("seen", {}).values())) for state in states] == [
        0,
        4,
        8,
        12,
        16,
        20,
    ]


def test_a_second_run_of_the_same_object_starts_afresh() -> None:
    strategy = FedFV(tau=2, **OPTIONS)
    first, _ = run(strategy)
    second, _ = run(strategy)
    assert bits(second.arrays) == bits(first.arrays)
