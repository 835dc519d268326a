"""How a client's coefficient follows from opened sums: which numbers are summed, and what each client makes of them.

The formulas are those of the methods, which weigh whole cohorts by the same functions.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import accumulate, combinations_with_replacement
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from .errors import RefusedError
from .masks import sketch
from .numbers import FIELD_LIMB, MAX_LIMBS, FixedPoint
from .rules import EVALUATE, FEWEST, MOST, TRAIN, fewest_left

SMALLEST_LOSS, SMALLEST_ACCURACY = 1e-10, 1e-6
"""Floors of a loss that is raised to a power, and of an accuracy of which the logarithm is taken."""

COUNT, FLAG, NUMBER = FixedPoint(44, 0), FixedPoint(8, 0), FixedPoint(60, 60)
"""The formats of counts, of counts of clients, and of all other sums unless a weighing needs more bits."""

PRODUCT = FixedPoint(0, 40)
"""The format of inner products of rows."""

BINS = 1001
"""How many bins a score has in an evaluation by counts, each a tenth of a point wide."""

COUNTS_OF_SCORES, SUMS_OF_AFL = "counts of scores", "sums of AFL"
"""What the settings `evaluation` and `method` open, in addition to the tier of `privacy`."""

MAX_GAIN = 1 << 12
"""The largest γF: with it, rounding changes the sum of a hundred λ by less than 1e-10."""

SMALLEST_SKETCH = 256
"""Inner products of sketches with fewer numbers than clients would give the sketches themselves."""

TORCHJD = frozenset({"alignedmtl", "cagrad", "dualproj", "fairgrad", "imtlg", "mgda", "upgrad"})
"""TorchJD's weightings that follow from the Gram matrix alone and treat all clients alike."""

WEIGHT, TOTAL = "weight", "contributions"
"""The opened sum of what the prior is proportional to, and C, or C times a denominator: Σ |c_k| ‖u_k‖."""

N = TypeVar("N", float, NDArray[np.float64])


@dataclass(frozen=True)
class Own:
    """A client's own numbers of a round: ‖u_k‖, and what it would report, by name on the wire."""

    length: float
    metrics: Mapping[str, float]
    name: str = ""
    cohort: tuple[str, ...] = ()
    """The clients over which sums are taken, A."""
    lam: float = 0.0
    """The weight λ_k that the client kept in the round that the terms name."""


Sums = Mapping[str, float]

Summand = Callable[[Own, Sums], float]
"""(own numbers, sums of earlier steps) → what a client adds to a sum."""


@dataclass(frozen=True)
class Bins:
    """As many sums as there are bins: each is the number of clients with their `place` in it, None where in none."""

    count: int
    place: Callable[[Own, Sums], int | None]


Step = Mapping[str, Summand | Bins]
"""The sums that a step opens, by name."""

Weights = Callable[[str, Mapping[str, float], NDArray[np.float64]], NDArray[np.float64]]
"""(name, arguments, Gram matrix) → what TorchJD's weighting of that name makes of it."""


