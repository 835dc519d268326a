"""What is learned: data split into clients, a model and a loss. One file a data set."""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from hashlib import file_digest
from pathlib import Path
from typing import Any

from fairbloom.errors import FairbloomError, did_you_mean
from fairbloom.imports import is_import_string
from fairbloom.protocol.scores import Score
from fairbloom.protocol.settings import Value, spread

from .task import Described, Examples, Setup, Splits, Task, TaskInfo, TaskSetting

__all__ = [
    "TASKS",
    "Examples",
    "Score",
    "Setup",
    "Splits",
    "Task",
    "TaskInfo",
    "TaskSetting",
    "check_data",
    "describe_data",
    "digests",
    "find_task",
    "load_task",
]

TASKS = {
    info.name: info
    for info in (
        TaskInfo(
            "digits",
            summary="1,797 hand-written digits of 8×8 pixels; embedded, nothing to download",
            source="UCI Optical Recognition of Handwritten Digits, in scikit-learn",
            loader="fairbloom.tasks.digits:load",
            models=("logistic", "mlp", "cnn"),
            partitions=("shards", "dirichlet", "iid"),
            classes=10,
            settings=(
                TaskSetting("rotated-clients", 0, "Number of clients whose images are turned by 90 degrees", lowest=0),
            ),
        ),
        TaskInfo(
            "csv",
            summary="your own CSV files: one for each client, or one with a column that names the client",
            source="the folder, or file, that --data-dir names",
            loader="fairbloom.tasks.files.tables:load",
            models=("logistic", "mlp"),
            settings=(
                TaskSetting("target", "", "Column that is to be told; by default the one called target, label or y"),
                TaskSetting("client", "", "Column that names the client, in a single file"),
                TaskSetting("kind", "auto", "What the target is", choices=("auto", "classification", "regression")),
                TaskSetting("classes", "", "All classes, as 'no,yes'; a client may then lack some"),
                TaskSetting("categories", "", "Columns that are categories although they hold numbers, as 'sex,ward'"),
                TaskSetting("ignore", "", "Columns that are left out, as 'id,name'"),
                TaskSetting(
                    "missing",
                    "error",
                    "What becomes of rows that lack a value: fill takes the column's mean, or no category",
                    choices=("error", "drop", "fill"),
                ),
                TaskSetting(
                    "standardise",
                    "client",
                    "What columns of numbers are standardised by: each client's own mean and deviation, or common ones",
                    choices=("client", "together"),
                ),
            ),
            reads_folder=True,
            own_clients=True,
            agree="fairbloom.tasks.files.columns:agree",
        ),
        TaskInfo(
            "image-folder",
            summary="your own images: CLIENT/CLASS/IMAGE.png, or .jpg",
            source="the folder that --data-dir names",
            loader="fairbloom.tasks.files.images:load",
            models=("cnn", "logistic", "mlp"),
            settings=(
                TaskSetting("size", 0, "Pixels each way that images are resized to; 0 keeps their size", lowest=0),
                TaskSetting("grey", False, "Whether images have one channel, of grey, in place of three of colours"),
                TaskSetting("classes", "", "All classes, as 'cat,dog'; a client may then lack some"),
            ),
            reads_folder=True,
            own_clients=True,
            agree="fairbloom.tasks.files.shapes:agree_on_images",
        ),
        TaskInfo(
            "npz",
            summary="your own NumPy arrays: CLIENT.npz with x and y, or x_train, y_train, x_test and y_test",
            source="the folder that --data-dir names",
            loader="fairbloom.tasks.files.arrays:load",
            models=("logistic", "mlp", "cnn"),
            settings=(TaskSetting("classes", "", "All classes, as '0,1,2'; a client may then lack some"),),
            reads_folder=True,
            own_clients=True,
            agree="fairbloom.tasks.files.shapes:agree_on_arrays",
        ),
    )
}
"""Every task by its name on the command line."""


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
        return _own(name)
    if name not in TASKS:
        hint = did_you_mean(name, TASKS)
        raise FairbloomError(
            f"task = {name!r}: unknown task: {hint}there are {', '.join(TASKS)}, and your own as my_module:task"
        )
    return TASKS[name]


