"""A client that sends absurd weights is refused by name; the run ends nearly as it does without that client."""

import math

import pytest

from tests.federation import KINDS

from .absurd import HOSTILE, REFUSED, ROUNDS, WITHIN, accuracy, run, without

TWO_POINTS = 2.0
EACH = range(1, ROUNDS + 1)


@pytest.mark.slow
@pytest.mark.parametrize("method", KINDS)
@pytest.mark.parametrize("attack", ["1e38", "-100 w"])  # tests/rounds/test_lengths.py has 1e6 and 1e30, to the bit
def test_a_client_that_attacks_in_each_round_changes_nothing(method: str, attack: str) -> None:
    rounds = run(REFUSED[attack], EACH, method=method)
    asked = [each for each in rounds if HOSTILE in each.participants]
    assert len(asked) == ROUNDS or (method == "drfa" and asked)  # which draws some clients twice and others not
    for each in asked:
        assert list(each.refused) == [HOSTILE]
        assert each.refused[HOSTILE].startswith(("its update has the length ", "its arrays-disparity has the length "))
        assert HOSTILE not in each.coefficients
    assert abs(accuracy(rounds[-1]) - without(method)) <= TWO_POINTS


@pytest.mark.slow
@pytest.mark.parametrize("method", KINDS)
def test_a_client_that_attacks_once_costs_no_accuracy(method: str) -> None:
    """In the first round, in which nothing is known of those before; afterwards it is as honest as the others."""
    rounds = run(REFUSED["1e38"], [1], method=method)
    assert [list(each.refused) for each in rounds if each.refused] == [[HOSTILE]] * (HOSTILE in rounds[0].participants)
    assert accuracy(rounds[-1]) >= without(method) - TWO_POINTS


@pytest.mark.parametrize("method", ["fedavg", "fedfv", "afl", "term", "propfair"])
def test_without_the_limit_one_such_update_ruins_the_run(method: str) -> None:
    assert accuracy(run(REFUSED["1e30"], [3], method=method, update_limit=math.inf)[-1]) < 20.0


@pytest.mark.parametrize("attack", WITHIN)
@pytest.mark.parametrize("method", ["fedavg", "fedfv"])
def test_an_update_as_long_as_the_model_is_used(method: str, attack: str) -> None:
    """What docs/runs.md says that the limit does not stop."""
    rounds = run(WITHIN[attack], EACH, method=method)
    assert all(each.refused == {} for each in rounds)
    assert accuracy(rounds[-1]) < without(method) - TWO_POINTS