@dataclass(frozen=True, kw_only=True)
class Weighing(ABC):
    """A rule of coefficients; its fields travel with the terms of a round."""

    kind: ClassVar[str]
    tier: ClassVar[str] = "sums"
    """The tier of privacy that shows what it opens; each tier shows sums."""
    purpose: ClassVar[str] = TRAIN
    metrics: ClassVar[tuple[str, ...]] = ()
    """The metrics that it needs, in addition to the number of examples."""
    fewest: ClassVar[int] = FEWEST
    """How many clients it needs."""
    whole: ClassVar[bool] = False
    """Whether all of its `clients` take part in each round, or the round is skipped."""

    prior: str = "uniform"
    """What p_k is proportional to: "examples" or "uniform"."""

    def spec(self) -> dict[str, Any]:
        """Return what `weighing_of` needs."""
        return {"kind": self.kind, **asdict(self)}

    def weight(self, own: Own) -> float:
        """Return what the prior is proportional to."""
        return own.metrics["num-examples"] if self.prior == "examples" else 1.0

    def share(self, own: Own, opened: Sums) -> float:
        """Return p_k."""
        return _ratio(self.weight(own), opened[WEIGHT])

    @property
    @abstractmethod
    def steps(self) -> Sequence[Step]:
        """The sums that steps 1, 2, … open."""

    def formats(self, step: int) -> dict[str, FixedPoint]:
        """Return the formats of the sums of a step, by name."""
        found = dict[str, FixedPoint]()
        for name, part in self.steps[step - 1].items():
            if isinstance(part, Bins):
                found |= {f"{name} {place}": FLAG for place in range(part.count)}
            else:
                found[name] = COUNT if name == WEIGHT else self.format_of(name)
        return found

    def sums(self, step: int, own: Own, opened: Sums) -> dict[str, float]:
        """Return this client's numbers of a step, by the names of the sums."""
        found = dict[str, float]()
        for name, part in self.steps[step - 1].items():
            if isinstance(part, Bins):
                place = part.place(own, opened)
                found |= {f"{name} {each}": float(each == place) for each in range(part.count)}
            else:
                found[name] = part(own, opened)
        return found

    def values(self, opened: Mapping[str, int]) -> dict[str, float]:
        """Return opened sums as numbers."""
        formats = {name: each for step in range(len(self.steps)) for name, each in self.formats(step + 1).items()}
        return {name: formats.get(name, NUMBER).value(whole) for name, whole in opened.items()}

    def fewest_left(self, participants: int) -> int:
        """Return how many of the participants must answer each exchange."""
        return participants if self.whole else max(self.fewest, fewest_left(participants))

    @abstractmethod
    def coefficient(self, own: Own, opened: Sums) -> float:
        """Return c_k."""

    def part(self, own: Own, opened: Sums) -> float:
        """Return this client's part of the coefficients' denominator, or of their sum: all parts sum to 1."""
        return self.coefficient(own, opened)

    def total(self, opened: Sums) -> float:
        """Return C."""
        return opened[TOTAL]

    def kappa(self, participants: int) -> float:
        """Return κ, the largest share of a client in C."""
        return FEWEST / participants

    def contribution(self, own: Own, opened: Sums) -> float:
        """Return |c_k| ‖u_k‖."""
        return abs(self.coefficient(own, opened)) * own.length

    def format_of(self, name: str) -> FixedPoint:
        """Return the format of a sum of other numbers than counts."""
        return NUMBER

    def ended(self, step: int, opened: Sums) -> bool:
        """Return whether this step is the last one, as its sums say."""
        return step >= len(self.steps)

    def exact(self, own: Own, opened: Sums) -> bool:
        """Return whether no number of the client was beyond its bound."""
        return True


@dataclass(frozen=True, kw_only=True)
class RatioWeighing(Weighing):
    """c_k = a_k / Σ b: one step opens the sums of all b and of all a_k ‖u_k‖."""

    denominator: ClassVar[str]
    """The name of Σ b."""

    def numerator(self, own: Own) -> float:
        """Return a_k."""
        return self.weight(own)

    def summand(self, own: Own) -> float:
        """Return b_k."""
        return self.numerator(own)

    @property
    def steps(self) -> Sequence[Step]:
        """One step."""
        found: Step = {
            WEIGHT: lambda own, _: self.weight(own),
            self.denominator: lambda own, _: self.summand(own),
            TOTAL: lambda own, _: self.numerator(own) * own.length,
        }
        return (found,)

    def coefficient(self, own: Own, opened: Sums) -> float:
        """Return c_k."""
        return _ratio(self.numerator(own), opened[self.denominator])

    def part(self, own: Own, opened: Sums) -> float:
        """Return this client's part of the denominator."""
        return _ratio(self.summand(own), opened[self.denominator])

    def total(self, opened: Sums) -> float:
        """Return C."""
        return _ratio(opened[TOTAL], opened[self.denominator])


@dataclass(frozen=True, kw_only=True)
class PriorWeighing(RatioWeighing):
    """c_k = p_k."""

    kind, denominator = "prior", WEIGHT


@dataclass(frozen=True, kw_only=True)
class NormalisedWeighing(RatioWeighing):
    """c_k = η p_k / ‖u_k‖, over the clients that moved."""

    kind, denominator = "normalised", "moved"
    step_size: float = 1.0

    def numerator(self, own: Own) -> float:
        """Return a_k."""
        return self.step_size * _ratio(self.weight(own), own.length)

    def summand(self, own: Own) -> float:
        """Return b_k."""
        return self.weight(own) * (own.length > 0.0)


@dataclass(frozen=True, kw_only=True)
class LossWeighing(Weighing):
    """What weighings by losses share."""

    metrics = ("loss-before",)
    loss_bound: float = 16.0

    def loss(self, own: Own) -> float:
        """Return F_k, at most the bound."""
        return min(max(own.metrics["loss-before"], 0.0), self.loss_bound)

    def exact(self, own: Own, opened: Sums) -> bool:
        """Return whether the loss is within its bounds."""
        return 0.0 <= own.metrics["loss-before"] <= self.loss_bound


