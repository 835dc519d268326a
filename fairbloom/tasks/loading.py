"""Load a task by its name, and check, describe or digest its data."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

from fairbloom.errors import FairbloomError, ReportableError, did_you_mean, join_names
from fairbloom.imports import is_import_string
from fairbloom.logs import log_once
from fairbloom.protocol.names import DEPLOYED, RECORDED_SCHEMA, SIDES_IN
from fairbloom.protocol.scores import GroupScore, Score
from fairbloom.protocol.settings import RunSettings, Setup, Value, split_names
from fairbloom.system.files import expand_home
from fairbloom.tables.reasons import MAX_FAULTS
from fairbloom.tables.sizes import summarise_clients
from fairbloom.tables.toml import Question
from fairbloom.text import join_first, plural, text_if

from .catalogue import TASKS
from .datasets.store import digest_files, digest_of
from .partition import draw_held_out
from .permit import check_permit
from .sides import DeviceSetup
from .task import MAX_COMPARED, Described, Examples, Splits, Task, model_loss
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
    """Return the entry of a task: a built-in one by its name, a user's by its import string.

    Raises
    ------
    FairbloomError
        If there is no such task.
    """
    if is_import_string(name):
        return TaskInfo.of(name)
    if name not in TASKS:
        raise FairbloomError(
            f"task = {name!r}: unknown task: {did_you_mean(name, TASKS)}there are"
            f" {', '.join(TASKS)}, and yours as my_module:task"
        )
    return TASKS[name]


def load_task(settings: RunSettings | Mapping[str, Any]) -> Task:
    """Return the task of a run; the same object for the same settings and unchanged files.

    Parameters
    ----------
    settings
        The run's settings, or its run config. Used are the task's name and parameters, the fields
        of `Setup`, `scores` and `pooled`.

    Raises
    ------
    FairbloomError
        If there is no such task, one of its parameters is impossible, it does not read the folder
        that is named, the data have a privacy account, or they cannot be split as asked; the
        message names the setting and the remedy.
    """
    settings = RunSettings.of(settings)
    info = find_task(settings.task)
    if info.infer and "\n" not in settings.schema_ and settings.parameters.get(DEPLOYED):
        raise ReportableError(
            f"task {info.name} needs the text of a schema: submit the run with --schema FILE"
        )
    setup = info.setup(settings)
    info.check(setup)
    if info.infer and not setup.schema_:
        setup = setup.model_copy(update={"schema_": settings.parameters.get(RECORDED_SCHEMA, "")})
    files = info.find_files(setup.data_dir)
    check_permit(files)
    facts = [(file, file.stat()) for file in files]
    stamps = tuple((file, about.st_ctime_ns, about.st_size) for file, about in facts)
    is_deployed = settings.parameters.get(DEPLOYED)
    state_dir = settings.state_dir if is_deployed else settings.parameters.get(SIDES_IN)
    if info.infer and state_dir:
        setup = DeviceSetup.model_construct(
            **vars(setup),
            state_dir=state_dir,
            after=settings.after_all_rows,
            writes=bool(is_deployed),
        )
    parameters = tuple(info.check_parameters(settings.parameters).items())
    task = _load(info, setup, parameters, stamps)
    if settings.held_out_clients:
        task = _hold_out(task, info, setup, parameters)
    if settings.scores:
        from .extra_scores import add_scores  # imported late: it needs PyTorch

        task = add_scores(task, split_names(settings.scores))
    if not settings.pooled:
        return task
    from .pooled import pool  # imported late: it needs PyTorch

    return pool(task)


def check_data(settings: RunSettings) -> None:
    """Raise FairbloomError if clients in this process cannot use their data, or are only one.

    A known data set is downloaded and split here, before any client works.
    """
    info = find_task(settings.task)
    info.check_readable(info.setup(settings).data_dir)
    if info.files or (info.is_user_defined and settings.validation_share):
        task = load_task(settings)
        task.splits(task.clients[0])
    if not info.reads:
        return
    task = load_task(settings.model_copy(update={"pooled": False, "held_out_clients": 0.0}))
    if len(task.clients) == 1:
        single = (
            ", or, for a single file, name the column that names each row's client by csv.client"
        )
        raise FairbloomError(
            f"data-dir = {settings.data_dir!r} holds the data of only one client,"
            f" {task.clients[0]}: give a file or folder for each"
            f" client{text_if(info.name == 'csv', single)}"
        )
    wrong: dict[str, FairbloomError] = {}
    for client in task.clients:
        try:
            task.splits(client)
        except FairbloomError as error:
            wrong[client] = error
    if wrong:
        (first, reason), *others = wrong.items()
        names = join_names(name for name, _ in others)
        more = text_if(others, f" (the data of {names} cannot be used either)")
        raise FairbloomError(
            f"the data of client {first} cannot be used: {reason}{more}"
        ) from reason
    if parent_process() is None:  # the processes of a study have one that checks for all
        questions = task.ask()
        found = [*_count_questions(questions)]
        remarks = _find_remarks(task) if len(task.clients) <= MAX_COMPARED else ()
        count = len(remarks) + len(task.questions) - len(questions)  # they are among the remarks
        if count > 0:
            found.append(plural(count, "1 remark", f"{count} remarks"))
        if found:
            log_once(
                "%s on the data: see fairbloom data %s", " and ".join(found), settings.data_dir
            )


def _count_questions(questions: Sequence[Question]) -> Iterator[str]:
    """Yield how many questions there are, and the column that the only one is about."""
    if len(questions) == 1:
        (column,) = (each.column for each in questions)
        yield f"1 question{text_if(column, f' ({column})')}"
    elif questions:
        yield f"{len(questions)} questions"


def _find_remarks(task: Task) -> Sequence[Mapping[str, str | int]]:
    """Return the remarks on the clients' data."""
    if task.describe is not None:
        return task.describe(False).get("remarks", ())
    return task.remark() if task.remark is not None else ()


