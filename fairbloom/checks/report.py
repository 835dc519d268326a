"""What is found of each property of a method or a client-side rule."""

import logging
import pickle
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fairbloom.errors import FairbloomError
from fairbloom.logs import log_from
from fairbloom.simulation.run import one_thread

T = TypeVar("T")


class Status(Enum):
    """The outcome of a property; a remark is for the author to judge."""

    PASSED = "passed"
    REMARK = "remark"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"


class PropertyResult(NamedTuple):
    """The outcome of one property, with its finding."""

    status: Status
    message: str


@dataclass(frozen=True)
class CheckReport:
    """The findings on a method or a client-side rule, by property."""

    name: str
    results: Mapping[str, PropertyResult]

    @property
    def failures(self) -> dict[str, str]:
        """What is wrong, by the properties that failed."""
        return {
            name: message
            for name, (status, message) in self.results.items()
            if status is Status.FAILED
        }

    def show(self, console: Console) -> None:
        """Print one row per property."""
        signs = dict(
            zip(Status, ("[green]✓[/]", "[yellow]![/]", "[red]✗[/]", "[dim]–[/]"), strict=True)
        )
        table = Table(
            box=None,
            title=escape(self.name),
            title_justify="left",
            show_header=False,
            pad_edge=False,
        )
        for fold in (False, False, True):
            table.add_column(no_wrap=not fold, overflow="fold")
        for name, (status, message) in self.results.items():
            table.add_row(signs[status], name, escape(message))
        console.print(table)


class CheckFailedError(FairbloomError):
    """A method or client-side rule fails a property, as the message says.

    `report` has everything.
    """

    def __init__(self, report: CheckReport) -> None:
        super().__init__(
            "; ".join(
                f"{report.name} fails {name}: {said}" for name, said in report.failures.items()
            )
        )
        self.report = report


class Failure(Exception):  # noqa: N818 (no error of the program)
    """The property failed."""

    status = Status.FAILED


class Remark(Failure):
    """The property passed, with something for the author to judge."""

    status = Status.REMARK


class NotApplicable(Failure):
    """The property cannot be checked."""

    status = Status.NOT_APPLICABLE


def check_properties(
    name: str, properties: Mapping[str, Callable[[T], str]], subject: T
) -> CheckReport:
    """Return the outcome of every property; raise CheckFailedError if one failed.

    The function of a property returns its finding, or raises Failure, Remark or NotApplicable.
    After a failure no other is checked, because most would fail by the same fault.
    """
    results = dict[str, PropertyResult]()
    failed = ""
    with silence():
        for each, check_property in properties.items():
            try:
                if failed:
                    raise NotApplicable(f"It is checked once {failed} passes.")
                results[each] = PropertyResult(Status.PASSED, check_property(subject))
            except Failure as found:
                results[each] = PropertyResult(found.status, str(found))
                failed = each if found.status is Status.FAILED else failed
    report = CheckReport(name, results)
    if failed:
        raise CheckFailedError(report)
    return report


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
