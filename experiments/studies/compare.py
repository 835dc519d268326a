"""Several methods over several seeds, on the same clients, draws and batches, several runs at a time."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fairbloom.protocol.settings import SettingsError, Value
from fairbloom.server.settings import Settings, check_used

from ..recipes.variants import Variant, folder_names
from ..results.comparison import Comparison, Plan, read_comparison
from ..results.run import COMPARISON
from .pool import check_runs, held, run_all

OPTIONS = {"method": "--methods", "seed": "--seed and --seeds", "out": "--out"}
"""The settings that differ from run to run of a comparison, and the options that say which values they take."""


def compare_all(
    config: Mapping[str, Value],
    methods: Sequence[Variant],
    baseline: str,
    seeds: Sequence[int],
    out: Path,
    jobs: int,
    on_run: Callable[[], None] = lambda: None,
) -> Comparison:
    """Run each method with each seed, `jobs` at a time, and write tables and figure into `out`.

    Runs lie in `out`/runs; those that are finished are not run again, interrupted ones continue, and finished ones that
    are to have more rounds are extended.

    Parameters
    ----------
    config
        The settings that all runs share.
    methods, seeds
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
    from ..views.figures import sorted_clients, write_figure  # imported late: workers and other commands do without

    out = out.absolute()
    names = folder_names(methods)
    plan = Plan(
        {method.label: [f"runs/{names[method.label]}-seed{seed}" for seed in seeds] for method in methods},
        list(seeds),
        baseline,
    )
    runs = {
        (method.label, seed): settings_of(config, method, methods, seed, out / name)
        for i, seed in enumerate(seeds)
        for method, name in zip(methods, (plan.runs[method.label][i] for method in methods), strict=True)
    }
    for run in runs.values():
        check_used(config, [method.method for method in methods], run.task)
    check_runs(runs)
    with held(out, COMPARISON):
        plan.write(out)
        run_all(runs, jobs, on_run)
        comparison = read_comparison(out, plan)
        comparison.write_tables()
        write_figure(sorted_clients(comparison), out / "clients")
    return comparison


def settings_of(
    config: Mapping[str, Value], method: Variant, methods: Sequence[Variant], seed: int, out: Path
) -> Settings:
    """Return the settings of one run: those that all share, without the parameters of others' own methods."""
    for key, value in config.items():
        if key in OPTIONS:
            raise SettingsError(f"{key} = {value!r}: a comparison sets {key} run by run: give {OPTIONS[key]} instead")
    others = {other.owner for other in methods} - {method.owner}
    shared = {key: value for key, value in config.items() if key.partition(".")[0] not in others}
    return Settings.of({**shared, **method.config, "seed": seed, "out": str(out)})
