"""The score that all runs of a study go by."""

from contextlib import closing

from fairbloom.protocol.names import AGREED
from fairbloom.protocol.settings import Value
from fairbloom.server.settings import Settings
from fairbloom.tasks import Task, check_data, load_task


def fix_score(settings: Settings, task: Task | None = None) -> dict[str, Value]:
    """Return the setting that all runs of a study need to go by one score; none where they do without.

    Other seeds test other examples, by which another score might fit the data: one run decides for all.

    Parameters
    ----------
    settings
        The settings of one run, the one with the first seed.
    task
        Its task, with what the clients have agreed on; it is loaded where there is None and it is needed.

    Raises
    ------
    FairbloomError
        When data cannot be used, or the task does not report the score that is named.
    """
    from fairbloom.tasks.score import decide_score, has_natural_clients  # imported late, as PyTorch is with it

    if not settings.score and not has_natural_clients(settings):
        return {}
    return {"score": decide_score(settings, task or load_agreed(settings)).name}


def load_agreed(settings: Settings) -> Task:
    """Return the task with what its clients agree on about their data.

    Raises
    ------
    FairbloomError
        When some data cannot be used.
    """
    from fairbloom.server.app import agree  # imported late, as PyTorch is with them
    from fairbloom.simulation.loop import LoopClients

    config = settings.run_config()
    check_data(config)
    with closing(LoopClients(settings.strategy(), config)) as clients:
        return load_task({**config, AGREED: agree(settings, clients, deployed=False)})
