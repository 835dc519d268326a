"""Comparisons and runs as `fairbloom compare` and `fairbloom run` leave them, with made-up
numbers."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fairbloom.experiments.arms import Arm
from fairbloom.experiments.study import Study
from fairbloom.protocol.scores import ACCURACY, Score
from fairbloom.server.fairness import summarize
from fairbloom.server.run_folder.csv_rows import ClientRows, round_columns
from fairbloom.server.run_folder.files import (
    CLIENTS,
    CONFIG,
    ENVIRONMENT,
    MODEL,
    ROUNDS,
    SCORES,
    SPLIT,
)
from fairbloom.server.run_folder.tables import format_csv
from fairbloom.server.run_folder.values import RecordedSettings
from fairbloom.server.settings import default_config
from fairbloom.strategies import find_method
from fairbloom.tasks.split import Split


def make_comparison(
    folder: Path,
    methods: Sequence[str],
    seeds: Sequence[int],
    clients: Sequence[str],
    rounds: int,
    *,
    score: Score = ACCURACY,
    personal: Sequence[str] = (),
    dealt: bool = True,
) -> None:
    """Write a comparison of finished runs as `fairbloom compare` leaves it, with made-up numbers.

    Parameters
    ----------
    folder
        Where it is written.
    methods, seeds
        Each method has a run with each seed; the first is the baseline.
    clients, rounds
        The names of the clients, all of which are evaluated after every round, and the number of
        rounds.
    score
        What clients measure.
    personal
        Those of the methods that have personal models.
    dealt
        Whether the data are dealt to the clients, so that run folders have a split.
    """
    arms = [Arm(find_method(method).__name__, method) for method in methods]
    study = Study("compare", arms, list(seeds), arms[0].label)
    for number, arm in enumerate(arms):
        for seed in seeds:
            make_run(
                folder / study.folder(arm, seed),
                arm.method,
                seed,
                clients,
                rounds,
                np.random.default_rng([number, seed]),
                score,
                arm.method in personal,
                dealt,
            )
    study.write(folder)


def make_run(
    folder: Path,
    method: str,
    seed: int,
    clients: Sequence[str],
    rounds: int,
    draws: np.random.Generator,
    score: Score = ACCURACY,
    personal: bool = False,
    dealt: bool = True,
) -> None:
    """Write the folder of a finished run with made-up numbers; see `make_comparison`."""
    folder.mkdir(parents=True)
    task = {
        "task": "digits" if dealt else "csv",
        "method": method,
        "seed": seed,
        "num-rounds": rounds,
    }
    CONFIG.write(folder, RecordedSettings({**default_config(), **task, "clients": len(clients)}))
    ENVIRONMENT.write(folder, {"python": "3.13.0", "fairbloom": "0.1.0", "torch": "2.9.0"})
    SCORES.write(folder, [score])
    scale = 100.0 if score.percent else 1.0
    ceilings = draws.uniform(0.4, 0.95, len(clients))
    client_rows = []
    round_rows = []
    for number in range(1, rounds + 1):
        values = scale * np.clip(
            ceilings * (1 - np.exp(-number / 15)) + draws.normal(0, 0.02, len(clients)), 0, 1
        )
        drawn = draws.random(len(clients)) < 0.5
        for i, client in enumerate(clients):
            row = {
                "round": number,
                "client": client,
                "participated": int(drawn[i]),
                "test_examples": 37,
            }
            row |= {score.column(): values[i], "test_loss_of_global_model": 1.0 - values[i] / scale}
            row |= {"train_loss_before_round": draws.random()} if drawn[i] else {}
            row |= {score.column("personal"): min(scale, 1.1 * values[i])} if personal else {}
            client_rows.append(row)
        spread = summarize(
            dict(zip(clients, values.tolist(), strict=True)),
            lower_is_better=not score.higher_is_better,
        )
        count = int(drawn.sum())
        round_rows.append(
            {
                "round": number,
                "participants": count,
                "replies_used": count,
                "seconds": round(draws.random(), 6),
                "bytes_sent": 8192 * len(clients),
                "bytes_received": 8192 * count,
            }
            | {f"{score.column()}_{measure}": value for measure, value in spread.items()}
        )
    ROUNDS.path_in(folder).write_text(
        format_csv(round_columns(find_method(method)(), score), round_rows), encoding="utf-8"
    )
    CLIENTS.path_in(folder).write_text(
        format_csv(ClientRows([score]).columns, client_rows), encoding="utf-8"
    )
    if dealt:
        examples = 45 * len(clients)
        owner = np.arange(examples) % len(clients)
        part = (draws.random(examples) < 0.2).astype(np.uint8)
        label = draws.integers(0, 10, examples)
        SPLIT.write(
            folder, Split(tuple(clients), owner.astype(np.int32), part, np.arange(examples), label)
        )
    MODEL.write(folder, {"weight": draws.normal(size=(2, 2)).astype(np.float32)}, {"round": rounds})
