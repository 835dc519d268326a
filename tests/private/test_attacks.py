"""What a client checks before it answers: each forgery of a server is refused by the check that is named for it."""

import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fairbloom.client.private import torchjd_weights
from fairbloom.private.client import MemoryStore, PrivateClient
from fairbloom.private.errors import SkippedError
from fairbloom.private.keys import Identity, digest, issue, new_signing_key, sign
from fairbloom.private.packing import pack, unpack
from fairbloom.private.rules import colluders, fewest_left, signed_reply, threshold
from fairbloom.private.weighing import (
    AccuracyWeighing,
    PowerWeighing,
    PriorWeighing,
    TiltedWeighing,
    Weighing,
)
from tests.checkout import ROOT

from .federation import Federation

VICTIM = "client-003"


def attack(exchange: str, change: Callable[[dict[str, Any]], Any]) -> Federation:
    """Run a round whose server forges what one client gets in an exchange."""
    federation = Federation()

    def forge(asked: str, client: str, request: dict[str, Any]) -> dict[str, Any]:
        if asked == exchange and client == VICTIM:
            change(request)
        return request

    federation.forge = forge
    federation.run()
    return federation


def refusal(exchange: str, change: Callable[[dict[str, Any]], Any]) -> str:
    """Return why the client refuses a forged request."""
    return attack(exchange, change).server.refused[VICTIM]


def test_two_models_are_refused() -> None:
    federation = Federation()
    federation.models[VICTIM] = digest("another model")
    federation.run()
    assert "the model is not the one for which keys were asked" in federation.server.refused[VICTIM]


def test_other_terms_are_refused() -> None:
    terms = pack({"weighing": PriorWeighing(prior="uniform").spec()})
    assert "the terms are not those" in refusal("work", lambda request: request.update(terms=terms))


def test_a_cohort_of_four_is_refused() -> None:
    assert "small cohort" in refusal("work", lambda request: request.update(cohort=request["cohort"][1:5]))


def test_a_cohort_with_a_name_twice_is_refused() -> None:
    change = lambda request: request["cohort"].append(request["cohort"][-1])  # noqa: E731
    assert "not distinct" in refusal("work", change)


def test_a_cohort_without_the_client_is_refused() -> None:
    change = lambda request: request["cohort"].pop(3)  # noqa: E731
    assert "the cohort lacks this client" in refusal("work", change)


def test_a_forged_certificate_is_refused() -> None:
    private, public = new_signing_key()

    def change(request: dict[str, Any]) -> None:
        _, channel, mask, _ = request["cohort"][0]
        invented = issue(private, "test", "client-000", public, "")
        request["cohort"][0] = [invented.fields(), channel, mask, sign(private, b"")]

    assert "not signed by the federation's authority" in refusal("work", change)


def test_a_member_with_keys_of_the_server_is_refused() -> None:
    def change(request: dict[str, Any]) -> None:
        request["cohort"][0][2] = bytes(range(32))

    assert "not signed for this position" in refusal("work", change)


def test_keys_of_another_round_are_refused() -> None:
    federation = Federation()
    federation.run()
    old: dict[str, Any] = {}
    for exchange, client, reply in federation.replies:
        if exchange == "keys":
            old[client] = unpack(reply["body"])

    def forge(asked: str, client: str, request: dict[str, Any]) -> dict[str, Any]:
        if asked == "work" and client == VICTIM:
            request["cohort"][0] = old["client-000"]
        return request

    federation.forge = forge
    federation.run(number=2)
    assert "not signed for this position" in federation.server.refused[VICTIM]


def test_a_split_list_of_those_who_take_part_is_refused() -> None:
    """Two clients that sign different lists give shares that open nothing together."""
    with pytest.raises(SkippedError, match="the share of client-003 is not signed for this list"):
        attack("open", lambda request: request["alive"].remove("client-000"))


def test_a_list_that_is_too_short_is_refused() -> None:
    change = lambda request: request.update(alive=request["alive"][:5])  # noqa: E731
    assert "small cohort" in refusal("open", change)


def test_a_list_beyond_the_cohort_is_refused() -> None:
    change = lambda request: request["alive"].append("client-999")  # noqa: E731
    assert "not in the cohort" in refusal("open", change)


