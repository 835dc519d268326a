"""Private rounds that open angles: the step is the plain one, and clients check what the server makes of the angles."""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairbloom.client.private import torchjd_weights
from fairbloom.private.errors import RefusedError, SkippedError
from fairbloom.private.field import PRIME, share
from fairbloom.private.keys import digest
from fairbloom.private.masks import sketch
from fairbloom.private.weighing import NUMBER, TORCHJD, GramWeighing, Own, Sums
from fairbloom.strategies.simplex import min_norm_weights

from .federation import Federation

VICTIM = "client-003"

Array = np.ndarray[Any, Any]


def coefficients(weighing: GramWeighing, gram: Array, lengths: Array) -> Array:
    """Return the coefficients, written down once more from the papers."""
    if weighing.torchjd:
        return torchjd_weights(weighing.torchjd, weighing.arguments, gram)
    lengths = lengths if weighing.unit else np.ones(len(gram))
    moved, c = lengths > 0.0, np.zeros(len(gram))
    if not moved.any():
        return c
    unit = gram[np.ix_(moved, moved)] / np.outer(lengths[moved], lengths[moved])
    c[moved] = min_norm_weights(unit, np.full(len(unit), 1.0 / len(unit)), weighing.epsilon) / lengths[moved]
    return weighing.step_size * c


def weigh(weighing: GramWeighing, names: Sequence[str], sums: Sums) -> Array:
    lengths, cosines = weighing.gram(names, sums)
    return coefficients(weighing, cosines * np.outer(lengths, lengths), lengths)


def weighings(names: Sequence[str], sketched: int = 0) -> dict[str, GramWeighing]:
    starts = {"cagrad": {"c": 0.4}, "fairgrad": {"alpha": 1.0}}
    plain = {
        "fedmgda": GramWeighing(clients=names, sketch=sketched),
        "fedmgda near the prior": GramWeighing(clients=names, epsilon=0.05, sketch=sketched),
        "fedmgdaplus": GramWeighing(clients=names, epsilon=2 / len(names), unit=True, step_size=0.3, sketch=sketched),
    }
    library = {
        name: GramWeighing(clients=names, torchjd=name, arguments=starts.get(name, {}), sketch=sketched)
        for name in sorted(TORCHJD)
    }
    return {**plain, **library}


KINDS = sorted(weighings(["a"]))


def federation_of(clients: int = 8, size: int = 500) -> Federation:
    """Return clients whose updates have something in common, as those of training have."""
    federation = Federation(clients, size, tier="angles")
    federation.weigh = weigh
    common = np.random.default_rng(7).normal(size=size)
    federation.updates = {name: update + common for name, update in federation.updates.items()}
    return federation


def error(weighing: GramWeighing, federation: Federation, step: Any, rows: Array | None = None) -> float:
    """Return how far the step is from the plain one with the same cap, in units of C."""
    updates = np.array([federation.updates[name] for name in federation.names])
    rows = updates if rows is None else rows
    lengths = np.linalg.norm(updates, axis=1)
    c = coefficients(weighing, rows @ rows.T, lengths)
    whole = np.abs(c) @ lengths
    shares = np.abs(c) * lengths / whole
    most = np.minimum(weighing.kappa(len(c)), 1.0 - shares)
    c = np.where(shares > most, c * most / np.maximum(shares, 1e-300), c)
    return float(np.linalg.norm(step - c @ updates) / whole)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("clients", "size"), [(5, 50), (8, 650), (30, 2_000)])
def test_the_step_of_angles_is_the_plain_one(kind: str, clients: int, size: int) -> None:
    federation = federation_of(clients, size)
    weighing = weighings(federation.names)[kind]
    opened = federation.run(weighing)
    assert federation.server.refused == {}
    assert error(weighing, federation, opened.step) < 2e-5


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fedmgda", "fedmgdaplus", "upgrad"])
def test_the_step_of_a_hundred_clients_is_the_plain_one(kind: str) -> None:
    federation = federation_of(100, 650)
    weighing = weighings(federation.names)[kind]
    assert error(weighing, federation, federation.run(weighing).step) < 1e-4


