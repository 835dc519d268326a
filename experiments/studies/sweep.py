"""A sweep: values of settings are tried, the best is chosen on validation examples, and tested once."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from fairbloom.errors import FairbloomError
from fairbloom.server.settings import Settings

from ..recipes.recipe import Recipe
from ..results.sweep import Sweep, SweepPlan
from .driver import carry_out, raise_if_all_failed
from .objective import Objective, Rating
from .on_ray import OnRay
from .pool import Workers, check_runs
from .reproduce import QUIET
from .score import check_objective, fix_score
from .search import Search, rungs_of
from .space import Space, check_candidates, check_constraints, check_recipe, check_spaces, spaces_of, with_validation
from .study import Candidate, PlannedRun, Study
from .swept import finish, judge_planned, read_sweep, with_faults


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
    each finished run, `on_count` with the number of runs before the first. No run is started where an error can be
    known before.
    """
    objective = Objective.of(recipe.criterion, "criterion")
    check_recipe(recipe)
    check_constraints(objective, recipe)
    recipe, notes = with_validation(recipe)
    spaces = [space for case in recipe.cases() for space in spaces_of(case)]
    check_spaces(recipe, spaces)
    first = Settings.of({**spaces[0].candidate(spaces[0].points()[0]).config, "seed": seeds[0]})
    recipe = recipe.model_copy(update={"settings": {**recipe.settings, **fix_score(first)}})
    spaces = [space for case in recipe.cases() for space in spaces_of(case)]
    check_objective(objective, first)
    study = Study([], seeds, out.absolute(), recipe.grid_seeds, objective)
    tried = [(space, _candidates(space, recipe.search, seeds[0])) for space in spaces]
    check_candidates([each for space, of_space in tried if not space.is_baseline for each in of_space])
    points = [space.planned(each) for space, of_space in tried for each in of_space]
    plan = SweepPlan(
        recipe.title, recipe.criterion, list(seeds), list(study.search_seeds), points, recipe.baseline, notes
    )
    candidates = {each.folder: each for _, of_space in tried for each in of_space}
    everything = stage(study, candidates.values()).first_runs()
    check_runs(everything)
    on_count(len(everything))
    with carry_out(study.out, jobs, on_run, plan=plan, log_level=QUIET) as work:
        grids = [each for space, of_space in tried if space.is_grid for each in of_space]
        work.run(stage(study, grids).first_runs())
        # The baseline is searched first, since the others may be held to it.
        for space, of_space in sorted(tried, key=lambda pair: not pair[0].is_baseline):
            if not space.is_grid:
                plan = _search(space, of_space, study, plan, work, jobs if isinstance(jobs, int) else 1)
        raise_if_all_failed(everything, work)
        swept = read_sweep(study.out, with_faults(study.out, plan, work.failures))
        if not any(point.values for point in swept.points):
            raise FairbloomError(f"all points failed; {swept.points[0].name}: {swept.points[0].fault}")
        shown = [candidates[each.planned.folder] for each in (swept.best, swept.baseline) if each is not None]
        later = [PlannedRun(candidate, seed) for candidate in shown for seed in study.seeds]
        work.run({(each.candidate.name, each.seed): study.settings(each) for each in later})
        return finish(study.out, swept.plan, work.failures)


def _candidates(space: Space, search: int, seed: int) -> list[Candidate]:
    """Return the points of a space, drawn ones where it has a range; what is drawn twice is there once."""
    if space.is_grid:
        return [space.candidate(point) for point in space.points()]
    drawn = [space.candidate(point) for point in space.drawn(search, seed)]
    return list({each.folder: each for each in drawn}.values())


def stage(study: Study, candidates: Iterable[Candidate], rounds: int | None = None) -> Study:
    """Return the study that runs candidates with the seeds of the search, up to a round or to their last."""
    return replace(study, rows=[list(candidates)], rounds=rounds, seeds=study.search_seeds, grid_seeds=0)


def _search(
    space: Space, candidates: Sequence[Candidate], study: Study, plan: SweepPlan, work: Workers, jobs: int
) -> SweepPlan:
    """Search among the points of a space, and return the plan with how far each has come."""
    points = _Points(candidates, study, plan, work)
    seeds = study.search_seeds
    rungs = rungs_of(space.case.settings(candidates[0].config), [(len(seeds), len(seeds))] * 3)
    search = Search(points, list(points.whole), rungs, seeds, jobs)
    search.run()
    for each in search.tried:
        whole = points.whole[each.method]
        points.planned[each.method] = replace(whole, rounds=each.rounds, pruned=each.rounds < whole.rounds)
    return points.plan


class _Points:
    """The points of a space as a search has them; sweep.json says at any moment how far each has come."""

    always: Collection[str] = ()

    def __init__(self, candidates: Sequence[Candidate], study: Study, plan: SweepPlan, work: Workers) -> None:
        self._candidates = {each.folder: each for each in candidates}
        self._study, self._plan, self._work = study, plan, work
        self.planned = {each.folder: each for each in plan.points}
        self.whole = {folder: self.planned[folder] for folder in self._candidates}
        self.failed: dict[str, str] = {}

    @property
    def plan(self) -> SweepPlan:
        """The plan with the points as far as they have come."""
        return replace(self._plan, points=list(self.planned.values()))

    def search(self, labels: Sequence[str], seeds: Sequence[int], rounds: int, until: float) -> float:
        """Run points up to a round with all seeds of the search, however long it takes."""
        self.planned |= {label: replace(self.whole[label], rounds=rounds) for label in labels}
        self.plan.write(self._study.out)
        self._work.run(stage(self._study, [self._candidates[label] for label in labels], rounds).first_runs())
        return 0.0

    def rate(self, labels: Sequence[str], seeds: Sequence[int], rounds: int) -> dict[str, Rating]:
        """Return what the points are worth after a round."""
        judged = judge_planned(self._study.out, self.plan, [self.planned[label] for label in labels], rounds)
        found = dict(zip(labels, judged, strict=True))
        self.failed |= {label: each.fault or "a run failed" for label, each in found.items() if not each.values}
        return {label: each for label, each in found.items() if each.values}
