"""The ServerApp: a run from settings to run folder, whoever computes."""

import hashlib
import json
import logging
import time
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from torch.nn import Module

from fairbloom.protocol.names import LOSS_BEFORE, TRAIN_LOSS
from fairbloom.rounds.clients import Clients
from fairbloom.rounds.flower import FlowerClients
from fairbloom.rounds.loop import Rounds
from fairbloom.rounds.method import Method
from fairbloom.rounds.updates import Model
from fairbloom.tasks import load_task

from .lock import alone
from .observability import Metrics, in_short, log_as_json, worst_served
from .polling import PollingGrid
from .records import RunFolder, check_folder, is_finished
from .rows import Row
from .settings import Settings, may_differ

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
    # A run that is handed out again after its process was lost waits until the lost one has noticed that itself.
    federate(settings, lambda method: FlowerClients(method, patient, settings.round_timeout), wait=True)


def federate(
    settings: Settings,
    clients_of: Callable[[Method], Clients],
    on_row: Callable[[Row], None] = lambda row: None,
    *,
    wait: bool = False,
) -> Path:
    """Run, or continue, or find finished, what `settings` say; return the run folder.

    Parameters
    ----------
    settings
        Of the run.
    clients_of
        Returns who trains and evaluates for a method.
    on_row
        Called with each finished round's row of rounds.csv.
    wait
        Whether another process that writes the same folder is waited for, up to a minute; else it is an error at once.

    Raises
    ------
    FairbloomError
        When the data cannot be split as asked, the run folder cannot be used, or the rounds learn nothing.
    """
    model = load_task(settings.run_config()).model()
    path = run_folder(settings)
    check_folder(path, settings.run_config())
    if not is_finished(path):
        with alone(path, wait=wait):
            folder = RunFolder(path, settings)
            if not folder.finished:  # by the process that was waited for
                _federate(settings, model, folder, clients_of, on_row)
                return path
    log.info("%s is finished; nothing to run", path)
    return path


def _federate(
    settings: Settings,
    module: Module,
    folder: RunFolder,
    clients_of: Callable[[Method], Clients],
    on_row: Callable[[Row], None],
) -> None:
    log.info("run folder: %s", folder.path)
    continued = folder.resume()
    model: Model = {name: tensor.detach().cpu().numpy() for name, tensor in module.state_dict().items()}
    buffers = [name for name, buffer in module.named_buffers() if buffer.is_floating_point() and name in model]
    method = settings.strategy(buffers=buffers)
    if continued is not None:
        model, state = continued
        method.load_state_dict(state)
    if settings.log_format == "json":
        log_as_json(folder.path.name)
    method.summary()
    rounds = Rounds(method, clients_of(method), settings.num_rounds)

    def measure(number: int) -> list[str]:
        # Needed for the share of improved participants; costs a pass over the data, so only in evaluated rounds.
        return [LOSS_BEFORE] if rounds.evaluates(number) else []

    with closing(Metrics(settings.metrics_port)) if settings.metrics_port else nullcontext() as metrics:
        started = time.perf_counter()
        for finished in rounds.run(model, measure=measure, measure_after=[TRAIN_LOSS]):
            now = time.perf_counter()
            row = folder.record(finished, method.state_dict(), seconds=now - started)
            started = now
            log.info("round %d is finished%s", finished.number, in_short(row), extra={"round": finished.number})
            if finished.number == settings.num_rounds and finished.evaluations:
                log.info("worst served: %s", worst_served(finished))
            if metrics is not None:
                metrics.observe(finished, row, connected=len(rounds.online))
            on_row(row)
            model = finished.arrays
        folder.finish(model)


def run_folder(settings: Settings) -> Path:
    """Return the absolute run folder: `out`, or a name under runs/ that the settings determine."""
    if settings.out:
        return Path(settings.out).absolute()
    free = may_differ(finished=False)
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
