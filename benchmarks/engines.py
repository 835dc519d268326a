"""The engines against each other and against a plain PyTorch loop, on small and large models.

A round's seconds are those of a whole run from its first row to its end: records, checkpoints and the evaluation of all
clients after the last round included. All sides are measured in turn, again and again, in this one process; the plain
loop has PyTorch's own number of threads. A ratio is taken repeat by repeat: both sides then meet the same machine.
"""

from collections.abc import Iterator, Mapping

from .measuring import InProcess, Measured, Side, in_turn, times
from .plain import plain_loop
from .tables import Row, parser_of, print_machine, print_row, print_table
from .workloads import WORKLOADS

PLAIN = "plain"
ENGINES = ("loop", "stacked", "workers", "auto")
EVALUATED = {"training only": 0, "with the evaluation of all clients every round": 1}


def main() -> None:
    """Measure the chosen workloads by the chosen engines, and print a table for rounds without evaluation and with."""
    parser = parser_of(__doc__, [*WORKLOADS])
    parser.add_argument("--engines", nargs="+", default=ENGINES, metavar="NAME")
    parser.add_argument("--seconds", type=float, default=3.0, help="about how long one run is to last")
    parser.add_argument("--repeats", type=int, default=5, help="how often each side is measured")
    chosen = parser.parse_args()
    print_machine()
    for what, every in EVALUATED.items():
        rows: list[Row] = []
        for name in chosen.workloads:
            engines = {engine: InProcess(engine) for engine in chosen.engines}
            sides: dict[str, Side] = {PLAIN: plain_loop, **engines}
            settings = WORKLOADS[name].settings(evaluate_every=every)
            found, refused = in_turn(sides, settings, seconds=chosen.seconds, repeats=chosen.repeats)
            for row in compared(engines, found, refused):
                rows.append({"workload": name, **row})
                print_row(rows[-1])
        print_table(f"A simulated round, {what}", rows, as_csv=chosen.csv)


def compared(
    engines: Mapping[str, InProcess], found: Mapping[str, Measured], refused: Mapping[str, str]
) -> Iterator[Row]:
    """Yield a row of each side: its seconds, its ratios to the plain loop and to the best engine, and what computed."""
    best = min((found[engine] for engine in engines if engine in found), key=lambda each: each.median, default=None)
    for side in (PLAIN, *engines):
        if side in refused:
            yield {"by": side, "a round": "–", "computed by": refused[side]}
        elif side == PLAIN or best is None:
            yield {"by": side, "a round": found[side]}
        else:
            choice = engines[side].choice
            yield {
                "by": side,
                "a round": found[side],
                "times as fast as the plain loop": times(found[PLAIN], found[side]),
                "as the best engine": times(best, found[side]),
                "computed by": f"{choice.get('engine')}, processes: {choice.get('workers', 1)}",
            }


if __name__ == "__main__":
    main()
