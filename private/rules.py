"""What clients and server compute alike: positions, thresholds, digests, and the words of a masked vector."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from .errors import RefusedError
from .field import Words
from .keys import Authority, Certificate, digest, verify
from .numbers import FIELD_LIMB, WORD_LIMB, FixedPoint, from_field

FEWEST, MOST = 5, 100
"""Fewest and most participants of a round."""

TRAIN, EVALUATE = "train", "evaluate"
"""The purposes of an exchange."""

SECRET_LIMBS = FixedPoint(280, 0)
"""The format of keys and seeds, which are shared in seven limbs."""

EXTRA = FixedPoint(20, 60)
"""The format of what follows a masked vector: p_k and the client's part."""

FLAGS = ("capped", "beyond-bounds")
"""What follows that: whether the client scaled its update down, and whether a number was beyond its bound."""


@dataclass(frozen=True)
class Position:
    """Where in a federation's runs an exchange belongs."""

    federation: str
    run: str
    round: int
    attempt: int
    purpose: str

    @property
    def place(self) -> str:
        """Under what a client notes which rounds it answered."""
        return f"{self.purpose} {self.run}"

    def plain(self) -> dict[str, Any]:
        """Return it as values."""
        return asdict(self)

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> "Position":
        """Return the position of an exchange; RefusedError where it is none."""
        try:
            position = cls(**plain)
        except TypeError:
            raise RefusedError("the position of the exchange is incomplete") from None
        numbers, words = (position.round, position.attempt), (position.federation, position.run, position.purpose)
        if any(type(each) is not int for each in numbers) or any(
            type(each) is not str or len(each) > 255 for each in words
        ):
            raise RefusedError("the position of the exchange is none")
        if position.purpose not in (TRAIN, EVALUATE):
            raise RefusedError(f"the purpose {position.purpose!r} is neither train nor evaluate")
        return position


def colluders(participants: int) -> int:
    """Return t, how many participants together learn no more than each alone; 2t is less than T."""
    return (participants - 1) // 3


def threshold(participants: int) -> int:
    """Return T, how many shares open a secret: two disjoint groups of honest clients cannot both reach it."""
    return (participants + colluders(participants)) // 2 + 1


def fewest_left(participants: int) -> int:
    """Return how many participants must answer each exchange."""
    return max(FEWEST, threshold(participants))


@dataclass(frozen=True)
class Member:
    """A participant as the cohort knows it: its certificate, its public keys of the round, its signature of these."""

    certificate: Certificate
    channel: bytes
    mask: bytes
    signature: bytes

    @property
    def name(self) -> str:
        """The client's name."""
        return self.certificate.name

    def plain(self) -> list[Any]:
        """Return it as values."""
        return [self.certificate.fields(), self.channel, self.mask, self.signature]

    @classmethod
    def of(cls, plain: Sequence[Any]) -> "Member":
        """Return the member that these values describe; RefusedError where they do not."""
        try:
            certificate, channel, mask, signature = plain
            return cls(Certificate(*certificate), channel, mask, signature)
        except (TypeError, ValueError):
            raise RefusedError("the cohort has an incomplete member") from None

    def check(self, authority: Authority, signed: bytes) -> None:
        """Raise RefusedError where the certificate is not the federation's or the keys are not signed with it."""
        authority.check(self.certificate)
        if not verify(self.certificate.key, self.signature, signed_keys(signed, self.channel, self.mask)):
            raise RefusedError(f"the keys of {self.name} are not signed for this position by its certificate")


def signed_keys(context: bytes, channel: bytes, mask: bytes) -> bytes:
    """Return the bytes that a client signs: its public keys in the context of a position, a model and terms."""
    return digest("keys", context, channel, mask)


def context_of(position: Position, model: bytes, terms: bytes) -> bytes:
    """Return the digest of a position with the digests of model and terms."""
    return digest(position.plain(), model, terms)


def signed_reply(context: bytes, exchange: str, step: int, alive: Collection[str], body: bytes) -> bytes:
    """Return the bytes that a client signs with a reply."""
    return digest("reply", context, exchange, step, sorted(alive), body)


def mask_context(
    context: bytes, cohort: Sequence[Member], alive: Collection[str], opened: Mapping[str, int], bound: float
) -> bytes:
    """Return what masks are bound to: those of clients that were told different things do not cancel."""
    members = digest([each.plain() for each in cohort])
    values = {name: str(value) for name, value in opened.items()}
    return digest("masks", context, members, sorted(alive), values, bound)


def join_sums(formats: Mapping[str, FixedPoint], words: Words) -> dict[str, int]:
    """Return the opened sums as whole numbers of their formats, by name in order."""
    limbs, places = from_field(words), places_in(formats)
    return {name: formats[name].join(limbs[place], FIELD_LIMB) for name, place in places.items()}


def places_in(formats: Mapping[str, FixedPoint]) -> dict[str, slice]:
    """Return where the words of each sum are."""
    names = sorted(formats)
    ends = accumulate((formats[name].limbs(FIELD_LIMB) for name in names), initial=0)
    return {name: slice(*place) for name, place in zip(names, pairwise(ends), strict=True)}


def words_in(formats: Mapping[str, FixedPoint]) -> int:
    """Return how many words of the field hold these sums."""
    return sum(each.limbs(FIELD_LIMB) for each in formats.values())


def words_of(content: bytes, count: int) -> Words:
    """Return the field's numbers in bytes; RefusedError where there are fewer."""
    if len(content) != 8 * count:
        raise RefusedError("a share has another length than the sums of this step")
    return np.frombuffer(content, "<u8").astype(np.uint64)


def buffer_bound(received: np.ndarray[Any, Any]) -> float:
    """Return the public bound of a change of a buffer, or of an integer array, of the received model."""
    if received.dtype.kind != "f":
        return math.ldexp(1.0, 20)
    return 4.0 * max(1.0, float(np.abs(received).max(initial=0.0)))


EXTRA_WORDS = 2 * EXTRA.limbs(WORD_LIMB) + len(FLAGS)
"""How many masked words follow the vectors."""
