"""What a client keeps for predictions: how its data become inputs, and on a device the model that it evaluated last.

The model lies in the state folder, in the files of a run folder. It is the global model of a round,
with the settings that the device took of the run, the schema, and the device's preprocessing,
readable by the owner alone: `fairbloom predict` reads it. What the device keeps between rounds lies
beside it (`fairbloom.client.states`).
"""

import shutil
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import tomli_w

from fairbloom.logs import log
from fairbloom.protocol.names import DEPLOYED
from fairbloom.protocol.settings import Mark, marked
from fairbloom.protocol.version import RUN_FOLDER_FORMAT
from fairbloom.system.files import make_folder, sync_folder, write_private
from fairbloom.system.sealed import Arrays, save_model
from fairbloom.tasks import Task
from fairbloom.tasks.preprocessing import PREPROCESSING, Preprocessing
from fairbloom.tasks.schema import SCHEMA

from ..states import folder_of

CONFIG = "config.toml"
MODEL = "model.safetensors"

KEPT = "model"
BEFORE = "model.before"
DRAFT = "model.draft"
"""Folders in a state folder: the model, the one before while it is replaced, and the next one while
it is written."""


def find_model(folder: Path) -> Path:
    """Return the folder of the model that a state folder keeps.

    Any other folder is returned as it is.
    """
    there = (folder / name for name in (KEPT, BEFORE))
    return next((each for each in there if (each / CONFIG).exists()), folder)


def keep_model(
    state_dir: Path,
    config: Mapping[str, Any],
    task: Task,
    client: str,
    arrays: Arrays,
    number: int,
    serves: str,
) -> None:
    """Keep the model that a client has evaluated in a round, in place of the last one.

    A crash leaves a whole one.

    `config` are the run's settings on this device, `client` is the client's key; `serves` is
    "personal" where the run trains no global model, else "global".
    """
    draft, kept, before = (state_dir / name for name in (DRAFT, KEPT, BEFORE))
    shutil.rmtree(draft, ignore_errors=True)
    make_folder(draft)
    # Whoever predicts would import a method of the user's, and need not have it.
    left_out = {DEPLOYED, "method", *marked(Mark.DEVICE)}
    settings = {key: value for key, value in sorted(config.items()) if key not in left_out}
    content = tomli_w.dumps(
        {"run-folder-format": RUN_FOLDER_FORMAT, **settings}, multiline_strings=True
    )
    write_private(draft / CONFIG, content.encode())
    if task.schema:
        write_private(draft / SCHEMA, task.schema.encode())
    keep_preprocessing(draft, task, client)
    states = folder_of({**config, "state-dir": "."}, client)
    save_model(
        draft / MODEL, arrays, {"round": number, "states": str(states), "serves": serves}, 0o600
    )
    if kept.exists():
        shutil.rmtree(before, ignore_errors=True)
        kept.rename(before)
    draft.rename(kept)
    sync_folder(state_dir)
    shutil.rmtree(before, ignore_errors=True)


def keep_preprocessing(folder: Path | None, task: Task, client: str) -> None:
    """Write a client's preprocessing into its folder, if it has one.

    A disk that does not take it is logged.
    """
    if folder is None or task.preprocessing is None:
        return
    path = folder / PREPROCESSING
    content = _encode(task.preprocessing, client)
    try:
        if path.exists() and path.read_bytes() == content:
            return
        make_folder(folder)
        write_private(path, content)
    except OSError as error:
        log.warning(
            "%s cannot be written, so that nothing can be predicted by it: %s", path, error.strerror
        )


@lru_cache(maxsize=1)  # a deployed client asks with every message
def _encode(preprocessing: Callable[[str], Preprocessing], client: str) -> bytes:
    return preprocessing(client).encode()
