"""What a server asks in a private round, and what it makes of the answers: sums, and nothing of a single client."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .client import SECRET_WORDS, open_sums
from .errors import RefusedError, SkippedError
from .field import Words, combine
from .keys import Authority, RoundKey, digest
from .masks import add_mask
from .numbers import FIELD_LIMB, WORD_LIMB, Masked, bound_of, restore, signed
from .packing import binary, pack, unpack
from .rules import (
    EXTRA,
    EXTRA_WORDS,
    FLAGS,
    MOST,
    Member,
    Position,
    context_of,
    mask_context,
    threshold,
    words_of,
)
from .weighing import NUMBER, GramWeighing, Sums, Weighing


@dataclass(frozen=True)
class Answers:
    """The answers to an exchange, by client, and why other clients gave none that can be used."""

    replies: Mapping[str, Mapping[str, bytes]]
    refused: Mapping[str, str]


class Channel(Protocol):
    """The way to the clients."""

    def exchange(self, name: str, requests: Mapping[str, Mapping[str, bytes]]) -> Answers:
        """Ask each client what is addressed to it, and return the answers that come in time."""


@dataclass(frozen=True)
class Task:
    """What a private round is about: its position, the digest of the model, the terms, and the weighing in these."""

    position: Position
    model: bytes
    terms: bytes
    weighing: Weighing
    size: int = 0
    """d, the numbers of an update."""

    bounds: Sequence[tuple[int, float]] = ()
    """The size and the public bound of each other array."""

    weigh: Callable[[Sequence[str], Sums], NDArray[np.float64]] | None = None
    """Returns the coefficients of clients from what was opened, where these do not compute their own."""


@dataclass(frozen=True)
class Opened:
    """What a server learns of a private round, and who took part and who was lost.

    Attributes
    ----------
    sums
        The sums over all that take part, A, as numbers.
    cohort
        The names of A.
    alive
        Those of A of which the vector came, B.
    step
        Σ c_k u_k over B, divided by their part of the coefficients where some were lost.
    others
        For each other array, the mean of its changes, weighted by the prior.
    capped, beyond
        How many clients had a share beyond the cap, and how many a number beyond its bound.
    """

    sums: Sums
    cohort: tuple[str, ...]
    alive: tuple[str, ...] = ()
    step: NDArray[np.float64] | None = None
    others: tuple[NDArray[np.float64], ...] = ()
    capped: int = 0
    beyond: int = 0


class PrivateServer:
    """The server's half of one round: `run` takes it through all exchanges."""

    def __init__(self, task: Task, authority: Authority, channel: Channel) -> None:
        self._task, self._authority, self._channel = task, authority, channel
        self._context = context_of(task.position, task.model, digest(task.terms))
        self.refused: dict[str, str] = {}
        """Why clients were left out, by name."""
        self.missing: set[str] = set()
        """The clients that gave no answer in time."""

    def run(self, names: Sequence[str], *, vectors: bool = True) -> Opened:
        """Open the sums of these clients and, with `vectors`, the sum of their weighted updates.

        SkippedError: too few clients answered, or one answered what cannot be used; nothing was unmasked.
        """
        try:
            return self._run(names, vectors=vectors)
        except RefusedError as error:
            raise SkippedError(str(error)) from None
        except (ValueError, TypeError, LookupError, ArithmeticError) as error:
            # Nothing bounds what the bytes of a hostile client make of the sums.
            raise SkippedError(f"an answer of a client cannot be used ({type(error).__name__})") from error

    def _run(self, names: Sequence[str], *, vectors: bool) -> Opened:
        if self._task.weighing.whole:
            names = self._all(names)
        cohort = self._meet(names)
        alive, shares = self._work(cohort)
        opened, replies = dict[str, int](), dict[str, Sequence[bytes]]()
        weighing, step = self._task.weighing, 0
        while not (step and weighing.ended(step, weighing.values(opened))):
            step += 1
            if step > 1:
                shares = self._share(cohort, alive, replies)
            formats = weighing.formats(step)
            replies = self._open(cohort, alive, step, shares)
            opened |= open_sums(cohort, self._context, alive, step, formats, replies)
        task, sums = self._task, weighing.values(opened)
        if not vectors:
            return Opened(sums, tuple(alive))
        request: dict[str, Any] = {"opened": dict(replies)}
        if isinstance(task.weighing, GramWeighing) and task.weigh is not None:
            request["coefficients"] = [NUMBER.integer(each) for each in task.weigh(alive, sums)]
            opened |= task.weighing.given(alive, request["coefficients"])
        return self._sum(cohort, alive, opened, request)

    def _all(self, names: Sequence[str]) -> Sequence[str]:
        """Return all clients that the terms name; SkippedError where one is absent."""
        clients: Sequence[str] = getattr(self._task.weighing, "clients", ())
        if absent := sorted(set(clients).difference(names)):
            raise SkippedError(
                f"{absent[0]} is absent, and all {len(clients)} clients of the first round must take part"
            )
        return clients

    # Exchange by exchange --------------------------------------------------------------------------------------------

    def _meet(self, names: Sequence[str]) -> list[Member]:
        """Ask for keys; return the cohort in the order of names."""
        task, least = self._task, self._task.weighing.fewest
        if len(names) < least:
            raise SkippedError(f"{len(names)} clients can take part, and a private round needs {least}")
        if len(names) > MOST:
            raise SkippedError(f"{len(names)} clients are to take part, and a private round has at most {MOST}")
        request = {"model": task.model, "terms": digest(task.terms)}
        found = list[Member]()
        fewest = len(names) if task.weighing.whole else least
        for name, reply in self._ask("keys", dict.fromkeys(names, request), fewest).items():
            try:
                member = Member.of(unpack(reply["body"]))
                if member.name != name:
                    raise RefusedError(f"its certificate is that of {member.name}")
                member.check(self._authority, self._context)
            except (RefusedError, ValueError) as error:
                self.refused[name] = str(error)
            else:
                found.append(member)
        self._check_count(len(found), "keys", fewest)
        return sorted(found, key=lambda each: each.name)

    def _work(self, cohort: Sequence[Member]) -> tuple[list[str], dict[str, Any]]:
        """Let the cohort work; return those that take part, in order, and their encrypted shares by sender."""
        names = [each.name for each in cohort]
        request = {"cohort": [each.plain() for each in cohort], "terms": self._task.terms}
        replies = self._ask("work", dict.fromkeys(names, request), self._task.weighing.fewest_left(len(cohort)))
        return sorted(replies), {name: unpack(reply["body"])["shares"] for name, reply in replies.items()}

    def _open(
        self, cohort: Sequence[Member], alive: Sequence[str], step: int, shares: Mapping[str, Any]
    ) -> dict[str, Sequence[bytes]]:
        """Ask those that take part for their shares of a step's sums; return their signed replies."""
        requests = {
            name: {
                "alive": list(alive),
                "shares": {sender: sealed[name] for sender, sealed in shares.items() if sender != name},
            }
            for name in self._reachable(alive)
        }
        replies = self._ask("open", requests, self._task.weighing.fewest_left(len(cohort)))
        return {name: [reply["body"], reply["signature"]] for name, reply in replies.items()}

    def _share(
        self, cohort: Sequence[Member], alive: Sequence[str], replies: Mapping[str, Sequence[bytes]]
    ) -> dict[str, Any]:
        """Let those that take part share the numbers of the next step; all have to, since the sums are over them."""
        request = {"opened": dict(replies)}
        shared = self._ask("share", dict.fromkeys(self._reachable(alive), request), len(alive))
        return {name: unpack(reply["body"])["shares"] for name, reply in shared.items()}

    def _sum(
        self, cohort: Sequence[Member], alive: Sequence[str], opened: Mapping[str, int], request: Mapping[str, Any]
    ) -> Opened:
        """Ask for the masked vectors and for what unmasks their sum."""
        task, fewest = self._task, self._task.weighing.fewest_left(len(cohort))
        vectors = self._ask("vector", dict.fromkeys(self._reachable(alive), request), fewest)
        words = task.size + sum(size for size, _ in task.bounds) + EXTRA_WORDS
        total, came = np.zeros(words, np.uint32), list[str]()
        for name in sorted(vectors):
            vector = np.frombuffer(vectors[name]["vector"], "<u4")
            if vector.size != words:
                self.refused[name] = f"its vector has {vector.size} words, not {words}"
                continue
            total += vector
            came.append(name)
        self._check_count(len(came), "vector", fewest)
        lists = {"alive": came, "lost": sorted(set(alive) - set(came))}
        unmasking = self._ask("unmask", dict.fromkeys(came, lists), fewest)
        sums = task.weighing.values(opened)
        bound = bound_of(task.weighing.kappa(len(alive)), task.weighing.total(sums), task.size)
        info = mask_context(self._context, cohort, alive, opened, bound)
        replies = {name: unpack(reply["body"]) for name, reply in unmasking.items()}
        seeds, keys = _reveal(cohort, "seeds", came, replies), _reveal(cohort, "keys", lists["lost"], replies)
        _unmask(total, info, cohort, seeds, keys)
        return _read(task, total, sums, tuple(alive), tuple(came), bound)

    # Parts -----------------------------------------------------------------------------------------------------------

    def _ask(self, exchange: str, requests: Mapping[str, Mapping[str, Any]], fewest: int) -> dict[str, Any]:
        """Return the replies to an exchange; SkippedError where fewer than `fewest` clients answered."""
        position, packed = self._task.position.plain(), dict[int, bytes]()
        for request in requests.values():  # most get the same
            if id(request) not in packed:
                packed[id(request)] = pack({"position": position, **request})
        bodies = {name: {"body": packed[id(request)]} for name, request in requests.items()}
        answers = self._channel.exchange(exchange, bodies)
        self.refused |= {name: f"{exchange}: {reason}" for name, reason in answers.refused.items()}
        self.missing |= requests.keys() - answers.replies.keys() - answers.refused.keys()
        self._check_count(len(answers.replies), exchange, fewest)
        return dict(answers.replies)

    def _reachable(self, alive: Collection[str]) -> list[str]:
        """Return those that take part and have answered all exchanges up to now."""
        return [name for name in alive if name not in self.missing and name not in self.refused]

    def _check_count(self, count: int, exchange: str, fewest: int) -> None:
        """Raise SkippedError where fewer clients than `fewest` have answered an exchange."""
        if count < fewest:
            why = f", for example {next(iter(self.refused.items()))}" if self.refused else ""
            raise SkippedError(
                f"{count} clients answered the exchange {exchange!r}, and {fewest} must{why}; nothing was unmasked"
            )


