"""What a user calls: a run, and a comparison, as Python functions. The command line calls these too."""

import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from fairbloom.protocol.scores import Score
from fairbloom.protocol.settings import SettingsError, Value
from fairbloom.server.run_folder.files import SCORES
from fairbloom.server.run_folder.rows import Row
from fairbloom.server.settings import Settings, check_used
from fairbloom.simulation.dispatch.processes import processors_here
from fairbloom.strategies import FairStrategy, find_method, name_of
from fairbloom.tasks import forget_user_defined_tasks

from .recipes.labels import title
from .recipes.variants import baseline_of, variants
from .results.comparison import Comparison, load_comparison
from .results.reproduction import Reproduction
from .results.run import Run, load
from .studies.compare import compare_variants
from .studies.reproduce import reproduce
from .views import presenters as presenters  # which registers the views of runs, comparisons and reproductions
from .views.progress import progress as progress_bar

__all__ = ["Comparison", "Reproduction", "Run", "compare", "load", "load_comparison", "reproduce", "run"]

METHODS = "fedavg,qfedavg,fedmgdaplus,fedfv"
"""The methods that are compared where none are named."""


def run(
    task: str | None = None,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    method: str | type[FairStrategy] | None = None,
    model: str | None = None,
    clients: int | None = None,
    partition: str | None = None,
    rounds: int | None = None,
    fraction: float | None = None,
    seed: int | None = None,
    engine: str | None = None,
    device: str | None = None,
    memory: float | None = None,
    out: str | os.PathLike[str] | None = None,
    from_round: int | None = None,
    settings: Mapping[str, Value] | None = None,
    progress: bool = True,
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
        The method: a name that `fairbloom methods` lists, your own as "my_module:Mine", or the class itself.
    model
        One of the task's models, or your own as "my_module:Net".
    clients
        The number of clients that the data is split into.
    partition
        How the data is split among the clients: shards, dirichlet or iid, say.
    rounds
        The number of rounds.
    fraction
        The share of the clients that train in a round.
    seed
        Seed of the data split, initial model, client sampling and batch order.
    engine
        How the clients are computed: "auto" takes what is fastest here, "loop" computes one after the other, "stacked"
        all of them at once, "workers" several in processes side by side, "ray" on a Ray cluster.
    device
        What the clients compute on: auto, cpu, cuda or mps.
    memory
        Gigabytes, at least 0, that the clients' updates may take in memory; more lie in a temporary file. By default,
        and with 0, half of the machine's.
    out
        The run folder; by default one under runs/ that the settings name.
    from_round
        The round that the run is taken back to before it continues, with other training-clients say; 0 starts over.
    settings
        Any other settings by their names on the command line: {"learning-rate": 0.05, "fedfv.alpha": 0.2}.
    progress
        Whether to show a progress bar, in a terminal or notebook.

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

    options = _options(task, data_dir, model, clients, partition, rounds, fraction, engine, device, memory)
    options |= {
        "method": None if method is None else name_of(method),
        "seed": seed,
        "out": None if out is None else os.fspath(out),
        "from-round": from_round,
    }
    config = merge_settings(options, settings or {})
    chosen = Settings.of(config)
    check_used(config, [chosen.method], chosen.task)
    folder = choose_run_folder(chosen)
    forget_user_defined_tasks()  # a notebook's earlier run may have loaded them from files that have changed
    with progress_bar("mean [b]{task.fields[mean]}[/]  worst 10 % [b]{task.fields[worst]}[/]", shown=progress) as bar:
        shown = bar.add_task(title(chosen.method), total=chosen.num_rounds, mean="–", worst="–")

        model = find_method(chosen.method).serves

        @cache
        def run_score() -> Score:
            return SCORES.read(folder)[0]  # which is there once a round is

        def on_row(row: Row) -> None:
            score = run_score()
            mean, worst = (row.get(f"{score.column(model)}_{measure}") for measure in ("mean", "worst_10"))
            bar.update(shown, completed=float(str(row["round"])))
            if isinstance(mean, float) and isinstance(worst, float):
                bar.update(shown, mean=score.written(mean), worst=score.written(worst))

        simulate(chosen, on_row)
        bar.update(shown, completed=chosen.num_rounds)
    return load(folder)


def compare(
    task: str | None = None,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    methods: str | type[FairStrategy] | Sequence[str | type[FairStrategy]] = METHODS,
    baseline: str | type[FairStrategy] | None = None,
    seeds: int = 3,
    seed: int = 0,
    model: str | None = None,
    clients: int | None = None,
    partition: str | None = None,
    rounds: int | None = None,
    fraction: float | None = None,
    engine: str | None = None,
    device: str | None = None,
    memory: float | None = None,
    out: str | os.PathLike[str] = "runs/comparison",
    jobs: int | None = None,
    settings: Mapping[str, Value] | None = None,
    progress: bool = True,
) -> Comparison:
    """Train with several methods over several seeds and see who gains and who loses.

    All methods meet the same clients, draws and batches at the same seed, so differences are paired. The same call
    continues what was interrupted, and extends the runs where `rounds` is higher than before.

    Parameters
    ----------
    task, data_dir, model, clients, partition, rounds, fraction, engine, device, memory
        As in `run`; all runs share them.
    methods
        The methods, with their parameters in parentheses: "fedavg,qfedavg(q=1),my_module:Mine(share=0.3)", or a
        list of such and of classes.
    baseline
        The one that the others are compared with; by default FedAvg, or the first.
    seeds
        The number of seeds.
    seed
        The first seed; the others count on from there.
    out
        The folder of the tables, the figure and the runs.
    jobs
        The number of runs at a time, each in a process of its own; by default one a processor. They share the
        processors, and the numbers do not depend on it.
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
    options = _options(task, data_dir, model, clients, partition, rounds, fraction, engine, device, memory)
    config = merge_settings(options, settings or {})
    named = [methods] if isinstance(methods, str | type) else methods
    among = variants(map(name_of, named), config)
    if seeds < 1:
        raise SettingsError(f"seeds = {seeds}: a comparison takes at least one")
    chosen = baseline_of(name_of(baseline) if baseline else "", among)
    at_a_time = jobs or processors_here()
    with progress_bar("runs done", shown=progress) as bar:
        shown = bar.add_task("comparing", total=len(among) * seeds)
        return compare_variants(
            config, among, chosen, range(seed, seed + seeds), Path(out), at_a_time, lambda: bar.advance(shown)
        )


def merge_settings(options: Mapping[str, Value | None], settings: Mapping[str, Value]) -> dict[str, Value]:
    """Return the settings of the options that were given and of the other settings.

    Raises
    ------
    SettingsError
        When a setting is given two values.
    """
    config = {key: value for key, value in options.items() if value is not None}
    for key, value in settings.items():
        if key in config and config[key] != value:
            raise SettingsError(f"{key} is given two values, {config[key]!r} and {value!r}: give it one")
        config[key] = value
    return config


def _options(
    task: str | None,
    data_dir: str | os.PathLike[str] | None,
    model: str | None,
    clients: int | None,
    partition: str | None,
    rounds: int | None,
    fraction: float | None,
    engine: str | None,
    device: str | None,
    memory: float | None,
) -> dict[str, Value | None]:
    """Return the settings of the options that runs and comparisons have in common."""
    return {
        "task": task,
        "data-dir": None if data_dir is None else os.fspath(data_dir),
        "model": model,
        "clients": clients,
        "partition": partition,
        "num-rounds": rounds,
        "fraction": fraction,
        "engine": engine,
        "device": device,
        "memory": memory,
    }