@dataclass(frozen=True, kw_only=True)
class TiltedWeighing(RatioWeighing, LossWeighing):
    """c_k ∝ p_k e^(tilt F_k)."""

    kind, denominator = "tilted", "tilted"
    tilt: float = 1.0

    def __post_init__(self) -> None:
        if self.format_of(TOTAL).limbs(FIELD_LIMB) > MAX_LIMBS:
            raise ValueError(
                f"tilt = {self.tilt:g} with loss-bound = {self.loss_bound:g} needs more digits than a private sum has: "
                "lower one of them"
            )

    def numerator(self, own: Own) -> float:
        """Return a_k."""
        w, F = np.array([self.weight(own)]), np.array([self.loss(own)])
        return float(tilt_weights(w, F, self.tilt, self.loss_bound if self.tilt > 0.0 else 0.0)[0])

    def format_of(self, name: str) -> FixedPoint:
        """Return the format of a sum of exponentials."""
        return FixedPoint(60, math.ceil(abs(self.tilt) * self.loss_bound * 1.443) + 64)


@dataclass(frozen=True, kw_only=True)
class PowerWeighing(RatioWeighing, LossWeighing):
    """c_k = L F_k^q / Σ h of the gradients L u_k; or, with the learning rate η_k, of the gradients u_k / η_k."""

    kind, denominator = "power", "h"
    q: float = 1.0
    lipschitz: float = 1.0
    by_rate: bool = False

    @property
    def metrics(self) -> tuple[str, ...]:  # type: ignore[override] # it depends on the fields
        """The loss, and with `by_rate` the learning rate."""
        return ("loss-before", "learning-rate") if self.by_rate else ("loss-before",)

    def __post_init__(self) -> None:
        if self.format_of(TOTAL).limbs(FIELD_LIMB) > MAX_LIMBS:
            raise ValueError(f"q = {self.q:g} needs more digits than a private sum has: lower it")

    def numerator(self, own: Own) -> float:
        """Return a_k."""
        return self._terms(own)[0] * self._factor(own)

    def summand(self, own: Own) -> float:
        """Return b_k."""
        return self._terms(own)[1]

    def _factor(self, own: Own) -> float:
        """Return the factor of the update in the gradient: L, or 1/η_k."""
        return 1.0 / own.metrics["learning-rate"] if self.by_rate else self.lipschitz

    def _terms(self, own: Own) -> tuple[float, float]:
        F = np.array([max(self.loss(own), SMALLEST_LOSS)])
        squares = np.array([(own.length * self._factor(own)) ** 2])
        powers, h = power_terms(F, squares, self.q, self.lipschitz, self.loss_bound)
        return float(powers[0]), float(h[0])

    def format_of(self, name: str) -> FixedPoint:
        """Return the format of a sum of powers."""
        # F ≥ 1e-10, so that (F / loss-bound)^q has up to this many zeros after the point.
        zeros = math.ceil(self.q * math.log2(self.loss_bound / SMALLEST_LOSS))
        return FixedPoint(96, zeros + 64)


@dataclass(frozen=True, kw_only=True)
class DeviationWeighing(LossWeighing):
    """c_k = p_k (1 + 2 β d_k), with d_k what F_k is above the mean, or above it and above the mean of that."""

    kind = "deviation"
    beta: float = 0.5
    above_only: bool = False

    @property
    def steps(self) -> Sequence[Step]:
        """Two, or three where what is above the mean has a mean of its own."""
        losses: Step = {
            WEIGHT: lambda own, _: self.weight(own),
            "losses": lambda own, _: self.weight(own) * self.loss(own),
        }
        above: Step = {"above": lambda own, opened: self.weight(own) * self._above(own, opened)}
        return (losses, *[above] * self.above_only, {TOTAL: self.contribution})

    def _above(self, own: Own, opened: Sums) -> float:
        deviation = self.loss(own) - opened["losses"] / opened[WEIGHT]
        return max(deviation, 0.0) if self.above_only else deviation

    def coefficient(self, own: Own, opened: Sums) -> float:
        """Return c_k."""
        mean = opened["above"] / opened[WEIGHT] if self.above_only else 0.0
        return penalised(self.share(own, opened), self._above(own, opened) - mean, self.beta)


