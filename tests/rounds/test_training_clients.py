"""Some clients train, and all evaluate."""

from typing import Any

import pytest

from fairbloom.rounds.loop import NothingLearnedError
from fairbloom.strategies import DRFA, FedAvg
from tests.strategies.helpers import MemoryGrid, make, quadratics

from .helpers import OPTIONS, bits, every_kind, run, undisturbed

EVERYBODY = tuple(f"site-{k}" for k in range(6))
SOME = ("site-4", "site-1", "site-2")


@every_kind
def test_naming_all_clients_changes_nothing(name: str, arguments: dict[str, Any]) -> None:
    expected, _ = undisturbed(name, arguments)
    result, _ = run(make(name, arguments, training_clients=EVERYBODY, **OPTIONS))
    assert bits(result.arrays) == bits(expected.arrays)


@every_kind
def test_the_model_is_that_of_those_clients_alone(name: str, arguments: dict[str, Any]) -> None:
    alone, expected = run(
        make(name, arguments, **OPTIONS), MemoryGrid({k: v for k, v in quadratics(6).items() if k in SOME})
    )
    result, rounds = run(make(name, arguments, training_clients=SOME, **OPTIONS))
    assert bits(result.arrays) == bits(alone.arrays)
    assert [r.participants for r in rounds] == [r.participants for r in expected]
    assert [r.coefficients for r in rounds] == [r.coefficients for r in expected]
    assert all(set(r.evaluations) == set(EVERYBODY) for r in rounds)


def test_the_fraction_is_a_share_of_those_that_train() -> None:
    _, rounds = run(FedAvg(training_clients=SOME, fraction_train=0.34), rounds=3)
    assert all(len(r.participants) == 2 for r in rounds)
    _, rounds = run(FedAvg(training_clients=SOME, fraction_train=0.33), rounds=3)
    assert all(len(r.participants) == 1 for r in rounds)


def test_clients_that_do_not_train_have_no_weight_in_drfa() -> None:
    """Else its second sample would ask them, and give them a weight that nobody trains for."""
    strategy = DRFA(gamma=0.001, training_clients=SOME, fraction_train=0.7)
    run(strategy)
    assert set(strategy.memory["weights"]) == set(SOME)


def test_one_of_them_that_is_not_there_is_done_without() -> None:
    _, rounds = run(FedAvg(training_clients=("site-1", "site-9")), rounds=1)
    assert rounds[0].participants == ("site-1",)


def test_without_any_of_them_rounds_are_skipped_and_named() -> None:
    words = "of those that train .training_clients = site-8, site-9., too few clients were online"
    with pytest.raises(NothingLearnedError, match=f"learned nothing for 3 rounds: .*{words}"):
        run(FedAvg(training_clients=("site-8", "site-9")), rounds=5)
    _, rounds = run(FedAvg(training_clients=("site-9",), unused_rounds=0), rounds=2)
    assert [r.participants for r in rounds] == [(), ()]
    assert all(set(r.evaluations) == set(EVERYBODY) for r in rounds)


@pytest.mark.parametrize("value", ["site-1", ["site-1", 2], [""], {"site-1"}, None])
def test_names_are_a_list_or_tuple(value: Any) -> None:
    with pytest.raises(ValueError, match="training_clients must be a list or tuple of names, got"):
        FedAvg(training_clients=value)


def test_a_text_is_not_taken_for_a_list_of_names() -> None:
    with pytest.raises(ValueError, match=r"buffers must be a list or tuple of names, got 'norm\.mean'"):
        FedAvg(buffers="norm.mean")
    assert FedAvg(buffers=["norm.mean"]).buffers == ("norm.mean",)
    for wrong in ("head", ["ab"]):
        with pytest.raises(ValueError, match=r"^shared (= .*name=value|must be a mapping of names)"):
            FedAvg(shared=wrong)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"^enrolled_sizes (= .*name=value|must be a mapping of names)"):
            FedAvg(enrolled_sizes=wrong)  # type: ignore[arg-type]
