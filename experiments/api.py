"""What a user calls: a run, and a comparison, as Python functions. The command line calls these too."""

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Unpack

from fairbloom.imports import only_trusted_imports
from fairbloom.protocol.scores import Score
from fairbloom.protocol.settings import SettingsError, Value
from fairbloom.server.run_folder.files import SCORES
from fairbloom.server.run_folder.recorded import OnRound, RecordedRound, ignore
from fairbloom.server.settings import Settings, check_used
from fairbloom.simulation.dispatch.processes import processors_here
from fairbloom.strategies import name_of
from fairbloom.tasks import forget_user_defined_tasks

from . import pages as pages  # which registers the pages of results
from .options import CommonOptions, as_settings, expand_options, merge_settings
from .recipes.axes import values_in
from .recipes.labels import label_of, title
from .recipes.recipe import Recipe, load_recipe, recipe_of
from .recipes.variants import Named, Variant, settings_of_method, variants
from .results.comparison import Comparison, load_comparison
from .results.evaluation import Evaluation, scores_of_clients
from .results.recommendation import Recommendation
from .results.reproduction import Reproduction
from .results.run import Run, load
from .results.sweep import Sweep
from .studies.compare import compare_variants
from .studies.objective import Objective
from .studies.on_ray import Pool, place_of
from .studies.progress import RunBar, study_progress
from .studies.progress import progress as progress_bar
from .studies.recommend import parse_budget, recommend_method
from .studies.reproduce import reproduce
from .studies.sweep import run_sweep
from .studies.swept import load_sweep

__all__ = [
    "Comparison",
    "Evaluation",
    "Recommendation",
    "Reproduction",
    "Run",
    "Sweep",
    "compare",
    "evaluate",
    "load",
    "load_comparison",
    "load_sweep",
    "recommend",
    "reproduce",
    "run",
    "sweep",
]

METHODS = "fedavg,qfedavg,fedmgdaplus,fedfv"
"""The methods that are compared where none are named."""


@expand_options
def run(
    task: str | None = None,
    *,
    method: Named | None = None,
    seed: int | None = None,
    out: str | os.PathLike[str] | None = None,
    settings: Mapping[str, Value] | None = None,
    on_round: OnRound = ignore,
    progress: bool = True,
    debug: bool = False,
    **options: Unpack[CommonOptions],
) -> Run:
    """Train with one method, all clients on this machine.

    The same call continues a run that was interrupted, returns a finished one, and extends it where `rounds` is higher
    than before.

    Parameters
    ----------
    task
        The task to learn: a name that `fairbloom tasks` lists, or your own as "my_module:task".
    data_dir
        The folder that the task reads its data from.
    method
        The method: a name that `fairbloom methods` lists, your own as "my_module:Mine", or the class itself. A name may
        have parameters in parentheses, as in `compare`: "fedfv(alpha=0.2)".
    model
        One of the task's models, one of torchvision's, or your own as "my_module:Net".
    clients
        The number of clients that the data is split into.
    partition
        How the data is split among the clients: shards, dirichlet or iid, say.
    rounds
        The number of rounds.
    fraction
        The share of the clients that train in a round.
    score
        The score that fairness goes by: accuracy, balanced-accuracy, auc, loss or another that the task has; by default
        the one that fits the data.
    seed
        Seed of the data split, initial model, client sampling and batch order.
    engine
        How the clients are computed: "auto" takes what is fastest here, "loop" computes one after the other, "stacked"
        all of them at once, "workers" several in processes side by side.
    device
        What the clients compute on: auto, cpu, cuda or mps.
    memory
        Gigabytes, at least 0, that the clients' updates may take in memory; more lie in a temporary file. By default,
        and with 0, half of the machine's.
    out
        The run folder. The default is a folder below runs/ named after the settings.
    settings
        Any other settings by their names on the command line: {"learning-rate": 0.05, "fedfv.alpha": 0.2}.
    on_round
        Called with each round once it is recorded: its number, its row of rounds.csv, the measures of fairness, each
        client's score, the coefficients. What it raises ends the run; the same call continues after that round.
        StopRun ends it as finished.
    progress
        Whether to show a progress bar, in a terminal or notebook.
    debug
        Whether the first error of a client ends the run with its traceback. Clients are computed one after the other in
        this process, whatever the engine, and no progress is shown, so that a debugger works.

    Returns
    -------
    Run
        The finished run.

    Raises
    ------
    FairbloomError
        When a setting is unknown or impossible, data or run folder cannot be used, or the rounds learn nothing.
    """
    from fairbloom.server.app import choose_run_folder  # imported late, as PyTorch is with it
    from fairbloom.simulation.run import simulate

    named = {"seed": seed, "out": out}
    config = merge_settings(as_settings({"task": task, **named, **options}), settings or {})
    config = merge_settings(settings_of_method(method, config), config)
    chosen = Settings.of(config)
    check_used(config, [chosen.method], chosen.task)
    folder = choose_run_folder(chosen)
    forget_user_defined_tasks()  # a notebook's earlier run may have loaded them from files that have changed
    with progress_bar(shown=progress and not debug) as bar:
        shown = RunBar(bar, title(chosen.method), chosen.num_rounds)

        @cache
        def run_score() -> Score:
            return SCORES.read(folder)[0]  # which is there once a round is

        def show_round(recorded: RecordedRound) -> None:
            shown.count(recorded, run_score())
            on_round(recorded)

        simulate(chosen, show_round, on_trained=None if bar.disable else shown.show_within, debug=debug)
        shown.end()
    return load(folder)


