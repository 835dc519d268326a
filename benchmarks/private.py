"""What privacy accounts cost: the time of a step, and how well clients are served at each ε.

`python -m benchmarks.private cost` compares a client's private step with its ordinary one, both of
all rows, in one process with one thread. `python -m benchmarks.private served` trains all methods
that accounts allow, with accounts in one process, and writes docs/data/private.csv: of 20 clients
on digits, three with rotated images, the mean score and that of the worst tenth.
"""

import csv
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

import fairbloom
from fairbloom.client.local import LocalClient
from fairbloom.client.local_round import train_client
from fairbloom.client.private.budget import Budget
from fairbloom.client.private.mechanism import Mechanism, Training
from fairbloom.client.private.noise import draw_noise
from fairbloom.protocol.terms import Terms
from fairbloom.server.settings import Settings

METHODS = (
    *("fedavg", "fedprox", "fedavgn", "fedmgda", "fedmgdaplus", "mgdaprox", "scaffold", "feddyn"),
    *("qfedavg", "qfedsgd", "term", "afl", "deltafl", "vred", "semivred", "gifair", "fedfv"),
    *("fedmdfg", "fedlf", "adafed", "aaggff", "fairmoo"),
)
EPSILONS = ("", "8", "3", "1")
RATES = (0.3, 1.0, 3.0)
ROUNDS = 30
TABLE = Path("docs/data/private.csv")


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


def train(method: str, epsilon: str, rate: float, seed: int) -> tuple[float, float]:
    """Return the mean test accuracy of the final model over clients, and of their worst tenth."""
    private = {"privacy.mode": "simulated", "privacy.epsilon": epsilon} if epsilon else {}
    settings: dict[str, Any] = {
        "batch-size": 0,
        "learning-rate": rate,
        "partition": "iid",
        "digits.rotated-clients": 3,
        "evaluate-every": ROUNDS,
        "device": "cpu",
        **private,
    }
    out = f"runs/private/{method}-{epsilon or 'none'}-{rate:g}-{seed}"
    run = fairbloom.run(
        method=method,
        clients=20,
        rounds=ROUNDS,
        seed=seed,
        out=out,
        settings=settings,
        progress=False,
    )
    scores = sorted(run.final().values())
    return statistics.fmean(scores), statistics.fmean(scores[:2])


def serve(seeds: int = 8) -> None:
    """Train each method at each ε; the learning rate is FedAvg's best at that ε on other seeds."""
    with TABLE.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["method", "epsilon", "learning_rate", "mean", "worst_tenth"])
        for epsilon in EPSILONS:
            tried = {
                rate: statistics.fmean(train("fedavg", epsilon, rate, 100 + k)[0] for k in range(3))
                for rate in RATES
            }
            rate = max(tried, key=tried.__getitem__)
            for method in METHODS:
                try:
                    found = [train(method, epsilon, rate, seed) for seed in range(seeds)]
                except fairbloom.FairbloomError as error:
                    print(f"{method}, ε = {epsilon or 'none'}: {error}", flush=True)
                    continue
                mean, worst = (statistics.fmean(each) for each in zip(*found, strict=True))
                rows.writerow([method, epsilon, rate, f"{mean:.1f}", f"{worst:.1f}"])
                file.flush()
                print(method, epsilon or "none", rate, f"{mean:.1f}", f"{worst:.1f}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:] == ["cost"]:
        for model, clients in (("logistic", 4), ("mlp", 4), ("cnn", 20)):
            plain, private = cost(model, clients)
            print(f"{model}: {plain:.3f} ms, private {private:.3f} ms: {private / plain:.1f} times")
    else:
        serve()
