"""A finished round, as data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from io import BytesIO
from typing import Any

import numpy as np
from numpy.lib.format import dtype_to_descr, write_array_header_1_0
from numpy.typing import NDArray


class StopRun(Exception):  # noqa: N818 (not an error, like StopIteration)
    """Raised by `on_round`, `evaluate_fn` or a hook to finish the run after the current round.

    Raised before the replies of a round are aggregated, it finishes the run before that round.

    Parameters
    ----------
    reason
        Why, as text for the log and the run folder.
    metrics
        The metrics that `evaluate_fn` would have returned for the round.
    """

    def __init__(self, reason: str = "", metrics: Mapping[str, Any] | None = None) -> None:
        super().__init__(reason)
        self.reason = reason or "StopRun was raised"
        self.metrics = metrics


@dataclass(frozen=True, kw_only=True)
class Round:
    """A finished round, as `on_round` gets it.

    Attributes
    ----------
    number
        t, from 1.
    participants
        The clients drawn for training, in the order of their names.
    refused
        Why a reply was not used, by client name.
    missing
        The participants that did not answer before the deadline.
    offline
        The known clients that were offline when the participants were drawn.
    revoked
        The known clients that the federation's operator had revoked then, in the order of names.
    owing
        The clients online that were not asked to train, because they owed an earlier reply, in the
        order of names.
    excluded
        The clients that were not asked to train, because their privacy accounts are spent or
        halted, in the order of names.
    coefficients
        c_k of the step w ← w − Σ c_k u_k, by name of the clients with used replies; empty in a
        skipped round. If each array has its own coefficients, their mean, weighted by the array's
        share in ‖u_k‖².
    arrays
        The global model after the round: NumPy arrays by name, or a Flower ArrayRecord if Flower's
        `start` runs the rounds.
    average
        If the method averages models, the mean of the global models up to this round, in the same
        form: the clients evaluated this one. None: they evaluated `arrays`.
    lost_states
        The clients that had lost their state, in the order of names. After such a round, the
        method's memory and the state of all clients are empty.
    clients
        How many other clients the run has known up to now; 0 if unknown.
    metrics
        Means over the used replies, or the result of the user's aggregation, and the metrics that
        the method reports.
    train_metrics
        The training metrics of each used client.
    evaluations
        The metrics of each client's test split, if the round was evaluated.
    not_finite
        The metrics that clients replied to evaluation as NaN or infinite, with such a value; they
        are left out of `evaluations`.
    evaluation_metrics
        Means over the evaluations, or the result of the user's aggregation.
    server_metrics
        The metrics that `evaluate_fn` returned.
    bytes_sent, bytes_received
        Size of the arrays that went out and came in, as messages hold them.
    """

    number: int
    participants: tuple[str, ...]
    refused: Mapping[str, str]
    missing: tuple[str, ...]
    coefficients: Mapping[str, float]
    arrays: Any
    metrics: Mapping[str, Any]
    train_metrics: Mapping[str, Mapping[str, float]]
    evaluations: Mapping[str, Mapping[str, float]]
    bytes_sent: int
    bytes_received: int
    lost_states: tuple[str, ...] = ()
    average: Any = None
    offline: tuple[str, ...] = ()
    revoked: tuple[str, ...] = ()
    owing: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    clients: int = 0
    not_finite: Mapping[str, float] = field(default_factory=dict)
    evaluation_metrics: Mapping[str, Any] = field(default_factory=dict)
    server_metrics: Mapping[str, Any] = field(default_factory=dict)

    @property
    def evaluated(self) -> Any:
        """The model that is evaluated and saved: `average` if there is one, else `arrays`."""
        return self.arrays if self.average is None else self.average


def size_on_the_wire(array: NDArray[Any], dtype: np.dtype[Any] | None = None) -> int:
    """Return the bytes that an array has, or would have, in a message: in numpy.save's format.

    With `dtype`, they are those of the array in this dtype.
    """
    dtype = dtype or array.dtype
    return _header_size(dtype, array.shape, array.flags.fnc) + array.size * dtype.itemsize


@lru_cache(maxsize=4096)
def _header_size(dtype: np.dtype[Any], shape: tuple[int, ...], fortran: bool) -> int:
    header = BytesIO()
    write_array_header_1_0(
        header, {"descr": dtype_to_descr(dtype), "fortran_order": fortran, "shape": shape}
    )
    return header.tell()
