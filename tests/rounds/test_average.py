"""The mean of all rounds' global models, evaluated and saved instead of the last one."""

from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, MessageType
from flwr.serverapp.strategy import Strategy
from hypothesis import given, strategies as st

from fairbloom.rounds.progress import Average
from fairbloom.strategies import FedAvg
from tests.federation import (
    OPTIONS,
    MemoryGrid,
    assert_resumes,
    bits,
    error,
    initial_model,
    quadratics,
    record,
    run,
    undisturbed,
    unpack,
)
from tests.strategies.helpers import ARGUMENTS, make

Arrays = dict[str, Any]


def mean_of(models: list[Arrays]) -> ArrayRecord:
    """Return the float arrays' means, in float64 and rounded once, with the last model's
    integers."""
    last = models[-1]
    means = {
        name: sum(model[name].astype(np.float64) for model in models) / len(models) for name in last
    }
    return record(
        {
            name: np.asarray(means[name], a.dtype) if a.dtype.kind == "f" else a
            for name, a in last.items()
        }
    )


def averaged(name: str, **changes: Any) -> Any:
    return make(name, ARGUMENTS[name][0], average_models=True, **OPTIONS | changes)


def test_training_goes_on_from_the_last_model_not_the_mean(subtests: pytest.Subtests) -> None:
    for name in ("fedavg", "fedfv", "drfa"):
        with subtests.test(name=name):
            _, expected = undisturbed(name)
            result, rounds = run(averaged(name))
            assert [bits(r.arrays) for r in rounds] == [bits(r.arrays) for r in expected], name
            models = [unpack(r.arrays) for r in rounds]
            for number, finished in enumerate(rounds, start=1):
                assert bits(finished.average) == bits(mean_of(models[:number]))
                assert finished.evaluated is finished.average
            assert bits(result.arrays) == bits(rounds[-1].average)
            assert all(r.average is None and r.evaluated is r.arrays for r in expected)


def test_a_resumed_run_ends_with_the_same_mean() -> None:
    assert_resumes(lambda: averaged("fedfv"), 5, (2, 5))
    plain = FedAvg()
    result, _ = run(plain)
    # which a run without them cannot resume with
    with pytest.raises(ValueError, match="average_models"):
        run(FedAvg(average_models=True), initial_arrays=result.arrays, resume=plain.state_dict())


def test_a_skipped_round_counts_with_the_model_as_it_stays() -> None:
    faults = {(f"site-{k}", 2): error for k in range(3)}
    _, rounds = run(FedAvg(average_models=True), quadratics(3), 2, faults)
    assert not rounds[1].coefficients
    first = unpack(rounds[0].arrays)
    assert bits(rounds[1].average) == bits(mean_of([first, first]))


def test_under_flowers_own_loop_clients_evaluate_the_mean(subtests: pytest.Subtests) -> None:
    grids = MemoryGrid(quadratics(4)), MemoryGrid(quadratics(4))
    _, ours = run(FedAvg(average_models=True), grids[0])
    theirs = Strategy.start(
        FedAvg(average_models=True), grids[1], record(initial_model()), num_rounds=4
    )
    for grid in grids:
        with subtests.test(grid=grid):
            seen = [
                bits(m.content.array_records["arrays"])
                for _, m in grid.sent_to(MessageType.EVALUATE)
            ][::4]
            assert seen == [bits(r.average) for r in ours]
    assert bits(theirs.arrays) == bits(ours[-1].arrays)


MODELS = (
    st.integers(0, 2**31).map(np.random.default_rng).map(lambda rng: rng.normal(size=(5, 3, 2)))
)


@given(
    flats=MODELS, dtype=st.sampled_from(["float16", "float32", "float64"]), count=st.integers(1, 5)
)
def test_the_mean_is_numpys_in_the_models_own_dtype(flats: Any, dtype: str, count: int) -> None:
    models = [
        {"w": flat.astype(dtype), "0-d": np.asarray(flat[0, 0], dtype)} for flat in flats[:count]
    ]
    average = Average()
    for model in models:
        average = average.plus(model)
    for name, array in average.mean(models[-1]).items():
        expected = np.mean([model[name] for model in models], axis=0, dtype=np.float64)
        assert type(array) is np.ndarray
        assert (array.dtype, array.shape) == (models[0][name].dtype, models[0][name].shape)
        np.testing.assert_allclose(
            array, expected, rtol=np.finfo(dtype).eps, atol=np.finfo(dtype).tiny
        )


def test_integers_are_the_last_models_and_sums_never_change() -> None:
    """A checkpoint may be written later than the next round begins."""
    first, last = (
        {"w": np.float32([k]), "steps": np.array(k), "on": np.array(k > 1)} for k in (1, 2)
    )
    one = Average().plus(first)
    mean = one.plus(last).mean(last)
    assert (mean["w"].item(), mean["steps"].item(), mean["on"].item()) == (1.5, 2, True)
    assert one.sums["w"].item() == 1.0
    assert Average().mean(first) is first
