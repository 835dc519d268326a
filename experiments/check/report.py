"""What is found of each property of a method or a client-side rule."""

import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import ClassVar, NamedTuple, TypeVar

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fairbloom.errors import FairbloomError

T = TypeVar("T")


class Status(Enum):
    """The outcome of a property; a remark is for the author to judge."""

    PASSED = "passed"
    REMARK = "remark"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"


SIGNS = {
    Status.PASSED: "[green]✓[/]",
    Status.REMARK: "[yellow]![/]",
    Status.FAILED: "[red]✗[/]",
    Status.NOT_APPLICABLE: "[dim]–[/]",
}


class PropertyResult(NamedTuple):
    """The outcome of one property, and what was found."""

    status: Status
    message: str


@dataclass(frozen=True)
class CheckReport:
    """What was found of a method or a client-side rule, by property."""

    name: str
    results: Mapping[str, PropertyResult]

    @property
    def failures(self) -> dict[str, str]:
        """What is wrong, by the properties that failed."""
        return {name: message for name, (status, message) in self.results.items() if status is Status.FAILED}

    def show(self, console: Console) -> None:
        """Print one row per property."""
        table = Table(box=None, title=escape(self.name), title_justify="left", show_header=False, pad_edge=False)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for name, (status, message) in self.results.items():
            table.add_row(SIGNS[status], name, escape(message))
        console.print(table)


class CheckFailedError(FairbloomError):
    """A method or client-side rule fails a property, as the message says; `report` has everything."""

    def __init__(self, report: CheckReport) -> None:
        super().__init__("; ".join(f"{report.name} fails {name}: {said}" for name, said in report.failures.items()))
        self.report = report


class Verdict(Exception):  # noqa: N818 (none of these is an error of the program)
    """A property did not simply pass."""

    status: ClassVar[Status]


class Remark(Verdict):
    """The property passed, with something for the author to judge."""

    status = Status.REMARK


class Failure(Verdict):
    """The property failed."""

    status = Status.FAILED


class NotApplicable(Verdict):
    """The property cannot be checked."""

    status = Status.NOT_APPLICABLE


@contextmanager
def explain_errors(given: str, consequence: str, files: Collection[str]) -> Iterator[None]:
    """Turn what is raised inside into Failure: `given` begins the message, `consequence` ends it.

    `files` are those of the code under test, of which the message names the function and the line.
    """
    try:
        yield
    except Verdict:
        raise
    except Exception as error:  # whatever code of the user's raises
        said = str(error).removesuffix(".")
        if not isinstance(error, FairbloomError):  # which says itself where it comes from
            frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
            said = f"{frames[0].name if frames else 'it'} raised {type(error).__name__}: {said}"
            said += "".join(f" ({Path(at.filename).name}, line {at.lineno}: `{at.line}`)" for at in frames[-1:])
        raise Failure(f"{given}{said}. {consequence}") from error


def check_properties(name: str, properties: Mapping[str, Callable[[T], str]], subject: T) -> CheckReport:
    """Return the outcome of every property; raise CheckFailedError if one failed.

    The function of a property returns what it found, or raises a Verdict. After a failure no other is checked, since
    most would fail by the same fault.
    """
    results, failed = dict[str, PropertyResult](), ""
    for each, check_property in properties.items():
        if failed:
            results[each] = PropertyResult(Status.NOT_APPLICABLE, f"It is checked once {failed} passes.")
            continue
        try:
            results[each] = PropertyResult(Status.PASSED, check_property(subject))
        except Verdict as verdict:
            results[each] = PropertyResult(verdict.status, str(verdict))
            failed = each if verdict.status is Status.FAILED else ""
    report = CheckReport(name, results)
    if failed:
        raise CheckFailedError(report)
    return report
