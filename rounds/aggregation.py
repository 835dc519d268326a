"""From the replies of a round to the coefficients of its step."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from .clients import Trained
from .cohort import Cohort, Kept, MethodError, Needed
from .defences import capped, mixed
from .fits import EXACT_GRAM, GRAM_BY_ARRAY
from .lengths import largest_share
from .method import Method
from .updates import FloatArray, Layout, Vectors, combine, gram_matrices, total

DECIDING_SHARE = 0.9
"""A client of three or more that decides a round has this share at least: of the parts of the step that have the sign
of its own, or of the step's squared length."""

LEAST_SHARE, LEAST_SHARE_ALONG = 0.4, 0.6
"""It also has this share of all parts, in the first case and in the second. Where the others pull the other way, as
weights do that sum to one with a huge one among them, nobody can have much more than half; where the others' parts
cancel each other, one that is not much larger than theirs makes up the step without deciding it."""


LARGEST_METRIC = 1e150
"""A metric beyond this is out of all measure: its square may be beyond the range of numbers."""


class NoStepError(Exception):
    """A round without a step, because the step is beyond the range of numbers."""


def cohort_of(
    method: Method,
    trained: Trained,
    *,
    server_round: int,
    num_rounds: int | None,
    online: Sequence[str],
    draws: Mapping[str, int],
    sent: Mapping[str, float] = MappingProxyType({}),
) -> tuple[Cohort, Vectors]:
    """Return what the method sees of the replies, and its rows: the updates, the second ones, and the kept ones.

    The cohort raises NoStepError when it is asked for inner products that are not finite: no method can weigh by them.
    """
    updates, counts = trained.updates, trained.column(method.weighted_by_key)
    size = len(counts)
    names, kept = trained.names, recalled_rows(method, trained, server_round)
    if method.progress.moments is not None:
        check_row(method, "a server momentum", method.progress.moments.first.size, updates.layout)
    second = [trained.second.vectors] if method.has_second_rows and trained.second is not None else []
    vectors = Vectors.below([updates.vectors, *second, *kept.values()])

    def gram_of() -> FloatArray:
        if GRAM_BY_ARRAY in method.requires:
            return _finite(cohort.grams.sum(axis=0))
        return _finite(updates.gram(vectors, exact=EXACT_GRAM in method.requires))

    def grams_of() -> FloatArray:
        return _finite(updates.grams(vectors, exact=EXACT_GRAM in method.requires))

    cohort = Cohort(
        round=server_round,
        num_rounds=num_rounds,
        names=names,
        online=tuple(online),
        counts=counts,
        prior=counts / counts.sum() if method.weighting == "examples" else np.full(size, 1.0 / size),
        draws=np.array([draws[name] for name in trained.names], np.float64),
        metrics=Needed(type(method).__name__, {metric: trained.column(metric) for metric in method.needs}),
        memory=tuple(kept),
        roster=method.progress.roster,
        second=bool(second),
        sent=sent,
        arrays=updates.layout.trainable,
        gram_of=gram_of,
        grams_of=grams_of,
        squared_norms_of=lambda: _finite(updates.squared_norms),
    )
    return cohort, vectors


def recalled_rows(method: Method, trained: Trained, server_round: int) -> dict[Kept, Vectors]:
    """Return the kept rows that the method weighs together with a round's replies."""
    kept, names = method.progress.kept, trained.names
    recalled = {key: row for key, row in kept.items() if names and method.recalls(key, names, server_round)}
    for key, row in recalled.items():
        check_row(method, f"an update of round {key.round}", row.size, trained.updates.layout)
    return recalled


def check_row(method: Method, what: str, numbers: int, layout: Layout) -> None:
    """Raise MethodError when a vector that is kept has not as many numbers as the model that is trained."""
    if numbers != layout.size:
        raise MethodError(
            f"{type(method).__name__} keeps {what} with {numbers} numbers, and {layout.size} are trained: other "
            "parameters are frozen now. Begin a new run, or go on with the earlier model"
        )


def compute_coefficients(method: Method, cohort: Cohort) -> FloatArray:
    """Return the method's coefficients, one for each row, all finite; or such ones for each of the model's arrays.

    Raises
    ------
    MethodError
        When the method returns anything else.
    NoStepError
        When a client reports a number so large that inner products or coefficients are not finite.
    """
    coefficients = np.asarray(method.weigh(cohort))
    expected = (cohort.rows,), (len(cohort.arrays), cohort.rows)
    name = f"{type(method).__name__}.weigh, in round {cohort.round},"
    if coefficients.shape not in expected or coefficients.dtype.kind not in "fiu":
        got = f"{coefficients.dtype} of shape {coefficients.shape}"
        raise MethodError(
            f"{name} returned {got}: it must return one number for each update and kept row, shape {expected[0]}, or "
            f"such numbers for each array that is trained, shape {expected[1]}"
        )
    finite = np.asarray(np.isfinite(np.atleast_2d(coefficients)).all(axis=0))
    if not finite.all():
        if absurd := absurd_metric(cohort):
            raise NoStepError(f"the coefficients are beyond the range of numbers, since {absurd}")
        wrong = ", ".join(name for name, good in zip(cohort.names, finite, strict=False) if not good)
        of = f" (of {wrong})" if wrong else ""
        raise MethodError(f"{name} returned coefficients that are not finite{of}: correct the method")
    return coefficients.astype(np.float64, copy=False)


