"""Compare the engines, a plain PyTorch loop and, with --ray, Flower's Ray simulation.

A round's seconds are measured over a whole run from its first row to its end, with records,
checkpoints and the evaluation of all clients after the last round. All sides are measured in turn,
repeatedly, in this process; the plain loop has PyTorch's default number of threads.
Ratios are computed within a repeat, so that both sides meet the same load. `flwr run` has one node
per client, each on one processor core; the 10 to 17 s in which Ray starts are left out.
"""

import statistics
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from fairbloom.protocol.settings import OWN_SETTINGS
from fairbloom.server.run_folder.files import ROUNDS
from fairbloom.server.settings import Settings
from fairbloom.tasks import find_task

from .flower import ROOT, flower
from .measuring import InProcess, Measured, Side, in_turn, times
from .plain import plain_loop
from .tables import Row, parser_of, print_machine, print_row, print_table
from .workloads import WORKLOADS

PLAIN = "plain"
RAY = "ray"
ENGINES = ("loop", "stacked", "auto")
EVALUATED = {"training only": 0, "with the evaluation of all clients every round": 1}


def main() -> None:
    """Measure the chosen workloads and engines; print a table without evaluation, and one with."""
    parser = parser_of(__doc__, [*WORKLOADS], on_devices=True)
    parser.set_defaults(repeats=5)
    parser.add_argument("--engines", nargs="+", default=ENGINES, metavar="NAME")
    parser.add_argument(
        "--ray",
        action="store_true",
        help="measure Flower's Ray simulation with the same ClientApp too",
    )
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="about how long one run lasts, without --rounds"
    )
    chosen = parser.parse_args()
    print_machine(chosen.device)
    for what, every in EVALUATED.items():
        rows: list[Row] = []
        for name in chosen.workloads:
            engines = {engine: InProcess(engine) for engine in chosen.engines}
            sides: dict[str, Side] = {PLAIN: plain_loop}
            if chosen.ray:
                sides[RAY] = under_ray
            sides |= engines
            settings = WORKLOADS[name].settings(evaluate_every=every, device=chosen.device)
            found, refused = in_turn(
                sides,
                settings,
                repeats=chosen.repeats,
                seconds=chosen.seconds,
                rounds=chosen.rounds,
            )
            for row in compared(engines, found, refused):
                rows.append({"workload": name, **row})
                print_row(rows[-1])
        print_table(f"A simulated round, {what}", rows, as_csv=chosen.csv)


def compared(
    engines: Mapping[str, InProcess], found: Mapping[str, Measured], refused: Mapping[str, str]
) -> Iterator[Row]:
    """Yield each side's seconds, its ratios to the plain loop and the best engine, its engine."""
    best = min(
        (found[engine] for engine in engines if engine in found),
        key=lambda each: each.median,
        default=None,
    )
    for side in (*found, *refused):
        if side in refused:
            yield {"by": side, "a round": "–", "computed by": refused[side]}
        elif side not in engines or best is None:
            yield {"by": side, "a round": found[side]}
        else:
            of_ray = {"as Ray": times(found[RAY], found[side])} if RAY in found else {}
            yield {
                "by": side,
                "a round": found[side],
                "times as fast as the plain loop": times(found[PLAIN], found[side]),
                **of_ray,
                "as the best engine": times(best, found[side]),
                "computed by": engines[side].computed_by,
            }


def under_ray(settings: Settings) -> float:
    """Return the mean seconds of a round, without the first, under `flwr run`."""
    with tempfile.TemporaryDirectory() as scratch:
        config = {**settings.run_config(), "out": f"{scratch}/run"}
        # flwr run does not know the keys of these tasks: they travel as one text.
        own = find_task(settings.task).check_parameters(settings.parameters)
        config = {key: value for key, value in config.items() if key not in own}
        config[OWN_SETTINGS] = " ".join(f"{key}={value}" for key, value in own.items())
        with flower(Path(scratch, "home")) as runtime:
            # Opacus installs a package with the name benchmarks, too.
            runtime.environment["PYTHONPATH"] = str(ROOT)
            runtime.start_local()
            status = runtime.run(
                "local", config, f"num-supernodes={settings.clients} client-resources-num-cpus=1"
            )
        if status != "finished:completed":
            raise RuntimeError(f"flwr run ended as {status}")
        return statistics.mean(
            float(row["seconds"]) for row in ROUNDS.read(Path(scratch, "run"))[1:]
        )


if __name__ == "__main__":
    main()
