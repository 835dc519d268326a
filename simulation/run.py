"""A whole run in this process."""

from collections.abc import Callable
from pathlib import Path

import torch

from fairbloom.client.device import choose
from fairbloom.server.app import federate, run_folder
from fairbloom.server.rows import Row
from fairbloom.server.settings import Settings
from fairbloom.tasks import check_data, digests

from .loop import LoopClients


def simulate(settings: Settings, on_row: Callable[[Row], None] = lambda row: None) -> Path:
    """Run, or continue, what `settings` say with all clients in this process; return the run folder.

    One thread computes: small models gain nothing from more, and the sums are then the same on any number of cores.

    Raises
    ------
    FairbloomError
        When this machine has no such device, or lacks the folder that the task reads, and as `federate` does.
    """
    choose(settings.device)
    check_data(settings.run_config())
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        config = settings.run_config()
        if not settings.state_dir:
            config["state-dir"] = str(run_folder(settings) / "clients")
        return federate(settings, lambda method: LoopClients(method, config), on_row, data=digests(config))
    finally:
        torch.set_num_threads(threads)
