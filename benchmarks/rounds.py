"""A simulated round against Flower's Ray simulation with the same ClientApp, and against a plain PyTorch loop.

`flwr run` simulates one node a client, each on one CPU; its seconds are those that the run records from round 2 on, so
the 10 to 17 s in which Ray starts are left out. Ours and the plain loop's are those of whole runs (benchmarks.engines).
"""

import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path

from fairbloom.protocol.settings import OWN_SETTINGS
from fairbloom.server.run_folder.files import ROUNDS
from fairbloom.server.settings import Settings
from fairbloom.tasks import find_task
from tests.deploy.flower import ROOT, flower

from .measuring import InProcess, Measured, Side, in_turn, times
from .plain import plain_loop
from .tables import Row, parser_of, print_machine, print_row, print_table
from .workloads import WORKLOADS

OURS, PLAIN, RAY = "fairbloom run", "plain loop", "Flower's Ray simulation"


def main() -> None:
    """Measure the chosen workloads and print a table."""
    parser = parser_of(__doc__, [*WORKLOADS], ("logistic", "mlp-step", "mlp-all"))
    parser.add_argument("--engine", default="auto", help="the engine of our side")
    parser.add_argument("--rounds", type=int, default=11, help="rounds of a run under Ray")
    parser.add_argument("--seconds", type=float, default=3.0, help="about how long one of the other runs is to last")
    parser.add_argument("--repeats", type=int, default=3, help="how often each side is measured")
    chosen = parser.parse_args()
    print_machine()
    rows: list[Row] = []
    for name in chosen.workloads:
        settings = WORKLOADS[name].settings(evaluate_every=0)
        sides: dict[str, Side] = {OURS: InProcess(chosen.engine), PLAIN: plain_loop}
        values: dict[str, list[float]] = {RAY: [], PLAIN: [], OURS: []}
        for _ in range(chosen.repeats):  # each with all three sides
            found, refused = in_turn(sides, settings, seconds=chosen.seconds, repeats=1)
            if refused:
                raise SystemExit("; ".join(refused.values()))
            for side, measured in found.items():
                values[side] += measured.values
            values[RAY].append(under_ray(settings.model_copy(update={"num_rounds": chosen.rounds})))
        seconds = {side: Measured(tuple(each), "s") for side, each in values.items()}
        ratios = {f"times as fast as {side}": times(seconds[side], seconds[OURS]) for side in (RAY, PLAIN)}
        rows.append({"workload": name, **seconds, **ratios})
        print_row(rows[-1])
    print_table("A simulated round, under Flower's Ray simulation and in process", rows, as_csv=chosen.csv)


def under_ray(settings: Settings) -> float:
    """Return the mean seconds of the rounds after the first of a run under `flwr run`, a client a node."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "run")
        with flower(Path(scratch, "home")) as runtime:
            runtime.environment["PYTHONPATH"] = str(ROOT)  # Opacus installs a package that is called benchmarks, too
            nodes = f"num-supernodes={settings.clients} client-resources-num-cpus=1"
            status = runtime.run("local", {**submitted(settings), "out": str(folder)}, nodes)
        if status != "finished:completed":
            raise RuntimeError(f"flwr run ended as {status}")
        return statistics.mean(float(row["seconds"]) for row in ROUNDS.read(folder)[1:])


def submitted(settings: Settings) -> Mapping[str, object]:
    """Return the run config that `flwr run` takes: the task's own settings, which it does not know, in words."""
    config = settings.run_config()
    own = find_task(settings.task).check_parameters(settings.parameters)
    words = " ".join(f"{key}={value}" for key, value in own.items())
    return {key: value for key, value in config.items() if key not in own} | {OWN_SETTINGS: words}


if __name__ == "__main__":
    main()
