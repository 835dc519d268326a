"""From the replies of a round to the coefficients of its step."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from .arrays import FloatArray
from .clients import TrainReplies
from .cohort import Cohort, Kept, MethodError, Needed
from .compatibility import EXACT_GRAM, GRAM, GRAM_BY_ARRAY, ROSTER
from .defences import mixed
from .layout import Layout
from .method import Method
from .vectors import Vectors, combine

LARGEST_METRIC = 1e150
"""A metric beyond this is out of all measure: its square may be beyond the range of numbers."""


class NoStepError(Exception):
    """A round without a step, because the step is beyond the range of numbers."""


def cohort_of(
    method: Method,
    trained: TrainReplies,
    *,
    server_round: int,
    num_rounds: int | None,
    online: Sequence[str],
    draws: Mapping[str, int],
    sent: Mapping[str, float] = MappingProxyType({}),
) -> tuple[Cohort, Vectors]:
    """Return what the method sees of the replies, and its rows: the updates, the second ones, and the kept ones.

    The cohort raises NoStepError when it is asked for inner products that are not finite: no method
    can weigh by them.
    """
    updates = trained.updates
    counts = trained.column(method.weighted_by_key)
    names = trained.names
    kept = recalled_rows(method, trained, server_round)
    if method.progress.moments is not None:
        check_row(method, "a server momentum", method.progress.moments.first.size, updates.layout)
    second = (
        [trained.second.vectors] if method.has_second_rows and trained.second is not None else []
    )
    vectors = Vectors.concat([updates.vectors, *second, *kept.values()])

    def gram_of() -> FloatArray:
        if GRAM_BY_ARRAY in method.requires:
            return _finite(cohort.grams.sum(axis=0), trained)
        return _finite(updates.gram(vectors, exact=EXACT_GRAM in method.requires), trained)

    def grams_of() -> FloatArray:
        return _finite(updates.grams(vectors, exact=EXACT_GRAM in method.requires), trained)

    cohort = Cohort(
        round=server_round,
        num_rounds=num_rounds,
        names=names,
        online=tuple(online),
        counts=counts,
        prior=(
            counts / counts.sum()
            if method.weighting == "examples"
            else np.full(len(counts), 1.0 / len(counts))
        ),
        draws=np.array([draws[name] for name in trained.names], np.float64),
        metrics=Needed(
            type(method).__name__, {metric: trained.column(metric) for metric in method.needs}
        ),
        memory=tuple(kept),
        declared_roster=method.progress.roster if ROSTER in method.requires else None,
        second=bool(second),
        sent=sent,
        arrays=updates.layout.trainable,
        gram_of=gram_of,
        grams_of=grams_of,
        squared_norms_of=lambda: _finite(updates.squared_norms, trained),
    )
    return cohort, vectors


def screen_updates(method: Method, trained: TrainReplies, server_round: int) -> None:
    """Refuse replies that are not finite.

    The same pass computes the inner products that the method needs.
    """
    if GRAM not in method.requires or method.has_second_rows:
        trained.screen()
        return
    kept = recalled_rows(method, trained, server_round).values()
    trained.screen(gram=True, by_array=GRAM_BY_ARRAY in method.requires, below=[*kept])


def recalled_rows(method: Method, trained: TrainReplies, server_round: int) -> dict[Kept, Vectors]:
    """Return the kept rows that the method weighs together with a round's replies."""
    kept = method.progress.kept
    names = trained.names
    recalled = {
        key: row for key, row in kept.items() if names and method.recalls(key, names, server_round)
    }
    for key, row in recalled.items():
        check_row(method, f"an update of round {key.round}", row.size, trained.updates.layout)
    return recalled


def check_row(method: Method, what: str, numbers: int, layout: Layout) -> None:
    """Raise MethodError when a vector that is kept has not as many numbers as the model that is trained."""
    if numbers != layout.size:
        raise MethodError(
            f"{type(method).__name__} keeps {what} with {numbers} numbers, and {layout.size} are"
            " trained: other parameters are frozen now. Begin a new run, or go on with the earlier"
            " model"
        )


def compute_coefficients(method: Method, cohort: Cohort) -> FloatArray:
    """Return the method's coefficients, one for each row, all finite.

    Or such ones for each of the model's arrays.

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
            f"{name} returned {got}: it must return one number for each update and kept row, shape"
            f" {expected[0]}, or such numbers for each array that is trained, shape {expected[1]}"
        )
    finite = np.asarray(np.isfinite(np.atleast_2d(coefficients)).all(axis=0))
    if not finite.all():
        if absurd := absurd_metric(cohort):
            raise NoStepError(f"the coefficients are beyond the range of numbers, since {absurd}")
        wrong = ", ".join(
            name for name, good in zip(cohort.names, finite, strict=False) if not good
        )
        of = f" (of {wrong})" if wrong else ""
        raise MethodError(
            f"{name} returned coefficients that are not finite{of}: correct the method"
        )
    return coefficients.astype(np.float64, copy=False)


def defended(
    method: Method, cohort: Cohort
) -> tuple[FloatArray, FloatArray, Cohort, FloatArray | None]:
    """Return the coefficients of a round's rows; those of the mixed rows.

    The cohort that the method saw; the mixing.

    The last is the matrix by which a defence mixed the rows, None where they are not mixed. Errors
    are those of `compute_coefficients`.
    """
    defence = method.defence
    mixing = defence.mixing(cohort) if defence else None
    seen = cohort if mixing is None else mixed(cohort, mixing)
    replaced = defence.weights(cohort) if defence else None
    own = compute_coefficients(method, seen) if replaced is None else replaced
    return own if mixing is None else own @ mixing, own, seen, mixing


def absurd_metric(cohort: Cohort) -> str:
    """Return in words which number of a client is out of all measure, "" where none is."""
    for metric, values in cohort.metrics.items():
        place = int(np.argmax(np.abs(values)))
        if abs(values[place]) > LARGEST_METRIC:
            return (
                f"client {cohort.names[place]} reports {values[place]:g} as {metric!r}: lower"
                " loss_limit"
            )
    return ""


def _finite(products: FloatArray, trained: TrainReplies) -> FloatArray:
    if not np.isfinite(products).all():
        lengths = trained.updates.norms
        place = int(np.argmax(lengths))
        raise NoStepError(
            "inner products of the updates are not finite; the longest update, of the length "
            f"{lengths[place]:g}, is that of client {trained.names[place]}"
        )
    return products


def rows_after(
    method: Method, remembered: Mapping[Kept, FloatArray | None], vectors: Vectors
) -> dict[Kept, Vectors]:
    """Return the rows that a method keeps after a round, as its `remember` says."""
    kept = method.progress.kept
    if missing := [key for key, mix in remembered.items() if mix is None and key not in kept]:
        raise MethodError(
            f"{type(method).__name__}.remember returned None for {missing[0]}, which is no kept"
            " row: only one that is in self.progress.kept can stay as it is"
        )
    return {
        key: kept[key] if mix is None else combine(mix, vectors) for key, mix in remembered.items()
    }


def single_coefficients(cohort: Cohort, coefficients: FloatArray) -> FloatArray:
    """Return one coefficient for each row: of those by array their mean, weighted by the array's share in ‖u_k‖²."""
    if coefficients.ndim == 1:
        return coefficients
    squares = np.diagonal(cohort.grams, axis1=1, axis2=2)
    whole = squares.sum(axis=0)
    # 0 in a row of zeros
    shares = np.divide(squares, whole, out=np.zeros_like(squares), where=whole > 0.0)
    return np.asarray((coefficients * shares).sum(axis=0))
