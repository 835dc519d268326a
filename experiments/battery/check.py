"""Checks every property of a method, one by one, and explains what is wrong."""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fairbloom.client.rules.own import OwnRule
from fairbloom.errors import FairbloomError
from fairbloom.imports import imported, is_import_string
from fairbloom.protocol.parameters import parameters_of
from fairbloom.protocol.settings import Value
from fairbloom.strategies import FairStrategy

from .properties import PROPERTIES, Finding, Status
from .rules import ROUND, RULE_PROPERTIES, RuleSubject
from .subject import Failure, NotApplicable, Subject, silence

T = TypeVar("T")


@dataclass(frozen=True)
class PropertyResult:
    """The outcome of one property."""

    name: str
    verdict: Status  # REMARK: the method may be right, and its author should know
    message: str
    seconds: float


@dataclass(frozen=True)
class CheckReport:
    """What was found of a method or a client-side rule, in the order of the properties."""

    method: str
    results: tuple[PropertyResult, ...]

    @property
    def passed(self) -> bool:
        """Whether no property failed."""
        return all(result.verdict is not Status.FAILED for result in self.results)

    def __getitem__(self, name: str) -> PropertyResult:
        """Return the result of a property."""
        return next(result for result in self.results if result.name == name)


def check(method: Callable[..., FairStrategy], arguments: Mapping[str, Value] | None = None) -> CheckReport:
    """Try every property of a method, given as its class or another function that makes it; takes some seconds."""
    subject = Subject(method, arguments or {})
    given = ", ".join(f"{name}={value!r}" for name, value in subject.arguments.items())
    return _report(f"{_name(method)}({given})", PROPERTIES, subject)


def check_rule(name: str) -> CheckReport:
    """Try every property of a client-side rule, given as the import string of its class; takes some seconds."""
    OwnRule(ROUND, name)
    return _report(name, RULE_PROPERTIES, RuleSubject(name))


def is_rule(name: str) -> bool:
    """Return whether an import string names a client-side rule, and no method."""
    found = imported("method", name) if is_import_string(name) else None
    return isinstance(found, type) and hasattr(found, "correct") and not issubclass(found, FairStrategy)


def _report(title: str, properties: Mapping[str, Callable[[T], Finding]], subject: T) -> CheckReport:
    """Return what became of every property of a subject; one that hangs on a fault that another reports is left out."""
    with silence():
        outcomes = {name: _outcome(name, check_property, subject) for name, check_property in properties.items()}
    failed = {
        name for name, (result, reporters) in outcomes.items() if result.verdict is Status.FAILED and name in reporters
    }
    results = []
    for name, (result, reporters) in outcomes.items():
        others = [other for other in reporters if other in failed and name not in reporters]
        message = f"It cannot be checked yet: correct {' and '.join(others)} first."
        results.append(replace(result, verdict=Status.NOT_APPLICABLE, message=message) if others else result)
    return CheckReport(title, tuple(results))


def arguments_of(method: type[FairStrategy], settings: Mapping[str, Value]) -> dict[str, Value]:
    """Return the arguments of a method that settings such as worsthalf.share=0.5 give it."""
    known = {each.key: each for each in parameters_of(method.__name__.lower(), method)} if settings else {}
    for key in settings:
        if key not in known:
            there = ", ".join(known) or "none"
            raise FairbloomError(
                f"{key} = {settings[key]!r}: {method.__name__} has no such parameter; there are {there}"
            )
    return {known[key].argument: known[key].checked(value) for key, value in settings.items()}


def show_report(report: CheckReport, console: Console) -> None:
    """Print what was found, a property a row, on a console."""
    signs = {
        Status.PASSED: "[green]✓[/]",
        Status.REMARK: "[yellow]![/]",
        Status.FAILED: "[red]✗[/]",
        Status.NOT_APPLICABLE: "[dim]–[/]",
    }
    table = Table(box=None, title=escape(report.method), title_justify="left", show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for result in report.results:
        table.add_row(signs[result.verdict], result.name, escape(result.message))
    console.print(table)
    count = {verdict: sum(result.verdict is verdict for result in report.results) for verdict in Status}
    counted = ", ".join(f"{number} {verdict.value}" for verdict, number in count.items() if number)
    console.print(f"{counted}; {sum(result.seconds for result in report.results):.1f} seconds", soft_wrap=True)


def _outcome(name: str, check_property: Callable[[T], Finding], subject: T) -> tuple[PropertyResult, Collection[str]]:
    """Return the result of a property, and the properties of which one reports it if it failed."""
    begin = time.perf_counter()
    reporters: tuple[str, ...] = (name,)
    try:
        verdict, message = check_property(subject)
    except Failure as failure:
        verdict, message, reporters = Status.FAILED, str(failure), failure.reporters or reporters
    except NotApplicable as reason:
        verdict, message = Status.NOT_APPLICABLE, str(reason)
    return PropertyResult(name, verdict, message, time.perf_counter() - begin), reporters


def _name(method: Callable[..., FairStrategy]) -> str:
    made = method.func if isinstance(method, partial) else method
    return str(getattr(made, "__name__", made))
