"""Load a task by its name, and check, describe or digest its data."""

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from fairbloom.errors import FairbloomError, ReportableError, did_you_mean
from fairbloom.imports import is_import_string
from fairbloom.protocol.attacks import LABEL_FLIP, attackers_of
from fairbloom.protocol.names import DEPLOYED
from fairbloom.protocol.scores import GroupScore, Score
from fairbloom.protocol.settings import RunSettings, Setup, Value, split_names

from .catalogue import TASKS
from .datasets.store import digest_files, digest_of
from .task import Described, Examples, Splits, Task, model_loss
from .task_info import TaskInfo

__all__ = [
    "TASKS",
    "Examples",
    "GroupScore",
    "Score",
    "Setup",
    "Splits",
    "Task",
    "TaskInfo",
    "check_data",
    "describe_data",
    "digests",
    "find_task",
    "forget_tasks",
    "infer_schema",
    "load_task",
    "model_loss",
]


def find_task(name: str) -> TaskInfo:
    """Return what is known of a task: one of ours by its name, or a user's by its import string.

    Raises
    ------
    FairbloomError
        When there is no such task.
    """
    if is_import_string(name):
        return TaskInfo.of(name)
    if name not in TASKS:
        hint = did_you_mean(name, TASKS)
        raise FairbloomError(
            f"task = {name!r}: unknown task: {hint}there are {', '.join(TASKS)}, and yours as"
            " my_module:task"
        )
    return TASKS[name]


def load_task(settings: RunSettings | Mapping[str, Any]) -> Task:
    """Return the task of a run.

    The same one again for the same settings, and files where it reads some.

    Parameters
    ----------
    settings
        The run's settings, or its run config, of which this reads the task's name, what `Setup`
        has, the task's parameters, and whether the clients' training examples are pooled.

    Raises
    ------
    FairbloomError
        When there is no such task, a parameter of it is impossible, a folder is named that it does
        not read, or the data cannot be split as asked; the message names the setting and what would
        do.
    """
    settings = RunSettings.of(settings)
    info = find_task(settings.task)
    if info.infer and "\n" not in settings.schema_ and settings.parameters.get(DEPLOYED):
        raise ReportableError(
            f"task {info.name} needs the text of a schema: submit the run with --schema FILE"
        )
    setup = info.setup(settings)
    info.check(setup)
    stamps = tuple(
        (file, (about := file.stat()).st_mtime_ns, about.st_size)
        for file in info.find_files(setup.data_dir)
    )
    task = _load(info, setup, tuple(info.check_parameters(settings.parameters).items()), stamps)
    if settings.scores:
        from .extra_scores import add_scores  # imported late: it needs PyTorch

        task = add_scores(task, split_names(settings.scores))
    if settings.attack == LABEL_FLIP:
        from .label_flip import flip_labels  # imported late: it needs PyTorch

        task = flip_labels(task, attackers_of(settings, task.clients))
    if not settings.pooled:
        return task
    from .pooled import pool  # imported late: it needs PyTorch

    return pool(task)


def check_data(settings: RunSettings | Mapping[str, Any]) -> None:
    """Raise FairbloomError when clients in this process cannot read their data, are but one, or lack a split.

    A known data set is downloaded and split here, before any client works.
    """
    settings = RunSettings.of(settings)
    info = find_task(settings.task)
    setup = info.setup(settings)
    info.check_readable(setup.data_dir)
    if info.files or (info.is_user_defined and settings.validation_share):
        task = load_task(settings)
        task.splits(task.clients[0])
    if not info.reads:
        return
    task = load_task(settings.model_copy(update={"pooled": False}))
    if len(task.clients) == 1:
        alone = (
            f"data-dir = {settings.data_dir!r} holds the data of one client alone,"
            f" {task.clients[0]}"
        )
        one_file = (
            ", or, for a single file, name the column that names each row's client by csv.client"
        )
        raise FairbloomError(
            f"{alone}: give a file or folder for each"
            f" client{one_file if info.name == 'csv' else ''}"
        )
    wrong: dict[str, FairbloomError] = {}
    for client in task.clients:
        try:
            task.splits(client)
        except FairbloomError as error:
            wrong[client] = error
    if wrong:
        (first, reason), *others = wrong.items()
        more = (
            f" (the data of {', '.join(name for name, _ in others)} cannot be used either)"
            if others
            else ""
        )
        raise FairbloomError(
            f"the data of client {first} cannot be used: {reason}{more}"
        ) from reason


def digests(settings: RunSettings | Mapping[str, Any]) -> dict[str, str]:
    """Return a checksum of each file that a run's clients read in this process.

    None where no folder is named.

    By them a run that is continued, or compared with others, knows whether the data are still the
    same.
    """
    settings = RunSettings.of(settings)
    info = find_task(settings.task)
    setup = info.setup(settings)
    if info.files:
        return digest_files(info, setup)
    files = info.find_files(setup.data_dir)
    path = Path(setup.data_dir).expanduser()
    root = path if path.is_dir() else path.parent
    return {file.relative_to(root).as_posix(): digest_of(file, "sha256") for file in files}


def infer_schema(settings: RunSettings | Mapping[str, Any]) -> str:
    """Return the text of the schema that the files of a run suggest."""
    settings = RunSettings.of(settings)
    info = find_task(settings.task)
    if not info.infer:
        raise FairbloomError(
            f"task {info.name} has no schema: only tasks that read your own files have one"
        )
    return info.infer_schema(info.setup(settings), info.check_parameters(settings.parameters))


def describe_data(settings: RunSettings | Mapping[str, Any]) -> Described:
    """Return what the data of a run hold, as tables: a row of each client, and of whatever else there is.

    A client whose data cannot be used has the reason under `problem`.
    """
    settings = RunSettings.of(settings)
    info = find_task(settings.task)
    info.check_readable(settings.data_dir)
    task = load_task(settings)
    if task.describe is not None:
        return task.describe()
    clients: list[dict[str, str | int]] = []
    for client in task.clients:
        try:
            train, test = task.splits(client)
        except FairbloomError as error:
            clients.append({"client": client, "problem": str(error)})
            continue
        clients.append({"client": client, "train": len(train), "test": len(test)})
        if task.class_names:
            counts = Counter([*train.all_targets.tolist(), *test.all_targets.tolist()])
            held = [f"{name}: {counts[place]}" for place, name in enumerate(task.class_names)]
            clients[-1]["target"] = ", ".join(held)
    return {"clients": clients}


def forget_tasks() -> None:
    """Let tasks be loaded again: nothing says whether files that user-defined ones read elsewhere have changed."""
    _load.cache_clear()


@lru_cache(maxsize=4)
def _load(
    info: TaskInfo,
    setup: Setup,
    parameters: tuple[tuple[str, Value], ...],
    stamps: tuple[tuple[Path, int, int], ...],
) -> Task:
    """Return a task; `stamps` are its files, with the times of their last changes and their sizes."""
    task = info.load(setup, dict(parameters))
    if not info.is_user_defined:
        return task
    from .checks import guard_task  # imported late, as PyTorch is with it

    return guard_task(info.loader, task, setup.validation_share)
