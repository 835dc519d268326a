"""The runs of a study on an existing Ray cluster, each a task on any host with room."""

import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from fairbloom.errors import FairbloomError
from fairbloom.protocol.settings import SettingsError
from fairbloom.server.settings import Settings
from fairbloom.system.machine import processors_here

from ..apps import App
from ..study import Runs, is_done
from .pool import Ended


@dataclass(frozen=True)
class OnRay:
    """Run a study on a Ray cluster, with a number of GPUs, or a part of one, for each run."""

    gpus_per_run: float = 0.0


Pool = Literal["processes", "ray"]


def place_of(
    jobs: int | None, pool: Pool, gpus_per_run: float, app: App | None = None
) -> int | OnRay:
    """Return where runs are computed: the number of processes on this machine, or a cluster.

    Raise SettingsError for another pool, or if the runs of an app cannot be there.
    """
    if pool not in get_args(Pool):
        raise SettingsError(f"pool = {pool!r}: allowed is {' or '.join(get_args(Pool))}")
    if pool == "ray":
        if app is not None:
            raise SettingsError("pool = 'ray': an app's runs are on this machine: leave it out")
        return OnRay(gpus_per_run)
    if gpus_per_run:
        raise SettingsError(f"gpus-per-run = {gpus_per_run:g} has no effect without --pool ray")
    # Flower's simulation takes all processors.
    return 1 if app is not None and app.flwr else jobs or processors_here()


def run_on_cluster(runs: Runs, place: OnRay, log_level: int, ended: Ended) -> None:
    """Run on a Ray cluster, on which all hosts have the folders under the same path.

    If a host is lost, its runs continue from their folders on another host.
    """
    ray = connect(place.gpus_per_run)
    given = (log_level, str(Path.cwd()), sys.path)
    task = ray.remote(run_on_host).options(num_gpus=place.gpus_per_run)
    started = {task.remote(run, *given): name for name, run in runs.items()}
    try:
        while started:
            (done,), _ = ray.wait([*started], num_returns=1)
            name = started.pop(done)
            failed = None
            try:
                ray.get(done)
                if not is_done(runs[name]):
                    raise FairbloomError(
                        "its folder is not here: put --out on storage that all hosts share"
                    )
            except FairbloomError as error:
                # an error of the run is also a RayTaskError, with the original as its cause
                failed = getattr(error, "cause", error)
            except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError) as error:
                failed = FairbloomError(
                    f"its host was lost ({type(error).__name__}): the same command continues"
                )
            ended(name, failed)
    finally:  # after an error or Ctrl-C, this ends the remaining tasks
        ray.shutdown()


def connect(gpus: float) -> Any:
    """Join the Ray cluster on this machine or at RAY_ADDRESS.

    Raise FairbloomError if no host has enough GPUs.
    """
    try:
        import ray  # imported late: it takes a second, and is optional
    except ModuleNotFoundError as error:
        raise FairbloomError(
            "pool = 'ray': Ray is not installed: pip install 'fairbloom[ray]'"
        ) from error
    try:
        ray.init(address="auto", logging_level=logging.ERROR)
    except ConnectionError as error:
        raise FairbloomError(
            "pool = 'ray': no Ray cluster: start one by ray start --head, or name its address by"
            " RAY_ADDRESS"
        ) from error
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    most = max((node["Resources"].get("GPU", 0.0) for node in nodes if node["Alive"]), default=0.0)
    if gpus > most:
        ray.shutdown()
        raise FairbloomError(
            f"gpus-per-run = {gpus:g}: no host of the Ray cluster has more than {most:g}: lower it"
        )
    return ray


def run_on_host(settings: Settings, log_level: int, here: str, paths: Sequence[str]) -> None:
    """Run on a host of the cluster, with one core and the driver's folder and module paths."""
    os.chdir(here)
    sys.path += [path for path in paths if path not in sys.path]
    logging.getLogger("flwr").setLevel(log_level)
    from fairbloom.simulation.run import simulate  # imported late, as PyTorch is with it

    simulate(settings, processors=1)