@dataclass(frozen=True, kw_only=True)
class AccuracyWeighing(Weighing):
    """FedFa's c_k, by the accuracy after local work and by how often each client took part."""

    kind, metrics = "accuracy", ("accuracy-after",)
    alpha: float = 0.5
    beta: float = 0.5
    rounds: Mapping[str, float] = field(default_factory=dict)
    """In how many rounds each client of the cohort took part, this one included."""

    @property
    def steps(self) -> Sequence[Step]:
        """Accuracies, the logarithms of their shares, and C."""
        accuracies: Step = {WEIGHT: lambda own, _: 1.0, "accuracies": lambda own, _: self._accuracy(own)}
        return (accuracies, {"logarithms": self._logarithm}, {TOTAL: self.contribution})

    def _accuracy(self, own: Own) -> float:
        return max(own.metrics["accuracy-after"], SMALLEST_ACCURACY)

    def _logarithm(self, own: Own, opened: Sums) -> float:
        return rarity(self._accuracy(own), opened["accuracies"])

    def coefficient(self, own: Own, opened: Sums) -> float:
        """Return c_k."""
        n = np.array([self.rounds[name] for name in own.cohort], np.float64)
        f = -np.log2(1.0 - n / n.sum())
        by_rounds = float(f[own.cohort.index(own.name)] / f.sum())
        alpha = self.alpha / (self.alpha + self.beta)
        return alpha * self._logarithm(own, opened) / opened["logarithms"] + (1.0 - alpha) * by_rounds


@dataclass(frozen=True, kw_only=True)
class AscentWeighing(LossWeighing):
    """AFL's c_k = λ_k. Clients keep their λ, the projection of λ + γF on the simplex, as a version of the round.

    The first step opens Σ γF. Then steps open in turn how many λ + γF are above the threshold which follows, and, where
    these are five or more, their sum and their sum of squares, until none falls below.

    Source: Michelot, A finite algorithm for finding the projection of a point onto the canonical simplex of R^n,
    Journal of Optimization Theory and Applications 50, 1986.
    """

    kind, tier, whole = "ascent", SUMS_OF_AFL, True
    gamma: float = 0.1
    since: int = 0
    """The round whose λ clients go on from; 0: the prior."""
    clients: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not self.gamma >= 0.0:
            raise ValueError(f"gamma = {self.gamma:g} is below 0: set it to 0 or more")
        if not self.gamma * self.loss_bound <= MAX_GAIN:
            raise ValueError(
                f"gamma = {self.gamma:g} times loss-bound = {self.loss_bound:g} is more than {MAX_GAIN}, which private "
                "sums do not distinguish: lower one of them"
            )

    @property
    def steps(self) -> Sequence[Step]:
        """Fourteen: the number of what is above a threshold, and its sum and sum of squares, by turns."""
        found: list[Step] = [
            {
                WEIGHT: lambda own, _: self.weight(own),
                "mass": lambda own, _: own.lam,
                "number 1": lambda own, _: 1.0,
                "above 1": lambda own, _: self.gamma * self.loss(own),
            },
            {"number 2": partial(self._power, 2, 0), "squares 1": partial(self._power, 1, 2), TOTAL: self.contribution},
        ]
        for place in range(2, 8):
            powers = {
                f"above {place}": partial(self._power, place, 1),
                f"squares {place}": partial(self._power, place, 2),
            }
            found += [powers, {f"number {place + 1}": partial(self._power, place + 1, 0)}]
        return found

    def _power(self, place: int, exponent: int, own: Own, opened: Sums) -> float:
        """Return a power of λ + γF where that is above the threshold before this place, 0 otherwise."""
        moved = self._moved(own, opened)
        is_above = place == 1 or moved > max(self._threshold(place - 1, opened), 0.0)
        return moved**exponent if is_above else 0.0

    def ended(self, step: int, opened: Sums) -> bool:
        """Return whether none was below the threshold, or too few are above it for a sum."""
        if step % 2:
            return False
        number, before = opened[f"number {step // 2 + 1}"], opened[f"number {step // 2}"]
        return step >= len(self.steps) or number == before or number < FEWEST

    def _moved(self, own: Own, opened: Sums) -> float:
        return self.coefficient(own, opened) + self.gamma * self.loss(own)

    def _threshold(self, step: int, opened: Sums) -> float:
        """Return τ, by which the sum of what is above is beyond 1; the first step leaves out Σ λ = 1."""
        return (opened[f"above {step}"] - (step > 1)) / opened[f"number {step}"]

    def coefficient(self, own: Own, opened: Sums) -> float:
        """Return c_k = λ_k; RefusedError where a client has changed its own, so that all do not sum to 1."""
        if not self.since:
            return self.share(own, opened)
        if abs(opened["mass"] - 1.0) > 1e-9:
            raise RefusedError(f"weights: those of all clients sum to {opened['mass']:g} in place of 1")
        return own.lam / opened["mass"]

    def next_lam(self, own: Own, opened: Sums) -> float:
        """Return λ_k for the next round: the present one where the projection is not reached or shows too few."""
        if not self._spread(opened):
            return self.coefficient(own, opened)
        return max(self._moved(own, opened) - self._threshold(self._last(opened), opened), 0.0)

    def _last(self, opened: Sums) -> int:
        return sum(name.startswith("squares ") for name in opened)

    def _spread(self, opened: Sums) -> bool:
        """Return whether λ leaves five clients or more, and is not the update of few: Σ λ² is at most a half."""
        last = self._last(opened)
        number, above, squares = (opened[f"{name} {last}"] for name in ("number", "above", "squares"))
        # Σ (v − τ)², as τ times their number is Σ v − 1
        after = squares - self._threshold(last, opened) * (above + (last == 1) + 1.0)
        return opened[f"number {last + 1}"] == number >= FEWEST and after <= 0.5

    def exact(self, own: Own, opened: Sums) -> bool:
        """Return whether the loss is within its bounds, and λ was moved."""
        return super().exact(own, opened) and self._spread(opened)


