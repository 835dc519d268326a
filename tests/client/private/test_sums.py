"""Noise that clients share: its lattice, its price, what a row moves a sum by, and its budget."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from fairbloom.client.local import LocalClient
from fairbloom.client.private import noise
from fairbloom.client.private.budget import Budget, Price, mu_of
from fairbloom.client.private.noise import draw_gaussian
from fairbloom.client.private.sums import Partner, price_of
from fairbloom.errors import ReportableError
from fairbloom.protocol.accounts import CLIP
from fairbloom.protocol.lattice import MOST_ROUNDING, Lattice
from fairbloom.protocol.sums import SharedNoise
from fairbloom.protocol.terms import Terms
from fairbloom.server.settings import Settings

from .device import SCHEMA, write_table
from .test_noise import law, seeded_words


def test_the_spacing_has_its_closed_form() -> None:
    """γ/C at σ 7.616594, 650 numbers, h = 1 and 8."""
    one = Lattice(7.616594, CLIP, 650)
    eight = replace(one, honest=8)
    assert one.spacing == pytest.approx(4.539966e-7, rel=1e-6)
    assert eight.spacing == pytest.approx(1.605108e-7, rel=1e-6)


@given(
    honest=st.integers(1, 1000),
    sigma=st.floats(0.1, 1e4),
    size=st.integers(1, 10**6),
)
def test_the_noise_of_honest_clients_is_that_of_the_sum(
    honest: int, sigma: float, size: int
) -> None:
    """Together they have σ C′, of which γ √d is the rounding of one client."""
    lattice = Lattice(sigma, CLIP, size, honest)
    if sigma * math.sqrt(size) > MOST_ROUNDING:
        with pytest.raises(ReportableError, match="exact"):
            lattice.check(10)
        return
    together = lattice.deviation * math.sqrt(honest)
    sensitivity = CLIP * (1.0 + 2.0**-16) + lattice.spacing * math.sqrt(size)
    assert together == pytest.approx(sigma * sensitivity, rel=1e-12)


def test_owners_pay_what_the_strictest_needs() -> None:
    """ε 3, 3, 1 and 8 (of 200 steps), 30 rounds: the third one sets σ, and spends all."""
    budgets = [Budget(3, 1e-5), Budget(3, 1e-5), Budget(1, 1e-5), Budget(8, 1e-5, steps=200)]
    sigma = budgets[2].sigma_of(450 // 30)
    assert sigma == pytest.approx(20.433511, abs=1e-6)
    assert [each.units_for(sigma) for each in budgets] == [3, 3, 15, 1]
    assert price_of(budgets[2], sigma) == Price(15, 3)
    assert price_of(budgets[3], sigma) == Price(1, 1)
    assert Budget(3, 1e-5).sigma_of(15) == pytest.approx(7.616594, abs=1e-6)


@given(units=st.integers(1, 450))
def test_rounding_costs_no_unit_more(units: int) -> None:
    budget = Budget(3, 1e-5)
    sigma = budget.sigma_of(units)
    assert budget.units_for(sigma) == units
    assert budget.units_for(sigma * (1 - 1e-9)) == units + 1


@pytest.mark.parametrize(("honest", "alone"), [(2, 4.4634), (8, 10.2070), (16, 15.7945)])
def test_the_epsilon_that_holds_if_one_alone_is_honest(honest: int, alone: float) -> None:
    budget = Budget(3, 1e-5)
    assert budget.epsilon_with(honest, 1) == pytest.approx(alone, abs=1e-4)
    assert budget.epsilon_with(honest, honest) == pytest.approx(3.0, abs=1e-6)


# A sum of discrete Gaussians ---------------------------------------------------------------------


@pytest.mark.parametrize("deviation", [1.0, 1.5, 2.0])
@pytest.mark.parametrize("honest", [2, 4])
def test_a_sum_of_draws_is_nearly_a_draw(deviation: float, honest: int) -> None:
    """Within a factor e^±η a number, η ≤ 5 (h − 1) exp(−π² t²); the bound is not idle."""
    places = np.arange(-60, 61)
    one = np.exp(-(places.astype(float) ** 2) / (2.0 * deviation**2))
    one /= one.sum()
    total = one
    for _ in range(honest - 1):
        total = np.convolve(total, one)
    reach = (len(total) - 1) // 2
    every = np.arange(-reach, reach + 1)
    exact = np.exp(-(every.astype(float) ** 2) / (2.0 * honest * deviation**2))
    exact /= exact.sum()
    near = np.abs(every) < 8 * deviation * math.sqrt(honest)  # beyond, float64 has lost the sum
    ratio = float(np.abs(np.log(total[near] / exact[near])).max())
    eta = 5.0 * (honest - 1) * math.exp(-((math.pi * deviation) ** 2))
    assert ratio <= eta + 1e-12
    if (deviation, honest) == (1.0, 2):
        assert ratio > eta / 100


def test_draws_of_several_clients_have_the_variance_of_the_sum() -> None:
    """Within 1 %; and of one client less it has less."""
    honest, bits, count = 4, 5, 100_000
    draws = [draw_gaussian(count, bits, seeded_words(seed)) for seed in range(honest)]
    variance = float(np.sum(draws, axis=0).var())
    _, chances = law(2**bits)
    assert chances.sum() == pytest.approx(1.0)
    assert variance == pytest.approx(honest * 4.0**bits, rel=0.01)
    assert float(np.sum(draws[1:], axis=0).var()) < 0.8 * variance


# A client's part ---------------------------------------------------------------------------------


@pytest.fixture
def client(tmp_path: Path) -> LocalClient:
    write_table(tmp_path / "site.csv", 60)
    settings = Settings.of(
        {"task": "csv", "schema": SCHEMA, "data-dir": str(tmp_path), "batch-size": 0}
    )
    return LocalClient.of(settings, 0)


def part(
    client: LocalClient, share: float = 1.0, honest: int = 2, terms: Terms | None = None
) -> Partner:
    asked = SharedNoise(sigma=2.0, honest=honest, shares={"site": share, "other": 1.0})
    received = {name: each.clone() for name, each in client.model.state_dict().items()}
    return Partner(client, received, terms or Terms(server_round=1), asked)


def nothing(count: int) -> noise.Integers:
    return np.zeros(count, np.int64)


def blank(client: LocalClient, row: int) -> LocalClient:
    """Return the client with a row that counts as 0, as its gradient is not finite."""
    train = client.splits.train
    inputs, targets = train[slice(0, None)]
    changed = torch.as_tensor(inputs).clone()
    changed[row] = torch.inf
    blanked = type(train)(changed, targets)
    return replace(client, splits=replace(client.splits, train=blanked))


@pytest.mark.parametrize("share", [1.0, 0.3])
def test_a_row_moves_a_part_by_its_clipped_norm_and_the_rounding(
    client: LocalClient, share: float
) -> None:
    """Whatever weight the server chooses: ρ is at most 1."""
    whole = part(client, share)
    bound = CLIP * (1.0 + 2.0**-16) + whole.lattice.spacing * math.sqrt(whole.lattice.size)
    q = whole.add(nothing)
    moved = [part(blank(client, row), share).add(nothing) - q for row in range(10)]
    lengths = [float(np.linalg.norm(each * whole.lattice.spacing)) for each in moved]
    assert max(lengths) <= bound
    assert max(lengths) > 0.2 * share


def test_a_part_is_the_rounded_sum_of_clipped_gradients(client: LocalClient) -> None:
    q = part(client).add(nothing)
    weight, bias = client.model.parameters()
    total = torch.zeros(weight.numel() + bias.numel(), dtype=torch.float64)
    inputs, targets = client.splits.train[slice(0, None)]
    for row, target in zip(torch.as_tensor(inputs), targets, strict=True):
        outputs = client.model(row[None]).double()
        loss = torch.nn.functional.cross_entropy(outputs, target[None])
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, [weight, bias])])
        total += gradient * min(1.0, 1.0 / float(gradient.norm()))
    assert q * part(client).lattice.spacing == pytest.approx(total.numpy(), abs=1e-4)
    halved = part(client, 0.5).add(nothing)
    assert np.abs(2 * halved - q).max() <= 1


@pytest.mark.parametrize("share", [-0.1, 1.0001, math.nan, math.inf])
def test_no_weight_beyond_one_is_accepted(client: LocalClient, share: float) -> None:
    with pytest.raises(ReportableError, match="from 0 to 1"):
        part(client, share)


def test_a_client_that_is_not_named_has_no_part(client: LocalClient) -> None:
    with pytest.raises(ReportableError, match="from 0 to 1"):
        part(replace(client, name="stranger"))


@pytest.mark.parametrize(
    "terms",
    [
        Terms(server_round=1, local_steps=2),
        Terms(server_round=1, client_momentum=0.9),
        Terms(server_round=1, control_variates=True, state_round=0),
        Terms(server_round=1, dynamic_alpha=0.1, state_round=0),
        Terms(server_round=1, measure=("train-loss",)),
    ],
    ids=["steps", "momentum", "control variates", "FedDyn", "a loss without noise"],
)
def test_terms_of_other_steps_are_refused(client: LocalClient, terms: Terms) -> None:
    with pytest.raises(ReportableError):
        part(client, terms=terms)
    assert len(part(client, terms=Terms(server_round=1, proximal_mu=0.1)).add(nothing)) == 6


# Whole accounts ----------------------------------------------------------------------------------


def audit(honest: int, followed: int, releases: int = 30, trials: int = 4000) -> float:
    """Return the μ that a server measures of a row in all sums of an account.

    It knows all else, and `followed` of the clients add noise. The row is as long as allowed, along
    one number: the likelihood ratio is the mean of the sums there, over its deviation.
    """
    budget = Budget(3, 1e-5)
    sigma = budget.sigma_of(budget.units // releases)
    lattice = Lattice(sigma, CLIP, 1, honest)
    draw = partial(draw_gaussian, bits=24, words=seeded_words(honest + followed), block=1)
    with_row = lattice.places(np.array([CLIP]))
    drawn = draw(trials * releases * followed).reshape(trials, releases, followed)
    sums = lattice.spacing * (with_row + drawn.sum(axis=2)).mean(axis=1)
    return float(sums.mean() / sums.std())


@pytest.mark.parametrize("honest", [2, 4])
def test_a_whole_account_has_its_budget_if_enough_are_honest(honest: int) -> None:
    """And μ √(h/(h − 1)) if one less is."""
    mu = mu_of(3, 1e-5)
    assert audit(honest, honest) == pytest.approx(mu, rel=0.05)
    fewer = mu * math.sqrt(honest / (honest - 1))
    assert audit(honest, honest - 1) == pytest.approx(fewer, rel=0.05)
