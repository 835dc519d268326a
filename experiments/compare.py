"""Several methods over several seeds, on the same clients, draws and batches: who gains, who loses."""

import contextlib
import math
import multiprocessing
import signal
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

from fairbloom.errors import FairbloomError
from fairbloom.server.fairness import summarize
from fairbloom.server.files import RunFolderError, check_place, write_whole, written
from fairbloom.server.lock import alone
from fairbloom.server.records import check_folder, is_finished
from fairbloom.server.rows import ACCURACY, PERSONAL, as_csv, read_table
from fairbloom.server.settings import Settings, SettingsError, Value, check_used
from fairbloom.tasks import check_data

PERSONAL_MODELS = ":personal"
"""What follows a method's name where its personal models are meant: ditto:personal."""

OPTIONS = {"method": "--methods", "seed": "--seeds", "out": "--out"}
"""The settings that differ from run to run of a comparison, and the options that say which values they take."""

Accuracies = Mapping[str, float]
"""Test accuracy of the final global model in percent, by client."""


@dataclass(frozen=True)
class Comparison:
    """The outcome of every method and seed.

    Attributes
    ----------
    accuracies
        By method, one entry a seed; personal models are a method of their own, `ditto:personal`.
    baseline
        The method that the others are compared with.
    """

    accuracies: Mapping[str, Sequence[Accuracies]]
    baseline: str

    def measures(self, method: str) -> list[dict[str, float]]:
        """Return the measures of fairness of each seed."""
        return [summarize(accuracies) for accuracies in self.accuracies[method]]

    def spread(self, method: str, measure: str) -> tuple[float, float]:
        """Return mean and standard deviation over the seeds of one measure."""
        return mean_and_deviation([measures[measure] for measures in self.measures(method)])

    def gain(self, method: str, measure: str) -> tuple[float, float]:
        """Return mean and standard deviation over the seeds of what a measure gains against the baseline's."""
        pairs = zip(self.measures(method), self.measures(self.baseline), strict=True)
        return mean_and_deviation([own[measure] - base[measure] for own, base in pairs])

    def percent_better(self, method: str) -> tuple[float, float]:
        """Return mean and deviation over the seeds of the percentage of clients above their baseline accuracy."""
        pairs = zip(self.accuracies[method], self.accuracies[self.baseline], strict=True)
        return mean_and_deviation([100.0 * sum(own[c] > base[c] for c in base) / len(base) for own, base in pairs])

    @property
    def kindest(self) -> str:
        """The method under which the worst tenth of clients does best."""
        return max(self.accuracies, key=lambda method: self.spread(method, "worst_10")[0])


def compare(
    config: Mapping[str, Value],
    methods: Sequence[str],
    seeds: Sequence[int],
    out: Path,
    jobs: int,
    on_run: Callable[[], None],
) -> Comparison:
    """Run each method with each seed, `jobs` at a time, and write comparison.csv and clients.csv into `out`.

    Runs lie in `out`/runs; those that are finished are not run again, and interrupted ones continue.

    Parameters
    ----------
    config
        The settings that all runs share.
    methods, seeds
        Each of these methods is run with each of these seeds.
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
    check_shared(config)
    runs = {
        (method, seed): Settings.of({**config, "method": method, "seed": seed, "out": str(run_path(out, method, seed))})
        for seed in seeds
        for method in methods
    }
    for run in runs.values():
        check_used(config, methods, run.task)
        check_data(run.run_config())
        check_folder(Path(run.out), run.run_config())
    with held(out):
        run_all(runs, jobs, on_run)
        comparison = Comparison(
            accuracies=final_models(methods, seeds, out), baseline="fedavg" if "fedavg" in methods else methods[0]
        )
        write_tables(comparison, seeds, out)
    return comparison


def check_shared(config: Mapping[str, Value]) -> None:
    """Raise SettingsError when a setting is among those that differ from run to run."""
    for key, value in config.items():
        if key in OPTIONS:
            raise SettingsError(f"{key} = {value!r}: a comparison sets {key} run by run: give {OPTIONS[key]} instead")


@contextlib.contextmanager
def held(out: Path) -> Iterator[None]:
    """Hold the folder of a comparison, which is made if it is not there, and removed again if nothing came into it."""
    check_place(out)
    made = not out.exists()
    try:
        with alone(out, wait=False):
            yield
    finally:
        if made:
            with contextlib.suppress(OSError):
                out.rmdir()


def run_all(runs: Mapping[tuple[str, int], Settings], jobs: int, on_run: Callable[[], None]) -> None:
    """Run everything that is not finished, `jobs` at a time; the first failure ends all."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=jobs, mp_context=context, initializer=end_when_interrupted) as pool:
        started = {}
        for key, run in runs.items():
            if is_finished(Path(run.out)):
                on_run()
            else:
                started[pool.submit(run_quietly, run)] = key
        try:
            for done in as_completed(started):
                method, seed = started[done]
                try:
                    done.result()
                except FairbloomError as error:
                    raise FairbloomError(f"{method} with seed {seed}: {error}") from error
                except BrokenProcessPool as error:
                    raise FairbloomError(
                        "the system has ended the process of a run, as it does when memory runs short: lower --jobs, "
                        "and run the same command again, which continues"
                    ) from error
                on_run()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in multiprocessing.active_children():
                worker.terminate()  # a run that is cut off continues with the same command
            raise