class Defended(NamedTuple):
    """The coefficients of a round's rows; and, behind a defence, what the method returned and saw, and the mixing.

    `own` are the coefficients of the mixed rows, which the method returned; `seen` is the cohort that it saw, and
    `mixing` the matrix that mixed the rows, None where they are not mixed.
    """

    coefficients: FloatArray
    own: FloatArray
    seen: Cohort
    mixing: FloatArray | None


def defended(method: Method, cohort: Cohort) -> Defended:
    """Return the coefficients of a round; errors are those of `compute_coefficients`."""
    defence = method.defence
    mixing = defence.mixing(cohort) if defence else None
    seen = cohort if mixing is None else mixed(cohort, mixing)
    replaced = defence.weights(cohort) if defence else None
    own = compute_coefficients(method, seen) if replaced is None else replaced
    coefficients = own if mixing is None else own @ mixing
    if method.max_share < 1.0:
        of_clients = coefficients[..., : cohort.size]
        bounded = np.apply_along_axis(capped, -1, of_clients, method.max_share)
        coefficients = np.concatenate([bounded, coefficients[..., cohort.size :]], axis=-1)
    return Defended(coefficients, own, seen, mixing)


def absurd_metric(cohort: Cohort) -> str:
    """Return in words which number of a client is out of all measure, "" where none is."""
    for metric, values in cohort.metrics.items():
        place = int(np.argmax(np.abs(values)))
        if abs(values[place]) > LARGEST_METRIC:
            return f"client {cohort.names[place]} reports {values[place]:g} as {metric!r}: lower loss_limit"
    return ""


def _finite(products: FloatArray) -> FloatArray:
    if not np.isfinite(products).all():
        raise NoStepError("inner products of the updates are not finite")
    return products


def rows_after(method: Method, remembered: Mapping[Kept, FloatArray | None], vectors: Vectors) -> dict[Kept, Vectors]:
    """Return the rows that a method keeps after a round, as its `remember` says."""
    kept = method.progress.kept
    if missing := [key for key, mix in remembered.items() if mix is None and key not in kept]:
        raise MethodError(
            f"{type(method).__name__}.remember returned None for {missing[0]}, which is no kept row: only one that is "
            "in self.progress.kept can stay as it is"
        )
    return {key: kept[key] if mix is None else combine(mix, vectors) for key, mix in remembered.items()}


def single_coefficients(cohort: Cohort, coefficients: FloatArray) -> FloatArray:
    """Return one coefficient for each row: of those by array their mean, weighted by the array's share in ‖u_k‖²."""
    return coefficients if coefficients.ndim == 1 else np.asarray((coefficients * _shares(cohort)).sum(axis=0))


def _shares(cohort: Cohort) -> FloatArray:
    """Return the share of each array in each row's squared length, shape (L, rows); 0 in a row of zeros."""
    squares = np.diagonal(cohort.grams, axis1=1, axis2=2)
    whole = squares.sum(axis=0)
    return np.asarray(np.divide(squares, whole, out=np.zeros_like(squares), where=whole > 0.0))


def parts_of(cohort: Cohort, coefficients: FloatArray, lengths: FloatArray) -> dict[str, float]:
    """Return each client's part of the step by its name: c_k ‖u_k‖, or all of its rows' with the sign of c_k.

    `lengths` are those of the updates, and of the second ones after them. Coefficients by array make a row as long as
    all its arrays together are, with the sign of its single coefficient.
    """
    c = factors = single_coefficients(cohort, coefficients)
    if coefficients.ndim == 2:
        factors = np.copysign(np.hypot.reduce(coefficients * np.sqrt(_shares(cohort)), axis=0), c)
    parts = factors[: len(lengths)] * lengths
    if cohort.second:  # the two may point apart, and then neither is to hide the other
        parts = np.copysign(np.abs(parts).reshape(2, -1).sum(axis=0), c[: cohort.size])
    return dict(zip(cohort.names, parts.tolist(), strict=True))


def share_along(coefficients: FloatArray, vectors: Vectors, places: Sequence[int], ends: Sequence[int]) -> float:
    """Return the share of some vectors' parts in a step's squared length, Σ c_k ⟨u_k, d⟩ / ‖d‖² with d = Σ c_j u_j."""
    one_row, by_array = coefficients.ndim == 1, np.atleast_2d(coefficients)
    with np.errstate(all="ignore"):  # where the step is zero, or has left the range of numbers, this is not finite
        step = combine(coefficients, vectors) if one_row else Vectors.of(total(coefficients, vectors, ends=ends))
        rows = Vectors.below([*(vectors[place] for place in places), step])
        grams = gram_matrices(rows, (vectors.size,) if one_row else ends)
        return float((by_array[:, list(places)] * grams[:, :-1, -1]).sum() / grams[:, -1, -1].sum())


def decides(parts: Mapping[str, float], along: Callable[[str], float] | None = None) -> tuple[str, float]:
    """Return the one client of three or more that decides a round, and its share; "" and 0 where none does.

    It has the largest of the `parts`, nearly all of those with its sign (DECIDING_SHARE) and much of all (LEAST_SHARE);
    or most of all parts (LEAST_SHARE_ALONG) and nearly all of the step's squared length, which `along` computes for a
    client where it is needed. Its share is that of all parts, in absolute value.
    """
    if len(parts) < 3:
        return "", 0.0
    name, share = largest_share(parts)
    if share < LEAST_SHARE:
        return "", 0.0
    same_sign = sum(abs(part) for part in parts.values() if (part > 0.0) == (parts[name] > 0.0))
    decided = abs(parts[name]) >= DECIDING_SHARE * same_sign
    if not decided and share >= LEAST_SHARE_ALONG and along is not None:
        decided = along(name) >= DECIDING_SHARE
    return (name, share) if decided else ("", 0.0)
