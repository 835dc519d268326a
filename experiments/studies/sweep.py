"""A sweep: values of settings are tried, the best is chosen on validation examples, and tested once."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from fairbloom.errors import FairbloomError
from fairbloom.server.settings import Settings

from ..recipes.recipe import Recipe
from ..results.sweep import Sweep, SweepPlan
from .driver import carry_out, raise_if_all_failed
from .objective import Objective
from .on_ray import OnRay
from .pool import RunKey, check_runs
from .rehearsal import Failures, rehearse
from .reproduce import QUIET
from .score import check_objective, fix_score
from .space import check_candidates, check_constraints, check_recipe, check_spaces, space_of, with_validation
from .study import Candidate, PlannedRun, Study
from .swept import finish, read_sweep, with_faults


def run_sweep(
    recipe: Recipe,
    seeds: Sequence[int],
    out: Path,
    jobs: int | OnRay,
    on_run: Callable[[], None] = lambda: None,
    on_count: Callable[[int], None] = lambda count: None,
) -> Sweep:
    """Run what is missing of a sweep, choose on validation examples, and write tables and figure into `out`.

    A row that the recipe names as the baseline is searched as the others are, and not chosen. `on_run` is called after
    each finished run, `on_count` with the number of runs as far as it is known. No run is started where an error can be
    known before.
    """
    objective = Objective.of(recipe.criterion, "criterion")
    check_recipe(recipe)
    check_constraints(objective, recipe)
    recipe, notes = with_validation(recipe)
    spaces = [space_of(case) for case in recipe.cases()]
    check_spaces(recipe, spaces)
    first = Settings.of({**spaces[0].candidate(spaces[0].points()[0]).config, "seed": seeds[0]})
    recipe = recipe.model_copy(update={"settings": {**recipe.settings, **fix_score(first)}})
    check_objective(objective, first)
    tried = [(space, space.candidates()) for space in map(space_of, recipe.cases())]
    check_candidates([each for space, of_space in tried if not space.is_baseline for each in of_space])
    points = [space.planned(each) for space, of_space in tried for each in of_space]
    study = Study([], seeds, out.absolute(), recipe.grid_seeds, objective)
    searched = study.search_seeds
    plan = SweepPlan(recipe.title, recipe.criterion, list(seeds), list(searched), points, recipe.baseline, notes)
    candidates = {each.folder: each for _, of_space in tried for each in of_space}
    everything = _runs_of(study, candidates.values(), searched)
    check_runs(everything)
    on_count(len(everything))
    rows = [[each] for _, of_space in tried for each in of_space[:1]]
    with carry_out(study.out, jobs, on_run, plan.kind, plan=plan, log_level=QUIET) as work:
        rehearse(jobs, replace(study, rows=rows), partial(_try_results, plan))
        work.run(everything)
        raise_if_all_failed(everything, work)
        swept = read_sweep(study.out, with_faults(study.out, plan, work.failures))
        if not any(point.values for point in swept.points):
            raise FairbloomError(f"all points failed; {swept.points[0].name}: {swept.points[0].fault}")
        shown = [candidates[each.planned.folder] for each in (swept.best, swept.baseline) if each is not None]
        later = _runs_of(study, shown, seeds)
        more = {key: run for key, run in later.items() if key not in everything}
        on_count(len(everything) + len(more))
        work.run(more)
        return finish(study.out, swept.plan, work.failures)


def _try_results(plan: SweepPlan, short: Study, failures: Failures) -> None:
    """Read and write the sweep of one point a row, whose runs have one round."""
    folders = {candidate.folder for (candidate,) in short.rows}
    points = [replace(each, rounds=1) for each in plan.points if each.folder in folders]
    seeds = list(short.seeds)
    finish(short.out, replace(plan, points=points, seeds=seeds, searched=seeds), failures)


def _runs_of(study: Study, candidates: Iterable[Candidate], seeds: Sequence[int]) -> dict[RunKey, Settings]:
    """Return the settings of runs of candidates, seed by seed."""
    among = list(candidates)
    return {(each.name, seed): study.settings(PlannedRun(each, seed)) for seed in seeds for each in among}
