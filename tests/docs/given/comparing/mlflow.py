"""Stands in for MLflow: checks and counts what the page logs."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

STARTED: list[str] = []


@contextmanager
def start_run(*, run_name: str) -> Iterator[None]:
    """Begin a run."""
    STARTED.append(run_name)
    yield


def log_params(params: Mapping[str, object]) -> None:
    """Log what distinguishes a run."""
    assert params.keys() == {"method", "seed"}


def log_metrics(metrics: Mapping[str, float], *, step: int) -> None:
    """Log the numbers of a round."""
    assert all(0.0 <= value <= 100.0 for value in metrics.values())
    assert 1 <= step <= 3
