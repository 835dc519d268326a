"""A battery for methods: what a federated method must keep to, tried one by one, with what is wrong in words."""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fairbloom.errors import FairbloomError
from fairbloom.protocol.parameters import parameters_of
from fairbloom.protocol.settings import Value
from fairbloom.strategies import FairStrategy

from .properties import PROPERTIES, Answer, Verdict
from .trial import Trial, Untried, Wrong, alone


@dataclass(frozen=True)
class Finding:
    """What became of one property.

    Attributes
    ----------
    name
        The property.
    verdict
        REMARK where the method may be right as it is and its author should know.
    words
        What was given, what came, why that matters and what to do; or what was found.
    seconds
        How long it took.
    """

    name: str
    verdict: Verdict
    words: str
    seconds: float


@dataclass(frozen=True)
class Report:
    """What was found of a method, in the order of PROPERTIES."""

    method: str
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Whether no property failed."""
        return all(finding.verdict is not Verdict.FAILED for finding in self.findings)

    def __getitem__(self, name: str) -> Finding:
        """Return the finding of a property."""
        return next(finding for finding in self.findings if finding.name == name)


def check(method: Callable[..., FairStrategy], arguments: Mapping[str, Value] | None = None) -> Report:
    """Try every property of a method; takes some seconds.

    Parameters
    ----------
    method
        The method's class, or another function that makes it of keyword arguments.
    arguments
        Its own parameters; those that are left out have their defaults.
    """
    trial = Trial(method, arguments or {})
    with alone():
        outcomes = {name: _outcome(name, examine, trial) for name, examine in PROPERTIES.items()}
    own_faults = {
        name for name, (finding, homes) in outcomes.items() if finding.verdict is Verdict.FAILED and name in homes
    }
    findings = []
    for name, (finding, homes) in outcomes.items():
        elsewhere = [home for home in homes if home in own_faults and name not in homes]
        words = f"It cannot be told before {' and '.join(elsewhere)} is mended."
        findings.append(replace(finding, verdict=Verdict.NOT_APPLICABLE, words=words) if elsewhere else finding)
    own = ", ".join(f"{name}={value!r}" for name, value in trial.arguments.items())
    return Report(f"{_name(method)}({own})", tuple(findings))


def arguments_of(method: type[FairStrategy], settings: Mapping[str, Value]) -> dict[str, Value]:
    """Return the arguments of a method that settings such as worsthalf.share=0.5 give it.

    Raises
    ------
    FairbloomError
        When the method has no such parameter, or it is of another type.
    """
    known = {own.key: own for own in parameters_of(method.__name__.lower(), method)} if settings else {}
    for key in settings:
        if key not in known:
            there = ", ".join(known) or "none"
            raise FairbloomError(
                f"{key} = {settings[key]!r}: {method.__name__} has no such parameter; there are {there}"
            )
    return {known[key].argument: known[key].checked(value) for key, value in settings.items()}


def show_report(report: Report, console: Console) -> None:
    """Print what was found of a method, a property a row, on a console."""
    signs = {
        Verdict.PASSED: "[green]✓[/]",
        Verdict.REMARK: "[yellow]![/]",
        Verdict.FAILED: "[red]✗[/]",
        Verdict.NOT_APPLICABLE: "[dim]–[/]",
    }
    table = Table(box=None, title=escape(report.method), title_justify="left", show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in report.findings:
        table.add_row(signs[finding.verdict], finding.name, escape(finding.words))
    console.print(table)
    count = {verdict: sum(finding.verdict is verdict for finding in report.findings) for verdict in Verdict}
    counted = ", ".join(f"{number} {verdict.value}" for verdict, number in count.items() if number)
    console.print(f"{counted}; {sum(finding.seconds for finding in report.findings):.1f} seconds", soft_wrap=True)


def _outcome(name: str, examine: Callable[[Trial], Answer], trial: Trial) -> tuple[Finding, Collection[str]]:
    """Return the finding of a property, and the properties of which one tells of it where it is a fault."""
    begin = time.perf_counter()
    homes: tuple[str, ...] = (name,)
    try:
        verdict, words = examine(trial)
    except Wrong as wrong:
        verdict, words, homes = Verdict.FAILED, str(wrong), wrong.belongs or homes
    except Untried as reason:
        verdict, words = Verdict.NOT_APPLICABLE, str(reason)
    return Finding(name, verdict, words, time.perf_counter() - begin), homes


def _name(method: Callable[..., FairStrategy]) -> str:
    made = method.func if isinstance(method, partial) else method
    return str(getattr(made, "__name__", made))
