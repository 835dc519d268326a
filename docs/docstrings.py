"""What the docstrings of methods say, for their pages."""

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
"""The words, followed by a colon, that a paragraph of a method's docstring may begin with."""


@dataclass(frozen=True)
class MethodDoc:
    """A method as its docstring describes it.

    `explanation` is all that comes before the source, with formulas in reStructuredText.
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
    """Return what the docstring of a method says.

    "torchjd" stands for all of TorchJD's weightings.
    """
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
    """Return what does not survive a server optimizer, and which ones the method refuses.

    "" where nothing is said.
    """
    lost = method.lost_to_server_optimizers
    refused = find_conflict(method.requires, SERVER_MOMENTUM)
    parts = [f"One thing no longer holds: {lost}."] if lost else []
    parts += [f"It refuses {AVGM}, as it {refused.why}."] if refused else []
    return " ".join(parts)


def _paragraph(text: str, label: str) -> str:
    """Return what follows a label, up to an empty line or the next label."""
    found = re.search(
        rf"^{label}: (.+?)(?:\n\n|\n(?:{'|'.join(LABELS)}): |\Z)", text, re.MULTILINE | re.DOTALL
    )
    return _one_line(found[1]) if found else ""


def _one_line(text: str) -> str:
    return " ".join(text.split())