@dataclass(frozen=True, kw_only=True)
class TailWeighing(LossWeighing):
    """c_k = 1 / n for the n clients in the tail of losses: those not below the quantile at 1 − θ.

    The first step opens how many losses are in each of 256 bins, the next ones how many are in each of 256 parts of the
    bin that has the quantile, until it has one loss or is at most 2^−20 wide. Losses in one such bin are tied.
    """

    kind, tier = "tail", "counts"
    theta: float = 0.5

    def __post_init__(self) -> None:
        if not 0.2 <= self.theta <= 1.0:
            raise ValueError(f"theta = {self.theta:g} leaves too few clients in a private step: set it to at least 0.2")
        if not 0.0 < self.loss_bound <= 1 << 20:
            raise ValueError(f"loss-bound = {self.loss_bound:g} is too large for counts of losses: lower it")

    @property
    def _digits(self) -> int:
        """How often bins are divided."""
        return max(1, math.ceil((math.log2(self.loss_bound) + 20.0) / 8.0))

    @property
    def steps(self) -> Sequence[Step]:
        """One for each division, and one for C."""
        divisions = range(1, self._digits + 1)
        found: list[Step] = [{f"bin {division}": Bins(256, partial(self._part, division))} for division in divisions]
        return ({WEIGHT: lambda own, _: 1.0, **found[0]}, *found[1:], {TOTAL: self.contribution})

    def _part(self, division: int, own: Own, opened: Sums) -> int | None:
        """Return in which part of the bin that has the quantile the loss is, None where it is in none."""
        quantile, digits, inside, _ = self._quantile(division - 1, opened)
        return self._bin(own, division) & 255 if self._bin(own, digits) == quantile and inside != 1 else None

    def _bin(self, own: Own, digits: int) -> int:
        """Return the bin of the loss after so many divisions; each digit of its number is to the base 256."""
        most = 1 << 8 * self._digits
        return min(int(self.loss(own) / self.loss_bound * most), most - 1) >> 8 * (self._digits - digits)

    def _quantile(self, steps: int, opened: Sums) -> tuple[int, int, int, int]:
        """Return the bin that has the quantile, its divisions, how many losses it has, and how many are below it."""
        found, digits, inside, below = 0, 0, 0, 0
        while digits < steps and inside != 1:
            digits += 1
            rank = max(1, math.ceil(opened[WEIGHT] * (1.0 - self.theta - 1e-9)))
            counts = [round(opened[f"bin {digits} {digit}"]) for digit in range(256)]
            ends = list(accumulate(counts, initial=below))
            digit = next((each for each in range(256) if ends[each + 1] >= rank), 255)
            found, inside, below = found << 8 | digit, counts[digit], ends[digit]
        return found, digits, inside, below

    def coefficient(self, own: Own, opened: Sums) -> float:
        """Return c_k; RefusedError where the tail has too few clients."""
        quantile, digits, _, below = self._quantile(self._digits, opened)
        clients = round(opened[WEIGHT]) - below
        if clients < FEWEST:
            raise RefusedError(f"small cohort: {clients} clients are in the tail, and {FEWEST} are the fewest")
        return 1.0 / clients if self._bin(own, digits) >= quantile else 0.0


