"""A server that forges whatever it sends: a client refuses by the name of a check, and says no number of its own."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairbloom.private.errors import RefusedError, SkippedError
from fairbloom.private.keys import RoundKey, issue, new_signing_key, sign
from fairbloom.private.packing import pack, unpack
from fairbloom.private.rules import signed_keys
from fairbloom.private.weighing import (
    SUMS_OF_AFL,
    AscentWeighing,
    DeviationWeighing,
    GramWeighing,
    MeanWeighing,
    PriorWeighing,
    TailWeighing,
    TiltedWeighing,
    Weighing,
)

from .federation import Federation
from .test_angles import weigh

VICTIM, CLIENTS = "client-003", 6
EXCHANGES = ("keys", "work", "open", "share", "vector", "unmask")

CHECKS = (
    *("malformed", "order", "position", "second attempt", "purpose", "small cohort", "split sums", "alive and lost"),
    *("privacy = ", "weights", "the cohort", "the terms", "the model", "the keys of", "the certificate", "the list of"),
    *("the position", "the purpose", "the exchange", "the coefficients", "the shares of", "a public key", "a share"),
    *("this client leaves the round", "shares of the sums are too few", "there is no exchange"),
)
"""How refusals begin, or what they have after a number of clients or shares."""

ODD: list[Any] = [
    *(None, True, -1, 0, 7, 2**70, 1.5, float("inf"), float("nan"), "", "x", b"", bytes(32), [], {}, [[]], {"b": b""}),
    *(["client-000"] * 3, ["CLIENT-003"], "client-003\u0301", 10**11, [0] * 1000),
]


def kinds(federation: Federation) -> dict[str, Weighing]:
    return {
        "prior": PriorWeighing(prior="examples"),
        "tilted": TiltedWeighing(),
        "deviation": DeviationWeighing(),
        "ascent": AscentWeighing(clients=federation.names),
        "angles": GramWeighing(clients=federation.names, epsilon=0.3, unit=True),
        "mean": MeanWeighing(scores=("loss-before",)),
    }


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where each part of a request is, the whole first."""
    yield at
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*at, key))


def changed(value: Any, at: tuple[Any, ...], by: Any) -> Any:
    """Return a request with another part at a place."""
    if not at:
        return by
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[at[0]] = changed(copy[at[0]], at[1:], by)
    return copy


def assert_says_nothing(federation: Federation, words: str) -> None:
    """Check that a refusal begins with a check's name and has no number of the client."""
    assert any(words.startswith(check) or f" {check}" in words for check in CHECKS), words
    for number in (*federation.metrics[VICTIM].values(), *federation.updates[VICTIM]):
        assert f"{number:.4g}".lstrip("-") not in words or abs(number) >= 10, words


@pytest.mark.parametrize("kind", kinds(Federation(CLIENTS)))
@given(st.data())
@settings(deadline=None, max_examples=25)
def test_any_changed_field_is_refused_or_changes_nothing(kind: str, data: st.DataObject) -> None:
    federation = Federation(CLIENTS, 20, tier="angles", also=SUMS_OF_AFL)
    federation.weigh = weigh
    weighing, target = kinds(federation)[kind], data.draw(st.sampled_from(EXCHANGES))

    def forge(exchange: str, client: str, request: dict[str, Any]) -> Any:
        if (exchange, client) == (target, VICTIM):
            at = data.draw(st.sampled_from([*places(request)][1:]))
            return changed(request, at, data.draw(st.sampled_from(ODD)))
        return request

    honest = federation.clients[VICTIM].answer

    def answer(exchange: str, request: dict[str, bytes], work: Any) -> dict[str, bytes]:
        try:
            return honest(exchange, request, work)
        except RefusedError as error:
            assert_says_nothing(federation, str(error))
            raise

    federation.clients[VICTIM].answer = answer  # type: ignore[method-assign]
    with contextlib.suppress(SkippedError):
        federation.run(weighing, vectors=kind != "mean")


@pytest.mark.parametrize("exchange", [*EXCHANGES, "another"])
@pytest.mark.parametrize(
    "body", [b"", b"7", b"[]", b"{}", b"\xff", b"[" * 100_000, b"9" * 5000, b'{"position": {"b64": "%"}}', None, 5]
)
def test_bytes_that_are_no_request_are_refused(exchange: str, body: Any) -> None:
    federation = Federation(CLIENTS)
    with pytest.raises(RefusedError, match=r"malformed|there is no exchange"):
        federation.clients[VICTIM].answer(exchange, {"body": body}, federation.work(VICTIM))
    with pytest.raises(RefusedError, match="malformed"):
        federation.clients[VICTIM].answer("keys", {}, federation.work(VICTIM))


