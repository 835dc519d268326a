"""What a client answers in a private round, and what it checks before it does."""

import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fairbloom.errors import ReportableError

from .errors import RefusedError
from .field import PRIME, Words, add, agree, combine, multiply, share, total
from .keys import Authority, Identity, RoundKey, digest, seal, sign, unseal, verify
from .masks import add_mask
from .numbers import FIELD_LIMB, WORD_LIMB, FixedPoint, Masked, bound_of, quantise, to_field, to_words
from .packing import binary, pack, unpack
from .rules import (
    EVALUATE,
    EXTRA,
    FEWEST,
    SECRET_LIMBS,
    Member,
    Position,
    buffer_bound,
    colluders,
    context_of,
    fewest_left,
    join_sums,
    mask_context,
    places_in,
    signed_keys,
    signed_reply,
    threshold,
    words_in,
    words_of,
)
from .weighing import AscentWeighing, GramWeighing, Own, Weighing, Weights, check_cohort, weighing_of

Message = Mapping[str, Any]
State = dict[str, Any]

SECRET_WORDS = SECRET_LIMBS.limbs(FIELD_LIMB)

NO_ROW = np.empty(0, np.int64)


class Store(Protocol):
    """Where a client keeps its state: what `save` was given last is on disk before an answer leaves."""

    def load(self) -> State:
        """Return the last state, an empty one at first."""

    def save(self, state: State) -> None:
        """Keep a state."""


@dataclass
class MemoryStore:
    """A state in this process."""

    state: State = field(default_factory=dict)

    def load(self) -> State:
        """Return the last state."""
        return self.state

    def save(self, state: State) -> None:
        """Keep a state."""
        self.state = state


@dataclass(frozen=True)
class Work:
    """What a client's local work has made: its update, how it changed the other arrays, and its numbers."""

    metrics: Mapping[str, float]
    update: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    others: Sequence[tuple[NDArray[np.float64], float]] = ()
    """The changes of buffers and integer arrays, each with its public bound."""


class Round:
    """The round that a client is in: its state, and what follows from that."""

    def __init__(self, state: State, name: str) -> None:
        self.state, self.name = state, name
        self.position = Position(**state["position"])
        self.context = context_of(self.position, state["model"], state["terms"])
        self.cohort = [Member.of(each) for each in state.get("cohort", ())]
        self.names = [each.name for each in self.cohort]
        self.channel, self.mask = (RoundKey(state.get(each, b"")) for each in ("channel", "mask"))

    @cached_property
    def weighing(self) -> Weighing:
        """How the coefficients follow from what is opened."""
        return weighing_of(self.state["weighing"])

    @property
    def own(self) -> Own:
        """The client's own numbers."""
        state = self.state
        return Own(state["length"], state["metrics"], self.name, tuple(state["alive"]), state.get("lam", 0.0))

    @property
    def opened(self) -> dict[str, float]:
        """The sums that were opened up to now."""
        return self.weighing.values(self.state["opened"])


