"""TorchJD's scalarizations of losses: the weights are their gradient."""

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbloom.rounds.updates import FloatArray
from fairbloom.strategies import METHODS, TERM, FairStrategy, FedAvg, FromScalarizer, FromTorchJD, find_method
from fairbloom.strategies.torchjd import by_name

from .helpers import (
    BUFFERS,
    MemoryGrid,
    check_resumption,
    cohort_of,
    initial_model,
    quadratics,
    record,
    told,
)

torch = pytest.importorskip("torch")
scalarization = pytest.importorskip("torchjd.scalarization")

NAMES = ("cosmos", "geometricmean", "mean", "pbi", "random", "stch", "sum")
LEARNING = ("dwa", "famo", "imtll", "uw")
every_name = pytest.mark.parametrize("name", NAMES)
positive = st.lists(st.floats(0.05, 5.0), min_size=1, max_size=8).map(np.array)


def weigh(strategy: FairStrategy, losses: FloatArray, round: int = 1) -> FloatArray:
    return strategy.weigh(cohort_of(np.eye(len(losses)), losses=losses, round=round))


# Closed forms -------------------------------------------------------------------------------------------------------


def cosmos(F: FloatArray) -> FloatArray:
    """1/m − λ ∂cos(1, F)/∂F_k, λ = 1."""
    m, length = len(F), np.linalg.norm(F)
    return 1 / m - (1 - F * F.sum() / length**2) / (np.sqrt(m) * length)


def pbi(F: FloatArray) -> FloatArray:
    """1/√m + θ (F_k − F̄)/‖F − F̄‖, θ = 1; TorchJD adds 1e-12 under that root."""
    away = F - F.mean()
    return 1 / np.sqrt(len(F)) + away / np.sqrt(away @ away + 1e-12)


def softmax(F: FloatArray) -> FloatArray:
    grown = np.exp(F - F.max())
    return grown / grown.sum()


CLOSED = {
    "mean": lambda F: np.full(len(F), 1 / len(F)),
    "sum": lambda F: np.ones(len(F)),
    "geometricmean": lambda F: np.prod(F) ** (1 / len(F)) / (len(F) * F),
    "stch": softmax,
    "cosmos": cosmos,
    "pbi": pbi,
}


@pytest.mark.parametrize("name", CLOSED)
@given(F=positive)
def test_the_weights_are_the_gradient_in_closed_form(name: str, F: FloatArray) -> None:
    np.testing.assert_allclose(weigh(by_name(name), F), CLOSED[name](F), rtol=1e-6, atol=1e-9)


def test_cosmos_by_hand() -> None:
    # F = (1, 3): ‖F‖² = 10, cos = 4/√20; ∂cos = (1 − 4/10, 1 − 12/10)/√20 = (0.6, −0.2)/√20
    expected = [0.5 - 0.6 / 20**0.5, 0.5 + 0.2 / 20**0.5]
    np.testing.assert_allclose(weigh(by_name("cosmos"), np.array([1.0, 3.0])), expected, rtol=1e-9)


@given(F=positive)
def test_the_step_descends_the_scalarization(F: FloatArray) -> None:
    """A number S of quadratic losses ½ a (x − t)² has the gradient Σ c_k ∇F_k."""
    rng = np.random.default_rng(len(F))
    a, t, x, h = rng.uniform(0.5, 2.0, len(F)), rng.normal(size=len(F)), 0.3, 1e-6

    def losses(x: float) -> FloatArray:
        return 0.5 * a * (x - t) ** 2 + F

    for name in CLOSED:
        made = {
            "cosmos": lambda: scalarization.COSMOS(1.0, torch.full((len(F),), 1 / len(F), dtype=torch.float64)),
            "pbi": lambda: scalarization.PBI(1.0, torch.ones(len(F), dtype=torch.float64)),
            "stch": lambda: scalarization.STCH(1.0, torch.ones(len(F), dtype=torch.float64)),
            "mean": scalarization.Mean,
            "sum": scalarization.Sum,
            "geometricmean": scalarization.GeometricMean,
        }[name]()
        S = [float(made(torch.from_numpy(losses(x + side)))) for side in (-h, h)]
        step = weigh(by_name(name), losses(x)) @ (a * (x - t))
        assert step == pytest.approx((S[1] - S[0]) / (2 * h), rel=1e-4, abs=1e-4), name