@dataclass(frozen=True, kw_only=True)
class MeanWeighing(Weighing):
    """No coefficient: an evaluation opens the count, the sums and the sums of squares of scores, and their means."""

    kind, purpose = "mean", EVALUATE
    scores: Sequence[str] = ()
    binned: Sequence[str] = ()
    """Those of the scores, shares in [0, 1], of which the clients in each of `BINS` bins are counted, too."""

    @property
    def tier(self) -> str:  # type: ignore[override] # it depends on the fields
        """Sums, or counts of scores."""
        return COUNTS_OF_SCORES if self.binned else "sums"

    @property
    def fewest(self) -> int:  # type: ignore[override] # it depends on the fields
        """Ten where scores are counted."""
        return 2 * FEWEST if self.binned else FEWEST

    @property
    def metrics(self) -> tuple[str, ...]:  # type: ignore[override] # it depends on the fields
        """The scores."""
        return tuple(self.scores)

    @property
    def steps(self) -> Sequence[Step]:
        """One step."""
        found: dict[str, Summand | Bins] = {WEIGHT: lambda own, _: own.metrics["num-examples"]}
        for name in self.scores:
            found |= {f"{name}/sum": partial(_moment, name, 0, 1), f"{name}/squares": partial(_moment, name, 0, 2)}
            found[f"{name}/weighted"] = partial(_moment, name, 1, 1)
        return ({**found, **{f"{name}/bin": Bins(BINS, partial(self._bin, name)) for name in self.binned}},)

    def _bin(self, name: str, own: Own, opened: Sums) -> int:
        return round(min(max(own.metrics[name], 0.0), 1.0) * (BINS - 1))

    def coefficient(self, own: Own, opened: Sums) -> float:
        """Return c_k."""
        return 0.0