class PrivateClient:
    """One client's half of the protocol. It answers a round's exchanges in order, each once.

    Every exchange has the state loaded, checked, changed and saved before the answer leaves. Of what the
    `tiers` of privacy hide, nothing is opened; `weights` computes weightings of TorchJD. `run` is the name of its run,
    "" where the first exchange says it.
    """

    def __init__(
        self,
        identity: Identity,
        authority: Authority,
        store: Store,
        tiers: Sequence[str],
        weights: Weights,
        run: str = "",
    ) -> None:
        self._identity, self._authority, self._store = identity, authority, store
        self._tiers, self._weights, self.run = tiers, weights, run

    def answer(self, exchange: str, request: Message, work: Callable[[bytes], tuple[bytes, Work]]) -> dict[str, bytes]:
        """Answer an exchange; `work` does what terms ask, and returns the digest of the received model with it.

        RefusedError names the check that fails.
        """
        answers = {
            "keys": self._keys,
            "open": self._open,
            "share": self._share,
            "vector": self._vector,
            "unmask": self._unmask,
        }
        with _refusing_malformed(exchange):
            body = unpack(binary(request["body"]))
            if exchange != "work":
                if exchange not in answers:
                    raise RefusedError(f"there is no exchange {exchange!r}")
                return answers[exchange](body)
            current = self._begin_work(body)
        done = work(binary(body["terms"]))  # its errors are not the server's
        with _refusing_malformed(exchange):
            return self._share_work(current, *done)

    # Exchange by exchange --------------------------------------------------------------------------------------------

    def _keys(self, body: Message) -> dict[str, bytes]:
        state, position = self._store.load(), Position.of(body["position"])
        if position.federation != self._authority.federation:
            raise RefusedError("the exchange is of another federation")
        if self.run not in ("", position.run):
            raise RefusedError(f"position: this is the run {self.run!r}, and the exchange is of {position.run!r}")
        journal = state.get("journal", {})
        before, attempt, opened = journal.get(position.place, [0, 0, 0])
        if position.round == opened:
            # Two attempts with other cohorts would differ by a single client's numbers.
            raise RefusedError(
                f"second attempt: round {opened} has this client's share of a sum, or its vector, already"
            )
        if (position.round, position.attempt) <= (before, attempt):
            raise RefusedError(
                f"position: round {position.round}, attempt {position.attempt} is not after round {before}, "
                f"attempt {attempt}"
            )
        channel, mask = RoundKey.new(), RoundKey.new()
        context = context_of(position, binary(body["model"]), binary(body["terms"]))
        self._store.save(
            _lasting(state)
            | {
                "journal": {**journal, position.place: [position.round, position.attempt, opened]},
                "position": position.plain(),
                "model": body["model"],
                "terms": body["terms"],
                "next": "work",
                "channel": channel.private,
                "mask": mask.private,
            }
        )
        self.run = position.run
        signature = sign(self._identity.private, signed_keys(context, channel.public, mask.public))
        return {"body": pack(Member(self._identity.certificate, channel.public, mask.public, signature).plain())}

    def _begin_work(self, body: Message) -> Round:
        current = self._expect("work", body)
        state, position, terms = current.state, current.position, binary(body["terms"])
        current.cohort = self._checked_cohort(body["cohort"], current)
        current.names = [each.name for each in current.cohort]
        if digest(terms) != state["terms"]:
            raise RefusedError("the terms are not those for which keys were asked")
        weighing = current.weighing = weighing_of(unpack(terms)["weighing"])
        check_cohort(weighing, current.names)
        if weighing.tier not in ("sums", *self._tiers):
            raise RefusedError(
                f"privacy = {self._tiers[0]!r}: the terms would open {weighing.tier}, too, which the run's settings do "
                "not name"
            )
        if position.purpose != weighing.purpose:
            raise RefusedError(f"purpose: what the terms would open is not for {position.purpose}")
        if isinstance(weighing, AscentWeighing) and weighing.since:
            kept = state["weights"].get(position.run, {})
            if str(weighing.since) not in kept:
                raise RefusedError(f"weights: this client has none of round {weighing.since}")
            state["lam"] = kept[str(weighing.since)]
        state["next"] = "nothing"  # a client that fails at its work takes no part in what follows
        self._store.save(state)
        return current

    def _share_work(self, current: Round, model: bytes, done: Work) -> dict[str, bytes]:
        state, weighing = current.state, current.weighing
        if model != state["model"]:
            raise RefusedError("the model is not the one for which keys were asked")
        length = float(np.sqrt(np.dot(done.update, done.update)))
        _check_finite(done, length, weighing)
        seed = secrets.token_bytes(32)
        state |= {
            "next": "open",
            "step": 1,
            "cohort": [each.plain() for each in current.cohort],
            "weighing": weighing.spec(),
            "metrics": {name: float(done.metrics[name]) for name in _needed(weighing)},
            "length": length,
            "update": done.update.astype("<f8").tobytes(),
            "others": [[change.astype("<f8").tobytes(), bound] for change, bound in done.others],
            "seed": seed,
            "opened": {},
            "alive": current.names,
        }
        secret, row = [*_limbs(seed), *_limbs(state["mask"])], NO_ROW
        if isinstance(weighing, GramWeighing):
            row = weighing.row(done.update, length, digest("sketch", current.context, state["cohort"]))
        return self._shared(current, "work", secret, row)

    def _open(self, body: Message) -> dict[str, bytes]:
        current = self._expect("open", body)
        state, weighing, me = current.state, current.weighing, current.name
        alive = _checked_names(body["alive"], "the list of those who take part")
        step, names = state["step"], current.names
        if step == 1:
            if not set(alive) <= set(names):
                raise RefusedError("the list of those who take part names clients that are not in the cohort")
            if len(alive) < weighing.fewest_left(len(names)):
                raise RefusedError(f"small cohort: {len(alive)} of {len(names)} clients are too few to open a sum")
            state["alive"] = alive
        if alive != state["alive"]:
            raise RefusedError("the list of those who take part is not the one that was opened before")
        if me not in alive:
            raise RefusedError("the list of those who take part lacks this client")
        sent, received = body["shares"], {me: state.pop("kept")}
        for sender in (each for each in current.cohort if each.name in alive and each.name != me):
            if sender.name not in sent:
                raise RefusedError(f"the shares of {sender.name} are missing")
            secret = current.channel.exchange(sender.channel)
            content = binary(sent[sender.name])
            received[sender.name] = unseal(secret, current.context, sender.name, me, step - 1, content)
        before, formats = 2 * SECRET_WORDS if step == 1 else 0, weighing.formats(step)
        count, words = words_in(formats), len(received[me]) // 8
        rows = np.array([words_of(received[each], words)[before:] for each in alive], np.uint64)
        sums = total(rows[:, :count])
        if isinstance(weighing, GramWeighing):
            places, products = places_in(formats), multiply(rows[:, count:], rows[:, count:].T)
            of = np.triu_indices(len(alive))
            at = [places[weighing.product(alive[i], alive[j])].start for i, j in zip(*of, strict=True)]
            sums[at] = add(sums[at], products[of])
        if step == 1:
            state["secrets"] = {sender: content[: 8 * before] for sender, content in received.items()}
        position = current.position
        state["journal"] = {**state["journal"], position.place: [position.round, position.attempt, position.round]}
        state["next"] = "nothing" if weighing.purpose == EVALUATE else "share or vector"
        return self._signed(current, "open", {"sum": sums.astype("<u8").tobytes()}, step)

    def _share(self, body: Message) -> dict[str, bytes]:
        current = self._expect("share", body)
        self._take_opened(current, body["opened"], ended=False)
        current.state |= {"step": current.state["step"] + 1, "next": "open"}
        return self._shared(current, "share", [])

    def _vector(self, body: Message) -> dict[str, bytes]:
        current = self._expect("vector", body)
        self._take_opened(current, body["opened"], ended=True)
        state, weighing, own, me = current.state, current.weighing, current.own, current.name
        if isinstance(weighing, GramWeighing):
            state["opened"] |= weighing.given(own.cohort, body.get("coefficients"))
            weighing.check(own, current.opened, self._weights)
        if isinstance(weighing, AscentWeighing):
            run, number = current.position.run, current.position.round
            older = state["weights"].get(run, {})
            # All up to `since`: a server may go back to any earlier checkpoint.
            kept = {made: each for made, each in older.items() if int(made) <= weighing.since}
            kept[str(number)] = weighing.next_lam(own, current.opened)
            state["weights"] = {**state["weights"], run: kept}
        words, bound = masked_words(current)
        info = mask_context(current.context, current.cohort, own.cohort, state["opened"], bound)
        add_mask(words, state["seed"], info, "self")
        for other in current.cohort:
            if other.name in own.cohort and other.name != me:
                pair = sorted([me, other.name])
                add_mask(words, current.mask.exchange(other.mask), info, "mask", *pair, subtract=me > other.name)
        for spent in ("update", "others", "metrics", "seed", "channel", "mask"):
            del state[spent]
        state["next"] = "unmask"
        vector = words.astype("<u4").tobytes()
        return {**self._signed(current, "vector", {"digest": digest(vector)}), "vector": vector}

    def _unmask(self, body: Message) -> dict[str, bytes]:
        current = self._expect("unmask", body)
        alive = _checked_names(body["alive"], "the list of those that sent a vector")
        lost = _checked_names(body["lost"], "the list of those who were lost")
        if both := set(alive) & set(lost):
            raise RefusedError(f"alive and lost: {min(both)} is named as both")
        if set(alive) | set(lost) != set(current.state["alive"]):
            raise RefusedError("alive and lost together are not those who take part")
        if len(alive) < current.weighing.fewest_left(len(current.names)):
            raise RefusedError(f"small cohort: {len(alive)} clients are too few to unmask a sum")
        if current.name not in alive:
            raise RefusedError("the list of those that sent a vector lacks this client")
        half, kept = 8 * SECRET_WORDS, current.state["secrets"]
        reply = {
            "seeds": {name: kept[name][:half] for name in alive},
            "keys": {name: kept[name][half:] for name in lost},
        }
        current.state["next"] = "nothing"
        return self._signed(current, "unmask", reply)

    # Parts -----------------------------------------------------------------------------------------------------------

    def _expect(self, exchange: str, body: Message) -> Round:
        """Return the round that the client is in, where the body names it and this exchange is the next one."""
        state = {**self._store.load()}
        if state.get("position") != Position.of(body["position"]).plain():
            raise RefusedError("position: the exchange is not of the round that this client is in")
        if exchange not in state["next"].split(" or "):
            raise RefusedError(f"order: {exchange} does not come now, but {state['next']}")
        return Round(state, self._identity.name)

    def _checked_cohort(self, plain: Sequence[Any], current: Round) -> list[Member]:
        cohort = [Member.of(each) for each in plain]
        names = [each.name for each in cohort]
        if len(names) < FEWEST:
            raise RefusedError(f"small cohort: {len(names)} clients, and {FEWEST} are the fewest")
        if names != sorted(set(names)):
            raise RefusedError("the cohort's names are not distinct and in order")
        if current.name not in names:
            raise RefusedError("the cohort lacks this client")
        me = cohort[names.index(current.name)]
        if (me.channel, me.mask) != (current.channel.public, current.mask.public):
            raise RefusedError("the cohort has other keys of this client")
        for each in cohort:
            each.check(self._authority, current.context)
            current.channel.exchange(each.channel)
            current.mask.exchange(each.mask)  # a key of low order is refused before anything is shared
        return cohort

    def _shared(
        self, current: Round, exchange: str, secret: Sequence[int], row: NDArray[np.int64] = NO_ROW
    ) -> dict[str, bytes]:
        """Share the numbers of the next step, the secrets before them and the row after; keep this client's own share.

        Of a row, which is multiplied by others, products of shares are to open by T shares: so fewer open the row.
        """
        state, step, me, count = current.state, current.state["step"], current.name, len(current.names)
        formats, sums = current.weighing.formats(step), current.weighing.sums(step, current.own, current.opened)
        limbs = [limb for name in sorted(formats) for limb in formats[name].split(sums[name], FIELD_LIMB)]
        summed = share(to_field([*secret, *limbs]), count, threshold(count))
        factors = share((row % PRIME).astype(np.uint64), count, colluders(count) + 1)
        shares, sealed = np.hstack([summed, factors]).astype("<u8"), dict[str, bytes]()
        for member, content in zip(current.cohort, map(np.ndarray.tobytes, shares), strict=True):
            if member.name == me:
                state["kept"] = content
            elif member.name in state["alive"]:
                secret_of_pair = current.channel.exchange(member.channel)
                sealed[member.name] = seal(secret_of_pair, current.context, me, member.name, step - 1, content)
        return self._signed(current, exchange, {"shares": sealed}, step)

    def _signed(self, current: Round, exchange: str, reply: Message, step: int = 0) -> dict[str, bytes]:
        """Save the state, then return a signed reply."""
        state = current.state
        over = state["next"] == "nothing"  # then what belonged to the round goes
        self._store.save(_lasting(state) if over else state)
        content = pack(reply)
        message = signed_reply(current.context, exchange, step, state["alive"], content)
        return {"body": content, "signature": sign(self._identity.private, message)}

    def _take_opened(self, current: Round, replies: Mapping[str, Sequence[bytes]], *, ended: bool) -> None:
        """Interpolate the sums of a step, which is the last one or not, from the signed replies to it."""
        state, weighing, step = current.state, current.weighing, current.state["step"]
        formats = weighing.formats(step)
        opened = open_sums(current.cohort, current.context, state["alive"], step, formats, replies)
        state["opened"] = {**state["opened"], **opened}
        if weighing.ended(step, current.opened) != ended:
            raise RefusedError(f"order: step {step} is {'not ' if ended else ''}the last one")


