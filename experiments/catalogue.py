"""What there is to choose from: methods and their parameters, read from their docstrings."""

import inspect
import re
from dataclasses import dataclass

from fairbloom.strategies import METHODS, FromTorchJD

LABELS = ("Source", "Reductions", "Departures", "Objective", "Good for", "Hurts when", "Memory", "Cost")
"""What a paragraph of a method's docstring may begin with, followed by a colon."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a method: its run-config key, what it may be, its default in Python and what it does."""

    key: str
    range: str
    default: str
    description: str


@dataclass(frozen=True)
class Method:
    """A method as its docstring describes it; `explanation` is all before the source, formulas in reStructuredText."""

    name: str
    title: str
    summary: str
    explanation: str
    formula: str
    source: str
    needs: tuple[str, ...]
    weighting: str
    parameters: tuple[Parameter, ...]
    reductions: str
    departures: str
    objective: str
    good_for: str
    hurts_when: str
    memory: str
    cost: str


def title(name: str) -> str:
    """Return how a method is headed in tables and figures: the class, or TorchJD's name; personal models are said."""
    method, _, rest = name.partition(":")
    if method in METHODS:
        return f"{METHODS[method].__name__} ({rest})" if rest else METHODS[method].__name__
    return name


def describe(name: str) -> Method:
    """Return what the docstring of the method `name` says of it; "torchjd" is what holds for all its weightings."""
    method = FromTorchJD if name == "torchjd" else METHODS[name]
    text = inspect.getdoc(method) or ""
    return Method(
        name=name,
        title=method.__name__,
        summary=_one_line(text.partition("\n\n")[0]),
        explanation=text.partition("\n\nSource: ")[0],
        formula="\n".join(_one_line(block) for block in re.findall(r"\.\. math::((?:.+\n|\n(?= ))+)", text)),
        source=_paragraph(text, "Source"),
        needs=tuple(sorted(method.needs)),
        weighting=method.default_weighting or "no prior",
        parameters=tuple(_parameters(name, text)),
        reductions=_paragraph(text, "Reductions"),
        departures=_paragraph(text, "Departures"),
        objective=_paragraph(text, "Objective"),
        good_for=_paragraph(text, "Good for"),
        hurts_when=_paragraph(text, "Hurts when"),
        memory=_paragraph(text, "Memory"),
        cost=_paragraph(text, "Cost"),
    )


def _parameters(name: str, text: str) -> list[Parameter]:
    """Return the entries of the docstring's Parameters section, written `name : range, default value`."""
    section = re.search(r"^Parameters\n-+\n((?:\S+ : .+\n(?: {4}.+\n?)+)+)", text, re.MULTILINE)
    entries = re.findall(r"(\S+) : (.+)\n((?: {4}.+\n?)+)", section[1]) if section else []
    return [
        Parameter(
            key=f"{name}.{argument.replace('_', '-')}",
            range=what.partition(", default ")[0],
            default=what.partition(", default ")[2] or "required",
            description=_one_line(description),
        )
        for argument, what, description in entries
    ]


def _paragraph(text: str, label: str) -> str:
    """Return what follows a label, up to an empty line or the next label."""
    found = re.search(rf"^{label}: (.+?)(?:\n\n|\n(?:{'|'.join(LABELS)}): |\Z)", text, re.MULTILINE | re.DOTALL)
    return _one_line(found[1]) if found else ""


def _one_line(text: str) -> str:
    return " ".join(text.split())
