"""A whole comparison as a user runs it: `fairbloom compare`, from the command to its tables and figure.

By default ten methods × ten seeds × 100 clients, all in every round, × 100 rounds, on the digits, with the evaluation
of all clients after every round, by logistic regression and by the MLP.
"""

import argparse
import os
import subprocess
import tempfile
import time
from pathlib import Path

from .flower import SCRIPTS
from .measuring import Cells, Measured, Report, parser_of

METHODS = "fedavg,fedprox,qfedavg,term,afl,propfair,gifair,fedmgdaplus,fedfv,adafed"


def main() -> None:
    """Run the comparison with each model, and print a table."""
    parser = parser_of(__doc__)
    parser.add_argument("--methods", default=METHODS, help="as fairbloom compare takes them")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--fraction", type=float, default=1.0, help="share of the clients that train in a round")
    parser.add_argument("--models", nargs="+", default=["logistic", "mlp"], metavar="NAME")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as fairbloom compare takes it")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.seeds, chosen.rounds = 2, 20
    report = Report(chosen)
    rows: list[Cells] = []
    for model in chosen.models:
        row = measured(model, chosen)
        report.tell(row)
        rows.append(row)
    report.add("A whole comparison", rows)


def measured(model: str, chosen: argparse.Namespace) -> Cells:
    """Return the row of one model."""
    with tempfile.TemporaryDirectory() as scratch:
        command = command_of(model, chosen, Path(scratch, "comparison"))
        before, started = os.times(), time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 (our own command)
        seconds = time.perf_counter() - started
        after = os.times()
    busy = after.children_user + after.children_system - before.children_user - before.children_system
    runs = len(chosen.methods.split(",")) * chosen.seeds
    return {
        "model": model,
        "methods × seeds": f"{runs // chosen.seeds} × {chosen.seeds}",
        "clients": f"{chosen.fraction * chosen.clients:.0f} of {chosen.clients}",
        "rounds": str(chosen.rounds),
        "whole command": Measured((seconds,), "s"),
        "CPU": Measured((busy,), "s"),
        "a round": Measured((seconds / runs / chosen.rounds,), "s"),
    }


def command_of(model: str, chosen: argparse.Namespace, out: Path) -> list[str]:
    """Return the command as a user types it."""
    options = {
        "task": "digits",
        "model": model,
        "methods": chosen.methods,
        "seeds": chosen.seeds,
        "clients": chosen.clients,
        "rounds": chosen.rounds,
        "fraction": chosen.fraction,
        "partition": "iid",
        "out": out,
    }
    given = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return [str(SCRIPTS / "fairbloom"), "compare", *given, *(word for each in chosen.set for word in ("--set", each))]


if __name__ == "__main__":
    main()