@contextmanager
def _refusing_malformed(exchange: str) -> Iterator[None]:
    """Refuse requests that are not what the exchange asks for, without a word of what they met here."""
    try:
        yield
    except ReportableError:
        raise
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError) as error:
        raise RefusedError(f"malformed: the request of the exchange {exchange!r} cannot be used") from error


def open_sums(
    cohort: Sequence[Member],
    context: bytes,
    alive: Collection[str],
    step: int,
    formats: Mapping[str, FixedPoint],
    replies: Mapping[str, Sequence[bytes]],
) -> dict[str, int]:
    """Return the sums that signed replies open, each checked; surplus shares must lie on the polynomial."""
    members = {each.name: (place, each) for place, each in enumerate(cohort, 1)}
    places, rows, count = list[int](), list[Words](), words_in(formats)
    for name in sorted(replies):
        content, signature = map(binary, replies[name])
        if name not in alive:
            raise RefusedError(f"split sums: {name} takes no part and has no share of the sums")
        place, member = members[name]
        if not verify(member.certificate.key, signature, signed_reply(context, "open", step, alive, content)):
            raise RefusedError(f"split sums: the share of {name} is not signed for this list of those who take part")
        places.append(place)
        rows.append(words_of(binary(unpack(content)["sum"]), count))
    need = threshold(len(members))
    if len(rows) < fewest_left(len(members)):
        raise RefusedError(f"{len(rows)} shares of the sums are too few: {fewest_left(len(members))} are needed")
    shares = np.array(rows, np.uint64).reshape(len(rows), -1)
    if not agree(places, shares, need):
        raise RefusedError("split sums: the shares of the sums do not lie on one polynomial")
    return join_sums(formats, combine(places[:need], shares[:need]))