def _reveal(
    cohort: Sequence[Member], kind: str, of: Sequence[str], replies: Mapping[str, Mapping[str, Any]]
) -> dict[str, bytes]:
    """Return the seeds of the self masks of those alive, or the mask keys of those lost, from their shares."""
    places = {each.name: place for place, each in enumerate(cohort, 1)}
    holders = list(replies)[: threshold(len(cohort))]
    rows = [[words_of(binary(replies[holder][kind][name]), SECRET_WORDS) for name in of] for holder in holders]
    shares = np.array(rows, np.uint64).reshape(len(holders), -1)
    words = combine([places[holder] for holder in holders], shares).reshape(len(of), SECRET_WORDS)
    return {name: _secret(row) for name, row in zip(of, words, strict=True)}


def _secret(words: Words) -> bytes:
    """Return a key of 32 bytes from its limbs; wrong shares give a wrong one."""
    whole = sum(int(word) << FIELD_LIMB * place for place, word in enumerate(words))
    return (whole % (1 << 256)).to_bytes(32, "little")


def _unmask(
    total: Masked, info: bytes, cohort: Sequence[Member], seeds: Mapping[str, bytes], keys: Mapping[str, bytes]
) -> None:
    """Take the masks out of a sum: the self masks of those alive, and what the lost would have cancelled."""
    public = {each.name: each.mask for each in cohort}
    for seed in seeds.values():
        add_mask(total, seed, info, "self", subtract=True)
    for gone, private in keys.items():
        key = RoundKey(private)
        for name in seeds:
            # `name` has subtracted the mask if its name is the larger one, and added it if not.
            add_mask(total, key.exchange(public[name]), info, "mask", *sorted([gone, name]), subtract=name < gone)


def _read(
    task: Task, total: Masked, sums: Sums, cohort: tuple[str, ...], alive: tuple[str, ...], bound: float
) -> Opened:
    """Return what an unmasked sum says."""
    clients, place = len(cohort), task.size
    step, others = restore(total[:place], bound, clients), list[NDArray[np.float64]]()
    for size, limit in task.bounds:
        others.append(restore(total[place : place + size], limit, clients))
        place += size
    limbs, count = signed(total[place:]).tolist(), EXTRA.limbs(WORD_LIMB)
    prior = EXTRA.value(EXTRA.join(limbs[:count], WORD_LIMB))
    part = EXTRA.value(EXTRA.join(limbs[count : 2 * count], WORD_LIMB))
    capped, beyond = limbs[-len(FLAGS) :]
    if len(alive) < len(cohort):
        if not part > 1e-6 or not prior > 1e-6:
            raise SkippedError("the clients that were left have no part of the coefficients")
        # Coefficients that the server computed stay as they are.
        step = step if isinstance(task.weighing, GramWeighing) else step / part
        others = [each / prior for each in others]
    return Opened(sums, cohort, alive, step, tuple(others), capped, beyond)
