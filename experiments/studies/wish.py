"""A wish: which measure a recommended method is to make as good as possible, and what it may not cost."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairbloom.errors import FairbloomError
from fairbloom.protocol.scores import Score
from fairbloom.protocol.settings import SettingsError

from ..recipes.variants import Variant, split_parts, variants
from ..results.run import measures

LEVELS, SPREADS = ("worst", "worst-10", "best-10", "mean"), ("std", "gap")
"""Measures that are as good as the score itself, and measures of how much clients differ, which are good when low."""

GRAMMAR = (
    "MEASURE as high|low as possible[, MEASURE within N points of METHOD]..., with MEASURE one of "
    f"{', '.join((*LEVELS, *SPREADS))}, client NAME"
)
"""What a wish may be."""

EXAMPLE = "worst as high as possible, mean within 1 point of FedAvg"


@dataclass(frozen=True)
class Measure:
    """A measure over the clients, or the score of one client.

    Attributes
    ----------
    name
        One of LEVELS and SPREADS; "client" for a single client.
    client
        The name of that client.
    """

    name: str
    client: str = ""

    @property
    def title(self) -> str:
        """What a wish calls it: `worst-10`, `client site-a`."""
        return f"{self.name} {self.client}".rstrip()

    def of(self, values: Mapping[str, float], score: Score) -> float:
        """Return the measure of the score of each client.

        Raises
        ------
        FairbloomError
            When the client of this measure has no score.
        """
        if self.client and self.client not in values:
            raise FairbloomError(
                f"the wish is about {self.title}, which has no {score.name}, as an AUC over a single class is none: "
                "give it more examples, or wish for another measure"
            )
        return values[self.client] if self.client else measures(values, score)[self.name.replace("-", "_")]

    def is_good_high(self, score: Score) -> bool:
        """Return whether a higher number is better for the clients."""
        return self.name not in SPREADS and score.higher_is_better

    def better(self, value: float, than: float, score: Score) -> float:
        """Return by how much a number is better than another; negative where it is worse."""
        return value - than if self.is_good_high(score) else than - value


@dataclass(frozen=True)
class Constraint:
    """What the recommended method may not cost: so many points of a measure, at most, against another method."""

    measure: Measure
    points: float
    method: Variant


@dataclass(frozen=True)
class Wish:
    """What a user wishes of a method.

    Attributes
    ----------
    text
        As it was written.
    measure
        What is to be as good as possible.
    high
        Whether the wish says high, not low.
    constraints
        What that may not cost.
    """

    text: str
    measure: Measure
    high: bool
    constraints: tuple[Constraint, ...] = ()

    @classmethod
    def of(cls, text: str) -> "Wish":
        """Return the wish that a sentence states.

        Raises
        ------
        FairbloomError
            When it states none, or names a method that there is not; the message has the grammar.
        """
        try:
            first, *others = split_parts(text) or [""]
        except SettingsError as error:
            raise _refusal(text, "a parenthesis or quotation mark is open at one end") from error
        aim = re.fullmatch(r"(.+?)\s+as\s+(high|low)\s+as\s+possible", first, re.IGNORECASE | re.DOTALL)
        if aim is None:
            raise _refusal(text, f"{first!r} is no MEASURE as high|low as possible")
        measure = _measure(aim[1], text)
        return cls(text, measure, aim[2].lower() == "high", tuple(_constraint(other, text) for other in others))

    def check(self, score: Score) -> None:
        """Raise SettingsError where the wish is for worse service of the clients, by what their score is."""
        good = self.measure.is_good_high(score)
        if self.high == good:
            return
        better, other = ("higher", "high") if good else ("lower", "low")
        of_what = f"{score.name} is" if self.measure.name not in SPREADS else f"{self.measure.name} is a difference,"
        raise SettingsError(
            f"wish = {self.text!r} wishes the clients worse service: {of_what} better when it is {better}: write "
            f"{self.measure.title} as {other} as possible"
        )

    @property
    def clients(self) -> tuple[str, ...]:
        """The clients that the wish names."""
        all_measures = (self.measure, *(each.measure for each in self.constraints))
        return tuple(measure.client for measure in all_measures if measure.client)


def _constraint(clause: str, text: str) -> Constraint:
    match = re.fullmatch(r"(.+?)\s+within\s+(\S+)\s+points?\s+of\s+(\S.*)", clause, re.IGNORECASE | re.DOTALL)
    if match is None:
        raise _refusal(text, f"{clause!r} is no MEASURE within N points of METHOD")
    if not re.fullmatch(r"\d+\.?\d*|\.\d+", match[2], re.ASCII):
        raise _refusal(text, f"{match[2]!r} is no number of points, such as 1 or 0.5")
    return Constraint(_measure(match[1], text), float(match[2]), _method(match[3]))


def _method(text: str) -> Variant:
    found: Sequence[Variant] = variants(text)
    return found[0]


def _measure(text: str, wish: str) -> Measure:
    words = text.split(maxsplit=1)
    if words[0].lower() == "client" and len(words) == 2:
        quoted = re.fullmatch(r"([\"'])(.+)\1", words[1], re.DOTALL)
        return Measure("client", quoted[2] if quoted else words[1])
    if text.lower() in (*LEVELS, *SPREADS):
        return Measure(text.lower())
    raise _refusal(wish, f"there is no measure {text!r}")


def _refusal(text: str, fault: str) -> SettingsError:
    return SettingsError(f"wish = {text!r}: {fault}: write {GRAMMAR}; for example {EXAMPLE!r}")