def load_task(config: Mapping[str, Any]) -> Task:
    """Return the task of a run config; the same one again for the same settings, and files where it reads some.

    Parameters
    ----------
    config
        A run config, of which this reads the task's name, what `Setup` has, and the settings of the task's own.

    Raises
    ------
    FairbloomError
        When there is no such task, a setting of its own is impossible, a folder is named that it does not read, or
        the data cannot be split as asked; the message names the setting and what would do.
    """
    config = spread(config)
    info = find_task(config["task"])
    setup = info.setup(config)
    info.check(setup)
    return _loaded(info, setup, tuple(info.own(config).items()), _stamps(setup.data_dir) if info.reads_folder else ())


def check_data(config: Mapping[str, Any]) -> None:
    """Raise FairbloomError when clients in this process lack the folder that their task reads, or are but one."""
    info = find_task(config["task"])
    setup = info.setup(config)
    info.check_readable(setup.data_dir)
    if info.own_clients and len(clients := load_task(config).clients) == 1:
        alone = f"data-dir = {setup.data_dir!r} holds the data of one client alone, {clients[0]}"
        one_file = ", or, for a single file, name the column that says whose a row is by csv.client"
        raise FairbloomError(f"{alone}: give a file or folder for each client{one_file if info.name == 'csv' else ''}")


def digests(config: Mapping[str, Any]) -> dict[str, str]:
    """Return a checksum of each file that a run's clients read in this process; none where no folder is named.

    By them a run that is continued, or compared with others, knows whether the data are still the same.
    """
    place = find_task(config["task"]).setup(config).data_dir
    if not place:
        return {}
    path = Path(place).expanduser()
    if path.is_dir():
        return _digests(path, _stamped(each for each in path.rglob("*") if each.is_file()))
    return _digests(path.parent, _stamped([path]))


@lru_cache(maxsize=4)
def _digests(place: Path, files: Stamps) -> dict[str, str]:
    """Return the checksums of files, by their paths in a folder; they are made anew when a time or size is another."""
    found = {}
    for file, _, _ in files:
        with file.open("rb") as content:
            found[file.relative_to(place).as_posix()] = file_digest(content, "sha256").hexdigest()
    return found


def describe_data(config: Mapping[str, Any]) -> Described:
    """Return what the data of a run config hold, as tables: a row of each client, and of whatever else there is.

    A client whose data cannot be used has the reason under `problem`.
    """
    info = find_task(config["task"])
    info.check_readable(info.setup(config).data_dir)
    task = load_task(config)
    if task.describe is not None:
        described = task.describe()
        return {**described, "clients": _compared(info, task, described["clients"])}
    rows: list[Mapping[str, str | int]] = []
    for client in task.clients:
        train, test = task.splits(client)
        rows.append({"client": client, "train": len(train), "test": len(test)})
    return {"clients": rows}


def _compared(
    info: TaskInfo, task: Task, clients: Sequence[Mapping[str, str | int]]
) -> Sequence[Mapping[str, str | int]]:
    """Return the rows of clients, with the reason under `problem` for those whose data differ from the others'."""
    usable = [str(row["client"]) for row in clients if "problem" not in row]
    if task.about is None or not usable:
        return clients
    _, reasons = info.agreement({client: json.loads(json.dumps(task.about(client))) for client in usable})
    return [{**row, "problem": reasons[name]} if (name := str(row["client"])) in reasons else row for row in clients]


@cache
def _own(name: str) -> TaskInfo:
    return TaskInfo.of(name)


@lru_cache(maxsize=4)
def _loaded(info: TaskInfo, setup: Setup, own: tuple[tuple[str, Value], ...], stamps: Stamps) -> Task:
    return info.load(setup, dict(own))


def _stamps(place: str) -> Stamps:
    """Return what tells whether the files of a folder, or a file, have changed since they were read."""
    path = Path(place).expanduser()
    if not place or not path.exists():
        return ()
    return _stamped(path.iterdir() if path.is_dir() else [path])


def _stamped(files: Iterable[Path]) -> Stamps:
    """Return files in order, each with the time of its last change and its size."""
    return tuple((file, file.stat().st_mtime_ns, file.stat().st_size) for file in sorted(files))
