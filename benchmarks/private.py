"""What privacy accounts cost: the time of a step, and how well clients are served at each ε.

`python -m benchmarks.private cost` compares a client's private step with its ordinary one, both of
all rows, in one process with one thread. `python -m benchmarks.private served` trains all methods
that accounts allow, with accounts in one process, and writes docs/data/private.csv: the mean of the
exact test accuracies over clients and over the worst tenth of them. `python -m benchmarks.private
spent` shows what `privacy.spend` buys, and `clients` who pays, client by client, in
docs/data/private-clients.csv. `python -m benchmarks.private shared` compares noise that clients
share with noise of their own, in docs/data/private-shared.csv. FAIRBLOOM_DATA names the folder of
the federations.
"""

import csv
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import scipy.stats
import tomli_w
import torch
from sklearn.datasets import load_digits

import fairbloom
from fairbloom.client.local import LocalClient
from fairbloom.client.local_round import train_client
from fairbloom.client.private.budget import Budget
from fairbloom.client.private.mechanism import Training
from fairbloom.client.private.noise import draw_noise
from fairbloom.protocol.terms import Terms
from fairbloom.server.settings import Settings

from .federations.prepare import COLUMNS, folder_of_tables, states_of

METHODS = (
    *("fedavg", "fedprox", "fedavgn", "fedmgda", "fedmgdaplus", "mgdaprox", "scaffold", "feddyn"),
    *("qfedavg", "qfedsgd", "term", "afl", "deltafl", "vred", "semivred", "gifair", "fedfv"),
    *("fedmdfg", "fedlf", "adafed", "aaggff", "fedpw", "fairmoo"),
)
EPSILONS = ("", "8", "3", "1")
RATES = (0.3, 1.0, 3.0)
ROUNDS = 30
TUNED = (100, 101)
FOLDER = Path("runs/private")

SEEDS = range(2)

# Runs for intervals, and the numbers of clients that follow the protocol, by federation.
MANY = range(10)
HONEST = {
    "digits": (16, 10),
    "digits-5": (4,),
    "digits-3": (2,),
    "chem97": (24,),
    "contraception": (24,),
}

PIXELS = {f"pixel{place}": (8.0, 5.0) for place in range(64)}

# A plausible center and scale of each number, by federation: from no row of a client.
STATED: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "digits": PIXELS,
    "digits-5": PIXELS,
    "digits-3": PIXELS,
    "acs-income": {"AGEP": (45.0, 15.0), "SCHL": (18.0, 4.0), "WKHP": (40.0, 12.0)},
    "contraception": {"age": (0.0, 10.0)},
    "chem97": {"age": (0.0, 4.0), "gcsescore": (6.0, 1.0)},
}


def cost(model: str, repeats: int = 5) -> tuple[float, float]:
    """Return the milliseconds of an ordinary step of all rows, and of a private one.

    Each is the least of five measurements of 20 steps.
    """
    config = {"model": model, "clients": 4, "batch-size": 0, "local-epochs": 20}
    settings = Settings.of({**config, "device": "cpu"})
    client = LocalClient.of(settings.run_config(), 1)
    received = {name: each.clone() for name, each in client.model.state_dict().items()}
    terms = Terms(server_round=1)
    budget = Budget(3.0, 1e-5)
    ordinary, private = list[float](), list[float]()
    for _ in range(repeats + 1):
        started = time.perf_counter()
        train_client(client, received, terms)
        between = time.perf_counter()
        training = Training(client, received, terms, {})
        training.run(training.mechanism(budget, draw_noise, budget.units))
        ordinary.append(between - started)
        private.append(time.perf_counter() - between)
    return min(ordinary[1:]) * 1e3 / 20, min(private[1:]) * 1e3 / 20


# Federations --------------------------------------------------------------------------------------


def digits(clients: int = 20, turned: int = 3) -> Mapping[str, pandas.DataFrame]:
    """Return clients' tables of 90 digits each, a number of them turned by 90 degrees."""
    images, targets = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(targets))
    found = {}
    for number, rows in enumerate(np.array_split(order, 20)[:clients]):
        sideways = np.rot90(images[rows].reshape(-1, 8, 8), axes=(1, 2)).reshape(-1, 64)
        table = pandas.DataFrame(sideways if number < turned else images[rows], dtype=int)
        table.columns = [*STATED["digits"]]
        table["digit"] = [f"d{target}" for target in targets[rows]]
        found[f"client-{number:02d}"] = table
    return found


