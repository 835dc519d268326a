"""Private rounds that open counts of losses: the tail is the plain one, and nothing names a client."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairbloom.private.errors import RefusedError, SkippedError
from fairbloom.private.weighing import COUNTS_OF_SCORES, GramWeighing, MeanWeighing, Own, TailWeighing

from .federation import Federation

Array = np.ndarray[Any, Any]


def coefficients(losses: Array, theta: float) -> Array:
    """Return DeltaFL's coefficients of clients with equal priors, written down once more from the paper."""
    ascending, m = np.sort(losses), len(losses)
    reached = np.arange(1, m + 1) / m >= 1.0 - theta - 1e-9
    tail = losses >= ascending[reached].min()
    return np.asarray(tail / tail.sum())


def open_all(weighing: TailWeighing, losses: Array) -> tuple[Array, dict[str, float]]:
    """Return the coefficients that clients compute from sums that are taken here, and these sums."""
    everyone = [Own(1.0, {"loss-before": float(loss)}) for loss in losses]
    opened = dict[str, float]()
    for step in range(1, len(weighing.steps) + 1):
        rows = [weighing.sums(step, own, opened) for own in everyone]
        opened |= {name: sum(row[name] for row in rows) for name in weighing.formats(step)}
    return np.array([weighing.coefficient(own, opened) for own in everyone]), opened


def federation_of(clients: int, size: int = 200) -> Federation:
    return Federation(clients, size, tier="counts")


@pytest.mark.parametrize(("clients", "theta"), [(10, 0.5), (12, 0.9), (20, 0.3), (30, 1.0), (30, 0.2)])
def test_the_step_of_counts_is_the_plain_one(clients: int, theta: float) -> None:
    federation = federation_of(clients)
    weighing = TailWeighing(theta=theta)
    opened = federation.run(weighing)
    assert federation.server.refused == {}
    losses = np.array([federation.metrics[name]["loss-before"] for name in federation.names])
    updates = np.array([federation.updates[name] for name in federation.names])
    c, lengths = coefficients(losses, theta), np.linalg.norm(updates, axis=1)
    whole = c @ lengths
    c = np.minimum(c, weighing.kappa(clients) * whole / lengths)  # the cap
    assert np.linalg.norm(opened.step - c @ updates) < 2e-5 * whole


@given(
    st.lists(st.integers(0, 4000), min_size=5, max_size=40),
    st.sampled_from([0.2, 0.25, 0.5, 0.75, 1.0]),
    st.sampled_from([1.0, 3.7, 16.0, 100.0]),
)
@settings(deadline=None, max_examples=100)
def test_ties_and_losses_at_the_bound_are_in_the_tail(grid: list[int], theta: float, loss_bound: float) -> None:
    """On a grid that is coarser than the smallest bins; the largest loss is the bound."""
    losses = np.array(grid) / 4000 * loss_bound
    expected = coefficients(losses, theta)
    weighing = TailWeighing(theta=theta, loss_bound=loss_bound)
    if (expected > 0.0).sum() < 5:
        with pytest.raises(RefusedError, match="small cohort"):
            open_all(weighing, losses)
        return
    assert open_all(weighing, losses)[0] == pytest.approx(expected, rel=1e-12)


def test_a_bin_with_one_loss_is_not_divided() -> None:
    losses = np.linspace(0.5, 15.0, 10)
    _, opened = open_all(TailWeighing(theta=0.5), losses)
    assert sum(opened[f"bin 1 {place}"] for place in range(256)) == 10
    assert not any(value for name, value in opened.items() if name.startswith(("bin 2", "bin 3")))


def test_bins_are_divided_down_to_two_to_the_minus_twenty() -> None:
    weighing = TailWeighing(theta=0.5, loss_bound=16.0)
    assert len(weighing.steps) == 4
    together = np.array([1.0 + 2.0**-24] * 4 + [1.0] + [3.0] * 5)
    c, _ = open_all(weighing, together)
    assert (c > 0.0).sum() == 10  # the quantile's bin enters as a whole
    apart = np.array([1.0 - 2.0**-18] * 4 + [1.0] + [3.0] * 5)
    c, _ = open_all(weighing, apart)
    assert (c > 0.0).sum() == 6


