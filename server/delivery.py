"""What follows a run on deployed clients: each of them is given the final model, and it is noted who keeps it.

A client cannot know which round is the last one, so the server says it. Whoever was offline gets the model when the
finished run is submitted again, and so does everybody whom a server that was killed had not asked yet.
"""

from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from fairbloom.errors import FairbloomError
from fairbloom.logs import log
from fairbloom.protocol.names import KEEP, RUN, SERVES
from fairbloom.protocol.terms import Terms
from fairbloom.protocol.version import PROTOCOL
from fairbloom.rounds.flower import FlowerClients
from fairbloom.rounds.quorum import listed
from fairbloom.tasks import load_task
from fairbloom.tasks.models import frozen_parameters

from .arrival import drop_revoked
from .run_folder.files import DELIVERED, KNOWN, MODEL, ROUNDS, read_delivered
from .run_folder.values import Delivered
from .settings import Settings


def deliver_model(folder: Path, settings: Settings, grid: Grid) -> None:
    """Send the final model to the clients that are online and lack it; failures are logged, as the run is over."""
    try:
        _deliver(folder, settings, grid)
    except FairbloomError as error:
        log.warning("the final model is not delivered: %s", error)


def _deliver(folder: Path, settings: Settings, grid: Grid) -> None:
    noted, known, method = read_delivered(folder), drop_revoked(KNOWN.read(folder).known), settings.strategy()
    clients = FlowerClients(method, grid, settings.round_timeout, protocol=PROTOCOL)
    online = set(clients.online(0))
    if there := [name for name in known if name in online]:  # who has lost it since is given it again
        method.frozen = frozen_parameters(load_task(settings.run_config()).model())
        last = max((int(row["round"]) for row in ROUNDS.read(folder)), default=0)
        others: dict[str, Any] = {KEEP: noted.model, RUN: folder.name, SERVES: method.serves}
        terms = Terms(server_round=last, others=others)
        said = clients.keep_final(there, MODEL.read(folder), terms)
        noted = Delivered(noted.model, last, dict(sorted({**noted.clients, **said}.items())))
        DELIVERED.write(folder, noted)
        for reason in sorted({*said.values()} - {""}):
            names = [name for name in there if said.get(name) == reason]
            log.warning("%s: the final model is not kept: %s", listed(names), reason)
    kept, silent = noted.keeping, [name for name in known if name not in noted.clients]
    log.info("%d of %d clients keep the final model: %s", len(kept), len(known), listed(kept) if kept else "none")
    if silent:
        log.warning(
            "these were not there to be given the final model: %s; once they are, the same command gives it to them",
            listed(silent),
        )
