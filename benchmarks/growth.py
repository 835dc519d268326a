"""How the seconds of a round grow with the clients of a round, from 10 to 10,000, and with the model, from 10³ to 10⁷.

Clients: logistic regression, one step of 64 examples each. Models: perceptrons on 64 features, 10 clients, 5 steps of
10. All sides are measured in turn, as benchmarks.engines does.
"""

from collections.abc import Iterator

from .engines import ENGINES, PLAIN
from .measuring import Cells, InProcess, Measured, Report, Side, in_turn, parser_of
from .plain import plain_loop
from .workloads import CLIENTS, SIZES, Workload


def main() -> None:
    """Measure both series and print a table of each."""
    parser = parser_of(__doc__)
    sides = (PLAIN, *ENGINES)
    parser.add_argument("--by", nargs="+", default=sides, metavar="NAME", help=f"of {', '.join(sides)}")
    parser.add_argument("--clients", nargs="*", type=int, choices=[*CLIENTS], default=[*CLIENTS], metavar="NUMBER")
    parser.add_argument("--models", nargs="*", choices=[*SIZES], default=[*SIZES], metavar="SIZE")
    parser.add_argument("--seconds", type=float, default=3.0, help="about how long one run is to last")
    parser.add_argument("--repeats", type=int, default=3, help="how often each side is measured")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.seconds, chosen.repeats = 0.5, 1
    report = Report(chosen)
    series = {
        "clients": ("With the clients of a round", {f"{number:,}": CLIENTS[number] for number in chosen.clients}),
        "parameters": ("With the size of the model", {size: SIZES[size] for size in chosen.models}),
    }
    for what, (title, workloads) in series.items():
        rows: list[Cells] = []
        for size, workload in workloads.items():
            row = {what: size, **dict(cells(workload, chosen.by, chosen.seconds, chosen.repeats))}
            report.tell(row)
            rows.append(row)
        if rows:
            report.add(f"Seconds a round: {title.lower()}", rows)


def cells(workload: Workload, by: list[str], seconds: float, repeats: int) -> Iterator[tuple[str, Measured | str]]:
    """Yield what each side takes for a round of a workload, by its name."""
    sides: dict[str, Side] = {name: plain_loop if name == PLAIN else InProcess(name) for name in by}
    found, _ = in_turn(sides, workload.settings(evaluate_every=0), seconds=seconds, repeats=repeats)
    for side in sides:
        yield side, found.get(side, "–")


if __name__ == "__main__":
    main()
