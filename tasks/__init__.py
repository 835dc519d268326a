"""What is learned: data split into clients, a model and a loss. One file a data set."""

from collections.abc import Hashable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from fairbloom.errors import FairbloomError, ReportableError, did_you_mean
from fairbloom.imports import is_import_string
from fairbloom.protocol.attacks import LABEL_FLIP, attackers_of
from fairbloom.protocol.names import DEPLOYED
from fairbloom.protocol.scores import GroupScore, Score
from fairbloom.protocol.settings import RunSettings, Setup, Value, split_names

from .datasets.store import digest_files, digest_of
from .known import TASKS
from .task import Described, Examples, Splits, Task, TaskInfo, model_loss

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
    "infer_schema",
    "load_task",
    "model_loss",
]

Stamps = tuple[tuple[Path, int, int], ...]
"""Files, each with the time of its last change in nanoseconds and its size in bytes."""


def find_task(name: str) -> TaskInfo:
    """Return what is known of a task: one of ours by its name, or a user's by its import string.

    Raises
    ------
    FairbloomError
        When there is no such task.
    """
    if is_import_string(name):
        return _read_user_defined(name)
    if name not in TASKS:
        hint = did_you_mean(name, TASKS)
        raise FairbloomError(
            f"task = {name!r}: unknown task: {hint}there are {', '.join(TASKS)}, and yours as my_module:task"
        )
    return TASKS[name]


def load_task(settings: RunSettings | Mapping[str, Any], since: Hashable = None) -> Task:
    """Return the task of a run; the same one again for the same settings, and files where it reads some.

    Parameters
    ----------
    settings
        The run's settings, or its run config, of which this reads the task's name, what `Setup` has, the task's
        parameters, and whether the clients' training examples are pooled.
    since
        Such as a run and its round: calls with the same value look once whether files have changed. None looks again.

    Raises
    ------
    FairbloomError
        When there is no such task, a parameter of it is impossible, a folder is named that it does not read, or
        the data cannot be split as asked; the message names the setting and what would do.
    """
    settings = RunSettings.of(settings)
    info = find_task(settings.task)
    if info.infer and "\n" not in settings.schema_ and settings.parameters.get(DEPLOYED):
        raise ReportableError(f"task {info.name} needs the text of a schema: submit the run with --schema FILE")
    setup = info.setup(settings)
    info.check(setup)
    stamps = (_read_stamps if since is None else _stamps_since)(info, setup.data_dir, since)
    task = (_load_user_defined if info.is_user_defined else _load_known)(
        info, setup, tuple(info.check_parameters(settings.parameters).items()), stamps
    )
    if settings.scores:
        from .further import add_scores  # imported late: it needs PyTorch

        task = add_scores(task, split_names(settings.scores))
    if settings.attack == LABEL_FLIP:
        from .flipped import flip_labels  # imported late: it needs PyTorch

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
    if info.files:
        task = load_task(settings)
        task.splits(task.clients[0])
    if info.is_user_defined and settings.validation_share > 0.0:
        _check_validation(settings)
    if info.reads:
        _check_clients(settings, info)


def _check_clients(settings: RunSettings, info: TaskInfo) -> None:
    """Raise FairbloomError where there is one client alone, or the data of some cannot be used."""
    task = load_task(settings.model_copy(update={"pooled": False}))
    if len(task.clients) == 1:
        alone = f"data-dir = {settings.data_dir!r} holds the data of one client alone, {task.clients[0]}"
        one_file = ", or, for a single file, name the column that names each row's client by csv.client"
        raise FairbloomError(f"{alone}: give a file or folder for each client{one_file if info.name == 'csv' else ''}")
    wrong: dict[str, FairbloomError] = {}
    for client in task.clients:
        try:
            task.splits(client)
        except FairbloomError as error:
            wrong[client] = error
    if wrong:
        (first, reason), *others = wrong.items()
        more = f" (the data of {', '.join(name for name, _ in others)} cannot be used either)" if others else ""
        raise FairbloomError(f"the data of client {first} cannot be used: {reason}{more}") from reason


def _check_validation(settings: RunSettings) -> None:
    """Raise FairbloomError where validation examples are asked for and a user's task sets none apart."""
    task = load_task(settings)
    try:
        found = any(task.splits(client).validation is not None for client in task.clients)
    except Exception:  # whatever a user's task raises for a client: a run leaves that one out, and says why
        return
    if not found:
        raise FairbloomError(
            f"validation-share = {settings.validation_share:g}: task {settings.task} sets no validation examples "
            "apart: let it return Splits(train, test, validation), with setup.validation_share of the examples"
        )


def digests(settings: RunSettings | Mapping[str, Any]) -> dict[str, str]:
    """Return a checksum of each file that a run's clients read in this process; none where no folder is named.

    By them a run that is continued, or compared with others, knows whether the data are still the same.
    """
    settings = RunSettings.of(settings)
    info = find_task(settings.task)
    setup = info.setup(settings)
    if info.files:
        return digest_files(info, setup)
    path = Path(setup.data_dir).expanduser()
    root = path if path.is_dir() else path.parent
    files = [file for file, *_ in _read_stamps(info, setup.data_dir)]
    return {file.relative_to(root).as_posix(): digest_of(file, "sha256") for file in files}


def infer_schema(settings: RunSettings | Mapping[str, Any]) -> str:
    """Return the text of the schema that the files of a run suggest."""
    settings = RunSettings.of(settings)
    info = find_task(settings.task)
    if not info.infer:
        raise FairbloomError(f"task {info.name} has no schema: only tasks that read your own files have one")
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
    rows: list[Mapping[str, str | int]] = []
    for client in task.clients:
        train, test = task.splits(client)
        rows.append({"client": client, "train": len(train), "test": len(test)})
    return {"clients": rows}


@cache
def _read_user_defined(name: str) -> TaskInfo:
    return TaskInfo.of(name)


def forget_user_defined_tasks() -> None:
    """Let user-defined tasks be loaded again: nothing says whether files that they read have changed."""
    _load_user_defined.cache_clear()


@lru_cache(maxsize=4)
def _load_user_defined(info: TaskInfo, setup: Setup, parameters: tuple[tuple[str, Value], ...], stamps: Stamps) -> Task:
    from .checks import guard_task  # imported late, as PyTorch is with it

    return guard_task(info.loader, info.load(setup, dict(parameters)))


@lru_cache(maxsize=4)
def _load_known(info: TaskInfo, setup: Setup, parameters: tuple[tuple[str, Value], ...], stamps: Stamps) -> Task:
    return info.load(setup, dict(parameters))


def _read_stamps(info: TaskInfo, place: str, since: Hashable = None) -> Stamps:
    """Return path, time of change and size of the files that a task reads in a folder; for a user's task, of all."""
    if not place or not (info.reads or info.is_user_defined):
        return ()
    path = Path(place).expanduser()
    if path.is_file():
        files = [path]
    elif info.is_user_defined:
        files = [each for each in path.rglob("*") if each.is_file()]
    else:  # as deep as the task's files lie, hidden ones left out
        found = path.glob("/".join(["[!.]*"] * info.levels))
        files = [each for each in found if each.suffix.lower() in info.reads and each.is_file()]
    return tuple((file, (about := file.stat()).st_mtime_ns, about.st_size) for file in sorted(files))


@lru_cache(maxsize=2)
def _stamps_since(info: TaskInfo, place: str, since: Hashable) -> Stamps:
    return _read_stamps(info, place)