@dataclass(frozen=True, kw_only=True)
class GramWeighing(Weighing):
    """Coefficients that the server computes from the Gram matrix of all updates, and that each client checks.

    They are λ_k, or λ_k / ‖u_k‖ if `unit`, times the step size: λ gives the shortest combination over the simplex with
    |λ_k − 1/m| ≤ `epsilon`. If `torchjd` names a weighting of TorchJD, they are what it makes of the matrix.
    """

    kind, tier = "gram", "angles"
    clients: Sequence[str] = ()
    """The clients that are asked. Opened values have their places here in their names, since a name may be anything."""
    epsilon: float = 1.0
    step_size: float = 1.0
    unit: bool = False
    torchjd: str = ""
    arguments: Mapping[str, float] = field(default_factory=dict)
    sketch: int = 0
    """How many numbers of a count sketch stand for an update; 0: the update itself."""

    def __post_init__(self) -> None:
        if not all(isinstance(name, str) for name in self.clients) or len(set(self.clients)) < len(self.clients):
            raise ValueError("the clients are not distinct names")
        if len(self.clients) > MOST or (self.sketch and not SMALLEST_SKETCH <= self.sketch <= 1 << 20):
            raise ValueError(f"more than {MOST} clients, or a sketch of {self.sketch} numbers")
        if not self.epsilon >= 0.0 or not self.step_size > 0.0:
            raise ValueError(f"epsilon = {self.epsilon} or step size = {self.step_size} is out of range")
        if self.torchjd and self.torchjd not in TORCHJD:
            raise ValueError(f"torchjd:{self.torchjd} is none of {', '.join(sorted(TORCHJD))}")

    @property
    def steps(self) -> Sequence[Step]:
        """One step. The sharings of zero that are summed as products hide the factors of what is added to them."""
        pairs = combinations_with_replacement(range(len(self.clients)), 2)
        found: dict[str, Summand] = {f"product {i} {j}": lambda own, _: 0.0 for i, j in pairs}
        lengths = {f"length {place}": partial(self._length, name) for place, name in enumerate(self.clients)}
        return ({WEIGHT: lambda own, _: 1.0, **lengths, **found},)

    def _length(self, name: str, own: Own, opened: Sums) -> float:
        return own.length if own.name == name else 0.0

    def product(self, one: str, other: str) -> str:
        """Return the name of the inner product of two clients' rows."""
        i, j = sorted((self._place(one), self._place(other)))
        return f"product {i} {j}"

    def _place(self, name: str) -> int:
        return list(self.clients).index(name)

    def format_of(self, name: str) -> FixedPoint:
        """Return the format of a sum; products have one limb, which sums of products fill beyond its 40 bits."""
        return PRODUCT if name.startswith("product ") else super().format_of(name)

    def row(self, update: NDArray[np.float64], length: float, seed: bytes) -> NDArray[np.int64]:
        """Return the whole numbers that stand for an update: those of its direction, or of a sketch of it."""
        unit = update / length if length > 0.0 else update
        if self.sketch:
            unit = sketch(unit, self.sketch, seed)
        return np.rint(unit * self._factor).astype(np.int64)

    @property
    def _factor(self) -> float:
        """What a direction is multiplied by. A sketch may be longer than it, and products have to stay below 2^60."""
        return 2.0**27 if self.sketch else 2.0**28

    def gram(self, names: Sequence[str], opened: Sums) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the lengths of these clients' updates, shape (m,), and the cosines between them, shape (m, m)."""
        products = [[opened[self.product(one, other)] for other in names] for one in names]
        cosines = np.array(products) * (2.0**PRODUCT.after / self._factor**2)
        return np.array([opened[f"length {self._place(name)}"] for name in names]), cosines

    def given(self, names: Sequence[str], coefficients: object) -> dict[str, int]:
        """Return the coefficients of these clients, in their order, as opened values; RefusedError if malformed."""
        right = isinstance(coefficients, list) and len(coefficients) == len(names)
        if not isinstance(coefficients, list) or not right or any(type(each) is not int for each in coefficients):
            raise RefusedError("the coefficients are not one whole number for each of those who take part")
        return {f"coefficient {self._place(name)}": c for name, c in zip(names, coefficients, strict=True)}

    def coefficients(self, names: Sequence[str], opened: Sums) -> NDArray[np.float64]:
        """Return c, shape (m,)."""
        return np.array([opened[f"coefficient {self._place(name)}"] for name in names])

    def coefficient(self, own: Own, opened: Sums) -> float:
        """Return c_k."""
        return float(self.coefficients([own.name], opened)[0])

    def part(self, own: Own, opened: Sums) -> float:
        """Return p_k; the coefficients stay as they are if clients are lost."""
        return self.share(own, opened)

    def total(self, opened: Sums) -> float:
        """Return C."""
        given = [name for name in opened if name.startswith("coefficient ")]
        return sum(abs(opened[name]) * opened[name.replace("coefficient", "length")] for name in given)

    def kappa(self, participants: int) -> float:
        """Return κ: of unit updates 3/m, which no client exceeds with an epsilon of at most 2/m."""
        return 3.0 / participants if self.unit else super().kappa(participants)

    def check(self, own: Own, opened: Sums, weights: Weights) -> None:
        """Raise RefusedError where the coefficients are not those that follow from the opened Gram matrix."""
        lengths, cosines = self.gram(own.cohort, opened)
        if lengths[own.cohort.index(own.name)] != NUMBER.value(NUMBER.integer(own.length)):
            raise RefusedError("split sums: the length that was opened for this client is not that of its update")
        c = self.coefficients(own.cohort, opened)
        if self.torchjd:
            right = weights(self.torchjd, self.arguments, cosines * np.outer(lengths, lengths))
            if not np.abs(c - right).max() <= 1e-6 * max(1.0, np.abs(right).max()):
                raise RefusedError("the coefficients are not those of the weighting that the terms name")
            return
        moved = lengths > 0.0 if self.unit else np.ones(len(c), bool)
        scales = np.ones(moved.sum()) if self.unit else lengths
        if not moved.any():
            return
        x = c[moved] * (lengths[moved] if self.unit else 1.0) / self.step_size
        G, prior = cosines[np.ix_(moved, moved)] * np.outer(scales, scales), 1.0 / moved.sum()
        lower, upper = np.full(len(x), max(prior - self.epsilon, 0.0)), np.full(len(x), min(prior + self.epsilon, 1.0))
        if not (abs(x.sum() - 1.0) <= 1e-9 and (x >= lower - 1e-9).all() and (x <= upper + 1e-9).all()):
            raise RefusedError("the coefficients are not feasible: not of the simplex, or too far from equal ones")
        # The gap bounds the excess of ½ xᵀGx.
        if not 2.0 * duality_gap(G, x, lower, upper) <= 1e-9 * np.trace(G) / len(x):
            raise RefusedError("the coefficients do not give the shortest combination of the updates")


KINDS: Mapping[str, type[Weighing]] = {
    each.kind: each
    for each in (
        *(PriorWeighing, NormalisedWeighing, TiltedWeighing, PowerWeighing),
        *(DeviationWeighing, AccuracyWeighing, AscentWeighing, MeanWeighing, GramWeighing, TailWeighing),
    )
}
"""The weighings by the kind that their specs name."""