# Reductions ---------------------------------------------------------------------------------------------------------


@given(F=positive)
def test_the_mean_is_fedavg_with_uniform_weights(F: FloatArray) -> None:
    cohort = cohort_of(np.eye(len(F)), losses=F)
    np.testing.assert_allclose(by_name("mean").weigh(cohort), FedAvg(weighting="uniform").weigh(cohort), rtol=1e-15)


@given(F=positive, mu=st.floats(0.05, 20.0))
def test_the_smooth_maximum_with_weights_of_one_is_term(F: FloatArray, mu: float) -> None:
    cohort = cohort_of(np.eye(len(F)), losses=F)
    ours = FromScalarizer(lambda m: scalarization.STCH(mu, torch.ones(m, dtype=torch.float64)))
    expected = TERM(tilt=1.0 / mu, weighting="uniform").weigh(cohort)
    np.testing.assert_allclose(ours.weigh(cohort), expected, rtol=1e-9, atol=1e-300)


@given(m=st.integers(1, 12), loss=st.floats(0.1, 10.0))
def test_at_equal_losses_the_weights_are_equal(m: int, loss: float) -> None:
    sums = {"mean": 1.0, "geometricmean": 1.0, "stch": 1.0, "cosmos": 1.0, "sum": float(m), "pbi": m**0.5}
    for name, total in sums.items():
        c = weigh(by_name(name), np.full(m, loss))
        np.testing.assert_allclose(c, total / m, rtol=1e-6, err_msg=name)


# Names --------------------------------------------------------------------------------------------------------------


def test_every_installed_scalarizer_has_a_name_or_a_reason() -> None:
    with pytest.raises(ValueError, match="torchjd:nothing is unknown; there are ") as refused:
        by_name("nothing")
    there = str(refused.value).split("there are ")[1].split(", ")
    assert there[-len(NAMES) :] == [f"torchjd:{name}" for name in NAMES]
    installed = {name.lower() for name in scalarization.__all__} - {"scalarizer"}
    assert installed == {*NAMES, *LEARNING, "constant"}


def test_no_scalarizer_is_called_as_a_weighting_is() -> None:
    from .test_torchjd import NAMES as WEIGHTINGS

    assert not {*NAMES, *LEARNING, "constant"} & {*WEIGHTINGS, *METHODS}
    assert {find_method(f"torchjd:{name}") for name in NAMES} == {FromScalarizer}
    assert {find_method(f"torchjd:{name}") for name in WEIGHTINGS} == {FromTorchJD}


@pytest.mark.parametrize("name", LEARNING)
def test_what_learns_from_step_to_step_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"torchjd:{name} is no method: it learns from step to step"):
        by_name(name)


def test_what_needs_arguments_is_refused_with_a_remedy() -> None:
    with pytest.raises(ValueError, match=r"weights.*give it as an object, FromScalarizer\(Constant\(...\)\)"):
        by_name("constant")
    constant = FromScalarizer(scalarization.Constant(torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)))
    np.testing.assert_allclose(weigh(constant, np.array([3.0, 1.0, 2.0])), [0.2, 0.3, 0.5])


@pytest.mark.parametrize(
    "wrong",
    [None, "stch", scalarization.Mean, 3, lambda m: m, lambda m: scalarization.Mean],
    ids=["none", "name", "class", "number", "function of no scalarizer", "function of a class"],
)
def test_what_is_no_scalarizer_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="scalarizer must be one of TorchJD's, or a function of m that makes one"):
        FromScalarizer(wrong)


@pytest.mark.parametrize("made", [scalarization.DWA(), lambda m: scalarization.UW(m), scalarization.FAMO(3)])
def test_an_object_that_learns_is_refused_as_its_name_is(made: Any) -> None:
    with pytest.raises(ValueError, match="it learns from step to step"):
        FromScalarizer(made)


def test_without_torchjd_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchjd", None)
    with pytest.raises(ValueError, match=r"torchjd:stch needs TorchJD: pip install"):
        by_name("stch")
    assert find_method("torchjd:stch") is FromTorchJD


def test_common_options_are_taken_and_there_is_no_prior() -> None:
    strategy = by_name("stch", fraction_train=0.5, proximal_mu=0.1)
    assert told(strategy, 1) == {"proximal-mu": 0.1}
    assert strategy.needs == {"loss-before"}
    with pytest.raises(ValueError, match="has no prior"):
        FromScalarizer(scalarization.Mean(), weighting="uniform")  # type: ignore[call-arg]