def test_split_sums_are_refused() -> None:
    def change(request: dict[str, Any]) -> None:
        body, signature = request["opened"]["client-000"]
        changed = bytearray(body)
        changed[20] ^= 1
        request["opened"]["client-000"] = [bytes(changed), signature]

    assert "split sums" in refusal("vector", change)


def test_a_share_off_the_polynomial_is_refused() -> None:
    """A colluding client signs two shares: what it signs for the victim does not fit those of the others."""
    federation = Federation()
    private, public = new_signing_key()
    certificate = issue(federation.secret, "test", "client-000", public, "")
    colluder = PrivateClient(
        Identity(private, certificate), federation.authority, MemoryStore(), ["sums"], torchjd_weights
    )
    federation.clients["client-000"] = colluder

    def forge(asked: str, client: str, request: dict[str, Any]) -> dict[str, Any]:
        if asked == "vector" and client == VICTIM:
            state = colluder._store.load()
            words = bytearray(unpack(request["opened"]["client-000"][0])["sum"])
            words[0] ^= 1
            body = pack({"sum": bytes(words)})
            context = federation.server._context
            signed = signed_reply(context, "open", 1, state["alive"], body)
            request["opened"]["client-000"] = [body, sign(private, signed)]
        return request

    federation.forge = forge
    federation.run()
    assert "do not lie on one polynomial" in federation.server.refused[VICTIM]


def test_too_few_shares_of_sums_are_refused() -> None:
    def change(request: dict[str, Any]) -> None:
        request["opened"] = dict(list(request["opened"].items())[: threshold(8) - 1])

    assert "too few" in refusal("vector", change)


def test_alive_and_lost_is_refused() -> None:
    change = lambda request: request.update(lost=["client-000"])  # noqa: E731
    assert "alive and lost: client-000" in refusal("unmask", change)


def test_a_split_list_of_alive_and_lost_is_refused() -> None:
    def change(request: dict[str, Any]) -> None:
        request["alive"].remove("client-000")

    assert "together are not those who take part" in refusal("unmask", change)


@pytest.mark.parametrize(("told", "shown"), [({2: "45", 3: "46", 4: "56", 5: "46", 6: "5"}, 2), ({6: "35"}, 5)])
def test_lists_that_are_split_unmask_no_client_twice(told: dict[int, str], shown: int) -> None:
    """Of a client, the server gets T shares of its seed, of its key, or of neither; two colluders give both."""
    federation = Federation(7)

    def forge(asked: str, client: str, request: dict[str, Any]) -> dict[str, Any]:
        if asked == "unmask":
            lost = [f"client-00{digit}" for digit in told.get(int(client[-1]), "")]
            request.update(alive=[name for name in request["alive"] if name not in lost], lost=lost)
        return request

    federation.forge = forge
    with contextlib.suppress(SkippedError):
        federation.run()
    shares = {"seeds": Counter[str](), "keys": Counter[str]()}
    for exchange, client, reply in federation.replies:
        if exchange == "unmask" and client > "client-001":
            for kind, found in unpack(reply["body"]).items():
                shares[kind].update(list(found))
    honest, need = federation.names[2:], threshold(7) - 2
    unmasked = {kind: [name for name in honest if shares[kind][name] >= need] for kind in shares}
    assert not set(unmasked["seeds"]) & set(unmasked["keys"])
    assert unmasked["seeds"] == honest[:shown]


def test_split_lists_of_lost_show_no_sum_of_one() -> None:
    """A client is lost to the server once T − t honest ones are told so, each of whom bears a few lost ones."""
    for m in range(5, 101):
        for hostile, fewest in ((0, 5), (colluders(m), 2)):
            honest = m - hostile
            assert honest - honest * (m - fewest_left(m)) // (threshold(m) - hostile) >= fewest


def test_no_part_of_flowers_secure_aggregation_is_imported() -> None:
    """It unmasks a client that is named both alive and lost, and leaves keys unauthenticated."""
    packages = ("private", "client", "rounds", "server", "simulation", "strategies", "deploy", "protocol")
    sources = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    assert len(sources) > 200
    assert not [path for path in sources if "secure_aggregation" in path.read_text() or "secagg" in path.read_text()]