def masked_words(current: Round) -> tuple[Masked, float]:
    """Return c_k u_k, quantised and capped, followed by the other arrays and what the server divides by; and R."""
    weighing, own, opened = current.weighing, current.own, current.opened
    clients, update = len(own.cohort), np.frombuffer(current.state["update"], "<f8")
    # A hostile client can make C negative: then nothing of the others is sent.
    whole, c, kappa = max(0.0, weighing.total(opened)), weighing.coefficient(own, opened), weighing.kappa(clients)
    contribution = abs(c) * own.length
    most = min(kappa * whole, max(0.0, whole - contribution))  # no more than all others together
    capped = contribution > most * (1.0 + 1e-9)  # an epsilon of 2/m reaches the cap, up to rounding
    scale = most / contribution if capped else 1.0
    bound = bound_of(kappa, whole, update.size)
    random = np.random.Generator(np.random.SFC64(int.from_bytes(secrets.token_bytes(32), "little")))
    prior = weighing.share(own, opened)
    parts = [quantise(update * (c * scale), bound, clients, random)]
    for change, limit in current.state["others"]:
        parts.append(quantise(np.frombuffer(change, "<f8") * prior, limit, clients, random))
    numbers = (prior, weighing.part(own, opened))
    parts.append(to_words([limb for number in numbers for limb in EXTRA.split(number, WORD_LIMB)]))
    parts.append(to_words([int(capped), int(not weighing.exact(own, opened))]))
    return np.concatenate(parts), bound