# A round ------------------------------------------------------------------------------------------------------------


@every_name
@given(F=positive)
def test_weights_are_float64_one_a_client_and_the_same_again(name: str, F: FloatArray) -> None:
    strategy, cohort = by_name(name), cohort_of(np.eye(len(F)), losses=F)
    c = strategy.weigh(cohort)
    assert (c.shape, c.dtype) == ((len(F),), np.float64)
    assert np.isfinite(c).all()
    assert by_name(name).weigh(cohort).tobytes() == c.tobytes()
    np.testing.assert_array_equal(cohort.losses, F)


@every_name
def test_one_client_alone_is_stepped_along_as_it_is(name: str) -> None:
    assert weigh(by_name(name), np.array([0.7])) == pytest.approx([1.0], abs=1e-6)


@every_name
@pytest.mark.parametrize("losses", [[0.0, 0.0], [0.0, 1.0], [-1.0, 2.0], [1e-12, 1e12], [1e300, 1e300], [0.0]])
def test_whatever_the_losses_the_weights_are_finite(name: str, losses: list[float]) -> None:
    c = weigh(by_name(name), np.array(losses))
    assert np.isfinite(c).all()


@pytest.mark.parametrize("losses", [[0.0, 1.0, 2.0], [-1.0, 1.0, 2.0]])
def test_without_a_gradient_weights_are_uniform(losses: list[float], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", logger="fairbloom"):
        c = weigh(by_name("geometricmean"), np.array(losses))
    np.testing.assert_array_equal(c, np.full(3, 1 / 3))


@every_name
def test_at_zero_losses_weights_are_uniform_and_a_log_says_why(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """The gradient of COSMOS is -6e7 there; that of the sum would be 1."""
    with caplog.at_level("WARNING", logger="fairbloom"):
        c = weigh(by_name(name), np.zeros(3))
    np.testing.assert_array_equal(c, np.full(3, 1 / 3))
    assert "in round 1: every loss is 0" in caplog.text


def test_weights_for_another_number_of_clients_are_uniform() -> None:
    strategy = FromScalarizer(scalarization.Constant(torch.ones(4)))
    np.testing.assert_array_equal(weigh(strategy, np.array([1.0, 2.0, 3.0])), np.full(3, 1 / 3))


def test_random_weights_are_drawn_from_seed_and_round() -> None:
    F = np.array([1.0, 2.0, 3.0])
    torch.manual_seed(5)
    before = torch.get_rng_state()
    of = {(seed, t): weigh(by_name("random", seed=seed), F, t).tobytes() for seed in (0, 1) for t in (1, 2)}
    assert len(set(of.values())) == 4
    assert weigh(by_name("random", seed=1), F, 2).tobytes() == of[1, 2]
    FromScalarizer(lambda m: scalarization.COSMOS(1.0, torch.distributions.Dirichlet(torch.ones(m)).sample()))
    assert torch.equal(torch.get_rng_state(), before)


def test_drawn_preferences_are_those_of_seed_and_round() -> None:
    def drawn(m: int) -> Any:
        return scalarization.COSMOS(0.0, torch.distributions.Dirichlet(torch.ones(m, dtype=torch.float64)).sample())

    F = np.array([1.0, 2.0, 3.0])
    first, second = weigh(FromScalarizer(drawn), F, 1), weigh(FromScalarizer(drawn), F, 2)
    assert first.sum() == pytest.approx(1.0)
    assert not np.allclose(first, second)
    assert weigh(FromScalarizer(drawn), F, 1).tobytes() == first.tobytes()


# A run --------------------------------------------------------------------------------------------------------------


@every_name
def test_a_run_resumed_from_its_state_ends_with_the_same_bits(name: str) -> None:
    check_resumption(lambda: by_name(name, buffers=BUFFERS))


def test_negative_weights_are_counted_in_the_round() -> None:
    finished: list[Any] = []
    strategy = by_name("pbi", buffers=BUFFERS)
    strategy.start(MemoryGrid(quadratics(6)), record(initial_model()), num_rounds=1, on_round=finished.append)
    negative = sum(c < 0 for c in finished[0].coefficients.values())
    assert finished[0].metrics["negative-weights"] == negative > 0
