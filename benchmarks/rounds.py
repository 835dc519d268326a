"""A simulated round against Flower's Ray simulation with the same ClientApp, and against a plain PyTorch loop.

`flwr run` simulates one node a client, each on one CPU; its seconds are those that the run records from round 2 on, so
the 10 to 17 s in which Ray starts are left out. Ours and the plain loop's are those of whole runs (benchmarks.engines).
"""

import argparse
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path

from fairbloom.protocol.settings import OWN_SETTINGS
from fairbloom.server.run_folder.files import ROUNDS
from fairbloom.server.settings import Settings
from fairbloom.tasks import find_task
from tests.deploy.flower import ROOT, flower

from .measuring import Cells, InProcess, Measured, Report, Side, in_turn, parser_of, times
from .plain import plain_loop
from .workloads import WORKLOADS

OURS, PLAIN = "fairbloom run", "plain loop"


def main() -> None:
    """Measure the chosen workloads and print a table."""
    parser = parser_of(__doc__)
    cases = ("logistic", "mlp-step", "mlp-all")
    parser.add_argument("--workloads", nargs="+", choices=[*WORKLOADS], default=cases, metavar="NAME")
    parser.add_argument("--engine", default="auto", help="the engine of our side")
    parser.add_argument("--rounds", type=int, default=11, help="rounds of a run under Ray")
    parser.add_argument("--seconds", type=float, default=3.0, help="about how long one of the other runs is to last")
    parser.add_argument("--repeats", type=int, default=3, help="how often each side is measured")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.rounds, chosen.seconds, chosen.repeats = 5, 1.0, 1
    report = Report(chosen)
    rows: list[Cells] = []
    for name in chosen.workloads:
        row = compared(name, WORKLOADS[name].settings(evaluate_every=0), chosen)
        report.tell(row)
        rows.append(row)
    report.add("A simulated round, under Flower's Ray simulation and in process", rows)


def compared(name: str, settings: Settings, chosen: argparse.Namespace) -> Cells:
    """Return the row of one workload; each repeat has all three sides."""
    ours: list[float] = []
    plain: list[float] = []
    ray: list[float] = []
    for _ in range(chosen.repeats):
        sides: dict[str, Side] = {OURS: InProcess(chosen.engine), PLAIN: plain_loop}
        found, refused = in_turn(sides, settings, seconds=chosen.seconds, repeats=1)
        if refused:
            raise SystemExit("; ".join(refused.values()))
        ours += found[OURS].values
        plain += found[PLAIN].values
        ray.append(under_ray(settings.model_copy(update={"num_rounds": chosen.rounds})))
    ours_, plain_, ray_ = (Measured(tuple(values), "s") for values in (ours, plain, ray))
    return {
        "workload": name,
        "Flower's Ray simulation": ray_,
        PLAIN: plain_,
        OURS: ours_,
        "times as fast as Ray": times(ray_, ours_),
        "as the plain loop": times(plain_, ours_),
    }


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
