"""What a hostile client costs, and what helps: the table on docs/nodes-trust.md.

`python -m benchmarks.hostile` trains the methods on digits with a client that replies something
else than it has trained, and writes docs/data/hostile.csv. A cell has the mean accuracy of the
other clients in percent, with half of its 95 % interval over three seeds, and the accuracy of the
worst served of them. With --quick there is one seed of two rounds, and nothing is written.
"""

import logging
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch
from scipy.stats import t

from docs.apps.more_methods import Mixed, mix
from fairbloom.experiments.results.run import Run, load
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.arrays import FloatArray
from fairbloom.rounds.clients import TrainReplies
from fairbloom.rounds.cohort import Cohort
from fairbloom.rounds.method import Method
from fairbloom.server.app import federate
from fairbloom.server.settings import Settings
from fairbloom.simulation.clients import StoredReply
from fairbloom.simulation.stacked.clients import StackedClients
from fairbloom.strategies import FedMGDAPlus

from .tables import parser_of, print_row, write_csv

FILE = Path("docs/data/hostile.csv")
SEEDS = 3

# The hostile client, with data like those of most others.
HOSTILE = "client-1"

PLAIN: Mapping[str, Any] = {
    "task": "digits",
    "partition": "iid",
    "fraction": 1.0,
    "batch-size": 32,
    "learning-rate": 0.05,
    "evaluate-every": 0,
    "device": "cpu",
}

# Four clients with data alike, or eight, of which one has rotated images.
FEDERATIONS: Mapping[str, Mapping[str, Any]] = {
    "alike": {**PLAIN, "clients": 4, "num-rounds": 50},
    "one rotated": {**PLAIN, "clients": 8, "num-rounds": 20, "digits.rotated-clients": 1},
}


class MixedPlus(FedMGDAPlus):
    """FedMGDA+ of mixed updates."""

    def weigh(self, cohort: Cohort) -> FloatArray:
        """Return the coefficients of the updates."""
        mixed, shares = mix(cohort)
        return np.asarray(super().weigh(mixed) @ shares)


METHODS: Mapping[str, str] = {
    "FedAvg": "fedavg",
    "Krum (TorchJD)": "torchjd:krum",
    "q-FedAvg (q=1)": "qfedavg",
    "FedMGDA": "fedmgda",
    "FedMGDA+": "fedmgdaplus",
    "FedMGDA+, mixed": f"benchmarks.hostile:{MixedPlus.__name__}",
    "FedFV": "fedfv",
    "FedFV, mixed": f"{Mixed.__module__}:{Mixed.__name__}",
}

# From the received and the trained model, as flat vectors, what the hostile client replies.
Lie = Callable[[FloatArray, FloatArray], FloatArray]


def drown_in_noise(received: FloatArray, trained: FloatArray) -> FloatArray:
    """Return the received model with noise of its length, drawn anew for each model."""
    noise = np.random.default_rng(crc32(received.tobytes())).normal(size=received.shape)
    return received + noise * (np.linalg.norm(received) / np.linalg.norm(noise))


REPLIES: Mapping[str, Lie] = {
    "nobody": lambda received, trained: trained,
    "minus half its update": lambda received, trained: received - 0.5 * (trained - received),
    "what it received": lambda received, trained: received,
    "twice the model": lambda received, trained: 2.0 * received,
    "noise": drown_in_noise,
}

# False reports, which are settings of a run.
REPORTS: Mapping[str, Mapping[str, Any]] = {
    "loss + 1": {"attack": "loss", "attackers": HOSTILE},
    "10 × loss and update": {"attack": "loss-scale", "attackers": HOSTILE},
}


class LyingClients(StackedClients):
    """Clients in this process, one of which does not reply what it has trained."""

    def __init__(self, method: Method, settings: Settings, lie: Lie) -> None:
        super().__init__(method, settings, block=settings.clients)
        self._lie = lie

    def collect(
        self, trained: TrainReplies, replies: Mapping[str, StoredReply], terms: Terms
    ) -> None:
        """Change the model in its reply; see the base class."""
        updates = trained.updates
        row = replies[HOSTILE].row
        updates.matrix[row] = self._lie(updates.layout.flat, updates.matrix[row])
        super().collect(trained, replies, terms)


def attacked(config: Mapping[str, Any], attack: str, out: Path) -> Run:
    """Return a run in which the hostile client attacks."""
    lie = REPLIES.get(attack, REPLIES["nobody"])
    settings = Settings.of({**config, **REPORTS.get(attack, {}), "out": str(out)})
    return load(federate(settings, lambda method: LyingClients(method, settings, lie)))


def final_of(config: Mapping[str, Any], attack: str) -> dict[str, float]:
    """Return the final accuracies of the other clients."""
    with tempfile.TemporaryDirectory() as folder:
        final = attacked(config, attack, Path(folder, "run")).final()
    return {name: score for name, score in final.items() if name != HOSTILE}


def cell_of(config: Mapping[str, Any], attack: str, seeds: int = SEEDS) -> str:
    """Return the mean over the other clients with its half interval, and the worst of them."""
    finals = [final_of({**config, "seed": seed}, attack) for seed in range(1, seeds + 1)]
    means = [statistics.fmean(final.values()) for final in finals]
    worst = statistics.fmean(min(final.values()) for final in finals)
    if seeds == 1:
        return f"{means[0]:.1f} / {worst:.1f}"
    half = t.ppf(0.975, seeds - 1) * statistics.stdev(means) / seeds**0.5
    return f"{statistics.fmean(means):.1f} ± {half:.1f} / {worst:.1f}"


def main() -> None:
    """Train, and write the table."""
    parser = parser_of(__doc__)
    parser.add_argument("--quick", action="store_true", help="two rounds, one seed, no file")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)  # rounds warn of a client that takes no step
    rows = []
    for federation, settings in FEDERATIONS.items():
        for title, method in METHODS.items():
            row = {"clients": federation, "method": title}
            config = {**settings, "method": method}
            if quick:
                config["num-rounds"] = 2
            for attack in (*REPLIES, *REPORTS):
                row[attack] = cell_of(config, attack, 1 if quick else SEEDS)
            print_row(row)
            rows.append(row)
    if quick:
        write_csv(sys.stdout, rows)
        return
    with FILE.open("w", newline="") as file:
        write_csv(file, rows)


if __name__ == "__main__":
    main()
