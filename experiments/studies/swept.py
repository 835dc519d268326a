"""What a sweep has found: read from its folder, judged and written; the test examples are read of the chosen alone."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fairbloom.errors import FairbloomError
from fairbloom.server.run_folder.files import CLIENTS, CONFIG, SPLIT, is_finished

from ..results.caveats import FEWEST_EXAMPLES
from ..results.comparison import Comparison, read_comparison
from ..results.presentation import write_figure, write_report
from ..results.run import REPORT, Run, load
from ..results.shared_data import SharedData
from ..results.sweep import Planned, Sweep, SweepPlan, SweepPoint
from .driver import write_tables
from .objective import ClientScores, Objective, Rating, choose, judge_runs, model_of, serve
from .rehearsal import Failures


def finish(folder: Path, plan: SweepPlan, failures: Failures) -> Sweep:
    """Write sweep.json of a sweep that has ended, and its tables and figure; return the sweep."""
    ended = replace(with_faults(folder, plan, failures), ended=True)
    ended.write(folder)
    swept = read_sweep(folder, ended)
    _write(swept)
    return swept


def with_faults(folder: Path, plan: SweepPlan, failures: Failures) -> SweepPlan:
    """Return a plan whose points say why they failed."""

    def fault_of(planned: Planned) -> str:
        return next((failures[path] for run in planned.runs(plan.seeds) if (path := folder / run) in failures), "")

    return replace(plan, points=[replace(each, fault=each.fault or fault_of(each)) for each in plan.points])


def load_sweep(folder: Path | str) -> Sweep:
    """Return a sweep by its folder, finished or not.

    Raises
    ------
    FairbloomError
        When the folder holds no sweep, or a run of it is damaged.
    """
    path = Path(folder).absolute()
    return read_sweep(path, SweepPlan.read(path))


def read_sweep(folder: Path, plan: SweepPlan) -> Sweep:
    """Return the sweep of a plan, from the runs that are finished."""
    objective = Objective.of(plan.criterion, "criterion")
    of_base, others = (
        [each for each in plan.points if (each.row == plan.baseline) is wanted] for wanted in (True, False)
    )
    bases, base = _judged(folder, plan, of_base)
    points, chosen = _judged(folder, plan, others)
    found = Sweep(plan, objective.goal.heading, points, chosen, bases, base, folder, notes=tuple(plan.notes))
    if found.best is None:
        return found
    runs = [load(folder / name) for name in found.best.planned.runs(plan.searched)]
    test, fault = _test(found)
    return replace(
        found,
        score=runs[0].score,
        test=test,
        notes=(*found.notes, *_without_part(runs[0], found.best.planned.evaluated), *_small(runs), *fault),
    )


def _judged(folder: Path, plan: SweepPlan, planned: Sequence[Planned]) -> tuple[list[SweepPoint], int | None]:
    """Return points with what each is worth, and which is best."""
    ratings = judge_planned(folder, plan, planned)
    points = []
    for each, rating in zip(planned, ratings, strict=True):
        missing = 0 if each.fault else sum(_run_in(folder, each, seed) is None for seed in plan.searched)
        values = () if each.fault else tuple(rating.values)
        points.append(SweepPoint(each, values, missing, each.fault or rating.fault, rating.violation))
    best = choose({i: ratings[i] for i, point in enumerate(points) if point.values})
    return points, best


def judge_planned(folder: Path, plan: SweepPlan, planned: Sequence[Planned]) -> list[Rating]:
    """Return what points are worth by the criterion of a plan.

    The baseline has no constraints; those of others are against the best of its points.
    """
    objective = Objective.of(plan.criterion, "criterion")
    bases = [each for each in plan.points if each.row == plan.baseline]
    reference: Sequence[ClientScores] = []
    if planned and planned[0].row == plan.baseline:
        objective = replace(objective, constraints=())
    elif any(each.compares for each in objective.constraints):
        best = choose(dict(enumerate(judge_planned(folder, plan, bases))))
        if best is None:
            return [Rating() for _ in planned]
        of_base = [_run_in(folder, bases[best], seed) for seed in plan.searched]
        served = serve(of_base, bases[best].evaluated, None, with_groups=bool(objective.gap_scores))
        if not served or isinstance(served, str):
            return [Rating() for _ in planned]
        reference = served
    runs = [[_run_in(folder, each, seed) for seed in plan.searched] for each in planned]
    return judge_runs(objective, [each.evaluated for each in planned], runs, reference)


def _run_in(folder: Path, planned: Planned, seed: int) -> Run | None:
    """Return a run of a point that is finished, with as many rounds as it is to have; else None."""
    (name,) = planned.runs([seed])
    path = folder / name
    return load(path) if is_finished(path) and CONFIG.read(path).num_rounds >= planned.rounds else None


def _test(found: Sweep) -> tuple[Comparison | None, list[str]]:
    """Return the chosen point beside the baseline on test examples, None where runs are missing; and why it fails."""
    shown = [point.planned for point in (found.best, found.baseline) if point is not None]
    if any(_run_in(found.folder, planned, seed) is None for planned in shown for seed in found.plan.seeds):
        return None, []
    try:
        return read_comparison(found.folder, found.test_plan), []
    except FairbloomError as error:
        return None, [f"There are no test numbers: {error}"]


def _without_part(run: Run, evaluated: str) -> list[str]:
    """Return in words which clients have no part in the choice, because they have no score on validation examples."""
    model = model_of(run, evaluated)
    lacking = sorted({*run.final(model=model)} - {*run.final(model=model, split="validation")})
    if not lacking:
        return []
    clients, have = ("Clients", "have") if len(lacking) > 1 else ("Client", "has")
    return [
        f"{clients} {', '.join(lacking)} {have} no validation {run.score.name}, and no part in the choice: give more "
        "examples, or raise validation-share."
    ]


def _small(runs: Sequence[Run]) -> list[str]:
    """Return that clients have few validation examples; where the run has no split of them, as their shares say."""
    run = runs[0]
    if SPLIT.exists_in(run.folder):
        split = run.split()
        _, counts = np.unique(split.client[split.part == 2], return_counts=True)
        fewest = int(counts.min())
    elif SharedData.of(runs).fixed:
        return []
    else:
        by_test = float(run.settings["validation-share"]) / float(run.settings["test-share"])
        fewest = max(1, round(by_test * min(run.test_examples().values())))
    if fewest >= FEWEST_EXAMPLES:
        return []
    return [
        f"A client is judged on about {fewest} validation example{'s' if fewest > 1 else ''}, fewer than "
        f"{FEWEST_EXAMPLES}, so points differ by chance: raise --seeds, or validation-share."
    ]


def _write(swept: Sweep) -> None:
    """Write sweep.csv, its figure and the report, and of the test examples comparison.csv and clients.csv."""
    tables = {"sweep.csv": swept.rows()}
    if swept.test is not None:
        tables |= {"comparison.csv": swept.test.rows(), CLIENTS.name: swept.test.client_rows()}
    write_tables(swept.folder, tables)
    write_figure(swept, swept.folder / "sweep")
    write_report(swept, swept.folder / REPORT)