@expand_options
def compare(
    task: str | None = None,
    *,
    methods: Named | Sequence[Named] = METHODS,
    baseline: Named | None = None,
    seeds: int = 3,
    seed: int = 0,
    out: str | os.PathLike[str] = "runs/comparison",
    jobs: int | None = None,
    pool: Pool = "processes",
    gpus_per_run: float = 0.0,
    settings: Mapping[str, Value] | None = None,
    progress: bool = True,
    **options: Unpack[CommonOptions],
) -> Comparison:
    """Train with several methods and seeds, and show which clients gain or lose.

    With the same seed, all methods have the same clients, draws and batches, so differences are paired. The same call
    continues what was interrupted, and extends the runs where `rounds` is higher than before. Methods that were
    compared in the same folder before, with the same seeds and settings, stay in the tables.

    The parameters that are not described here are those of `run`; all runs share them.

    Parameters
    ----------
    methods
        The methods, with their parameters in parentheses: "fedavg,qfedavg(q=1),my_module:Mine(share=0.3)", or a
        list of such and of classes.
    baseline
        The one that the others are compared with; by default FedAvg, or the first.
    seeds
        The number of seeds.
    seed
        The first seed; the others follow.
    out
        The folder of the tables, the figure and the runs.
    jobs
        The number of runs at a time, each in a process of its own; by default one a processor. They share the
        processors, and the numbers do not depend on it.
    pool
        Where runs go on: "processes" of this machine, or "ray", an existing Ray cluster of which each run is a task. As
        many go on as there is room for; all hosts need the folders under the same path.
    gpus_per_run
        With pool="ray": how many GPUs each run gets, or which part of one, as 0.25.
    settings
        Any other settings of all runs, by their names on the command line.
    progress
        Whether to show a progress bar, in a terminal or notebook.

    Returns
    -------
    Comparison
        The tables and the figure, which lie in `out` as well.

    Raises
    ------
    FairbloomError
        When a setting is unknown, impossible or unused, a folder cannot be used, or a run fails.
    """
    config = merge_settings(as_settings({"task": task, **options}), settings or {})
    among = variants(methods, config)
    if seeds < 1:
        raise SettingsError(f"seeds = {seeds}: a comparison takes at least one")
    chosen = name_of(baseline) if baseline else ""
    at_a_time = place_of(jobs, pool, gpus_per_run)
    with study_progress("comparing", len(among) * seeds, shown=progress) as bar:
        return compare_variants(config, among, chosen, range(seed, seed + seeds), Path(out), at_a_time, bar.count)


Grid = Mapping[str, Value | Sequence[Value]] | Iterable[str]
"""Values of settings: {"alpha": [0, 0.1], "tau": "1,2"}, or ["alpha=0,0.1"]."""


