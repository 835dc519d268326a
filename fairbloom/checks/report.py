"""The outcomes of checks, and what they need: values as bits, and silence."""

import logging
import pickle
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch

from fairbloom.errors import FairbloomError
from fairbloom.logs import log_from
from fairbloom.simulation.run import one_thread


class CheckFailedError(FairbloomError):
    """A method fails a property, as the message says."""


class Failure(Exception):  # noqa: N818 (no error of the program)
    """The property failed."""


class NotApplicable(Failure):
    """The property cannot be checked."""


def bits(value: object) -> object:
    """Return a value in a form that shows whether it has changed."""
    if isinstance(value, torch.Tensor):
        return bits(value.numpy())
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, Mapping):
        return [(repr(key), bits(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value).__name__, [bits(item) for item in value]
    if value is None or isinstance(value, str | int | float | set | frozenset):
        return repr(value)
    try:
        return pickle.dumps(value)  # an object's own state, as that of a generator
    except Exception:  # whatever a class of the user's raises
        return id(value)


@contextmanager
def silence() -> Iterator[None]:
    """Keep the log and warnings silent, and let a single thread compute, for a while."""
    with one_thread(), log_from(logging.CRITICAL), warnings.catch_warnings(action="ignore"):
        yield