def digests(settings: RunSettings) -> dict[str, str]:
    """Return a checksum, after its algorithm, of each file that a run's clients read here.

    Empty if no folder is named. The checksums show whether the data have changed since the run
    that is continued, or between runs that are compared.
    """
    info = find_task(settings.task)
    setup = info.setup(settings)
    if info.files:
        return digest_files(info, setup)
    files = info.find_files(setup.data_dir)
    path = expand_home(setup.data_dir)
    root = path if path.is_dir() else path.parent
    return {file.relative_to(root).as_posix(): digest_of(file, "sha256") for file in files}


def infer_schema(settings: RunSettings) -> str:
    """Return the text of the schema that the files of a run suggest."""
    info = find_task(settings.task)
    if not info.infer:
        raise FairbloomError(
            f"task {info.name} has no schema: only tasks that read your own files have one"
        )
    setup = info.setup(settings)
    check_permit(info.find_files(setup.data_dir))
    return info.infer_schema(setup, info.check_parameters(settings.parameters), advise=True).schema


def describe_data(settings: RunSettings, every: bool = True) -> Described:
    """Return tables that describe the data of a run: client by client if `every`, else in short.

    If a client's data cannot be used, its row has the reason under `problem`.
    """
    find_task(settings.task).check_readable(settings.data_dir)
    task = load_task(settings)
    if task.describe is not None:
        found = task.describe(every)
        questions = [
            {"column": column, "client": "", "remark": text} for column, text in task.questions
        ]
        return {**found, "remarks": [*questions, *found.get("remarks", ())]}
    clients: list[dict[str, str | int]] = []
    for client in task.clients:
        try:
            train, test = task.splits(client)
        except FairbloomError as error:
            faults = [str(each) for each in (error, *getattr(error, "others", ()))]
            clients.append({"client": client, "problem": join_first(faults, MAX_FAULTS)})
            continue
        clients.append({"client": client, "train": len(train), "test": len(test)})
        if task.class_names:
            counts = Counter([*train.all_targets.tolist(), *test.all_targets.tolist()])
            clients[-1]["target"] = ", ".join(
                [f"{name}: {counts[place]}" for place, name in enumerate(task.class_names)]
            )
    described: Described = {"clients": clients if every else summarise_clients(clients)}
    return described if task.remark is None else {**described, "remarks": task.remark()}


def forget_tasks() -> None:
    """Empty the cache of tasks, because a user's task may read files that have changed."""
    _load.cache_clear()


@lru_cache(maxsize=4)
def _load(
    info: TaskInfo,
    setup: Setup,
    parameters: tuple[tuple[str, Value], ...],
    stamps: tuple[tuple[Path, int, int], ...],
) -> Task:
    """Return a task; `stamps` has each file with the time of its last change and its size."""
    task = info.load(setup, dict(parameters))
    if not info.is_user_defined:
        return task
    from .checks import guard_task  # imported late: it needs PyTorch

    return guard_task(info.loader, task, setup.validation_share, setup.test_share, setup.seed)


@lru_cache(maxsize=4)
def _hold_out(
    task: Task, info: TaskInfo, setup: Setup, parameters: tuple[tuple[str, Value], ...]
) -> Task:
    """Return a task of which some clients are not in training; a schema is inferred without them.

    Their names are drawn from all clients of the task, with a schema that is inferred from all.
    """
    held_out = draw_held_out(setup, task.clients)
    if info.infer and not setup.schema_:
        suggested = info.infer_schema(setup, dict(parameters), held_out)
        task = info.load_suggested(setup, dict(parameters), suggested)
    apart = frozenset(held_out)
    return replace(
        task, clients=tuple(name for name in task.clients if name not in apart), held_out=held_out
    )
