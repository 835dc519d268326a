"""Networks: our engines, a plain PyTorch loop and pfl-research, measured in turn.

cnn is the work of pfl-research's benchmark of CIFAR10 on random images: 1,000 users with 50 images
each, 50 a round, batches of 10, one epoch, its network with dropout. resnet and transformer have
eleven million parameters and ten clients, all in each round, and are not given to pfl-research.

A round's seconds are measured over a whole run after its first round, with records and checkpoints;
one client is evaluated after the last round. Ratios are computed within a repeat, to the plain loop
of the same precision. pfl-research has PyTorch's default, which is TF32 in convolutions of a card.

pfl-research 0.6 is installed once, for Python up to 3.12:

    python -m pip install --no-deps --target runs/pfl -r benchmarks/pfl.txt
"""

import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import torch

from fairbloom.server.settings import Settings

from .card import count_waits, mean_busy
from .measuring import InProcess, Measured, Side, in_turn, rounds_in, times
from .plain import plain_loop
from .research import FOLDER, Research
from .tables import Row, parser_of, print_machine, print_row, print_table
from .workloads import COLOURED, IMAGES, TEXT, WORKLOADS, Workload

PLAIN = "plain"
PFL = "pfl-research"
# How long the card is watched.
BUSY_SECONDS = 20.0

NETWORKS = {
    "cnn": Workload(
        IMAGES,
        "benchmarks.networks:pfl_cnn",
        1000,
        50,
        10,
        {**COLOURED, "images.examples": 50, "learning-rate": 0.1},
    ),
    "resnet": Workload(IMAGES, "resnet18-gn", 10, 10, 20, {**COLOURED, "images.examples": 100}),
    "transformer": Workload(
        TEXT, "benchmarks.networks:Transformer", 10, 10, 20, {"text.examples": 100}
    ),
}


def main() -> None:
    """Measure the chosen networks, and print a table; on a card, a second one of how it is used."""
    parser = parser_of(__doc__, [*NETWORKS], on_devices=True)
    parser.set_defaults(repeats=3)
    parser.add_argument("--engines", nargs="+", metavar="NAME", default=("loop", "stacked"))
    parser.add_argument("--precisions", nargs="+", default=["float32"], metavar="NAME")
    parser.add_argument("--seconds", type=float, default=5.0, help="of a run, without --rounds")
    parser.add_argument(
        "--processes",
        nargs="+",
        type=int,
        default=[1, min(4, os.cpu_count() or 1)],
        help="of pfl-research",
    )
    parser.add_argument("--pfl", type=Path, default=FOLDER, help="where pfl-research is installed")
    chosen = parser.parse_args()
    device = torch.device(chosen.device)
    print_machine(chosen.device)
    engines = {
        f"{engine}, {precision}": InProcess(engine, precision=precision)
        for precision in chosen.precisions
        for engine in chosen.engines
    }
    rows: list[Row] = []
    for name in chosen.workloads:
        sides: dict[str, Side] = {
            f"{PLAIN}, {precision}": partial(plain_in, precision) for precision in chosen.precisions
        }
        if name == "cnn":
            for count in dict.fromkeys(chosen.processes):
                sides[f"{PFL}, processes: {count}"] = Research(count, chosen.pfl)
        found, refused = in_turn(
            sides | engines,
            settings_of(NETWORKS[name], chosen.device),
            repeats=chosen.repeats,
            seconds=chosen.seconds,
            rounds=chosen.rounds,
        )
        for row in compared(engines, found, refused):
            rows.append({"workload": name, **row})
            print_row(rows[-1])
    print_table("A round of networks", rows, as_csv=chosen.csv)
    if device.type == "cuda":
        print_table("The card", rows_of_card(chosen.device), as_csv=chosen.csv)


def plain_in(precision: str, settings: Settings) -> float:
    """Return the seconds per round of the plain loop in a precision."""
    return plain_loop(settings.model_copy(update={"precision": precision}))


def settings_of(workload: Workload, device: str) -> Settings:
    """Return the settings of a run that evaluates one client, after its last round."""
    return workload.settings(
        device=device, evaluate_every=0, fraction_evaluate=1 / workload.clients
    )


def compared(
    engines: Mapping[str, InProcess], found: Mapping[str, Measured], refused: Mapping[str, str]
) -> Iterator[Row]:
    """Yield each side's seconds, and of our engines the ratios to the other sides."""
    research = [each for side, each in found.items() if side.startswith(PFL)]
    best = min(research, key=lambda each: each.median, default=None)
    for side, measured in found.items():
        row: dict[str, object] = {"by": side, "a round": measured}
        if side in engines:
            if plain := found.get(f"{PLAIN}, {side.partition(', ')[2]}"):
                row["times as fast as the plain loop"] = times(plain, measured)
            if research and best is not None:
                row["as pfl-research, one process"] = times(research[0], measured)
                row["as its best"] = times(best, measured)
            row["computed by"] = engines[side].computed_by
        yield row
    for side, reason in refused.items():
        yield {"by": side, "a round": "–", "computed by": reason}


def rows_of_card(device: str) -> Iterator[Row]:
    """Yield how stacked runs of an mlp and of pfl's network use a card."""
    stacked = InProcess("stacked")
    mlp = WORKLOADS["mlp"].settings(device=device, evaluate_every=0, fraction_evaluate=0.01)
    cnn = settings_of(NETWORKS["cnn"], device)
    for name, settings in {"mlp": mlp, "cnn": cnn}.items():
        waits = count_waits(stacked, settings)
        row = {"workload": name, "synchronisations a round": f"{waits:.0f}"}
        if name == "cnn":
            total = rounds_in(BUSY_SECONDS, stacked, settings)
            row["busy"] = mean_busy(stacked, settings.model_copy(update={"num_rounds": total}))
        row["computed by"] = stacked.computed_by
        print_row(row)
        yield row


if __name__ == "__main__":
    main()
