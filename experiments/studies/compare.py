"""A comparison: methods as the rows of a study without printed numbers, on the same clients, draws and batches."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fairbloom.protocol.settings import SettingsError, Value
from fairbloom.server.run_folder.files import CLIENTS, GROUPS
from fairbloom.server.settings import check_used

from ..recipes.variants import Variant, config_of, folder_names
from ..results.comparison import Comparison, Plan, read_comparison
from .driver import run_study, write_tables
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

    Parameters
    ----------
    config
        The settings that all runs share.
    variants, seeds
        Each of these methods is run with each of these seeds.
    baseline
        The label of the method that the others are compared with.
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
    study = _study(config, variants, seeds, out.absolute())
    task = next(iter(study.first_runs().values())).task
    check_used(config, [variant.method for variant in variants], task)
    runs = {
        row.candidates[0].name: [str(study.folder(planned).relative_to(study.out)) for planned in study.search(row)]
        for row in study.rows
    }
    plan = Plan(runs, list(seeds), baseline)

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


def _write(comparison: Comparison) -> None:
    """Write comparison.csv, differences.csv, clients.csv and the figure into the comparison's folder."""
    from ..views.figures import draw_sorted_clients, write_figure  # imported late: matplotlib takes a second

    tables = {"comparison.csv": comparison.rows(), "differences.csv": comparison.difference_rows()}
    tables |= {CLIENTS.name: comparison.client_rows()}
    tables |= {GROUPS.name: comparison.group_rows(), "gaps.csv": comparison.gap_rows()}
    write_tables(comparison.folder, tables)
    write_figure(draw_sorted_clients(comparison), comparison.folder / "clients")
