"""A comparison: arms run with the same seeds, and so the same clients, draws and batches."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fairbloom.errors import join_names
from fairbloom.logs import log
from fairbloom.protocol.settings import SettingsError
from fairbloom.server.run_folder.errors import RunFolderError
from fairbloom.server.run_folder.files import CLIENTS, GROUPS
from fairbloom.server.settings import Settings, check_used

from ..results.comparison import Comparison, read_comparison
from ..results.presentation import write_figure, write_report
from ..results.run import REPORT
from ..study import Study, find_study
from .on_ray import OnRay
from .progress import StudyBar
from .running import OnRun, carry_out, fix_score, ignore_run, write_tables

# The settings that differ between the runs of a study, with the options that set their values.
OPTIONS = {"method": "--methods", "seed": "--seed and --seeds", "out": "--out"}


def compare_arms(
    study: Study, out: Path, place: int | OnRay, bar: StudyBar, on_run: OnRun = ignore_run
) -> Comparison:
    """Run the missing runs of a comparison, and write its tables, figure and report into `out`.

    A failed run does not end others; the same call tries it again. Errors that can be known before
    are raised before any run starts.
    """
    out = out.absolute()
    study = replace(prepare(study, out), extended_from=seeds_before(study, out))
    bar.expect(len(study.runs(out)))
    with carry_out(study, out, place, bar, on_run=on_run) as work:
        work.run(study.runs(out))
        study = replace(study, failed=work.failed)
        study.write(out)
        comparison = read_comparison(out, study)
        write_comparison(comparison, out)
        return comparison


def write_comparison(comparison: Comparison, out: Path) -> None:
    """Write the tables, the figure and the report of a comparison into a folder."""
    write_tables(out, tables_of(comparison))
    write_figure(comparison, out / "clients.png", out / "clients.svg")
    write_report(comparison, out / REPORT)


def prepare(study: Study, out: Path) -> Study:
    """Return a study with one score for all runs; raise SettingsError for an unused setting."""
    for key, value in study.settings.items():
        if key in OPTIONS:
            raise SettingsError(
                f"{key} = {value!r}: a {study.noun} sets {key} run by run: give"
                f" {OPTIONS[key]} instead"
            )
    if study.app is not None:  # its strategy and its clients decide on the score
        return study
    first = study.run(study.arms[0], study.seeds[0], out)
    check_used(study.settings, [arm.method for arm in study.arms], first.task)
    warn_of_idle({arm.label: Settings.of(study.config(arm)) for arm in study.arms})
    return replace(study, settings={**study.settings, **fix_score(first)})


def warn_of_idle(arms: Mapping[str, Settings]) -> None:
    """Warn once of the arms, by their labels, in which a parameter changes nothing, and why."""
    labels = dict[str, list[str]]()
    for label, settings in arms.items():
        labels.setdefault(settings.strategy().find_idle(settings.num_rounds), []).append(label)
    labels.pop("", None)
    if labels:
        log.warning(
            "%s", "; ".join(f"{join_names(names)}: {reason}" for reason, names in labels.items())
        )


def seeds_before(study: Study, out: Path) -> int:
    """Return with how many seeds a comparison was first finished, if it now has more; else 0.

    Who adds seeds after a look at the results finds differences by chance more often than a p-value
    says, so the results mention it.
    """
    with contextlib.suppress(RunFolderError):  # a damaged study is written again
        there = find_study(out)
        if there is None or there.kind != study.kind:
            return 0
        before = there.extended_from
        if not before and not there.unfinished(out):
            before = len(there.seeds)
        return before if {*there.seeds} <= {*study.seeds} and before < len(study.seeds) else 0
    return 0


def tables_of(comparison: Comparison) -> dict[str, Sequence[Mapping[str, object]]]:
    """Return the tables of a comparison by the names of their files."""
    return {
        "comparison.csv": comparison.rows(),
        "differences.csv": comparison.difference_rows(),
        CLIENTS.name: comparison.client_rows(),
        GROUPS.name: comparison.group_rows(),
        "gaps.csv": comparison.gap_rows(),
    }
