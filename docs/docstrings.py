"""Parse the docstrings of methods, for their pages."""

import inspect
import re
from dataclasses import dataclass

from fairbloom.protocol.parameters import Parameter, parameters_of
from fairbloom.rounds.compatibility import SERVER_MOMENTUM, find_conflict
from fairbloom.rounds.server_optimizer import AVGM
from fairbloom.strategies import FairStrategy, FromTorchJD, canonical, find_method

LABELS = (
    "Source",
    "Reductions",
    "Departures",
    "Objective",
    "Good for",
    "Hurts when",
    "Memory",
    "Cost",
)
"""The labels, followed by a colon, at the beginning of paragraphs in a method's docstring."""


@dataclass(frozen=True)
class MethodDoc:
    """A method's docstring in parts.

    `explanation` is the text before the source, with formulas in reStructuredText.
    """

    name: str
    title: str
    explanation: str
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
    server_optimizer: str


def describe(name: str) -> MethodDoc:
    """Return the parts of a method's docstring; "torchjd" is for all of TorchJD's weightings."""
    method = FromTorchJD if name == "torchjd" else find_method(name)
    text = inspect.getdoc(method) or ""
    return MethodDoc(
        name=canonical(name),
        title=method.__name__,
        explanation=text.partition("\n\nSource: ")[0],
        needs=tuple(sorted(method.needs)),
        weighting=method.default_weighting or "no prior",
        parameters=() if method is FromTorchJD else parameters_of(method.__name__.lower(), method),
        server_optimizer=_with_server_optimizer(method),
        **{label.lower().replace(" ", "_"): _paragraph(text, label) for label in LABELS},
    )


def _with_server_optimizer(method: type[FairStrategy]) -> str:
    """Return the effect of server optimizers, and which of them the method refuses, or ""."""
    parts = []
    if lost := method.lost_to_server_optimizers:
        parts.append(f"One thing no longer holds: {lost}.")
    if conflict := find_conflict(method.requires, SERVER_MOMENTUM):
        parts.append(f"It refuses {AVGM}, as it {conflict.why}.")
    return " ".join(parts)


def _paragraph(text: str, label: str) -> str:
    """Return the text after a label in one line, up to an empty line or the next label."""
    found = re.search(
        rf"^{label}: (.+?)(?:\n\n|\n(?:{'|'.join(LABELS)}): |\Z)", text, re.MULTILINE | re.DOTALL
    )
    return " ".join(found[1].split()) if found else ""
