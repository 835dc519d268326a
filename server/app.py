"""The ServerApp: a run from settings to run folder, on any grid."""

import hashlib
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path

from flwr.app import Array, ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from torch.nn import Module

from fairbloom.strategies import Round
from fairbloom.tasks import load_task

from .lock import alone
from .observability import Metrics, in_short, log_as_json, worst_served
from .polling import PollingGrid
from .records import LIMITS, WITHOUT_EFFECT, Row, RunFolder, check_folder, is_finished
from .settings import Settings

log = logging.getLogger("flwr").getChild("fairbloom")

app = ServerApp()

POLL_SECONDS = 0.5
PATIENCE_SECONDS = 60.0
"""How long a run waits for another client to come before it starts without the late ones."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run what the run config says, with the nodes of this federation as clients."""
    settings = Settings.of(context.run_config)
    patient = PollingGrid(grid, min_replies=settings.min_replies)
    wait_for_clients(patient, settings.clients)
    federate(settings, patient)


def federate(settings: Settings, grid: Grid, on_row: Callable[[Row], None] = lambda row: None) -> Path:
    """Run, or continue, or find finished, what `settings` say; return the run folder.

    Parameters
    ----------
    settings
        Of the run.
    grid
        Carries the messages; its nodes are the clients.
    on_row
        Called with each finished round's row of rounds.csv.

    Raises
    ------
    ValueError
        When the data cannot be split as asked, or the run folder cannot be used.
    """
    model = load_task(settings.run_config()).model()
    path = run_folder(settings)
    check_folder(path, settings.run_config())
    if not is_finished(path):
        with alone(path):
            folder = RunFolder(path, settings)
            if not folder.finished:  # by the process that was waited for
                _federate(settings, model, folder, grid, on_row)
                return path
    log.info("%s is finished; nothing to run", path)
    return path


def _federate(settings: Settings, model: Module, folder: RunFolder, grid: Grid, on_row: Callable[[Row], None]) -> None:
    log.info("run folder: %s", folder.path)
    continued = folder.resume()
    arrays = ArrayRecord(model.state_dict())
    if continued is not None:
        arrays = ArrayRecord({name: Array(array) for name, array in continued[0].items()})
    buffers = [name for name, buffer in model.named_buffers() if buffer.is_floating_point() and name in arrays]
    strategy = settings.strategy(buffers=buffers)
    if settings.log_format == "json":
        log_as_json(folder.path.name)
    metrics = Metrics(settings.metrics_port) if settings.metrics_port else None
    asked = ConfigRecord()
    started = time.perf_counter()

    def ask_for_losses(number: int) -> None:
        # Needed for the share of improved participants; costs a pass over the data, so only in evaluated rounds.
        due = number == settings.num_rounds or (settings.evaluate_every and number % settings.evaluate_every == 0)
        asked["measure"] = ["loss-before"] if due else []

    def on_round(finished: Round) -> None:
        nonlocal started
        now = time.perf_counter()
        row = folder.record(finished, strategy.state_dict(), seconds=now - started)
        started = now
        log.info("round %d is finished%s", finished.number, in_short(row), extra={"round": finished.number})
        if finished.number == settings.num_rounds and finished.evaluations:
            log.info("worst served: %s", worst_served(finished))
        if metrics is not None:
            metrics.observe(finished, row, connected=len(strategy.online))
        on_row(row)
        ask_for_losses(finished.number + 1)

    ask_for_losses(1 if continued is None else continued[1]["round"] + 1)
    result = strategy.start(
        grid,
        arrays,
        num_rounds=settings.num_rounds,
        timeout=settings.round_timeout,
        train_config=asked,
        evaluate_config=ConfigRecord({"measure": ["train-loss"]}),
        on_round=on_round,
        resume=None if continued is None else continued[1],
    )
    folder.finish({name: array.numpy() for name, array in result.arrays.items()})
    if metrics is not None:
        metrics.close()


def run_folder(settings: Settings) -> Path:
    """Return the absolute run folder: `out`, or a name under runs/ that the settings determine."""
    if settings.out:
        return Path(settings.out).absolute()
    free = WITHOUT_EFFECT | LIMITS
    config = {key: value for key, value in settings.run_config().items() if key not in free}
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:8]
    return Path("runs", f"{settings.task}-{settings.method}-seed{settings.seed}-{digest}").absolute()


def wait_for_clients(grid: Grid, clients: int) -> None:
    """Wait until all clients are online, so that every run draws from the same names; start without late ones."""
    online, since = -1, time.monotonic()
    while (now_online := len(list(grid.get_node_ids()))) < clients:
        if now_online > online:
            online, since = now_online, time.monotonic()
            log.info("waiting for clients: %d of %d are online", online, clients)
        if time.monotonic() - since > PATIENCE_SECONDS:
            log.warning("starting with %d of clients = %d: start more nodes, or lower clients", online, clients)
            return
        time.sleep(POLL_SECONDS)
