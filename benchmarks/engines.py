"""The engines against each other and against a plain PyTorch loop, on small and large models.

A round's seconds are those of a whole run from its first row to its end: records, checkpoints and the evaluation of all
clients after the last round included. All sides are measured in turn, again and again, in this one process; the plain
loop has PyTorch's own number of threads. A ratio is taken repeat by repeat: both sides then meet the same machine.
"""

import argparse
from collections.abc import Iterator, Mapping

from fairbloom.server.settings import Settings

from .measuring import Cells, InProcess, Measured, Report, Side, in_turn, parser_of, times
from .plain import plain_loop
from .workloads import WORKLOADS

PLAIN = "plain"
ENGINES = ("loop", "stacked", "workers", "auto")
EVALUATED = {"training only": 0, "with the evaluation of all clients every round": 1}


def main() -> None:
    """Measure the chosen workloads by the chosen engines, and print a table for rounds without evaluation and with."""
    parser = parser_of(__doc__)
    parser.add_argument("--workloads", nargs="+", choices=[*WORKLOADS], default=[*WORKLOADS], metavar="NAME")
    parser.add_argument("--engines", nargs="+", default=ENGINES, metavar="NAME")
    parser.add_argument("--seconds", type=float, default=3.0, help="about how long one run is to last")
    parser.add_argument("--repeats", type=int, default=5, help="how often each side is measured")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.seconds, chosen.repeats = 1.0, 2
    report = Report(chosen)
    for what, every in EVALUATED.items():
        rows: list[Cells] = []
        notes: dict[str, None] = {}
        for name in chosen.workloads:
            engines = {engine: InProcess(engine) for engine in chosen.engines}
            settings = WORKLOADS[name].settings(evaluate_every=every)
            found, refused = measured(engines, settings, chosen)
            for row in compared(name, engines, found, refused, notes):
                report.tell(row)
                rows.append(row)
        report.add(f"A simulated round, {what}", rows, list(notes))


def measured(
    engines: Mapping[str, InProcess], settings: Settings, chosen: argparse.Namespace
) -> tuple[dict[str, Measured], dict[str, str]]:
    """Measure the plain loop and all engines; return what each took, and why some cannot."""
    sides: dict[str, Side] = {PLAIN: plain_loop, **engines}
    return in_turn(sides, settings, seconds=chosen.seconds, repeats=chosen.repeats)


def compared(
    workload: str,
    engines: Mapping[str, InProcess],
    found: Mapping[str, Measured],
    refused: Mapping[str, str],
    notes: dict[str, None],
) -> Iterator[Cells]:
    """Yield a row of each side: its seconds, its ratios to the plain loop and to the best engine, and what computed."""
    best = min((found[engine] for engine in engines if engine in found), key=lambda each: each.median, default=None)
    for side in (PLAIN, *engines):
        row: dict[str, Measured | str] = {"workload": workload, "by": side}
        if side in refused:
            notes[f"{workload}, {side}: {refused[side]}"] = None
            yield {**row, "a round": "–"}
            continue
        row["a round"] = found[side]
        if side in engines:
            row["times as fast as the plain loop"] = times(found[PLAIN], found[side])
        if side in engines and best is not None:
            row["as the best engine"] = times(best, found[side])
            row["computed by"] = computed_by(engines[side].choice)
            if engines[side].choice.get("engine", side) != side:  # auto, or one that this workload has no use for
                notes[f"{workload}, {side}: {engines[side].choice['reason']}"] = None
        yield row


def computed_by(choice: Mapping[str, object]) -> str:
    """Return in short which engine a run has recorded, with its processes."""
    words, processes = str(choice.get("engine", "")), choice.get("workers", 1)
    return words if processes == 1 else f"{words}, {processes} processes"


if __name__ == "__main__":
    main()