def acs_income() -> Mapping[str, pandas.DataFrame]:
    """Return 300 rows of each of the first 20 states."""
    columns = [*COLUMNS, "PINCP"]
    return {
        path.stem: pandas.read_parquet(path)[columns][:300]
        for path in states_of(folder_of_tables())[:20]
    }


def districts(name: str) -> Mapping[str, pandas.DataFrame]:
    """Return the tables of the first 30 districts with at least 20 rows."""
    table = pandas.read_csv(folder_of_tables() / f"{name}.csv", dtype=str, keep_default_na=False)
    by_client = [each for each in table.groupby("district") if len(each[1]) >= 20]
    others = ["district", "school", "score"]
    return {name: rows.drop(columns=others, errors="ignore") for name, rows in by_client[:30]}


FEDERATIONS: Mapping[str, Callable[[], Mapping[str, pandas.DataFrame]]] = {
    "digits": digits,
    "digits-5": lambda: digits(5, 1),
    "digits-3": lambda: digits(3, 1),
    "acs-income": acs_income,
    "contraception": lambda: districts("contraception"),
    "chem97": lambda: districts("chem97"),
}
TARGETS = {
    **{"digits": "digit", "digits-5": "digit", "digits-3": "digit"},
    **{"acs-income": "PINCP", "contraception": "use", "chem97": "high"},
}

# The federations of the tables of all methods.
SERVED = ("digits", "acs-income", "contraception", "chem97")


def federation(name: str) -> dict[str, Any]:
    """Return the settings that read a federation, which is written once."""
    folder = FOLDER / name
    schema = folder / "schema.toml"
    if not schema.exists():
        (folder / "clients").mkdir(parents=True, exist_ok=True)
        tables = FEDERATIONS[name]()
        for client, table in tables.items():
            table.to_csv(folder / "clients" / f"{client}.csv", index=False)
        every = pandas.concat(tables.values()).astype(str)
        fields: dict[str, Any] = {}
        for column in every:
            fields[column] = {"type": "string", "categories": sorted(every[column].unique())}
        for column, (center, scale) in STATED[name].items():
            fields[column] = {"type": "number", "center": center, "scale": scale}
        schema.write_text(tomli_w.dumps({"target": TARGETS[name], "fields": fields}))
    return {"task": "csv", "data-dir": str(folder / "clients"), "schema": str(schema)}


# Runs ---------------------------------------------------------------------------------------------


def train(
    name: str, method: str, epsilon: str, rate: float, seed: int, **more: Any
) -> dict[str, float]:
    """Return the exact test accuracies of a run's final model, by client."""
    private = {"privacy.mode": "simulated", "privacy.epsilon": epsilon, "privacy.spend": "all"}
    words = "-".join(map(str, more.values())).replace(" ", "")
    run = fairbloom.run(
        method=method,
        rounds=ROUNDS,
        seed=seed,
        out=FOLDER / name / "runs" / f"{method}-{epsilon or 'none'}-{rate:g}-{seed}-{words}",
        settings={
            **{"batch-size": 0, "learning-rate": rate, "evaluate-every": ROUNDS, "device": "cpu"},
            **{"fraction": 1.0, "score": "accuracy"},
            **federation(name),
            **(private if epsilon else {}),
            **more,
        },
        progress=False,
    )
    return run.final()


