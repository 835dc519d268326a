"""A comparison: methods as the rows of a study without printed numbers, on the same clients, draws and batches."""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from fairbloom.errors import FairbloomError
from fairbloom.logs import log
from fairbloom.protocol.settings import SettingsError, Value
from fairbloom.rounds.limits import BrokenModelError
from fairbloom.rounds.loop import DivergedError
from fairbloom.server.run_folder.checks import find_differing
from fairbloom.server.run_folder.errors import RunFolderError
from fairbloom.server.run_folder.files import CLIENTS, CONFIG, GROUPS, is_run_folder
from fairbloom.server.settings import check_used, may_differ

from ..recipes.variants import Variant, baseline_of, config_of, folder_names, make_variant
from ..results.comparison import Comparison, Failure, Plan, read_comparison
from ..results.presentation import write_figure, write_report
from ..results.run import REPORT
from .driver import carry_out, write_tables
from .on_ray import OnRay
from .pool import RunKey, check_runs, is_done
from .rehearsal import Failures, rehearse
from .score import fix_score
from .study import Candidate, Study, StudyRow

OPTIONS = {"method": "--methods", "seed": "--seed and --seeds", "out": "--out"}
"""The settings that differ from run to run of a comparison, and the options that say which values they take."""


def compare_variants(
    config: Mapping[str, Value],
    variants: Sequence[Variant],
    baseline: str,
    seeds: Sequence[int],
    out: Path,
    jobs: int | OnRay,
    on_run: Callable[[], None] = lambda: None,
) -> Comparison:
    """Run each variant with each seed, `jobs` at a time, and write tables and figure into `out`.

    Methods that were compared there before stay in the tables, where they have a finished run with each of these seeds,
    settings and data; the log names those that have not.

    A run that fails ends no other. One that has diverged is not run again with the same settings, as long as its folder
    is there; one that failed for another reason is.

    `baseline` is as `baseline_of` takes it, and `on_run` is called after each finished run. No run is started where an
    error can be known before.
    """
    earlier = _plan_before(out)
    before = _compared_before(earlier, variants)
    whole = _study(config, [*variants, *filter(None, before.values())], seeds, out.absolute())
    first = next(iter(replace(whole, rows=whole.rows[: len(variants)]).first_runs().values()))
    check_used(config, [variant.method for variant in variants], first.task)
    whole = whole.with_settings(fix_score(first))
    study = replace(whole, rows=whole.rows[: len(variants)])
    diverged = _diverged_before(earlier, whole)
    kept = {row[0].name: row for row in whole.rows[len(variants) :] if _is_over(whole, row, diverged)}
    if left_out := [label for label in before if label not in kept]:
        log.warning(
            "%s: left out of the tables in %s, as their runs there have other seeds, settings, rounds or data, or are "
            "not finished: name them among the methods, and they are run",
            ", ".join(left_out),
            out,
        )
    among = [*variants, *(each for label, each in before.items() if each and label in kept)]
    runs = {
        row[0].name: [str(study.folder(planned).relative_to(study.out)) for planned in study.search(row)]
        for row in (*study.rows, *kept.values())
    }
    failures = {key: failure for key, failure in diverged.items() if key[0] in runs}
    plan = Plan(runs, list(seeds), baseline_of(baseline, among), {each.label: each.config for each in among})
    plan = plan.with_failures(failures)
    first_runs = study.first_runs()
    check_runs(first_runs)
    with carry_out(study.out, jobs, on_run, plan.kind, plan=plan) as work:
        rehearse(jobs, study, partial(_try_results, plan))
        for _ in failures.keys() & first_runs.keys():
            on_run()
        work.run({key: run for key, run in first_runs.items() if key not in failures})
        new = {key: Failure(str(e), isinstance(e, DivergedError | BrokenModelError)) for key, e in work.failed.items()}
        plan = plan.with_failures(failures | new)
        plan.write(study.out)
        comparison = read_comparison(study.out, plan)
        _write(comparison)
        return comparison


def _try_results(plan: Plan, short: Study, failures: Failures) -> None:
    """Read and write the comparison of runs of one round, of the methods whose runs did not fail there."""
    runs = {row[0].name: short.folder(short.search(row)[0]) for row in short.rows}
    going = {label: [str(folder.relative_to(short.out))] for label, folder in runs.items() if folder not in failures}
    if going:
        short_plan = Plan(going, list(short.seeds), plan.baseline if plan.baseline in going else next(iter(going)))
        short_plan.write(short.out)
        _write(read_comparison(short.out, short_plan))


def _study(config: Mapping[str, Value], variants: Sequence[Variant], seeds: Sequence[int], out: Path) -> Study:
    """Return the study of a comparison: each variant is a row, without the parameters of others' own methods."""
    for key, value in config.items():
        if key in OPTIONS:
            raise SettingsError(f"{key} = {value!r}: a comparison sets {key} run by run: give {OPTIONS[key]} instead")
    folders = folder_names(variants)
    rows = [
        [Candidate(variant.label, config_of(variant, variants, config), folders[variant.label])] for variant in variants
    ]
    return Study(rows, seeds, out)


def _plan_before(out: Path) -> Plan:
    """Return the plan of the comparison that a folder has already; one without runs where there is none to read."""
    try:
        return Plan.read(out)
    except RunFolderError:
        return Plan({}, [], "")


def _diverged_before(plan: Plan, study: Study) -> dict[RunKey, Failure]:
    """Return the runs of a study that have diverged before, with the same settings, and have a folder still."""
    found: dict[RunKey, Failure] = {}
    changeable = {*may_differ(finished=False)} - {"out"}  # other settings are checked before any run
    for key, run in study.first_runs().items():
        failure, folder = plan.failed.get(key[0], {}).get(key[1]), Path(run.out)
        if not (failure and failure.diverged and is_run_folder(folder)):
            continue
        if changeable.isdisjoint(find_differing(CONFIG.read(folder).settings, run.run_config())):
            found[key] = failure
    return found


def _compared_before(plan: Plan, variants: Sequence[Variant]) -> dict[str, Variant | None]:
    """Return the methods compared in a folder before, by label, but those named again; None: not there any more."""
    before = plan.methods
    named, found = {variant.label for variant in variants}, dict[str, Variant | None]()
    for label in [label for label in before if label not in named]:
        method, given = str(before[label]["method"]), {k: v for k, v in before[label].items() if k != "method"}
        try:
            found[label] = make_variant(method, given, label)
        except FairbloomError:
            found[label] = None
    return found


def _is_over(study: Study, row: StudyRow, diverged: Container[RunKey]) -> bool:
    """Return whether all runs of a row are finished, or have diverged, with these settings and data."""
    try:
        runs = {(planned.candidate.name, planned.seed): study.settings(planned) for planned in study.search(row)}
        check_runs(runs)
    except FairbloomError:
        return False
    return all(key in diverged or is_done(run) for key, run in runs.items())


def _write(comparison: Comparison) -> None:
    """Write comparison.csv, differences.csv, clients.csv, the figure and the report into the comparison's folder."""
    tables = {"comparison.csv": comparison.rows(), "differences.csv": comparison.difference_rows()}
    tables |= {CLIENTS.name: comparison.client_rows()}
    tables |= {GROUPS.name: comparison.group_rows(), "gaps.csv": comparison.gap_rows()}
    write_tables(comparison.folder, tables)
    write_figure(comparison, comparison.folder / "clients")
    write_report(comparison, comparison.folder / REPORT)
