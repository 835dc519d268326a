"""A comparison of runs that exist, whatever made them."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fairbloom.errors import FairbloomError
from fairbloom.protocol.settings import Value
from fairbloom.server.run_folder.files import is_run_folder
from fairbloom.strategies.named import title

from ..arms import Arm, baseline_of, label_of
from ..results.comparison import Comparison, read_comparison
from ..results.run import Run, load
from ..study import Study
from .compare import write_comparison
from .pairs import ALIKE, check_same_clients, check_same_data, shown_path
from .running import study_folder

Folders = Iterable[str | os.PathLike[str]]

# The runs of a method by their seeds.
Seeds = dict[int, Run]


def compare_runs(folders: Folders, baseline: str, out: Path) -> Comparison:
    """Compare runs that exist; write the tables, the figure and the report into `out`."""
    out = out.absolute()
    words = [folders] if isinstance(folders, str) else folders
    places = map(Path, words)
    matching = dict.fromkeys(path for place in places for path in _expand(place))
    study = study_of_runs([path for path in matching if path.absolute() != out], baseline)
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
    opened = _open(folders, left_out)
    for run in opened[1:]:
        check_same_data(run, opened[0])
    by_label, arms = _group(opened, left_out)
    base = baseline_of(baseline, list(arms.values()))
    for label in [label for label, runs in by_label.items() if not runs.keys() & by_label[base]]:
        of_label = ", ".join(map(str, by_label.pop(label)))
        left_out.append(f"{label} is left out: {base} has no run with its seeds ({of_label}).")
    shared = set.intersection(*(set(runs) for runs in by_label.values()))
    for seed in sorted({seed for runs in by_label.values() for seed in runs} - shared):
        lacking = ", ".join(label for label, runs in by_label.items() if seed not in runs)
        left_out.append(f"Runs with seed {seed} are left out: {lacking} lacks it.")
    if not shared:
        raise FairbloomError(
            f"no seed has a run of each of {', '.join(by_label)}: name runs with the same seeds"
        )
    seeds = sorted(shared)
    for runs in by_label.values():
        for seed in seeds:
            check_same_clients(runs[seed], by_label[base][seed])
    study = Study("compare", [arms[label] for label in by_label], seeds, base)
    places = {
        study.folder(arms[label], seed): str(runs[seed].folder)
        for label, runs in by_label.items()
        for seed in seeds
    }
    return Study("compare", study.arms, seeds, base, places=places, left_out=left_out)


def _expand(path: Path) -> list[Path]:
    """Return the folders that match a pattern such as runs/*, if no shell has expanded it."""
    if "*" not in str(path):
        return [path]
    base = Path(path.anchor)
    pattern = str(path.relative_to(base))
    return sorted(base.glob(pattern))


def _open(folders: Iterable[Path], left_out: list[str]) -> list[Run]:
    """Return the finished runs; add why others are left out."""
    found = []
    for folder in folders:
        if folder.is_file():
            continue
        if folder.is_dir() and not is_run_folder(folder):
            left_out.append(f"{folder} is left out: it is not a run folder.")
            continue
        run = load(folder)
        if run.finished:
            found.append(run)
        else:
            left_out.append(
                f"{folder} is left out: it is {run.state} after round {run.rounds_done} of"
                f" {run.num_rounds}."
            )
    if not found:
        raise FairbloomError(f"no finished run to compare. {' '.join(left_out)}".strip())
    return found


def _group(runs: Sequence[Run], left_out: list[str]) -> tuple[dict[str, Seeds], Mapping[str, Arm]]:
    """Return the runs of each method by seed, and the methods as arms, by their labels.

    A label has the method's parameters, and other settings in which the runs differ.
    """
    by_label = dict[str, Seeds]()
    arms = dict[str, Arm]()
    for run in runs:
        own = run.parameters
        shown: dict[str, Value] = {}
        for key, value in run.differing().items():
            is_alike = key in ALIKE or all(each.settings.get(key) == value for each in runs)
            if key in own or not is_alike:
                shown[key] = value
        label = label_of(title(run.method), shown)
        arms.setdefault(label, Arm(label, run.method, shown))
        seed = int(run.settings.get("seed", 0))
        first = by_label.setdefault(label, {}).setdefault(seed, run)
        if first is not run:
            left_out.append(
                f"{shown_path(run)} is left out: it is another run of {label} with seed {seed},"
                f" like {shown_path(first)}."
            )
    return by_label, arms
