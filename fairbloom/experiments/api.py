"""The functions for users and the command line: run, compare, refit, search, load, evaluate."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal, Unpack

from fairbloom.imports import only_trusted_imports
from fairbloom.protocol.settings import SettingsError, Value
from fairbloom.server.run_folder.files import CLIENTS, SCORES
from fairbloom.server.run_folder.recorded import OnRound, RecordedRound, ignore
from fairbloom.server.settings import Settings, check_pace, check_used
from fairbloom.strategies import name_of
from fairbloom.strategies.named import title
from fairbloom.system.machine import processors_here
from fairbloom.tasks import describe_data, forget_tasks

from . import pages as pages  # registers the pages of results
from .apps import read_app
from .arms import APP_METHODS, METHODS, Named, baseline_of, fitting, parse_arms, settings_of_method
from .frames import Frames, settings_of_frames
from .options import StudyOptions, as_settings, choose_task, expand_options, merge_settings
from .results.comparison import Comparison, read_comparison
from .results.evaluation import Evaluation
from .results.measures import find_measure
from .results.reproduction import Reproduction
from .results.run import Run, frame, load as load_run
from .results.search import Search, read_search
from .studies.compare import compare_arms, settings_of_refit
from .studies.given_runs import Folders, compare_runs
from .studies.progress import RunBar, progress as progress_bar, study_progress
from .studies.reproduce import load_reproduction, reproduce
from .studies.running import OnRun, ignore_run
from .studies.search import VALIDATION_SHARE, arms_of, parse_grid, search_arms
from .study import Study, find_study

if TYPE_CHECKING:
    import pandas

__all__ = [
    "Comparison",
    "Evaluation",
    "Reproduction",
    "Run",
    "Search",
    "check_data",
    "compare",
    "evaluate",
    "load",
    "refit",
    "reproduce",
    "run",
    "search",
]


@expand_options
def run(
    task: str | None = None,
    *,
    data: Frames | None = None,
    target: str = "",
    method: Named | None = None,
    seed: int | None = None,
    out: str | os.PathLike[str] | None = None,
    settings: Mapping[str, Value] | None = None,
    on_round: OnRound = ignore,
    progress: bool = True,
    debug: bool = False,
    **options: Unpack[StudyOptions],
) -> Run:
    """Train with one method, all clients on this machine.

    The same call continues an interrupted run, returns a finished one, and extends it if `rounds`
    is higher than before.

    Parameters
    ----------
    task
        The task to learn: a name that `fairbloom tasks` lists, or your own as "my_module:task".
    data
        The data frame of each client, by name, in place of files: {"north": frame, …}. They are
        kept in `out` as Parquet files, and read as these are. Only the same ones continue a run.
    target
        The column to predict, of frames or files: the setting csv.target.
    data_dir
        The folder that the task reads its data from.
    schema
        The file that describes the tables in that folder; by default it is inferred from them.
    method
        The method: a name that `fairbloom methods` lists, your own as "my_module:Mine", or the
        class itself. A name may have parameters in parentheses, as in `compare`:
        "fedfv(alpha=0.2)".
    model
        One of the task's models, or your own as "my_module:Net".
    clients
        The number of clients that the data is split into.
    partition
        How the data is split among the clients: for example shards, dirichlet or iid.
    rounds
        The number of rounds.
    fraction
        The share of the clients that train in a round.
    score
        The score that fairness is measured in: accuracy, balanced-accuracy, auc, loss or another
        score of the task; by default the one that fits the data.
    seed
        Seed of the data split, initial model, client sampling and batch order.
    engine
        How the clients are computed: "auto" takes what is fastest here, "loop" computes one after
        the other, "stacked" all of them at once.
    device
        The device that clients compute on: auto, cpu, cuda or mps.
    memory
        Gigabytes of memory, at least 0, for the clients' updates; more are kept in a temporary
        file. By default, and with 0, half of the machine's.
    out
        The run folder. The default is a folder below runs/ named after the settings.
    settings
        Any other settings by their names on the command line: {"learning-rate": 0.05,
        "fedfv.alpha": 0.2}.
    on_round
        Called with each round once it is recorded: its number, its row of rounds.csv, the measures
        of fairness, each client's score, the coefficients. An exception ends the run; the same
        call continues after that round. StopRun ends it as finished.
    progress
        Whether to show a progress bar, in a terminal or notebook.
    debug
        End the run with the traceback of a client's first error. Clients are computed one after the
        other in this process, regardless of the engine, and no progress is shown, so that a
        debugger works.

    Returns
    -------
    Run
        The finished run.

    Raises
    ------
    FairbloomError
        When a setting is unknown or impossible, data or run folder cannot be used, or the rounds
        learn nothing.
    """
    from fairbloom.server.plan import choose_run_folder  # imported late, as PyTorch is with it
    from fairbloom.simulation.run import simulate

    config = merge_settings(
        as_settings({"task": task, "seed": seed, "out": out, **options}), settings or {}
    )
    config = settings_of_frames(data, target, out, config)
    config = merge_settings(settings_of_method(method, config), choose_task(config))
    chosen = Settings.of(config)
    check_used(config, [chosen.method], chosen.task)
    check_pace(chosen)
    folder = choose_run_folder(chosen)
    forget_tasks()  # a notebook may have loaded them from files that have changed since
    with progress_bar(shown=progress and not debug) as bar:
        shown = RunBar(bar, title(chosen.method), chosen.num_rounds)

        read_scores = cache(SCORES.read)  # written before the first round, and not again

        def show_round(recorded: RecordedRound) -> None:
            shown.count(recorded, read_scores(folder)[0])
            on_round(recorded)

        simulate(chosen, show_round, debug=debug)
        shown.end()
    return load_run(folder)


@expand_options
def compare(
    task: str | None = None,
    *,
    data: Frames | None = None,
    target: str = "",
    methods: Named | Sequence[Named] = METHODS,
    app: str | os.PathLike[str] | None = None,
    flwr: bool = False,
    runs: Folders = (),
    baseline: Named | None = None,
    seeds: int = 3,
    seed: int = 0,
    out: str | os.PathLike[str] = "runs/comparison",
    jobs: int | None = None,
    settings: Mapping[str, Value] | None = None,
    on_run: OnRun = ignore_run,
    progress: bool = True,
    **options: Unpack[StudyOptions],
) -> Comparison:
    """Train with several methods and seeds, and show which clients gain or lose.

    With the same seed, all methods have the same clients, draws and batches, so differences are
    paired. The same call continues an interrupted comparison, and extends the runs if `rounds` is
    higher than before.

    The other parameters are as in `run`; all runs share them.

    Parameters
    ----------
    methods
        The methods, separated by commas, with their parameters in parentheses:
        'fedavg,qfedavg(q=1),my_module:Mine'. In Python also a list of names and classes.
    app
        The folder of a Flower app, which is trained instead of a task. Its run config has method,
        seed, num-rounds and out; --rounds and --set change its other values. Each run is started
        by python -m PACKAGE.
    flwr
        Start each run of the app by flwr run, in Flower's simulation and one after the other,
        instead of by python -m.
    runs
        Folders of runs to compare by the method and seed that they recorded, instead of training:
        runs/a runs/b, or `runs/*`.
    baseline
        The method that the others are compared with; by default FedAvg, or the first.
    seeds
        The number of seeds.
    seed
        The first seed; the others follow.
    out
        The folder of the tables, the figure and the runs.
    jobs
        The number of runs at a time, each in its own process; by default one a processor. They
        share the processors, and the results do not depend on it.
    settings
        Any other settings of all runs, by their names on the command line.
    on_run
        Called with each run once it has finished, such as to log it to a tracker. An exception ends
        the comparison; the same call continues it.
    progress
        Whether to show a progress bar, in a terminal or notebook.

    Returns
    -------
    Comparison
        The tables and the figure, which are in `out` as well.

    Raises
    ------
    FairbloomError
        When a setting is unknown, impossible or unused, a folder cannot be used, or a run fails.
    """
    config = merge_settings(as_settings({"task": task, **options}), settings or {})
    named = name_of(baseline) if baseline else ""
    if runs:
        changed = {
            "data": data is not None,
            "target": target,
            "app": app,
            "flwr": flwr,
            "methods": methods != METHODS,
            "seeds": seeds != 3,
            "seed": seed,
        }
        given = [*config, *(name for name, value in changed.items() if value)]
        if given:
            raise SettingsError(
                f"{given[0]} has no effect with --runs, as these runs have theirs: leave it out"
            )
        return compare_runs(runs, named, Path(out))
    if seeds < 1:
        raise SettingsError(f"seeds = {seeds}: a comparison takes at least one")
    own = None
    if app is not None or flwr:
        _refuse_data(data, target)
        methods = APP_METHODS if methods == METHODS else methods
        own, config = read_app(app, config, methods, flwr=flwr)
    else:
        config = choose_task(settings_of_frames(data, target, out, config))
    among = parse_arms(methods, config)
    if methods == METHODS:
        among = fitting(among, config)
    base = baseline_of(named, among)
    study = Study("compare", among, list(range(seed, seed + seeds)), base, config, app=own)
    with study_progress("comparing", shown=progress) as bar:
        return compare_arms(study, Path(out), jobs or processors_here(), bar, on_run)


def _refuse_data(data: Frames | None, target: str) -> None:
    """Raise SettingsError for data of a task where an app is trained."""
    if data is not None or target:
        raise SettingsError("an app loads its own data: leave data and target out")


def refit(
    folder: str | os.PathLike[str],
    *,
    method: Named,
    test_share: float = 0.0,
    out: str | os.PathLike[str] | None = None,
    trust: bool = False,
) -> Run:
    """Train a method of a comparison on all rows, for a model to use.

    The run has the settings and the first seed of the comparison. It has the median of the rounds
    after which the method's runs ended or, with validation examples, were best. The same call
    continues an interrupted run.

    Parameters
    ----------
    folder
        The folder of the comparison, or of a search.
    method
        One of its methods, as its tables print it or as it was written.
    test_share
        The share of each client's examples that is held out to test on; 0 trains on all, and
        measures no score.
    out
        The run folder. The default is refit-METHOD in the folder of the comparison.
    trust
        Import the modules that the settings of the runs name. Importing runs their code.

    Returns
    -------
    Run
        The finished run.

    Raises
    ------
    FairbloomError
        When the folder holds no finished run of that method, or the runs spent privacy accounts.
    """
    with only_trusted_imports(trust):
        config = settings_of_refit(Path(folder), method, test_share)
        return run(settings={**config, "out": os.fspath(out) if out else config["out"]})


@expand_options
def search(
    task: str | None = None,
    *,
    data: Frames | None = None,
    target: str = "",
    methods: Named | Sequence[Named] = METHODS,
    app: str | os.PathLike[str] | None = None,
    flwr: bool = False,
    grid: Mapping[str, Sequence[Value]] | Sequence[str] = (),
    criterion: str = "worst-10",
    mean_within: float | None = None,
    baseline: Named = "fedavg",
    seeds: int = 3,
    test_seeds: int | None = None,
    seed: int = 0,
    out: str | os.PathLike[str] = "runs/search",
    jobs: int | None = None,
    settings: Mapping[str, Value] | None = None,
    progress: bool = True,
    **options: Unpack[StudyOptions],
) -> Search:
    """Try values of methods' parameters, and test the best of each method with fresh seeds.

    They are judged on validation examples: a fifth of each client's, unless `validation-share` is
    set. The best of each method and the baseline are then compared on the test examples of as many
    fresh seeds. The same call continues an interrupted search. With more values, seeds or rounds,
    only the missing runs are run.

    The other parameters are as in `compare` or `run`; all runs share them.

    Parameters
    ----------
    methods
        The methods, as in `compare`. A method without parameters tries the values that
        it declares in `tries`.
    grid
        Values of a parameter or setting: alpha=0,0.1. Every combination of several is tried, by the
        methods that have them. In Python a list of such texts, or {"alpha": [0, 0.1]}.
    criterion
        The measure to choose by: mean, worst, worst-10, client:NAME, group-gap:SCORE, 3*mean+worst
        or another measure of recipes.
    mean_within
        By how much an arm's mean over the clients may be worse than the best one of all arms, in
        points on validation examples. By default no arm is left out for its mean.
    baseline
        The method that the others are compared with, by its best arm.
    seeds
        The number of seeds to choose by.
    test_seeds
        The number of fresh seeds to test with, which begin 1000 later; by default as many as
        `seeds`.
    out
        The folder of the tables, the report and the runs.

    Returns
    -------
    Search
        The choice on validation examples, and the comparison on test examples.

    Raises
    ------
    FairbloomError
        When a setting is unknown, impossible, unused or cannot be tried, the measure is unknown,
        a folder cannot be used, or the baseline cannot be judged.
    """
    config = merge_settings(as_settings({"task": task, **options}), settings or {})
    if seeds < 1:
        raise SettingsError(f"seeds = {seeds}: a search takes at least one")
    if test_seeds is not None and test_seeds < 1:
        raise SettingsError(f"test-seeds = {test_seeds}: a search takes at least one")
    if mean_within is not None and not 0.0 <= mean_within < math.inf:
        raise SettingsError(
            f"mean-within = {mean_within:g}: give a number of points, at least 0, or leave it out"
        )
    if not isinstance(grid, Mapping):
        grid = parse_grid(grid)
    own = None
    if app is not None or flwr:
        _refuse_data(data, target)
        methods = APP_METHODS if methods == METHODS else methods
        own, config = read_app(app, config, methods, baseline, flwr=flwr)
        own = replace(own, needs_validation=True)
    else:
        config = choose_task(settings_of_frames(data, target, out, config))
        config = {"validation-share": VALIDATION_SHARE, **config}
    arms = arms_of(methods, grid, baseline, config, own)
    (base,) = parse_arms([baseline])
    study = Study(
        "search",
        arms,
        list(range(seed, seed + seeds)),
        base.method,
        config,
        app=own,
        criterion=find_measure(criterion).name,
        mean_within=mean_within,
        tests=test_seeds or 0,
    )
    with study_progress("searching", shown=progress) as bar:
        return search_arms(study, Path(out), jobs or processors_here(), bar)


@expand_options
def check_data(
    data: Frames | str | os.PathLike[str] | None = None,
    *,
    task: str = "csv",
    target: str = "",
    seed: int | None = None,
    settings: Mapping[str, Value] | None = None,
    **options: Unpack[StudyOptions],
) -> dict[str, "pandas.DataFrame"]:
    """Return tables that describe the data of clients, as `fairbloom data` prints them.

    They are `clients`, with the faults of each under `problem`, `columns`, and `remarks` on what
    may be wrong.

    The other parameters are as in `run`.

    Parameters
    ----------
    data
        The data frame of each client, by name, or the folder of their files, as `data_dir`.

    Raises
    ------
    FairbloomError
        When no client's data can be read, or a setting is unknown, impossible or unused.
    """
    config = merge_settings(as_settings({"task": task, "seed": seed, **options}), settings or {})
    if isinstance(data, str | os.PathLike):
        config = merge_settings({"data-dir": os.fspath(data)}, config)
        data = None
    with TemporaryDirectory() as place:
        config = settings_of_frames(data, target, place, config)
        check_used(config, ["fedavg"], task)
        forget_tasks()
        described = describe_data(Settings.of(config))
    return {name: frame(rows) for name, rows in described.items()}


def load(
    folder: str | os.PathLike[str], *, score: str = "", trust: bool = False
) -> Run | Comparison | Search | Reproduction:
    """Return the run, comparison, search or reproduction in a folder, finished or not.

    Parameters
    ----------
    folder
        The folder of a run, also of a deployed one or of a user's ServerApp, or of a study.
    score
        Measure fairness of a run or comparison in this score of clients.csv.
    trust
        Import the modules that the settings of the run or study name. Importing runs their code.

    Returns
    -------
    Run, Comparison, Search or Reproduction
        The result in the folder.

    Raises
    ------
    FairbloomError
        When the folder holds no readable result, or runs of a comparison are missing.
    """
    path = Path(folder).absolute()
    study = find_study(path)
    if study is None:
        return load_run(path, score)
    match study.kind:
        case "compare":
            return read_comparison(path, study, score)
        case _ if score:
            raise SettingsError(f"score = {score!r}: a {study.noun} has its own: leave it out")
        case "search":
            return read_search(path, study)
        case "reproduce":
            return load_reproduction(path, study, trust=trust)


def evaluate(
    run: str | os.PathLike[str],
    *,
    data_dir: str | os.PathLike[str] | None = None,
    client: str = "",
    model: Literal["last", "best"] = "last",
    trust: bool = False,
) -> Evaluation:
    """Evaluate a run's model on the data of a site that did not take part.

    The site's data are split like the clients' data, by `test-share` and the seed. They
    are standardised by the site's training rows if each client used its own. Nothing is trained.

    Parameters
    ----------
    run
        The folder of a finished run, or a device's state folder, which does not have the clients'
        scores.
    data_dir
        The folder, or file, of the site's data.
    client
        The client to evaluate, if the data are of several.
    model
        The model after the last round, or the one with the best mean score.
    trust
        Import the modules that the settings of the run or study name. Importing runs their code.

    Raises
    ------
    FairbloomError
        When the folder holds no finished run, the site's data do not fit its clients' data, or
        the settings name a module that may not be imported.
    """
    from fairbloom.prediction.site import evaluate_site  # imported late, as PyTorch is with it

    folder = Path(run)
    data = "" if data_dir is None else os.fspath(data_dir)
    with only_trusted_imports(trust):
        found = evaluate_site(folder, data, client, model)
    clients: dict[str, dict[str, float]] = {}
    if CLIENTS.exists_in(folder):  # a device does not store other clients' numbers
        run_of_clients = load_run(folder)
        names = {score.name for score in run_of_clients.scores}
        for score in found.scores:
            if score.name not in names or run_of_clients.noise(score):
                continue
            values = run_of_clients.final(score, "global")
            if values:
                clients[score.name] = values
    return Evaluation(**found._asdict(), run=folder, model=model, clients=clients)
