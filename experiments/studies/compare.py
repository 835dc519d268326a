"""A comparison: methods as the rows of a study without printed numbers, on the same clients, draws and batches."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fairbloom.errors import FairbloomError
from fairbloom.logs import log
from fairbloom.protocol.settings import SettingsError, Value
from fairbloom.server.run_folder.errors import RunFolderError
from fairbloom.server.run_folder.files import CLIENTS, GROUPS
from fairbloom.server.settings import check_used

from ..recipes.variants import Variant, baseline_of, config_of, folder_names, make_variant
from ..results.comparison import Comparison, Plan, read_comparison
from ..results.run import REPORT
from .driver import run_study, write_tables
from .pool import check_runs, is_done
from .study import Candidate, Study, StudyRow

OPTIONS = {"method": "--methods", "seed": "--seed and --seeds", "out": "--out"}
"""The settings that differ from run to run of a comparison, and the options that say which values they take."""


def compare_variants(
    config: Mapping[str, Value],
    variants: Sequence[Variant],
    baseline: str,
    seeds: Sequence[int],
    out: Path,
    jobs: int,
    on_run: Callable[[], None] = lambda: None,
) -> Comparison:
    """Run each variant with each seed, `jobs` at a time, and write tables and figure into `out`.

    Methods that were compared there before stay in the tables, where they have a finished run with each of these seeds,
    settings and data; the log names those that have not.

    Parameters
    ----------
    config
        The settings that all runs share.
    variants, seeds
        Each of these methods is run with each of these seeds.
    baseline
        The method that the others are compared with, as `baseline_of` takes it; "" for FedAvg, or the first.
    out
        The folder of the tables and runs; one comparison at a time writes there.
    jobs
        How many runs go on at a time, each in a process of its own.
    on_run
        Called after each finished run.

    Raises
    ------
    FairbloomError
        When a setting is impossible or unused, when `out` or a run folder belongs to something else or is damaged, or
        when a run fails. No run is started where that can be known before.
    """
    before = _compared_before(out, variants)
    whole = _study(config, [*variants, *filter(None, before.values())], seeds, out.absolute())
    study = replace(whole, rows=whole.rows[: len(variants)])
    task = next(iter(study.first_runs().values())).task
    check_used(config, [variant.method for variant in variants], task)
    kept = {row.candidates[0].name: row for row in whole.rows[len(variants) :] if _is_finished(whole, row)}
    if left_out := [label for label in before if label not in kept]:
        log.warning(
            "%s: left out of the tables in %s, as their runs there have other seeds, settings, rounds or data, or are "
            "not finished: name them among the methods, and they are run",
            ", ".join(left_out),
            out,
        )
    among = [*variants, *(each for label, each in before.items() if each and label in kept)]
    runs = {
        row.candidates[0].name: [str(study.folder(planned).relative_to(study.out)) for planned in study.search(row)]
        for row in (*study.rows, *kept.values())
    }
    plan = Plan(runs, list(seeds), baseline_of(baseline, among), {each.label: each.config for each in among})

    def collect(_: object) -> Comparison:
        comparison = read_comparison(study.out, plan)
        _write(comparison)
        return comparison

    return run_study(study, jobs, on_run, collect, plan=plan, stop_at_failure=True)


def _study(config: Mapping[str, Value], variants: Sequence[Variant], seeds: Sequence[int], out: Path) -> Study:
    """Return the study of a comparison: each variant is a row, without the parameters of others' own methods."""
    for key, value in config.items():
        if key in OPTIONS:
            raise SettingsError(f"{key} = {value!r}: a comparison sets {key} run by run: give {OPTIONS[key]} instead")
    folders = folder_names(variants)
    rows = [
        StudyRow([Candidate(variant.label, config_of(variant, variants, config), folders[variant.label])])
        for variant in variants
    ]
    return Study(rows, seeds, out)


def _compared_before(out: Path, variants: Sequence[Variant]) -> dict[str, Variant | None]:
    """Return the methods of the comparison that a folder has already, by label, without those that are named again.

    A user-defined method that is not there any more is None.
    """
    try:
        before = Plan.read(out).methods
    except RunFolderError:  # there is none, or the new one takes the place of its file, which is damaged
        return {}
    named, found = {variant.label for variant in variants}, dict[str, Variant | None]()
    for label in [label for label in before if label not in named]:
        method, given = str(before[label]["method"]), {k: v for k, v in before[label].items() if k != "method"}
        try:
            found[label] = make_variant(method, given, label)
        except FairbloomError:
            found[label] = None
    return found


def _is_finished(study: Study, row: StudyRow) -> bool:
    """Return whether all runs of a row are finished, with these settings and data."""
    try:
        runs = {(planned.candidate.name, planned.seed): study.settings(planned) for planned in study.search(row)}
        check_runs(runs)
    except FairbloomError:
        return False
    return all(map(is_done, runs.values()))


def _write(comparison: Comparison) -> None:
    """Write comparison.csv, differences.csv, clients.csv, the figure and the report into the comparison's folder."""
    from ..views.figures import draw_sorted_clients, write_figure  # imported late: matplotlib takes a second
    from ..views.report import write_report

    tables = {"comparison.csv": comparison.rows(), "differences.csv": comparison.difference_rows()}
    tables |= {CLIENTS.name: comparison.client_rows()}
    tables |= {GROUPS.name: comparison.group_rows(), "gaps.csv": comparison.gap_rows()}
    write_tables(comparison.folder, tables)
    write_figure(draw_sorted_clients(comparison), comparison.folder / "clients")
    write_report(comparison, comparison.folder / REPORT)
