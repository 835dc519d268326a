"""A recipe is run, what is missing of it, and what was measured stands beside what was printed."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairbloom.errors import FairbloomError
from fairbloom.protocol.settings import SettingsError, Value
from fairbloom.server.run_folder.errors import explain_write_errors
from fairbloom.server.run_folder.tables import format_csv
from fairbloom.simulation.dispatch.processes import processors_here
from fairbloom.system.files import write_whole

from ..recipes.recipe import AGAINST, ROUND, Case, Recipe, load_recipe
from ..results.outcome import Outcome
from ..results.run import Run
from ..views.progress import progress as progress_bar
from .pool import RunKey, check_runs, ends_all, held, run_all
from .study import Experiment, check_overrides, chosen_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUIET = logging.ERROR
"""From which level on log lines are printed: hundreds of runs have too many warnings; rounds.csv has what they say."""


def reproduce(
    name: str,
    *,
    seeds: int | None = None,
    quick: bool = False,
    rows: Sequence[str] = (),
    settings: Mapping[str, Value] | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    run: bool = True,
    progress: bool = True,
) -> "Reproduction":
    """Run what is missing of a published experiment, and compare what comes out with what was printed.

    The same call continues what was interrupted. Table and figure are written where no rows are left out.

    Parameters
    ----------
    name
        The recipe: a name that `fairbloom reproduce --list` has, or the path of a TOML file of one's own.
    seeds
        The number of seeds, from 0; by default the recipe's.
    quick
        Whether to run one seed and a tenth of the rounds, at most 20: a trial, whose numbers mean nothing.
    rows
        Parts of names: only rows whose name has one of them are run, with the baseline where the recipe has one.
    settings
        Settings of all runs, in place of the recipe's.
    data_dir
        The folder of the data.
    out
        The folder of the table, the figure and the runs; by default runs/reproduce/NAME.
    jobs
        The number of runs at a time; by default one a processor.
    run
        Whether to run what is missing; if not, what is finished is read, and nothing is written.
    progress
        Whether to show a progress bar, in a terminal or notebook.

    Raises
    ------
    FairbloomError
        When there is no such recipe or row, a setting is impossible or unused, a folder or the data cannot be used, or
        no run succeeds.
    """
    recipe = load_recipe(name)
    if quick:
        seeds = 1
    if (chosen_seeds := recipe.seeds if seeds is None else seeds) < 1:
        raise SettingsError(f"seeds = {seeds}: a reproduction takes at least one")
    overrides = dict(settings or {}) | ({} if data_dir is None else {"data-dir": os.fspath(data_dir)})
    usual = Path("runs", "reproduce", f"{recipe.name}-quick" if quick else recipe.name)
    cases = chosen_rows(recipe, rows)
    check_overrides(overrides, cases)
    experiment = Experiment(cases, range(chosen_seeds), overrides, quick, Path(out or usual).absolute())
    if not run:
        return Reproduction(experiment)
    with progress_bar("runs done", shown=progress) as bar:
        shown = bar.add_task(recipe.name, total=experiment.count)
        return carry_out(experiment, jobs or processors_here(), lambda: bar.advance(shown))


def carry_out(experiment: Experiment, jobs: int, on_run: Callable[[], None]) -> "Reproduction":
    """Run what is missing, write table and figure where all rows are there, and return what was measured.

    Runs that fail are told in the table, unless all do.
    """
    failed: dict[RunKey, FairbloomError] = {}
    first = experiment.runs(trial for case in experiment.cases for trial in experiment.searched(case))
    check_runs(first)
    with held(experiment.out):
        run_all(first, jobs, on_run, failed.__setitem__, QUIET)
        if len(failed) == len(first):
            ends_all(*next(iter(failed.items())))
        tried = {run.out for run in first.values()}
        chosen = experiment.runs(trial for case in experiment.cases for trial in experiment.chosen(case))
        rest = {key: run for key, run in chosen.items() if run.out not in tried}
        run_all(rest, jobs, on_run, failed.__setitem__, QUIET)
        runs = first | rest
        done = Reproduction(experiment, {Path(runs[key].out): str(error) for key, error in failed.items()})
        if experiment.whole:
            done.write()
    return done


@dataclass(frozen=True)
class Reproduction:
    """What was measured beside what was printed.

    Attributes
    ----------
    experiment
        What is run.
    faults
        Why runs failed, by their folders.
    """

    experiment: Experiment
    faults: Mapping[Path, str] = field(default_factory=dict)

    @property
    def recipe(self) -> Recipe:
        """What is reproduced."""
        return self.experiment.recipe

    @property
    def folder(self) -> Path:
        """Where table, figure and runs lie."""
        return self.experiment.out

    @cached_property
    def outcomes(self) -> list[Outcome]:
        """What came out, row by row."""
        cases, recipe = self.experiment.cases, self.recipe
        compared = bool({*AGAINST} & {*recipe.measures})
        bases = {c.variant: self._outcome(c, None) for c in cases if compared and c.row.label == recipe.baseline}
        return [self._outcome(case, bases.get(case.variant)) for case in cases]

    def runs(self, index: int) -> list[Run]:
        """Return the finished runs of a row, one a seed."""
        return list(self.outcomes[index].runs.values())

    @property
    def as_json(self) -> dict[str, Any]:
        """What --json prints."""
        recipe, experiment = self.recipe, self.experiment
        return {
            "recipe": recipe.name,
            "title": recipe.title,
            "source": recipe.source,
            "unit": recipe.unit,
            "comparable": experiment.comparable,
            "quick": experiment.quick,
            "set": dict(experiment.overrides),
            "seeds": list(experiment.seeds),
            "rows": [outcome.as_json for outcome in self.outcomes],
            "notes": recipe.notes,
            "folder": str(self.folder),
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of results.csv: one a row of the table and measure."""
        return [row for outcome in self.outcomes for row in outcome.rows()]

    def curves(self) -> list[dict[str, Any]]:
        """Return the rows of curves.csv: mean and deviation over the seeds of each measure after each round."""
        return [
            {"variant": outcome.case.variant, "row": outcome.case.name, "measure": measure}
            | {"round": number, "mean": mean, "deviation": deviation}
            for outcome in self.outcomes
            if outcome.measured
            for measure in self.recipe.measures
            for number, (mean, deviation) in outcome.curve(measure).items()
        ]

    def figure(self) -> "Figure":
        """Return the figure: what was printed and measured side by side, or the figure that was published."""
        from ..views.figures import reproduced  # imported late: other commands do without

        return reproduced(self)

    def write(self) -> None:
        """Write results.csv and the figure, and curves.csv where the figure is over the rounds."""
        from ..views.figures import write_figure

        tables = {"results.csv": self.rows()}
        if self.recipe.figure and self.recipe.figure.x == ROUND:
            tables["curves.csv"] = self.curves()
        with explain_write_errors("the table", self.folder):
            for name, rows in tables.items():
                if rows:
                    write_whole(self.folder / name, format_csv(tuple(rows[0]), rows, header=True).encode())
        write_figure(self.figure(), self.folder / "figure")

    def show(self) -> None:
        """Print the table as the command line does."""
        from ..views.tables import show_reproduction

        show_reproduction(self)

    def __repr__(self) -> str:
        """Return the reproduction in a line."""
        rows, seeds = len(self.experiment.cases), len(self.experiment.seeds)
        return f"Reproduction({str(self.folder)!r}: {self.recipe.title}; {rows} rows, {seeds} seeds)"

    def _outcome(self, case: Case, baseline: Outcome | None) -> Outcome:
        """Return what came out of a row, of which the measures are against a baseline or none."""
        searched, chosen = self.experiment.searched(case), self.experiment.chosen(case)
        found = {self.experiment.folder(trial): self.experiment.finished(trial) for trial in (*searched, *chosen)}
        runs = {trial.seed: run for trial in chosen if (run := found[self.experiment.folder(trial)]) is not None}
        folders = [self.experiment.folder(trial) for trial in chosen or searched]
        fault = next((self.faults[folder] for folder in folders if folder in self.faults), "")
        unfinished = frozenset(folder for folder, run in found.items() if run is None) - self.faults.keys()
        if baseline is not None:
            runs = {seed: run for seed, run in runs.items() if seed in baseline.runs}
            unfinished, fault = unfinished | baseline.unfinished, fault or baseline.fault
        return Outcome(case, chosen[0].point if chosen else {}, runs, baseline, unfinished, fault)
