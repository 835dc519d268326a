"""Print the honest clients' accuracy by method, attack and defence as CSV.

One client is hostile; it was not chosen for its data. A row has the mean accuracy of the honest
clients and the accuracy of the worst one, each with its 95 % interval over the seeds.
"""

import argparse
import csv
import logging
import sys
import tempfile
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t

import fairbloom
from fairbloom.errors import FairbloomError
from fairbloom.protocol.parameters import parsed

HOSTILE = {
    "rotated": "client-1",
    "iid": "client-1",
    "fashion": "client-1",
    "hospitals": "hungarian",
    "adult": "phd",
}
PLAIN: Mapping[str, Any] = {
    "fraction": 1.0,
    "batch-size": 32,
    "learning-rate": 0.05,
    "evaluate-every": 1,
}
DATA: Mapping[str, Mapping[str, Any]] = {
    "rotated": {
        "task": "digits",
        "clients": 8,
        "partition": "iid",
        "digits.rotated-clients": 1,
        **PLAIN,
    },
    "iid": {
        "task": "digits",
        "clients": 4,
        "partition": "iid",
        "digits.rotated-clients": 0,
        **PLAIN,
    },
    "fashion": {"task": "fashion-mnist", "clients": 8, "partition": "dirichlet", **PLAIN},
    "hospitals": {"task": "heart-disease", **PLAIN},
    "adult": {"task": "adult", **PLAIN, "batch-size": 10, "learning-rate": 0.1},
}
METHODS = ("fedavg", "qfedavg", "afl", "term", "fedmgda", "fedmgdaplus", "fedfv")
ATTACKS = {
    "none": 0.0,
    "sign-flip": 0.5,
    "alie": 0.0,
    "loss": 5.0,
    "scale": 10.0,
    "ipm": 2.0,
    "label-flip": 0.0,
}
DEFENCES = ("none", "clip", "nnm")
COLUMNS = ("data", "method", "attack", "defence", "mean", "±", "worst", "±", "why not")


def measure(
    data: str,
    method: str,
    attack: str,
    defence: str,
    rounds: int,
    seed: int,
    more: Mapping[str, Any],
) -> tuple[float, ...]:
    """Return the mean and the worst accuracy of the honest clients."""
    settings = {**DATA[data], "defence": defence, **more}
    if attack != "none":
        settings |= {
            "attack": attack,
            "attackers": HOSTILE[data],
            "attack-strength": ATTACKS[attack],
        }
    with tempfile.TemporaryDirectory() as folder:
        named = {"task": settings.pop("task"), "method": method, "rounds": rounds, "seed": seed}
        run = fairbloom.run(**named, out=Path(folder, "run"), progress=False, settings=settings)
        final = [value for name, value in run.final().items() if name != HOSTILE[data]]
    return float(np.mean(final)), min(final)


def row_of(
    cell: tuple[str, str, str, str], rounds: int, seeds: int, more: Mapping[str, Any]
) -> list[object]:
    """Return a row of the table; for a refused combination it has the reason."""
    try:
        found = np.array([measure(*cell, rounds, seed, more) for seed in range(1, seeds + 1)])
    except FairbloomError as error:
        return [*cell, *[""] * 4, str(error)]
    half = np.full(2, np.nan)
    if seeds > 1:
        half = t.ppf(0.975, seeds - 1) * found.std(axis=0, ddof=1) / np.sqrt(seeds)
    numbers = [
        f"{value:.1f}" if np.isfinite(value) else ""
        for value in (found[:, 0].mean(), half[0], found[:, 1].mean(), half[1])
    ]
    return [*cell, *numbers, ""]


def main() -> None:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="rotated", help=", ".join(DATA))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--attacks", default=",".join(ATTACKS))
    parser.add_argument("--defences", default=",".join(DEFENCES))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[])
    chosen = parser.parse_args()
    more = {key: parsed(value) for key, _, value in (each.partition("=") for each in chosen.set)}
    logging.disable(logging.WARNING)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(COLUMNS)
    lists = (
        each.split(",") for each in (chosen.data, chosen.methods, chosen.attacks, chosen.defences)
    )
    for cell in product(*lists):
        writer.writerow(row_of(cell, chosen.rounds, chosen.seeds, more))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
