"""A simulated round: ours in process, a hand-written PyTorch loop, and the same app under `flwr run` (Ray).

All sides are measured in this one run, on the same data and models; prints seconds a round (median after the first)
and how many times as long the others take.
"""

import argparse
import copy
import csv
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader, TensorDataset

from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from fairbloom.tasks import load_task

from .flower import flower

SMALL: dict[str, Any] = {"clients": 20, "fraction": 0.5, "partition": "iid", "evaluate-every": 0, "device": "cpu"}
CASES: dict[str, dict[str, Any]] = {
    "logistic, 10 of 20 clients, batch 10": SMALL,
    "logistic, 100 of 100 clients, full batch": SMALL | {"clients": 100, "fraction": 1.0, "batch-size": 0},
    "MLP 64-200-200-10, 10 of 20 clients, batch 10": SMALL | {"model": "mlp"},
}


def main() -> None:
    """Measure all cases and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    table = Table(title=f"seconds a round, median of rounds 2 to {rounds}")
    for heading in ("case", "in process", "plain loop", "ratio", "flwr run", "ratio"):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for name, case in CASES.items():
        with tempfile.TemporaryDirectory() as scratch:
            settings = Settings.of({**case, "num-rounds": rounds, "out": f"{scratch}/loop"})
            ours = seconds_a_round(simulate(settings))
            plain = plain_loop(settings)
            ray = seconds_a_round(under_ray(settings, Path(scratch)))
        row = [f"{seconds:.4f}" for seconds in (ours, plain, ray)]
        table.add_row(name, row[0], row[1], f"{plain / ours:.1f} ×", row[2], f"{ray / ours:.1f} ×")
    Console().print(table)


def seconds_a_round(folder: Path) -> float:
    """Return the median seconds of a run's rounds after the first."""
    with (folder / "rounds.csv").open(newline="") as file:
        return statistics.median(float(row["seconds"]) for row in list(csv.DictReader(file))[1:])


def under_ray(settings: Settings, scratch: Path) -> Path:
    """Run the app under `flwr run` with a client a node; return the run folder."""
    config = settings.run_config() | {"out": str(scratch / "ray")}
    with flower(scratch / "home") as runtime:
        status = runtime.run("local", config, f"num-supernodes={settings.clients} client-resources-num-cpus=1")
    if status != "finished:completed":
        raise RuntimeError(f"flwr run ended as {status}")
    return scratch / "ray"


def plain_loop(settings: Settings) -> float:
    """Return the median seconds a round of the loop that a tutorial would write: DataLoader, optimizer, mean."""
    task = load_task(settings.run_config())
    model = task.model()
    drawn = task.clients[: max(1, round(settings.fraction * settings.clients))]
    data = {name: TensorDataset(*task.splits(name).train[:]) for name in drawn}
    seconds = []
    for _ in range(settings.num_rounds):
        started = time.perf_counter()
        received = copy.deepcopy(model.state_dict())
        total = {name: torch.zeros_like(array) for name, array in received.items()}
        examples = sum(len(part) for part in data.values())
        for part in data.values():
            model.load_state_dict(received)
            optimizer = torch.optim.SGD(model.parameters(), lr=settings.learning_rate)
            for inputs, targets in DataLoader(part, batch_size=settings.batch_size or len(part), shuffle=True):
                optimizer.zero_grad()
                task.loss(model(inputs), targets).mean().backward()
                optimizer.step()
            for name, array in model.state_dict().items():
                total[name] += array * (len(part) / examples)
        model.load_state_dict(total)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:])


if __name__ == "__main__":
    main()
