"""The score that all runs of a study go by."""

from contextlib import closing

from fairbloom.protocol.names import AGREED
from fairbloom.protocol.settings import Value
from fairbloom.server.settings import Settings
from fairbloom.tasks import Task, check_data, load_task

from .objective import Objective


def fix_score(settings: Settings, task: Task | None = None) -> dict[str, Value]:
    """Return the setting that all runs of a study need to go by one score; none where they do without.

    Other seeds test other examples, by which another score might fit the data: one run decides for all.

    The settings are those of the run with the first seed; its task is loaded where it is None and needed.
    """
    from fairbloom.tasks.score import decide_score, has_natural_clients  # imported late, as PyTorch is with it

    if not settings.score and not has_natural_clients(settings):
        return {}
    return {"score": decide_score(settings, task or load_agreed(settings)).name}


def check_objective(objective: Objective, settings: Settings) -> None:
    """Raise FairbloomError where a task cannot be judged by an objective, or its data cannot be used."""
    if objective.high is not None or any(each.client or each.gap_score for each in objective.measures):
        from fairbloom.tasks.score import decide_score

        task = load_agreed(settings)
        groups = task.group_scores if task.groupings else ()
        objective.check(decide_score(settings, task), task.clients, groups)


def load_agreed(settings: Settings) -> Task:
    """Return the task with what its clients agree on about their data."""
    from fairbloom.server.app import agree  # imported late, as PyTorch is with them
    from fairbloom.simulation.loop import LoopClients

    config = settings.run_config()
    check_data(config)
    with closing(LoopClients(settings.strategy(), config)) as clients:
        return load_task({**config, AGREED: agree(settings, clients, deployed=False)})
