"""What privacy accounts cost: the time of a step, and how well clients are served at each ε.

`python -m benchmarks.private cost` compares a client's private step with its ordinary one, both of
all rows, in one process with one thread. `python -m benchmarks.private served` trains all methods
that accounts allow, with accounts in one process, and writes docs/data/private.csv: the mean of the
exact test accuracies over clients and over the worst tenth of them. `python -m benchmarks.private
spent` shows what `privacy.spend` buys, and `clients` who pays, client by client, in
docs/data/private-clients.csv. FAIRBLOOM_DATA names the folder of the federations.
"""

import csv
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas
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

from .federations.prepare import HERE, draw, folder_of_tables, states_of

METHODS = (
    *("fedavg", "fedprox", "fedavgn", "fedmgda", "fedmgdaplus", "mgdaprox", "scaffold", "feddyn"),
    *("qfedavg", "qfedsgd", "term", "afl", "deltafl", "vred", "semivred", "gifair", "fedfv"),
    *("fedmdfg", "fedlf", "adafed", "aaggff", "fedpw", "fairmoo"),
)
EPSILONS = ("", "8", "3", "1")
RATES = (0.3, 1.0, 3.0)
ROUNDS = 30
TUNED = (100, 101)
SEEDS = range(4)
FOLDER = Path("runs/private")

# A plausible center and scale of each number, by federation: from no row of a client.
STATED: Mapping[str, Mapping[str, tuple[float, float]]] = {
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


def digits(folder: Path) -> Path:
    """Write 20 clients' tables of digits, three of them turned by 90 degrees; return the schema."""
    images, targets = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(targets))
    for number, rows in enumerate(np.array_split(order, 20)):
        turned = np.rot90(images[rows].reshape(-1, 8, 8), axes=(1, 2)).reshape(-1, 64)
        table = pandas.DataFrame(turned if number < 3 else images[rows], dtype=int)
        table.columns = [f"pixel{place}" for place in range(64)]
        table["digit"] = [f"d{target}" for target in targets[rows]]
        table.to_csv(folder / "clients" / f"client-{number:02d}.csv", index=False)
    lines = ['target = "digit"', "[fields.digit]", 'type = "string"']
    lines.append(f"categories = {[f'd{number}' for number in range(10)]}")
    for place in range(64):
        lines += [f"[fields.pixel{place}]", 'type = "number"', "center = 8.0", "scale = 5.0"]
    return write_schema(folder, lines)


def acs_income(folder: Path, states: int = 20, rows: int = 300) -> Path:
    """Write a sample of the first states of acs-income; return the schema."""
    schema = folder / "drawn.toml"
    draw(states_of(folder_of_tables())[:states], folder / "clients", schema)
    for path in (folder / "clients").iterdir():
        pandas.read_parquet(path).head(rows).to_parquet(path)
    return write_schema(folder, state(schema, "acs-income"))


def districts(folder: Path, name: str, clients: int) -> Path:
    """Write the tables of a federation's first clients; return the schema."""
    table = pandas.read_csv(folder_of_tables() / f"{name}.csv", dtype=str, keep_default_na=False)
    for client, rows in list(table.groupby("district"))[:clients]:
        ours = rows.drop(columns=["district", "school", "score"], errors="ignore")
        ours.to_csv(folder / "clients" / f"{client}.csv", index=False)
    return write_schema(folder, state(HERE / f"{name}.toml", name))


def state(schema: Path, name: str) -> Iterator[str]:
    """Yield a schema's lines with centers and scales, and without what an account refuses."""
    field = ""
    for line in schema.read_text().splitlines():
        if line.startswith(("groups", "client", "ignore")):
            continue
        yield line
        if line.startswith("[fields."):
            field = line.removeprefix("[fields.").removesuffix("]")
        if line == 'type = "number"':
            center, scale = STATED[name][field]
            yield f"center = {center}"
            yield f"scale = {scale}"


def write_schema(folder: Path, lines: Iterator[str] | Sequence[str]) -> Path:
    """Write a schema's lines; return its path."""
    path = folder / "schema.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def federation(name: str) -> dict[str, Any]:
    """Return the settings that read a federation, which is written once."""
    folder = FOLDER / name
    schema = folder / "schema.toml"
    if not schema.exists():
        (folder / "clients").mkdir(parents=True, exist_ok=True)
        make = {"digits": digits, "acs-income": acs_income}.get(name)
        if make is None:
            districts(folder, name, 60)
        else:
            make(folder)
    return {"task": "csv", "data-dir": str(folder / "clients"), "schema": str(schema)}


FEDERATIONS = ("digits", "acs-income", "contraception", "chem97")


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


def tune(name: str, epsilon: str) -> float:
    """Return FedAvg's best learning rate at an ε, on seeds that no table has."""

    def score(rate: float) -> float:
        runs = [train(name, "fedavg", epsilon, rate, seed) for seed in TUNED]
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


def spend() -> None:
    """Compare the lowest price with that of all units, for a method with losses and one without."""
    rows = list[list[str]]()
    for name in FEDERATIONS:
        for method in ("fedavg", "term"):
            for epsilon in ("3", "1"):
                rate = tune(name, epsilon)
                cells = [
                    mean_of(
                        *(
                            train(name, method, epsilon, rate, seed, **{"privacy.spend": spent})
                            for seed in SEEDS
                        )
                    )
                    for spent in ("", "all")
                ]
                rows.append([name, method, epsilon, *cells])
                print(*rows[-1], flush=True)
    write_table(
        "private-spend", ["federation", "method", "ε", "the lowest price", "all units"], rows
    )


def compare_clients(epsilon: str = "3") -> None:
    """Write each client's accuracy alone, and with the others: without noise and at an ε."""
    rows = list[list[str]]()
    for name in ("digits", "acs-income"):
        ways = {
            "alone": ("local", "", tune(name, "")),
            "fedavg, no noise": ("fedavg", "", tune(name, "")),
            f"fedavg, ε = {epsilon}": ("fedavg", epsilon, tune(name, epsilon)),
            f"term, ε = {epsilon}": ("term", epsilon, tune(name, epsilon)),
        }
        for way, (method, at, rate) in ways.items():
            found = pandas.DataFrame([train(name, method, at, rate, seed) for seed in SEEDS])
            rows += [[name, client, way, f"{mean:.1f}"] for client, mean in found.mean().items()]
    write_table("private-clients", ["federation", "client", "trained", "accuracy"], rows)


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
            spend()
        case ["clients"]:
            compare_clients()
        case ["served", *names]:
            serve(names or FEDERATIONS)
