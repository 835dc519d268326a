"""A comparison of runs that exist, whatever made them."""

import glob
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from fairbloom.errors import FairbloomError, join_names
from fairbloom.protocol.settings import Mark, Setup, Value, key_of, marked
from fairbloom.server.run_folder.files import is_run_folder

from ..arms import Arm, baseline_of, label_of, title
from ..results.comparison import Comparison, read_comparison
from ..results.run import Run, load
from ..study import Study
from .compare import write_comparison
from .running import study_folder

Folders = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

# Settings that tell neither methods nor data apart.
ALIKE = {"method", "seed", *marked(Mark.FREE, Mark.LIMIT, Mark.PLACE, Mark.ROUNDING)}

# Settings that decide which examples there are and who has them, besides those of a task.
OF_DATA = {key_of(name) for name in Setup.model_fields} - {"model", "verify-data", *ALIKE}

Seeds = dict[int, Run]
"""The runs of a method by their seeds."""


def compare_runs(folders: Folders, baseline: str, out: Path) -> Comparison:
    """Compare runs that exist; write the tables, the figure and the report into `out`."""
    out = out.absolute()
    study = study_of_runs([each for each in _expand(folders) if each.absolute() != out], baseline)
    comparison = read_comparison(out, study)
    with study_folder(study, out):
        write_comparison(comparison, out)
    return comparison


def study_of_runs(folders: Iterable[Path], baseline: str) -> Study:
    """Return runs as a study: their methods are its arms.

    Unfinished runs, second runs of a method and seed, and seeds that a method lacks are left out,
    each with a sentence. Raise FairbloomError if clients, scores or data differ.
    """
    left_out = list[str]()
    by_label, arms = _group(_open(folders, left_out), left_out)
    base = baseline_of(baseline, list(arms.values()))
    for label in [label for label, runs in by_label.items() if not runs.keys() & by_label[base]]:
        seeds = ", ".join(map(str, by_label.pop(label)))
        left_out.append(f"{label} is left out: {base} has no run with its seeds ({seeds}).")
    shared = set.intersection(*(set(runs) for runs in by_label.values()))
    for seed in sorted({seed for runs in by_label.values() for seed in runs} - shared):
        lacking = ", ".join(label for label, runs in by_label.items() if seed not in runs)
        left_out.append(f"Runs with seed {seed} are left out: there is none of {lacking}.")
    if not shared:
        raise FairbloomError(
            f"no seed has a run of each of {', '.join(by_label)}: name runs with the same seeds"
        )
    for runs in by_label.values():
        for seed in sorted(shared):
            left_out += _check_same(runs[seed], by_label[base][seed])
    seeds = sorted(shared)
    study = Study("compare", [arms[label] for label in by_label], seeds, base)
    places = {
        study.folder(arms[label], seed): str(runs[seed].folder)
        for label, runs in by_label.items()
        for seed in seeds
    }
    return Study("compare", study.arms, seeds, base, places=places, left_out=left_out)


def _expand(folders: Folders) -> Iterator[Path]:
    """Yield each folder once; a pattern such as runs/* stands for what it matches."""
    words = [folders] if isinstance(folders, str | os.PathLike) else folders
    texts = [os.fspath(each) for each in words]
    yield from dict.fromkeys(Path(name) for each in texts for name in sorted(glob.glob(each)) or [each])


def _open(folders: Iterable[Path], left_out: list[str]) -> list[Run]:
    """Return the finished runs; add why others are left out."""
    found = []
    for folder in folders:
        if folder.is_file():
            continue
        if folder.is_dir() and not is_run_folder(folder):
            left_out.append(f"{folder} is left out: it is no run folder.")
            continue
        run = load(folder)
        if run.finished:
            found.append(run)
        else:
            done = f"{run.rounds_done} of {run.num_rounds}"
            left_out.append(f"{folder} is left out: it is {run.state} after round {done}.")
    if not found:
        raise FairbloomError(f"there is no finished run to compare. {' '.join(left_out)}".strip())
    return found
