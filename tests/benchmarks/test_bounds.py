"""What bounds a round is counted by the steps that clients take, and measured in this process."""

from benchmarks.bounds import find_bound, measure_cores
from benchmarks.measuring import Measured
from benchmarks.workloads import WORKLOADS


def test_a_bound_counts_the_steps_of_all_drawn_clients() -> None:
    for name, steps in (("logistic", 100), ("mlp", 250)):
        row = find_bound(name, WORKLOADS[name].settings(), 2.0, Measured((1.0,), "s"), seconds=0.0)
        step, least = row["a step on one thread"], row["a round at least"]
        assert isinstance(step, Measured)
        assert isinstance(least, Measured)
        assert row["steps a round"] == str(steps)
        assert least.median == steps * step.median / 2.0


def test_all_processors_together_do_some_of_ones_arithmetic() -> None:
    assert measure_cores(0.05) > 0.0