def weighing_of(spec: Mapping[str, Any]) -> Weighing:
    """Return the weighing that a server asks for; RefusedError where there is no such one."""
    fields = {key: value for key, value in spec.items() if key != "kind"}
    try:
        weighing = KINDS[spec["kind"]](**fields)
    except (KeyError, TypeError, ValueError) as error:
        raise RefusedError(f"the terms ask for no weighing that this client knows: {error}") from None
    numbers = [value for value in fields.values() if isinstance(value, float | int)]
    if not all(map(math.isfinite, numbers)) or getattr(weighing, "loss_bound", 1.0) <= 0.0:
        raise RefusedError("the terms ask for a weighing by numbers that are not finite or not positive")
    if weighing.prior not in ("examples", "uniform"):
        raise RefusedError(f"the terms ask for the prior {weighing.prior!r}")
    return weighing


def tiers_of(privacy: str, evaluation: str, method: str) -> tuple[str, ...]:
    """Return what the settings of a run open, in addition to sums."""
    more = {COUNTS_OF_SCORES: evaluation == "counts", SUMS_OF_AFL: method.lower() == "afl"}
    return privacy, *(tier for tier, is_opened in more.items() if is_opened)


def bin_of(score: str, place: int) -> str:
    """Return the name of the number of clients with a score in a bin."""
    return f"{score}/bin {place}"


def check_cohort(weighing: Weighing, cohort: Collection[str]) -> None:
    """Raise RefusedError where a weighing by name lacks a client of the cohort, or the cohort is too small for it."""
    if len(cohort) < weighing.fewest:
        raise RefusedError(f"small cohort: {len(cohort)} clients, and what is opened needs {weighing.fewest}")
    if isinstance(weighing, GramWeighing) and not set(cohort) <= set(weighing.clients):
        raise RefusedError("the terms do not name each client of the cohort")
    if weighing.whole and set(cohort) != set(getattr(weighing, "clients", ())):
        raise RefusedError("small cohort: not all clients that the terms name are in it")
    rounds = getattr(weighing, "rounds", None)
    if rounds is not None and (not set(cohort) <= rounds.keys() or any(not rounds[name] >= 1 for name in cohort)):
        raise RefusedError("the terms do not say how often each client of the cohort took part")


def _moment(score: str, i: int, j: int, own: Own, opened: Sums) -> float:
    """Return n^i x^j, with n the number of examples and x the score."""
    return own.metrics["num-examples"] ** i * own.metrics[score] ** j


# Formulas -----------------------------------------------------------------------------------------------------------


def tilt_weights(
    weights: NDArray[np.float64], losses: NDArray[np.float64], tilt: float, shift: float
) -> NDArray[np.float64]:
    """Return w e^(tilt (F − shift))."""
    with np.errstate(over="ignore"):  # what is far below the largest counts nothing
        exponents = tilt * (losses - shift)
    return np.asarray(weights * np.exp(exponents))


def power_terms(
    losses: NDArray[np.float64], squares: NDArray[np.float64], q: float, L: float, largest: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return F^q and h = q F^(q−1) ‖g‖² + L F^q; F^q is that of F / largest, which cannot overflow and cancels."""
    F = losses
    Fq = (F / largest) ** q
    return Fq, L * Fq + (q * Fq / F * squares if q > 0.0 else 0.0)


def penalised(prior: N, deviation: N, beta: float) -> N:
    """Return p (1 + 2 β d)."""
    return prior * (1.0 + 2.0 * beta * deviation)


def duality_gap(
    G: NDArray[np.float64], x: NDArray[np.float64], lower: NDArray[np.float64], upper: NDArray[np.float64]
) -> float:
    """Return (x − s)ᵀGx, with s the best point of the boxed simplex for the gradient: at least the excess of ½xᵀGx."""
    gradient = G @ x
    s, left = lower.copy(), 1.0 - lower.sum()
    for k in np.argsort(gradient):
        s[k] += min(upper[k] - lower[k], left)
        left = max(left - (upper[k] - lower[k]), 0.0)
    return float((x - s) @ gradient)


def _ratio(part: float, whole: float) -> float:
    """Return a part of a whole; 0 where nothing is there to be divided."""
    return part / whole if whole > 0.0 else 0.0


def rarity(value: N, total: float) -> N:
    """Return −log2 of a share of a total."""
    rare: N = -np.log2(value / total)
    return rare