@pytest.mark.parametrize("kind", kinds(Federation(CLIENTS)))
def test_each_exchange_comes_once_and_in_its_order(kind: str) -> None:
    """Before each one, all others are asked for with its request; after the round, all requests come once more."""
    federation = Federation(CLIENTS, 20, tier="angles", also=SUMS_OF_AFL)
    federation.weigh = weigh
    client, seen = federation.clients[VICTIM], list[tuple[str, dict[str, Any]]]()

    def refused(exchange: str, request: dict[str, Any]) -> str:
        with pytest.raises(RefusedError) as error:
            client.answer(exchange, {"body": pack(request)}, federation.work(VICTIM))
        return str(error.value)

    def forge(exchange: str, name: str, request: dict[str, Any]) -> dict[str, Any]:
        if name == VICTIM:
            seen.append((exchange, request))
            for other in EXCHANGES:
                if other != exchange and exchange != "keys" and {exchange, other} != {"share", "vector"}:
                    assert refused(other, request).startswith(("order", "position", "second attempt"))
        return request

    federation.forge = forge
    weighing = kinds(federation)[kind]
    opened = federation.run(weighing, vectors=kind != "mean")
    assert federation.server.refused == {}
    assert VICTIM in opened.cohort
    for exchange, request in seen:
        words = "second attempt" if exchange == "keys" else "position"
        assert refused(exchange, request).startswith(words)


@pytest.mark.parametrize(
    ("kind", "sums"),
    [
        ("deviation", {"weight", "losses", "contributions"}),
        ("ascent", {"weight", "mass", "number", "above", "squares", "contributions"}),
        ("angles", {"weight", "length", "product", "coefficient"}),
        ("tail", {"weight", "bin", "contributions"}),
    ],
)
def test_what_the_server_gets_has_the_allowed_keys_alone(kind: str, sums: set[str]) -> None:
    federation = Federation(10, 20, tier="counts" if kind == "tail" else "angles", also=SUMS_OF_AFL)
    federation.weigh = weigh
    opened = federation.run(kinds(federation).get(kind, TailWeighing()))
    assert {name.split()[0] for name in opened.sums} == sums
    allowed = {
        **{"work": {"shares"}, "open": {"sum"}, "share": {"shares"}},
        **{"vector": {"digest"}, "unmask": {"seeds", "keys"}},
    }
    assert {exchange for exchange, _, _ in federation.replies} - {"share"} == {"keys", *allowed} - {"share"}
    for exchange, _, reply in federation.replies:
        assert set(reply) <= {"body", "signature", "vector"}
        body = unpack(reply["body"])
        assert len(body) == 4 if exchange == "keys" else set(body) == allowed[exchange]


def test_a_step_is_the_last_one_for_all_or_for_none() -> None:
    federation = Federation(CLIENTS, 20)

    def forge(exchange: str, name: str, request: dict[str, Any]) -> dict[str, Any]:
        if name == VICTIM and exchange in ("share", "vector"):
            other = "vector" if exchange == "share" else "share"
            with pytest.raises(RefusedError, match=r"order: step \d is (not )?the last one"):
                federation.clients[VICTIM].answer(other, {"body": pack(request)}, federation.work(VICTIM))
        return request

    federation.forge = forge
    federation.run(DeviationWeighing())
    assert federation.server.refused == {}


@pytest.mark.parametrize("tier", ["sums", "angles", "counts"])
def test_afls_sums_are_for_runs_of_afl_alone(tier: str) -> None:
    """Its sums over two sets of which one has a client less show that client's λ + γF."""
    of_afl, another = (Federation(8, 20, tier=tier, also=also) for also in (SUMS_OF_AFL, ""))
    for name, metrics in of_afl.metrics.items():
        metrics["loss-before"] = 0.3 if name == VICTIM else 2.0
    another.metrics = of_afl.metrics
    weighing = AscentWeighing(clients=another.names, gamma=1.0)
    sums = of_afl.run(weighing).sums
    assert 1.0 + sums["above 1"] - sums["above 2"] == pytest.approx(1 / 8 + 0.3)
    with pytest.raises(SkippedError, match=f"privacy = '{tier}': the terms would open sums of AFL, too, which the run"):
        another.run(weighing)
    assert {exchange for exchange, _, _ in another.replies} == {"keys"}


