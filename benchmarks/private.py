"""What privacy accounts cost: the time of a step, and how well clients are served at each ε.

`python -m benchmarks.private cost` compares a client's private step with its ordinary one, both of
all rows, in one process with one thread. `python -m benchmarks.private served` trains all methods
that accounts allow, with accounts in one process, and writes docs/data/private-*.csv: the mean test
accuracy over clients and that of the worst tenth. FAIRBLOOM_DATA names the folder of acs-income.
"""

import csv
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas
import torch

import fairbloom
from fairbloom.client.local import LocalClient
from fairbloom.client.local_round import train_client
from fairbloom.client.private.budget import Budget
from fairbloom.client.private.mechanism import Mechanism, Training
from fairbloom.client.private.noise import draw_noise
from fairbloom.protocol.terms import Terms
from fairbloom.server.settings import Settings

from .federations.prepare import draw, folder_of_tables, states_of

METHODS = (
    *("fedavg", "fedprox", "fedavgn", "fedmgda", "fedmgdaplus", "mgdaprox", "scaffold", "feddyn"),
    *("qfedavg", "qfedsgd", "term", "afl", "deltafl", "vred", "semivred", "gifair", "fedfv"),
    *("fedmdfg", "fedlf", "adafed", "aaggff", "fedpw", "fairmoo"),
)
EPSILONS = ("", "8", "3", "1")
RATES = (0.3, 1.0, 3.0)
ROUNDS = 30


def cost(model: str, clients: int, repeats: int = 5) -> tuple[float, float]:
    """Return the milliseconds of an ordinary step of all rows, and of a private one.

    Each is the least of five measurements of 20 steps.
    """
    config = {"model": model, "clients": clients, "batch-size": 0, "local-epochs": 20}
    settings = Settings.of({**config, "device": "cpu"})
    client = LocalClient.of(settings.run_config(), 1)
    received = {name: each.clone() for name, each in client.model.state_dict().items()}
    terms = Terms(server_round=1)
    mechanism = Mechanism(Budget(3.0, 1e-5), draw_noise)
    ordinary, private = list[float](), list[float]()
    for _ in range(repeats + 1):
        started = time.perf_counter()
        train_client(client, received, terms)
        between = time.perf_counter()
        Training(client, received, terms, {}).run(mechanism)
        ordinary.append(between - started)
        private.append(time.perf_counter() - between)
    return min(ordinary[1:]) * 1e3 / 20, min(private[1:]) * 1e3 / 20


def acs_income(folder: Path, states: int = 20, rows: int = 300) -> dict[str, Any]:
    """Write a sample of the first states of acs-income; return the settings that read it."""
    schema = folder / "schema.toml"
    draw(states_of(folder_of_tables())[:states], folder / "states", schema)
    for path in (folder / "states").iterdir():
        pandas.read_parquet(path).head(rows).to_parquet(path)
    lines = schema.read_text().splitlines()
    kept = [line for line in lines if not line.startswith("groups")]
    schema.write_text("\n".join(kept))
    return {"task": "csv", "data-dir": str(folder / "states"), "schema": str(schema)}


def digits() -> dict[str, Any]:
    """Return the settings of 20 clients on digits, three of them with rotated images."""
    return {"clients": 20, "partition": "iid", "digits.rotated-clients": 3}


def train(
    task: Mapping[str, Any], out: Path, method: str, epsilon: str, rate: float, seed: int
) -> tuple[float, float]:
    """Return the mean test accuracy of the final model over clients, and of their worst tenth."""
    private = {"privacy.mode": "simulated", "privacy.epsilon": epsilon} if epsilon else {}
    run = fairbloom.run(
        method=method,
        rounds=ROUNDS,
        seed=seed,
        out=out / f"{method}-{epsilon or 'none'}-{rate:g}-{seed}",
        settings={
            "batch-size": 0,
            "learning-rate": rate,
            "evaluate-every": ROUNDS,
            "device": "cpu",
            **task,
            **private,
        },
        progress=False,
    )
    scores = sorted(run.final().values())
    return statistics.fmean(scores), statistics.fmean(scores[:2])


def serve(task: Mapping[str, Any], name: str, seeds: int = 8) -> None:
    """Train each method at each ε, and write the table.

    The learning rate is FedAvg's best at that ε on three other seeds.
    """
    out = Path("runs/private", name)
    cells: dict[str, list[str]] = {method: [method] for method in METHODS}
    for epsilon in EPSILONS:
        tried = {
            rate: statistics.fmean(
                train(task, out, "fedavg", epsilon, rate, seed)[0] for seed in (100, 101, 102)
            )
            for rate in RATES
        }
        rate = max(tried, key=tried.__getitem__)
        for method, row in cells.items():
            found = [train(task, out, method, epsilon, rate, seed) for seed in range(seeds)]
            mean, worst = (statistics.fmean(each) for each in zip(*found, strict=True))
            row.append(f"{mean:.1f} / {worst:.1f}")
            print(method, epsilon or "none", rate, row[-1], flush=True)
    with Path("docs/data", f"private-{name}.csv").open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["method", "none", *(f"ε = {epsilon}" for epsilon in EPSILONS[1:])])
        rows.writerows(cells.values())


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:] == ["cost"]:
        for model, clients in (("logistic", 4), ("mlp", 4), ("cnn", 20)):
            plain, private = cost(model, clients)
            print(f"{model}: {plain:.3f} ms, private {private:.3f} ms: {private / plain:.1f} times")
    else:
        serve(digits(), "digits")
        serve(acs_income(Path("runs/private/states")), "acs-income")