def run_path(out: Path, method: str, seed: int) -> Path:
    """Return the run folder of one method and seed."""
    return out.absolute() / "runs" / f"{method.replace(':', '-')}-seed{seed}"


def end_when_interrupted() -> None:
    """Let Ctrl-C end a worker at once and in silence; the parent says what there is to say."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run_quietly(settings: Settings) -> None:
    """Run in a worker process, without Flower's log lines."""
    import logging

    logging.getLogger("flwr").setLevel(logging.WARNING)
    from fairbloom.simulation.run import simulate

    simulate(settings)


def final_models(methods: Sequence[str], seeds: Sequence[int], out: Path) -> dict[str, list[Accuracies]]:
    """Return the accuracies of each method's final models, seed by seed; personal models are a method of their own.

    Raises
    ------
    RunFolderError
        When a finished run's tables are damaged, or lack a client that other methods have.
    """
    accuracies = {}
    for method in methods:
        folders = [run_path(out, method, seed) for seed in seeds]
        accuracies[method] = [final_accuracies(folder) for folder in folders]
        personal = [final_accuracies(folder, PERSONAL) for folder in folders]
        if all(personal):
            accuracies[method + PERSONAL_MODELS] = personal
    for method, by_seed in accuracies.items():
        for seed, own, others in zip(seeds, by_seed, zip(*accuracies.values(), strict=True), strict=True):
            if lacking := sorted(set().union(*others) - set(own)):
                raise RunFolderError(
                    f"{method} with seed {seed} has no test accuracy of {', '.join(lacking)} after the last round, as "
                    f"other methods have: see what was refused or missing in {run_path(out, method, seed)}/rounds.csv, "
                    "or leave the method out"
                )
    return accuracies


def final_accuracies(folder: Path, column: str = ACCURACY) -> Accuracies:
    """Return each client's accuracy in percent after the last round of a finished run.

    Parameters
    ----------
    folder
        The run folder.
    column
        The column of clients.csv: of the global model, or of personal models, which few methods have: it may be empty.

    Raises
    ------
    RunFolderError
        When a table is missing or damaged, or no client has evaluated the final global model.
    """
    path = folder / "clients.csv"
    rounds = [int(row["round"]) for row in read_table(folder / "rounds.csv", ("round",))]
    rows = [row for row in read_table(path, ("client", column)) if [int(row["round"])] == rounds[-1:]]
    accuracies = {row["client"]: percent(row[column], path) for row in rows if row[column]}
    if not accuracies and column == ACCURACY:
        raise RunFolderError(
            f"{path} has no test accuracy after the last round: {folder}/rounds.csv says in its columns refused and "
            "missing what became of the clients' replies"
        )
    return accuracies


def percent(text: str, path: Path) -> float:
    """Return an accuracy as a table has it; raise RunFolderError where it is none."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value <= 100.0:
        raise RunFolderError(
            f"{path} has {text!r} for an accuracy in percent: restore it from a copy, or run again with another --out"
        )
    return value


def write_tables(comparison: Comparison, seeds: Sequence[int], out: Path) -> None:
    """Write comparison.csv, a row a method and seed, and clients.csv, a row a seed and client."""
    rows = [
        {"method": method, "seed": seed, **measures}
        for method in comparison.accuracies
        for seed, measures in zip(seeds, comparison.measures(method), strict=True)
    ]
    clients = [
        {"seed": seed, "client": client, **{m: comparison.accuracies[m][i][client] for m in comparison.accuracies}}
        for i, seed in enumerate(seeds)
        for client in comparison.accuracies[comparison.baseline][i]
    ]
    with written("the comparison", out):
        write_whole(out / "comparison.csv", as_csv(tuple(rows[0]), rows, header=True).encode())
        write_whole(out / "clients.csv", as_csv(tuple(clients[0]), clients, header=True).encode())


def mean_and_deviation(numbers: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the sample standard deviation, 0 of a single number."""
    return statistics.fmean(numbers), statistics.stdev(numbers) if len(numbers) > 1 else 0.0