def summarize(scores: Mapping[str, float]) -> tuple[float, float]:
    """Return the mean of scores, and that of the worst tenth."""
    ascending = sorted(scores.values())
    return statistics.fmean(ascending), statistics.fmean(ascending[: -(-len(ascending) // 10)])


def mean_of(*runs: Mapping[str, float]) -> str:
    """Return mean and worst tenth over runs, as a cell of the table."""
    mean, worst = (statistics.fmean(each) for each in zip(*map(summarize, runs), strict=True))
    return f"{mean:.1f} / {worst:.1f}"


def tune(name: str, epsilon: str, **more: Any) -> float:
    """Return FedAvg's best learning rate at an ε, on seeds that no table has."""

    def score(rate: float) -> float:
        runs = [train(name, "fedavg", epsilon, rate, seed, **more) for seed in TUNED]
        return statistics.fmean(summarize(scores)[0] for scores in runs)

    return max(RATES, key=score)


def serve(names: Sequence[str]) -> None:
    """Train each method at each ε, and write the table of a federation."""
    for name in names:
        rates = {epsilon: tune(name, epsilon) for epsilon in EPSILONS}
        rows = list[list[str]]()
        for method in METHODS:
            row = [method]
            for epsilon, rate in rates.items():
                row.append(mean_of(*(train(name, method, epsilon, rate, seed) for seed in SEEDS)))
            rows.append(row)
            print(name, *row, flush=True)
        write_table(f"private-{name}", ["method", "none", "ε = 8", "ε = 3", "ε = 1"], rows)


def compare_prices() -> None:
    """Compare the lowest price with that of all units, for a method with losses and one without."""
    rows = list[list[str]]()
    for name, method, epsilon in itertools.product(SERVED, ("fedavg", "term"), ("3", "1")):
        rate = tune(name, epsilon)
        row = [name, method, epsilon]
        for spent in ("lowest", "all"):
            asked = {"privacy.spend": spent}
            found = [train(name, method, epsilon, rate, seed, **asked) for seed in SEEDS]
            row.append(mean_of(*found))
        rows.append(row)
    write_table("private-spend", ["federation", "method", "ε", "lowest price", "all units"], rows)


def compare_clients() -> None:
    """Write each client's accuracy alone, and with the others: without noise and at ε = 3."""
    rows = list[list[str]]()
    ways = (("local", ""), ("fedavg", ""), ("fedavg", "3"), ("term", "3"))
    for name, (method, epsilon) in itertools.product(("digits", "acs-income"), ways):
        rate = tune(name, epsilon)
        found = pandas.DataFrame([train(name, method, epsilon, rate, seed) for seed in SEEDS])
        way = f"{method}, ε = {epsilon}" if epsilon else method
        rows += [[name, str(client), way, f"{mean:.1f}"] for client, mean in found.mean().items()]
    write_table("private-clients", ["federation", "client", "trained", "accuracy"], rows)


def share(names: Sequence[str]) -> None:
    """Compare noise that clients share with noise of their own, in mean and worst tenth."""
    rows = list[list[str]]()
    for name, epsilon in itertools.product(names, EPSILONS[1:]):
        for honest in (1, *HONEST[name]):
            noise = {"privacy.honest": honest}
            rate = tune(name, epsilon, **noise)
            for method, own in (("fedavg", {}), ("term", {"term.tilt": 2.0})):
                found = [train(name, method, epsilon, rate, seed, **noise, **own) for seed in MANY]
                mean, worst = map(interval, zip(*map(summarize, found), strict=True))
                rows.append([name, epsilon, str(honest), method, mean, worst])
                print(*rows[-1], flush=True)
    write_table(
        "private-shared",
        ["federation", "ε", "h (1: own noise)", "method", "mean, %", "worst tenth, %"],
        rows,
    )


def interval(values: Sequence[float]) -> str:
    """Return the mean of several runs, with its 95 % interval by Student's t."""
    reach = float(scipy.stats.t.ppf(0.975, len(values) - 1)) / len(values) ** 0.5
    return f"{statistics.fmean(values):.1f} ± {reach * statistics.stdev(values):.1f}"


def write_table(name: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write a table of docs/data."""
    with Path("docs/data", f"{name}.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([head, *rows])


if __name__ == "__main__":
    torch.set_num_threads(1)
    match sys.argv[1:]:
        case ["cost"]:
            for model in ("logistic", "mlp"):
                plain, private = cost(model)
                print(
                    f"{model}: {plain:.3f} ms, private {private:.3f}: {private / plain:.1f} times"
                )
        case ["spent"]:
            compare_prices()
        case ["clients"]:
            compare_clients()
        case ["shared", *names]:
            share(names or [*HONEST])
        case ["served", *names]:
            serve(names or SERVED)