def test_too_many_lost_are_refused() -> None:
    def change(request: dict[str, Any]) -> None:
        request.update(alive=request["alive"][3:], lost=request["alive"][:3])

    assert "small cohort" in refusal("unmask", change)


def test_a_replayed_round_is_refused() -> None:
    federation = Federation()
    federation.run(number=5)
    with pytest.raises(SkippedError, match="round 4, attempt 1 is not after round 5"):
        federation.run(number=4)


def test_a_second_attempt_after_a_vector_is_refused() -> None:
    federation = Federation()
    federation.run()
    with pytest.raises(SkippedError, match="second attempt"):
        federation.run(attempt=2)


def test_a_second_attempt_after_an_opened_sum_is_refused() -> None:
    """Sums over a cohort, and over it without one client, would differ by that client's numbers."""
    federation = Federation()
    federation.forge = lambda asked, client, request: None if asked == "vector" else request
    with pytest.raises(SkippedError, match="vector"):
        federation.run()
    federation.forge = lambda asked, client, request: request
    with pytest.raises(SkippedError, match="second attempt"):
        federation.run(attempt=2)


def test_another_attempt_before_any_sum_is_answered() -> None:
    federation = Federation()
    federation.forge = lambda asked, client, request: None if asked == "work" else request
    with pytest.raises(SkippedError, match="work"):
        federation.run()
    federation.forge = lambda asked, client, request: request
    assert len(federation.run(attempt=2).alive) == 8


@pytest.mark.parametrize(
    "weighing",
    [
        TiltedWeighing(tilt=50.0, loss_bound=12.0),
        AccuracyWeighing(alpha=0.0, beta=1.0, rounds=dict.fromkeys(Federation().names, 1.0) | {VICTIM: 1e12}),
        PowerWeighing(q=30.0, loss_bound=12.0),
    ],
    ids=lambda each: each.kind,
)
def test_one_hot_coefficients_of_sums_show_nobody(weighing: Weighing) -> None:
    """Terms that single out one client give the server nothing of that client: it sends no more than all others."""
    federation = Federation(8, 2000)
    federation.metrics[VICTIM]["loss-before"] = 12.0
    opened = federation.run(weighing)
    assert opened.capped == 1
    assert np.linalg.norm(opened.step) < 1e-6 * np.linalg.norm(federation.updates[VICTIM])


def test_a_model_that_moves_one_client_alone_shows_nothing() -> None:
    """A server may choose the model so that the updates of all others are zero."""
    federation = Federation(8, 2000)
    federation.updates |= {name: np.zeros(2000) for name in federation.names if name != VICTIM}
    opened = federation.run()
    assert opened.capped == 1
    assert not np.any(opened.step)


def test_no_client_is_more_than_half_of_a_sum() -> None:
    federation = Federation(8, 2000)
    federation.metrics[VICTIM]["num-examples"] = 1e5
    opened = federation.run(PriorWeighing(prior="examples"))
    weights = {name: federation.metrics[name]["num-examples"] for name in federation.names}
    lengths = {name: np.linalg.norm(federation.updates[name]) for name in federation.names}
    others = sum(weights[name] * lengths[name] for name in federation.names if name != VICTIM)
    weights[VICTIM] = others / lengths[VICTIM]
    total = sum(federation.metrics[name]["num-examples"] for name in federation.names)
    expected = sum(weights[name] / total * federation.updates[name] for name in federation.names)
    assert opened.step == pytest.approx(expected, abs=1e-5)


def test_numbers_that_are_not_finite_keep_a_client_out() -> None:
    federation = Federation()
    federation.updates[VICTIM][0] = np.nan
    opened = federation.run()
    assert VICTIM not in opened.cohort
    assert "not all of its numbers are finite" in federation.server.refused[VICTIM]


def test_two_disjoint_honest_groups_never_both_open_a_secret() -> None:
    for m in range(5, 101):
        t = (m - 1) // 3
        assert (m - t) // 2 + t < threshold(m) <= m
    assert [threshold(m) for m in (5, 6, 8, 10, 100)] == [4, 4, 6, 7, 67]
    assert fewest_left(5) == 5