def change_of(received: NDArray[Any], trained: NDArray[Any]) -> tuple[NDArray[np.float64], float]:
    """Return how local work has changed a buffer, or an integer array, and the public bound of that."""
    return (trained.astype(np.float64) - received.astype(np.float64)).ravel(), buffer_bound(received)


def _check_finite(done: Work, length: float, weighing: Weighing) -> None:
    """Raise RefusedError where a client cannot take part; the reason says nothing about which number it is."""
    numbers = [done.metrics.get(name, np.nan) for name in _needed(weighing)]
    if not np.isfinite([length, *numbers]).all() or not all(np.isfinite(change).all() for change, _ in done.others):
        raise RefusedError("this client leaves the round: not all of its numbers are finite, or it lacks one")


def _needed(weighing: Weighing) -> tuple[str, ...]:
    return ("num-examples", *weighing.metrics)


def _lasting(state: State) -> State:
    """Return what outlasts a round: which ones the client answered, and the weights that it kept, by run."""
    return {"journal": state.get("journal", {}), "weights": state.get("weights", {})}


def _limbs(secret: bytes) -> list[int]:
    whole = int.from_bytes(secret, "little")
    return [whole >> FIELD_LIMB * place & (1 << FIELD_LIMB) - 1 for place in range(SECRET_WORDS)]


def _checked_names(names: object, what: str) -> list[str]:
    """Return a list of distinct names in order; RefusedError for anything else."""
    if not isinstance(names, list) or names != sorted(set(map(str, names))):
        raise RefusedError(f"{what} is not a list of distinct names in order")
    return names
