"""Check that two runs can be compared: with the same scores, data, clients and rows."""

import os
from collections.abc import Mapping, Sequence

from fairbloom.errors import FairbloomError, join_names
from fairbloom.protocol.settings import Mark, Setup, key_of, marked
from fairbloom.server.run_folder.files import DATA, NO_FILES, ROWS

from ..results.comparison import Comparison
from ..results.run import Run

# Settings that tell neither methods nor data apart.
ALIKE = {"method", "seed", *marked(Mark.FREE, Mark.LIMIT, Mark.PLACE, Mark.ROUNDING)}

# Settings that decide which examples there are and who has them, besides a task's parameters.
OF_DATA = {key_of(name) for name in Setup.model_fields} - {"model", "verify-data", *ALIKE}


def check_pairs(comparison: Comparison) -> None:
    """Raise FairbloomError if a run of a comparison has other data than the baseline's."""
    of_baseline = comparison.runs[comparison.baseline]
    for runs in comparison.runs.values():
        for run, base in zip(runs, of_baseline, strict=True):
            check_same_data(run, base)
            check_same_clients(run, base)


def check_same_data(run: Run, other: Run) -> None:
    """Raise FairbloomError if two runs have other scores or settings of their data."""
    pair = f"{shown_path(run)} and {shown_path(other)} cannot be compared"
    task = f"{run.settings.get('task')}."
    of_task = (key for key in {*run.settings, *other.settings} if key.startswith(task))
    for key in ("task", *sorted(OF_DATA.union(of_task))):
        here, there = (side.settings.get(key) for side in (run, other))
        if here != there:
            raise FairbloomError(
                f"{pair}: their {key} is {here!r}, and {there!r}: choose runs with the same data"
            )
    if run.scores != other.scores:
        here = ", ".join(score.words for score in run.scores)
        there = ", ".join(score.words for score in other.scores)
        raise FairbloomError(
            f"{pair}: their scores are {here}, and {there}: choose runs with the same scores, the"
            " one that fairness goes by first"
        )


def check_same_clients(run: Run, base: Run) -> None:
    """Raise FairbloomError if two runs of a seed have other clients, or these have other rows."""
    pair = f"{shown_path(run)} and {shown_path(base)}"
    differing = run.known ^ base.known
    if differing:
        raise FairbloomError(
            f"{pair} cannot be compared: only one of them has {join_names(sorted(differing))}:"
            " choose runs of the same clients, which have the same names in every run"
        )
    here, there = (_contents_of(side) for side in (run, base))
    other = sorted(name for name in here.keys() & there.keys() if here[name] != there[name])
    if other:
        raise FairbloomError(
            f"{pair} cannot be compared: in one of them {join_names(other)} had other rows: choose"
            " runs with the same data, or let the app deal its rows only by the seed"
        )


def _contents_of(run: Run) -> Mapping[str, Sequence[object]]:
    """Return what is known of each client's rows, or in one process of all files."""
    digests = DATA.read(run.folder).items()
    files = sorted(str(digest) for name, digest in digests if name not in NO_FILES)
    devices = ROWS.read(run.folder).items()
    if files:
        return {"all clients": files}
    contents: dict[str, list[object]] = {}
    for name, count in run.test_examples().items():
        contents[name] = [count]
    for name, changes in devices:
        contents[name] = [table for _, table, _ in changes]
    return contents


def shown_path(run: Run) -> str:
    """Return the folder of a run for messages."""
    return os.path.relpath(run.folder)