@pytest.mark.slow
def test_the_step_of_the_largest_exact_update_is_the_plain_one() -> None:
    federation = federation_of(10, 100_000)
    weighing = weighings(federation.names)["fedmgdaplus"]
    assert error(weighing, federation, federation.run(weighing).step) < 2e-5


@pytest.mark.parametrize("kind", ["fedmgda", "fedmgdaplus", "upgrad"])
def test_the_step_of_sketches_is_that_of_their_gram_matrix(kind: str) -> None:
    federation = federation_of(8, 20_000)
    weighing, cohorts = weighings(federation.names, 1024)[kind], list[Any]()

    def forge(asked: str, client: str, request: dict[str, Any]) -> dict[str, Any]:
        if asked == "work":
            cohorts.append(request["cohort"])
        return request

    federation.forge = forge
    opened = federation.run(weighing)
    assert federation.server.refused == {}
    seed = digest("sketch", federation.server._context, cohorts[0])
    updates = np.array([federation.updates[name] for name in federation.names])
    lengths = np.linalg.norm(updates, axis=1)
    rows = np.array([sketch(update, 1024, seed) for update in updates])
    assert error(weighing, federation, opened.step, rows) < 2e-5
    _, cosines = weighing.gram(federation.names, opened.sums)
    assert cosines * np.outer(lengths, lengths) == pytest.approx(rows @ rows.T, rel=1e-5, abs=1e-3)
    assert np.abs(cosines - updates @ updates.T / np.outer(lengths, lengths)).max() < 0.15


def test_lengths_and_angles_are_those_of_the_updates() -> None:
    federation = federation_of()
    weighing = weighings(federation.names)["fedmgdaplus"]
    lengths, cosines = weighing.gram(federation.names, federation.run(weighing).sums)
    updates = np.array([federation.updates[name] for name in federation.names])
    assert lengths == pytest.approx(np.linalg.norm(updates, axis=1), rel=1e-12)
    assert cosines * np.outer(lengths, lengths) == pytest.approx(updates @ updates.T, rel=1e-6, abs=1e-4)


def test_an_update_of_zero_has_no_part_in_normalised_steps() -> None:
    federation = federation_of()
    federation.updates[VICTIM] = np.zeros(federation.size)
    weighing = weighings(federation.names)["fedmgdaplus"]
    opened = federation.run(weighing)
    assert federation.server.refused == {}
    assert error(weighing, federation, opened.step) < 2e-5


def test_updates_of_zero_alone_make_no_step() -> None:
    federation = federation_of()
    federation.updates = dict.fromkeys(federation.names, np.zeros(federation.size))
    opened = federation.run(weighings(federation.names)["fedmgdaplus"])
    assert not np.any(opened.step)


def test_equal_updates_are_summed() -> None:
    federation = federation_of()
    federation.updates = dict.fromkeys(federation.names, federation.updates[VICTIM])
    weighing = weighings(federation.names)["fedmgda"]
    assert error(weighing, federation, federation.run(weighing).step) < 2e-5


@given(
    st.integers(5, 12),
    st.integers(1, 20),
    st.integers(0, 10_000),
    st.sampled_from([0.0, 0.05, 0.2, 1.0]),
    st.booleans(),
    st.sampled_from([0.0, 1.0, 3.0]),
)
@settings(deadline=None, max_examples=200)
def test_clients_accept_what_an_honest_server_makes(
    m: int, d: int, seed: int, epsilon: float, unit: bool, spread: float
) -> None:
    random = np.random.default_rng(seed)
    rows = random.normal(size=(m, d)) * 10.0 ** random.uniform(-spread, spread, size=(m, 1))
    names = [f"client-{place:02}" for place in range(m)]
    weighing = GramWeighing(clients=names, epsilon=epsilon, unit=unit, step_size=0.5)
    lengths = np.linalg.norm(rows, axis=1)
    cosines = (rows / lengths[:, None]) @ (rows / lengths[:, None]).T
    sums = {f"product {i} {j}": cosines[i, j] * 2.0**16 for i in range(m) for j in range(i, m)}
    sums |= {f"length {k}": NUMBER.value(NUMBER.integer(lengths[k])) for k in range(m)}
    whole = [NUMBER.integer(each) for each in weigh(weighing, names, sums)]
    sums |= {name: NUMBER.value(each) for name, each in weighing.given(names, whole).items()}
    weighing.check(Own(float(lengths[2]), {}, names[2], tuple(names)), sums, torchjd_weights)