def test_a_tail_of_fewer_than_five_is_refused() -> None:
    """Of clients that were lost before the sums: the server's own check was before the round."""
    federation = federation_of(10)
    federation.forge = lambda asked, client, request: None if asked == "keys" and client > "client-006" else request
    with pytest.raises(SkippedError, match="small cohort: 4 clients are in the tail"):
        federation.run(TailWeighing(theta=0.5))
    assert "vector" not in {exchange for exchange, _, _ in federation.replies}


def test_a_client_lost_at_the_vector_leaves_the_others_mean() -> None:
    federation = federation_of(12)
    losses = {name: federation.metrics[name]["loss-before"] for name in federation.names}
    worst = max(losses, key=losses.__getitem__)
    federation.forge = lambda asked, client, request: None if (asked, client) == ("vector", worst) else request
    opened = federation.run(TailWeighing(theta=0.5))
    tail = sorted(losses, key=losses.__getitem__)[-7:-1]
    expected = np.mean([federation.updates[name] for name in tail], axis=0)
    assert opened.step == pytest.approx(expected, abs=1e-4)


def test_scores_are_counted_in_bins_of_a_tenth_of_a_point() -> None:
    federation = Federation(12, also=COUNTS_OF_SCORES)
    opened = federation.run(MeanWeighing(scores=("accuracy-after",), binned=("accuracy-after",)), vectors=False)
    scores = [round(1000 * federation.metrics[name]["accuracy-after"]) for name in federation.names]
    for place in range(1001):
        assert opened.sums[f"accuracy-after/bin {place}"] == scores.count(place)


def test_a_run_of_sums_counts_no_scores() -> None:
    federation = Federation(12)
    with pytest.raises(SkippedError, match="privacy = 'sums': the terms would open counts of scores, too"):
        federation.run(MeanWeighing(binned=("accuracy-after",)), vectors=False)


@pytest.mark.parametrize("exchange", ["keys", "work"])
def test_scores_of_fewer_than_ten_clients_are_not_counted(exchange: str) -> None:
    federation = Federation(10, also=COUNTS_OF_SCORES)
    federation.forge = lambda asked, client, request: None if (asked, client) == (exchange, "client-003") else request
    with pytest.raises(SkippedError, match=r"9 clients answered the exchange"):
        federation.run(MeanWeighing(scores=("accuracy-after",), binned=("accuracy-after",)), vectors=False)


def test_nine_clients_are_not_asked_for_counts_of_scores() -> None:
    federation = Federation(9)
    with pytest.raises(SkippedError, match="9 clients can take part, and a private round needs 10"):
        federation.run(MeanWeighing(binned=("accuracy-after",)), vectors=False)
    assert not federation.replies


def test_a_run_of_sums_opens_no_counts() -> None:
    federation = Federation(10)
    with pytest.raises(SkippedError, match="privacy = 'sums': the terms would open counts, too"):
        federation.run(TailWeighing())


@pytest.mark.parametrize(("tier", "asked"), [("angles", TailWeighing()), ("counts", None)])
def test_angles_and_counts_are_tiers_of_their_own(tier: str, asked: Any) -> None:
    federation = Federation(10, tier=tier)
    weighing = asked or GramWeighing(clients=federation.names)
    with pytest.raises(SkippedError, match=f"privacy = '{tier}': the terms would open {weighing.tier}, too"):
        federation.run(weighing)


@pytest.mark.parametrize(
    ("fields", "words"), [({"theta": 0.1}, "at least 0.2"), ({"loss_bound": 2e6}, "loss-bound = 2e.06 is too large")]
)
def test_counts_that_show_too_much_are_refused(fields: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TailWeighing(**fields)