@pytest.mark.parametrize(
    ("given", "purpose"), [(PriorWeighing(), "evaluate"), (MeanWeighing(scores=("loss-before",)), "train")]
)
def test_an_evaluation_opens_scores_and_a_training_none(given: Weighing, purpose: str) -> None:
    """Sums of one round's training and evaluation, over clients of which one differs, would differ by its numbers."""
    federation = Federation(CLIENTS, 20)

    def forge(exchange: str, name: str, request: dict[str, Any]) -> dict[str, Any]:
        request["position"]["purpose"] = purpose
        return request

    federation.forge = forge
    with pytest.raises(SkippedError, match=r"not signed|purpose"):
        federation.run(given)
    assert {exchange for exchange, _, _ in federation.replies} <= {"keys"}


@pytest.mark.parametrize("key", [bytes(32), bytes([1, *[0] * 31]), b"short", bytes([0xEC, *[0xFF] * 30, 0x7F])])
@pytest.mark.parametrize("place", ["channel", "mask"])
def test_public_keys_of_small_order_are_refused(place: str, key: bytes) -> None:
    """A colluding client signs a key by which all secrets of a pair are known."""
    federation = Federation(CLIENTS, 20)
    private, public = new_signing_key()
    certificate = issue(federation.secret, "test", "client-000", public, "")

    def forge(exchange: str, name: str, request: dict[str, Any]) -> dict[str, Any]:
        if exchange == "work" and name == VICTIM:
            channel, mask = RoundKey.new().public, RoundKey.new().public
            channel, mask = (key, mask) if place == "channel" else (channel, key)
            signature = sign(private, signed_keys(federation.server._context, channel, mask))
            request["cohort"][0] = [certificate.fields(), channel, mask, signature]
        return request

    federation.forge = forge
    with contextlib.suppress(SkippedError):
        federation.run()
    assert "a public key is not a usable key" in federation.server.refused[VICTIM]


@pytest.mark.parametrize(
    ("federation_name", "name", "expires", "words"),
    [
        ("another", "client-000", "", "of another federation"),
        ("test", "client-000", "2020-01-01T00:00:00+00:00", "expired on 2020"),
        ("test", "client-000", "soon", "malformed"),
        ("test", "client-001", "", "not distinct and in order"),
        ("test", "CLIENT-003", "", ""),
        ("test", "client-003\u0301", "", "not distinct and in order"),
    ],
)
def test_certificates_in_a_cohort_are_checked(federation_name: str, name: str, expires: str, words: str) -> None:
    """Names in other letters are other clients, which the authority has to have enrolled."""
    federation = Federation(CLIENTS, 20)
    private, public = new_signing_key()
    certificate = issue(federation.secret, federation_name, name, public, expires)

    def forge(exchange: str, client: str, request: dict[str, Any]) -> dict[str, Any]:
        if exchange == "work" and client == VICTIM:
            channel, mask = RoundKey.new().public, RoundKey.new().public
            signature = sign(private, signed_keys(federation.server._context, channel, mask))
            request["cohort"][0] = [certificate.fields(), channel, mask, signature]
        return request

    federation.forge = forge
    with contextlib.suppress(SkippedError):  # the victim's shares are for another client
        federation.run()
    assert words in federation.server.refused.get(VICTIM, "")


@pytest.mark.parametrize("change", [{"run": "x" * 256}, {"run": 7}, {"round": "1"}, {"attempt": True}, {"more": 1}])
def test_a_position_that_is_none_is_refused(change: dict[str, Any]) -> None:
    """A device keeps what it answered by the run's name: a long one would fill its disk."""
    federation = Federation(CLIENTS, 20)
    position = federation.task(PriorWeighing()).position.plain() | change
    body = pack({"position": position, "model": b"", "terms": b""})
    with pytest.raises(RefusedError, match="the position of the exchange is"):
        federation.clients[VICTIM].answer("keys", {"body": body}, federation.work(VICTIM))


@pytest.mark.parametrize("change", [{"run": "another"}, {"attempt": 2}, {"round": 2}, {"purpose": "evaluate"}])
@pytest.mark.parametrize("exchange", EXCHANGES[1:])
def test_an_exchange_of_another_position_is_refused(exchange: str, change: dict[str, Any]) -> None:
    federation = Federation(CLIENTS, 20)

    def forge(asked: str, client: str, request: dict[str, Any]) -> dict[str, Any]:
        if (asked, client) == (exchange, VICTIM):
            request["position"] |= change
        return request

    federation.forge = forge
    with contextlib.suppress(SkippedError):
        federation.run(DeviationWeighing())
    assert "position: the exchange is not of the round" in federation.server.refused[VICTIM]