# Losses --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exchange", ["keys", "work", "open", "vector", "unmask"])
def test_two_of_eight_may_get_lost_where_angles_are_opened(exchange: str) -> None:
    federation = federation_of()
    gone = {"client-001", "client-006"}
    federation.forge = lambda asked, client, request: None if asked == exchange and client in gone else request
    weighing = weighings(federation.names)["fedmgdaplus"]
    opened = federation.run(weighing)
    left = [name for name in federation.names if name not in gone]
    assert list(opened.cohort) == (left if exchange in ("keys", "work") else federation.names)
    assert list(opened.alive) == (federation.names if exchange == "unmask" else left)
    updates = np.array([federation.updates[name] for name in opened.cohort])
    c = coefficients(weighing, updates @ updates.T, np.linalg.norm(updates, axis=1))  # those of A, over B
    expected = c[[name in opened.alive for name in opened.cohort]] @ np.array(
        [federation.updates[name] for name in opened.alive]
    )
    assert opened.step == pytest.approx(expected, abs=1e-4 * np.linalg.norm(expected))


@pytest.mark.parametrize("exchange", ["keys", "work", "open", "vector", "unmask"])
def test_three_of_eight_lost_open_no_angles_to_a_step(exchange: str) -> None:
    federation = federation_of()
    gone = federation.names[: 4 if exchange == "keys" else 3]
    federation.forge = lambda asked, client, request: None if asked == exchange and client in gone else request
    with pytest.raises(SkippedError, match="nothing was unmasked"):
        federation.run(weighings(federation.names)["fedmgdaplus"])


# Attacks -------------------------------------------------------------------------------------------------------------


def refusals(kind: str, change: Any) -> dict[str, str]:
    """Return why clients refuse the coefficients of a forging server; the round is skipped."""
    federation = federation_of()

    def forged(weighing: GramWeighing, names: Sequence[str], sums: Sums) -> Array:
        right = weigh(weighing, names, sums)
        return np.asarray(change(right, weighing.gram(names, sums)[0]), np.float64)

    federation.weigh = forged
    with pytest.raises(SkippedError, match="vector"):
        federation.run(weighings(federation.names)[kind])
    assert "unmask" not in {exchange for exchange, _, _ in federation.replies}
    assert set(federation.server.refused) == set(federation.names)
    return federation.server.refused


@pytest.mark.parametrize("kind", KINDS)
def test_one_hot_coefficients_of_angles_are_refused(kind: str) -> None:
    change = lambda c, lengths: np.eye(len(c))[3]  # noqa: E731
    assert "the coefficients " in refusals(kind, change)[VICTIM]


@pytest.mark.parametrize("kind", KINDS)
def test_coefficients_of_two_clients_are_refused(kind: str) -> None:
    change = lambda c, lengths: (np.eye(len(c))[3] + np.eye(len(c))[4]) / lengths  # noqa: E731
    assert "coefficients" in refusals(kind, change)[VICTIM]


@pytest.mark.parametrize("kind", KINDS)
def test_coefficients_that_are_almost_right_are_refused(kind: str) -> None:
    def change(c: Array, lengths: Array) -> Array:
        scales = lengths if kind == "fedmgdaplus" else np.ones(len(c))
        other, some = c * scales, 0.001 * np.abs(c * scales).max()
        other[np.argmax(other)] -= some
        other[np.argsort(other)[-2]] += some
        return other / scales

    assert "coefficients" in refusals(kind, change)[VICTIM]


def test_coefficients_off_the_simplex_are_refused() -> None:
    assert "not feasible" in refusals("fedmgda", lambda c, lengths: 2.0 * c)[VICTIM]
    assert "not feasible" in refusals("fedmgdaplus", lambda c, lengths: c + 0.3 / lengths)[VICTIM]


@pytest.mark.parametrize("given", [None, [], [1], {}, ["a"] * 8, [1.5] * 8, [True] * 8])
def test_coefficients_that_are_not_whole_numbers_are_refused(given: Any) -> None:
    federation = federation_of()

    def forge(asked: str, client: str, request: dict[str, Any]) -> dict[str, Any]:
        if asked == "vector" and client == VICTIM:
            request["coefficients"] = given
        return request

    federation.forge = forge
    federation.run(weighings(federation.names)["fedmgdaplus"])
    assert "not one whole number for each" in federation.server.refused[VICTIM]