@expand_options
def sweep(
    file: str | os.PathLike[str] | None = None,
    *,
    task: str | None = None,
    method: Named | Sequence[Named] | None = None,
    grid: Grid | None = None,
    criterion: str | None = None,
    baseline: Named | None = None,
    seeds: int | None = None,
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    pool: Pool = "processes",
    gpus_per_run: float = 0.0,
    settings: Mapping[str, Value] | None = None,
    progress: bool = True,
    **options: Unpack[CommonOptions],
) -> Sweep:
    """Try values of settings, choose the best point on validation examples, and test that point alone.

    The same call continues what was interrupted. With more values, seeds or rounds only what is missing is run.

    The parameters that are not described here are those of `run`; all runs share them.

    Parameters
    ----------
    file
        The path of a TOML file that says what is tried, in place of `method`, `grid` and `baseline`.
    method
        The method, or several with commas between them, with parameters in parentheses as in `compare`; by default
        FedAvg.
    grid
        The values of each setting: {"alpha": [0, 0.1], "learning-rate": [0.01, 0.1]}. A parameter of the method may be
        named alone.
    criterion
        What the chosen point is to be good at, in the words of a wish of `recommend`: "mean", which is the default,
        "worst", "3*mean+worst", of which the weighted mean is taken, or "worst, mean within 1 point of FedAvg".
    baseline
        A method that the chosen point is compared with; the axes of the grid that it has are searched for it, too.
    seeds
        The number of seeds; by default 3, or as many as the file says.
    seed
        The first seed; the others follow.
    out
        The folder of the tables, the figure and the runs; by default runs/sweep, or runs/NAME of a file NAME.toml.
    jobs
        The number of runs at a time, each in a process of its own; by default one a processor.
    pool, gpus_per_run
        Where runs go on, as for `compare`.
    settings
        Any other settings of all runs, by their names on the command line.
    progress
        Whether to show a progress bar, in a terminal or notebook.

    Returns
    -------
    Sweep
        The points, the chosen one, and its test numbers, which had no part in the choice.

    Raises
    ------
    FairbloomError
        When a setting is unknown, impossible, unused or cannot be tried, a folder cannot be used, or all runs fail.
    """
    config = merge_settings(as_settings({"task": task, **options}), settings or {})
    if file is None:
        recipe = _recipe_of(method or "fedavg", grid or (), baseline, config)
    elif method or grid or baseline:
        raise SettingsError(f"{file} says which methods and values are tried, and the baseline: change them there")
    else:
        recipe = load_recipe(os.fspath(file))
        recipe = recipe.model_copy(update={"settings": {**recipe.settings, **config}})
    if criterion is not None:
        recipe = recipe.model_copy(update={"criterion": criterion})
    count = seeds if seeds is not None else recipe.seeds
    if count < 1:
        raise SettingsError(f"seeds = {count}: a sweep takes at least one")
    folder = Path(out or Path("runs", recipe.name or "sweep"))
    with study_progress("sweeping", None, shown=progress) as bar:
        seeds_of_it, at_a_time = range(seed, seed + count), place_of(jobs, pool, gpus_per_run)
        return run_sweep(recipe, seeds_of_it, folder, at_a_time, bar.count, bar.expect)


def _recipe_of(
    method: Named | Sequence[Named], grid: Grid, baseline: Named | None, config: Mapping[str, Value]
) -> Recipe:
    """Return the recipe of a sweep without a file: a row a method, and one of the baseline."""
    among = variants(method, config)
    rows = [{"label": _plain_label(variant), "settings": variant.config} for variant in among]
    label = ""
    if baseline:
        (base,) = variants([baseline], config)
        if any(base.is_same(variant) for variant in among):
            raise SettingsError(
                f"baseline = {baseline!r} is among the methods, which are chosen from: leave it out in one place"
            )
        label = _plain_label(base)
        label = f"{label} as baseline" if any(row["label"] == label for row in rows) else label
        rows.append({"label": label, "settings": base.config})
    about = {"title": "Sweep", "settings": dict(config), "grid": _axes(grid), "rows": rows, "seeds": 3}
    return recipe_of({**about, "baseline": label})


def _plain_label(variant: Variant) -> str:
    """Return a variant's label without its parameters, which each point of a sweep has in its name."""
    return variant.label.removesuffix(label_of("", variant.given))


