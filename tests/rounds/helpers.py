"""Runs over a grid in memory, of every method."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from flwr.app import ArrayRecord
from flwr.serverapp.strategy import Result

from fairbloom.rounds.updates import FloatArray, Vectors, squares_and_products
from fairbloom.strategies import METHODS, FairStrategy, Round
from tests.strategies.helpers import (
    ARGUMENTS,
    BUFFERS,
    Fault,
    MemoryGrid,
    initial_model,
    make,
    quadratics,
    record,
    unpack,
)


def needs_of(name: str) -> tuple[object, ...]:
    """Return what a round does for a method: what it has measured, sent, replied, computed and remembered."""
    method = METHODS[name]
    return method.needs, method.second, method.own_terms, frozenset(method.requires)


KINDS = sorted({needs_of(name): name for name in sorted(METHODS, reverse=True)}.values())
"""One method for each set of needs: for what a round does, whatever the coefficients are."""

OPTIONS: dict[str, Any] = {"buffers": BUFFERS, "fraction_train": 0.6, "seed": 3}


def run(
    strategy: FairStrategy, grid: MemoryGrid | None = None, rounds: int = 4, **arguments: Any
) -> tuple[Result, list[Round]]:
    finished: list[Round] = []
    arguments.setdefault("initial_arrays", record(initial_model()))
    result = strategy.start(grid or MemoryGrid(quadratics(6)), num_rounds=rounds, on_round=finished.append, **arguments)
    return result, finished


_UNDISTURBED: dict[str, tuple[Result, list[Round]]] = {}


def undisturbed(name: str, arguments: Mapping[str, Any]) -> tuple[Result, list[Round]]:
    """Return four rounds of a method with OPTIONS; the same again, since many tests compare theirs with them."""
    key = f"{name} {arguments}"
    if key not in _UNDISTURBED:
        _UNDISTURBED[key] = run(make(name, arguments, **OPTIONS))
    return _UNDISTURBED[key]


def bits(arrays: ArrayRecord) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {name: (str(a.dtype), a.shape, a.tobytes()) for name, a in unpack(arrays).items()}


SITE_2_IS_DRAWN = 4
"""A seed with which DRFA, too, draws site-2 in round 1."""


@cache
def one_faulty(name: str, fault: Fault | None) -> tuple[Result, Round]:
    """Return a round in which site-2 misbehaves; the same again, since many tests compare theirs with one."""
    grid = MemoryGrid(quadratics(6), faults={} if fault is None else {("site-2", 1): fault})
    result, (only,) = run(make(name, ARGUMENTS[name][0], buffers=BUFFERS, seed=SITE_2_IS_DRAWN), grid, rounds=1)
    return result, only


def squared_norms(vectors: Vectors) -> FloatArray:
    return squares_and_products(vectors)[0]