def test_masks_of_split_coefficients_do_not_cancel() -> None:
    """Two clients that accept coefficients which differ in the last bit send words that stay masked."""
    federation = federation_of()

    def forge(asked: str, client: str, request: dict[str, Any]) -> dict[str, Any]:
        if asked == "vector" and client == VICTIM:
            request["coefficients"][0] += 1
        return request

    federation.forge = forge
    weighing = weighings(federation.names)["fedmgdaplus"]
    opened = federation.run(weighing)
    assert error(weighing, federation, opened.step) > 0.1


def test_split_angles_are_refused() -> None:
    federation = federation_of()

    def forge(asked: str, client: str, request: dict[str, Any]) -> dict[str, Any]:
        if asked == "vector" and client == VICTIM:
            content, signature = request["opened"]["client-000"]
            request["opened"]["client-000"] = [content.replace(b"A", b"B"), signature]
        return request

    federation.forge = forge
    federation.run(weighings(federation.names)["fedmgdaplus"])
    assert "split sums" in federation.server.refused[VICTIM]


def test_a_length_that_another_client_changed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = federation_of()
    honest = GramWeighing.sums

    def sums(weighing: GramWeighing, step: int, own: Own, opened: Sums) -> dict[str, float]:
        found = honest(weighing, step, own, opened)
        return found | {"length 3": -0.5} if own.name == "client-000" else found

    monkeypatch.setattr(GramWeighing, "sums", sums)
    federation.run(weighings(federation.names)["fedmgdaplus"])
    assert "the length that was opened for this client is not that of its update" in federation.server.refused[VICTIM]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"clients": ["client-000"] * 2}, "not distinct names"),
        ({"clients": ["another"]}, "do not name each client"),
        ({"clients": [str(place) for place in range(101)]}, "more than 100 clients"),
        ({"epsilon": -1.0}, "out of range"),
        ({"epsilon": float("nan")}, "out of range"),
        ({"step_size": 0.0}, "out of range"),
        ({"sketch": -1}, "a sketch of"),
        ({"sketch": 8}, "a sketch of"),
        ({"torchjd": "krum"}, "torchjd:krum is none of"),
    ],
)
def test_terms_that_open_angles_wrongly_are_refused(fields: dict[str, Any], words: str) -> None:
    federation = federation_of()

    class Forged(GramWeighing):
        def __post_init__(self) -> None:
            """Check nothing."""

    weighing = Forged(**{"clients": federation.names, **fields})
    if fields.get("epsilon") != fields.get("epsilon"):  # NaN cannot be packed
        with pytest.raises(ValueError, match=words):
            GramWeighing(clients=federation.names, **fields)
        return
    with pytest.raises(SkippedError, match=words):
        federation.run(weighing)


def test_a_device_without_torchjd_refuses_its_weightings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchjd", None)
    with pytest.raises(RefusedError, match=r"lacks TorchJD, whose weighting upgrad .*: pip install torchjd"):
        torchjd_weights("upgrad", {}, np.eye(2))


# What the server gets ------------------------------------------------------------------------------------------------


def test_shares_of_an_update_are_uniform_for_each_holder() -> None:
    row = np.full(20_000, 12345, np.uint64)
    for shares in share(row, 8, 3):
        counts, _ = np.histogram(shares / PRIME, bins=20, range=(0.0, 1.0))
        assert ((counts - 1000) ** 2 / 1000).sum() < 43.8  # χ² with 19 degrees of freedom, p = 0.001


def test_an_epsilon_that_reaches_the_cap_is_not_beyond_it() -> None:
    federation = federation_of(10)
    federation.updates |= {VICTIM: -federation.updates[VICTIM]}
    weighing = weighings(federation.names)["fedmgdaplus"]
    opened = federation.run(weighing)
    lengths, _ = weighing.gram(federation.names, opened.sums)
    shares = weighing.coefficients(federation.names, opened.sums) * lengths / weighing.step_size
    assert shares[3] == pytest.approx(0.3)
    assert opened.capped == 0
    assert error(weighing, federation, opened.step) < 2e-5