def _axes(grid: Grid) -> dict[str, list[Value]]:
    """Return the values of each setting of a grid; raise SettingsError for one that is there twice or has none."""
    if isinstance(grid, Mapping):
        lists = {key: [value] if isinstance(value, int | float) else value for key, value in grid.items()}
        listed = [
            values_in(f"{key}={value}") if isinstance(value, str) else (key, list(value))
            for key, value in lists.items()
        ]
    else:
        listed = [values_in(text) for text in grid]
    axes: dict[str, list[Value]] = {}
    for key, values in listed:
        if key in axes:
            raise SettingsError(f"grid: {key} is there twice: give all its values at once, as in {key}=0,0.1,0.5")
        if not values:
            raise SettingsError(f"grid: {key} has no values: give some, as in {key}=0,0.1,0.5")
        axes[key] = values
    return axes


@expand_options
def recommend(
    task: str | None = None,
    *,
    wish: str,
    budget: str = "10m",
    seed: int = 0,
    out: str | os.PathLike[str] = "runs/recommendation",
    jobs: int | None = None,
    settings: Mapping[str, Value] | None = None,
    progress: bool = True,
    **options: Unpack[CommonOptions],
) -> Recommendation:
    """Find the method for a wish: which one, with which parameters, what it gains, what it costs, and who pays.

    Candidates are compared on validation examples, and the best is measured on the test examples of fresh seeds. The
    same call continues what was interrupted, and a higher budget goes on from there.

    The parameters that are not described here are those of `run`; all runs share them.

    Parameters
    ----------
    wish
        What the method is to be good at and what it may not cost: "worst as high as possible, mean within 1 point of
        FedAvg".
    budget
        How long it may take, as "10m", "90s" or "1h30m": no run goes on after it.
    seed
        The first seed of the search; the gain is measured with seeds that begin 1000 later.
    out
        The folder for the answer and all runs.
    jobs
        The number of runs at a time, each in a process of its own; by default one a processor.
    settings
        Any other settings of all runs, by their names on the command line.
    progress
        Whether to show a progress bar, in a terminal or notebook.

    Returns
    -------
    Recommendation
        The answer, which lies in `out` as well.

    Raises
    ------
    FairbloomError
        When the wish is none, names a client or groups that there are not or wishes worse service; when a setting is
        unknown, impossible or unused, a folder cannot be used, or the baseline cannot be run.
    """
    wished, seconds = Objective.of(wish), parse_budget(budget)
    config = merge_settings(as_settings({"task": task, **options}), settings or {})
    begun = time.monotonic()
    with study_progress("searching", seconds, counted="seconds of the budget", shown=progress) as bar:

        def notify(stage: str) -> None:
            bar.set_stage(stage, min(seconds, time.monotonic() - begun))

        return recommend_method(config, wished, seconds, seed, Path(out), jobs or processors_here(), notify)


def evaluate(
    run: str | os.PathLike[str],
    *,
    data_dir: str | os.PathLike[str] | None = None,
    client: str = "",
    model: str = "last",
    trust: Sequence[str] = (),
) -> Evaluation:
    """Measure a finished run's model on the data of a site that took no part in it.

    The site's data are split as those of the run's clients were, by `test-share` and the seed, and standardised by its
    own training rows where theirs were by their own. Nothing is trained.

    Parameters
    ----------
    run
        The folder of a finished run, or the folder that a device keeps of one, which lacks the clients' scores.
    data_dir
        The folder, or file, of the site's data.
    client
        Which client's data to take, where there are those of several.
    model
        "last" for the model after the last round, "best" for the one with the best mean score.
    trust
        The modules that may be imported, where the run's settings name them and they are no installed packages.

    Raises
    ------
    FairbloomError
        When the folder holds no finished run, the site's data do not fit those of its clients, or the settings name a
        module that may not be imported.
    """
    from fairbloom.prediction.site import evaluate_site  # imported late, as PyTorch is with it

    folder = Path(run)
    with only_trusted_imports(trust):
        found = evaluate_site(folder, "" if data_dir is None else os.fspath(data_dir), client, model)
    return Evaluation(
        run=folder,
        site=found.site,
        model=model,
        train_examples=found.train_examples,
        test_examples=found.test_examples,
        scores=found.scores,
        values=found.values,
        interval=found.interval,
        clients=scores_of_clients(folder, found.scores),
    )
