"""What is found of each property of a method or a client-side rule."""

import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
    """A method or client-side rule fails at least one property; the message has them all, `report` has everything."""

    def __init__(self, report: CheckReport) -> None:
        failures = [f"{name}: {message}" for name, message in report.failures.items()]
        super().__init__("\n".join([f"{report.name} fails {len(failures)} of {len(report.results)}:", *failures]))
        self.report = report


class Verdict(Exception):  # noqa: N818 (none of these is an error of the program)
    """A property did not simply pass; `reporters` are the properties that report the fault, by default this one."""

    status: ClassVar[Status]

    def __init__(self, message: str, *reporters: str) -> None:
        super().__init__(message)
        self.reporters = reporters


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
def explain_errors(
    given: str, consequence: str, files: Collection[str], find_reporters: Callable[[Exception, str], Sequence[str]]
) -> Iterator[None]:
    """Turn what is raised inside into Failure: `given` begins the message, `consequence` ends it.

    `files` are those of the code under test. `find_reporters` is given the error and the name of the function of this
    code that raised it, "" for none, and returns the properties that report it.
    """
    try:
        yield
    except Failure:
        raise
    except Exception as error:  # whatever code of the user's raises
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
        function, said = frames[0].name if frames else "", str(error).removesuffix(".")
        if not isinstance(error, FairbloomError):  # which says itself where it comes from
            said = f"{function or 'it'} raised {type(error).__name__}: {said}"
            said += "".join(f" ({Path(at.filename).name}, line {at.lineno}: `{at.line}`)" for at in frames[-1:])
        raise Failure(f"{given}{said}. {consequence}", *find_reporters(error, function)) from error


def check_properties(name: str, properties: Mapping[str, Callable[[T], str]], subject: T) -> CheckReport:
    """Return the outcome of every property; raise CheckFailedError if one failed.

    The function of a property returns what it found, or raises a Verdict. A property that fails by a fault of another
    one, which reports it, is not applicable.
    """
    results, reporters = dict[str, PropertyResult](), dict[str, tuple[str, ...]]()
    for each, check_property in properties.items():
        try:
            results[each] = PropertyResult(Status.PASSED, check_property(subject))
        except Verdict as verdict:
            results[each] = PropertyResult(verdict.status, str(verdict))
            if verdict.status is Status.FAILED:
                reporters[each] = verdict.reporters or (each,)
    own_faults = {each for each, names in reporters.items() if each in names}
    for each, names in reporters.items():
        others = [other for other in names if other in own_faults]
        if each not in own_faults and others:
            message = f"It cannot be checked yet: correct {' and '.join(others)} first."
            results[each] = PropertyResult(Status.NOT_APPLICABLE, message)
    report = CheckReport(name, results)
    if report.failures:
        raise CheckFailedError(report)
    return report
