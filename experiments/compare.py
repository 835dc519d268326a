"""Several methods over several seeds, on the same clients, draws and batches: who gains, who loses."""

import csv
import multiprocessing
import signal
import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from fairbloom.server.checkpoint import write_whole
from fairbloom.server.fairness import summarize
from fairbloom.server.records import ACCURACY, PERSONAL, as_csv, check_folder
from fairbloom.server.settings import Settings, Value

PERSONAL_MODELS = ":personal"

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
        What is run.
    on_run
        Called after each finished run.

    Raises
    ------
    ValueError
        When a setting is impossible or a run folder belongs to other settings; no run is started then.
    """
    settings = {
        (method, seed): Settings.of({**config, "method": method, "seed": seed, "out": str(run_path(out, method, seed))})
        for seed in seeds
        for method in methods
    }
    for run in settings.values():
        check_folder(Path(run.out), run.run_config())
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=jobs, mp_context=context, initializer=end_when_interrupted) as pool:
        runs = {pool.submit(run_quietly, run): key for key, run in settings.items()}
        try:
            for done in as_completed(runs):
                done.result()
                on_run()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in multiprocessing.active_children():
                worker.terminate()  # a run that is cut off continues with the same command
            raise
    accuracies = {}
    for method in methods:
        for name, column in ((method, ACCURACY), (method + PERSONAL_MODELS, PERSONAL)):
            finals = [final_accuracies(run_path(out, method, seed), column) for seed in seeds]
            if all(finals):
                accuracies[name] = finals
    comparison = Comparison(accuracies, baseline="fedavg" if "fedavg" in methods else methods[0])
    write_tables(comparison, seeds, out)
    return comparison


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


def final_accuracies(folder: Path, column: str = ACCURACY) -> Accuracies:
    """Return each client's accuracy in percent after the last round, empty where there is none in `column`."""
    with (folder / "clients.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    last = max((int(row["round"]) for row in rows), default=0)
    return {row["client"]: float(row[column]) for row in rows if int(row["round"]) == last and row[column]}


def write_tables(comparison: Comparison, seeds: Sequence[int], out: Path) -> None:
    """Write comparison.csv, a row a method and seed, and clients.csv, a row a seed and client."""
    rows = [
        {"method": method, "seed": seed, **measures}
        for method in comparison.accuracies
        for seed, measures in zip(seeds, comparison.measures(method), strict=True)
    ]
    write_whole(out / "comparison.csv", as_csv(tuple(rows[0]), rows, header=True).encode())
    clients = [
        {"seed": seed, "client": client, **{m: comparison.accuracies[m][i][client] for m in comparison.accuracies}}
        for i, seed in enumerate(seeds)
        for client in comparison.accuracies[comparison.baseline][i]
    ]
    write_whole(out / "clients.csv", as_csv(tuple(clients[0]), clients, header=True).encode())


def mean_and_deviation(numbers: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the sample standard deviation, 0 of a single number."""
    return statistics.fmean(numbers), statistics.stdev(numbers) if len(numbers) > 1 else 0.0
