"""A sweep: values of settings are tried, the best is chosen on validation examples, and tested once."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from fairbloom.errors import FairbloomError
from fairbloom.protocol.settings import Value
from fairbloom.server.settings import Settings

from ..recipes.recipe import Recipe
from ..results.sweep import Planned, Sweep, SweepPlan
from .criterion import Criterion
from .driver import carry_out, run_study
from .pool import check_runs
from .reproduce import QUIET
from .score import fix_score
from .search import Trial, rungs_of, search
from .space import Space, check_candidates, check_recipe, check_spaces, spaces_of, with_validation
from .study import Candidate, PlannedRun, Study, StudyRow
from .swept import finish, read_sweep, with_faults


def run_sweep(
    recipe: Recipe,
    seeds: Sequence[int],
    out: Path,
    jobs: int,
    on_run: Callable[[], None] = lambda: None,
    on_count: Callable[[int], None] = lambda count: None,
) -> Sweep:
    """Run what is missing of a sweep, choose on validation examples, and write tables and figure into `out`.

    Parameters
    ----------
    recipe
        What is tried; a row that it names as the baseline is searched as the others are, and not chosen.
    seeds
        The seeds of each point; the recipe's `grid-seeds` first ones alone, where it has such.
    out
        The folder of the tables and runs; one sweep at a time writes there.
    jobs
        How many runs go on at a time, each in a process of its own.
    on_run
        Called after each finished run.
    on_count
        Called with the number of runs, before the first.

    Raises
    ------
    FairbloomError
        When a setting is impossible, unused or cannot be tried, when the folder belongs to something else, or all runs
        fail. No run is started where that can be known before.
    """
    criterion = Criterion.of(recipe.criterion)
    check_recipe(recipe)
    recipe, notes = with_validation(recipe)
    spaces = [space for case in recipe.cases() for space in spaces_of(case)]
    check_spaces(recipe, spaces)
    recipe = recipe.model_copy(update={"settings": {**recipe.settings, **_fix_score(spaces, seeds[0])}})
    spaces = [space for case in recipe.cases() for space in spaces_of(case)]
    study = Study([], seeds, out.absolute(), recipe.grid_seeds, criterion)
    plan = SweepPlan(recipe.title, criterion.text, list(seeds), list(study.search_seeds), [], recipe.baseline, notes)
    if recipe.search:
        return _search(recipe, spaces, study, plan, jobs, on_run, on_count)
    found = [(space, space.candidate(point)) for space in spaces for point in space.points()]
    groups = [[each for space, each in found if space.is_baseline is of_base] for of_base in (False, True)]
    check_candidates(groups[0])
    study = replace(study, rows=[StudyRow(group) for group in groups if group])
    plan = replace(plan, points=[space.planned(candidate) for space, candidate in found])
    on_count(study.count)
    return run_study(study, jobs, on_run, lambda failed: finish(study.out, plan, failed), plan=plan, log_level=QUIET)


def _fix_score(spaces: Sequence[Space], seed: int) -> dict[str, Value]:
    """Return the score by which all points are judged, where they need one to be named."""
    first = next(space.candidate(point) for space in spaces for point in space.points())
    return fix_score(Settings.of({**first.config, "seed": seed}))


def _search(
    recipe: Recipe,
    spaces: Sequence[Space],
    study: Study,
    plan: SweepPlan,
    jobs: int,
    on_run: Callable[[], None],
    on_count: Callable[[int], None],
) -> Sweep:
    """Draw points of each space, choose, and run the chosen point and the baseline with the seeds that are left."""
    corners = [[space.candidate(point) for point in space.points()] for space in spaces]
    check_runs(replace(study, rows=[StudyRow([each]) for of_space in corners for each in of_space]).first_runs())
    on_count(_count(spaces, corners, recipe.search) * len(study.search_seeds))
    found = _Found(plan, study.out)
    with carry_out(study.out, jobs, on_run, plan=plan, log_level=QUIET) as work:
        narrow = replace(study, seeds=study.search_seeds, grid_seeds=0)
        for space, of_space in zip(spaces, corners, strict=True):
            if space.is_grid:
                work.run(replace(narrow, rows=[StudyRow(of_space)]).first_runs())
                found.put(space, [(candidate, space.planned(candidate)) for candidate in of_space])
            else:
                ended = partial(found.put_trials, space)
                search(space.axes, space.candidate, recipe.search, narrow, work, ended)
        swept = read_sweep(study.out, with_faults(study.out, found.plan, work.failures))
        if swept.best is None:
            raise FairbloomError(f"all points failed; {swept.points[0].name}: {swept.points[0].fault}")
        best = [found.candidates[each.planned.folder] for each in (swept.best, swept.baseline) if each is not None]
        later = [PlannedRun(candidate, seed) for candidate in best for seed in study.seeds]
        work.run({(each.candidate.name, each.seed): study.settings(each) for each in later})
        return finish(study.out, swept.plan, work.failures)


class _Found:
    """The points that a search has come to; sweep.json has them at any moment.

    Attributes
    ----------
    plan
        The plan with these points.
    candidates
        The points by the beginnings of the names of their run folders.
    """

    def __init__(self, plan: SweepPlan, out: Path) -> None:
        self.plan, self._out = plan, out
        self.candidates: dict[str, Candidate] = {}
        self._by_space: dict[int, Sequence[Planned]] = {}

    def put(self, space: Space, points: Sequence[tuple[Candidate, Planned]]) -> None:
        """Write down the points of a space, in place of those that it had."""
        self.candidates |= {planned.folder: candidate for candidate, planned in points}
        self._by_space[id(space)] = [planned for _, planned in points]
        self.plan = replace(self.plan, points=[each for planned in self._by_space.values() for each in planned])
        self.plan.write(self._out)

    def put_trials(self, space: Space, trials: Sequence[Trial]) -> None:
        """Write down what became of the points that were drawn, each once although it may be drawn twice."""
        once: dict[str, tuple[Candidate, Planned]] = {}
        for trial in sorted(trials, key=lambda trial: trial.pruned):
            whole = space.planned(trial.candidate)
            planned = replace(whole, rounds=trial.rounds, pruned=trial.pruned, fault=trial.fault)
            once.setdefault(planned.folder, (trial.candidate, planned))
        self.put(space, list(once.values()))


def _count(spaces: Sequence[Space], corners: Sequence[Sequence[Candidate]], drawn: int) -> int:
    """Return how many runs a search has at most with each seed; one that is extended counts again."""
    return sum(
        len(of_space) if space.is_grid else drawn * len(rungs_of(Settings.of(of_space[0].config)))
        for space, of_space in zip(spaces, corners, strict=True)
    )
