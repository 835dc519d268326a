"""The models that a device stores for predictions, of which it uses one.

It uses the model that was released to it, see `released_model`, and before that the global one
that it evaluated last. Each is in the state folder, in the format of a run folder, with the
settings that the device took from the run, the schema, and the device's preprocessing. Only the
owner can read it, for example by `fairbloom predict`. The states of `fairbloom.client.states` are
in the same state folder.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from fairbloom.protocol.names import DEPLOYED, MODEL_MADE_FILE, ONE_CLIENT
from fairbloom.protocol.settings import Mark, RunSettings, marked
from fairbloom.protocol.version import RUN_FOLDER_FORMAT
from fairbloom.system.files import make_folder, sync_folder, write_private
from fairbloom.system.sealed import Arrays, read_about, save_model
from fairbloom.tables.schema import SCHEMA_NAME
from fairbloom.tasks import Task
from fairbloom.tasks.models.made import describe_made
from fairbloom.tasks.models.weights import describe_rows

from ..states import fingerprint_of, folder_of, keep_preprocessing
from .accepted_schemas import SHOWN

CONFIG = "config.toml"
MODEL = "model.safetensors"

# Folders in a state folder: the evaluated model, the previous one while it is replaced, and the
# next one while it is written.
KEPT = "model"
BEFORE = "model.before"
DRAFT = "model.draft"

# The released model, and the one that it replaced.
RELEASED = "released"
RELEASED_BEFORE = "released.before"


def find_model(folder: Path) -> Path:
    """Return the folder of the model that is used in a state folder.

    Return any other folder unchanged.
    """
    for name in (RELEASED, RELEASED_BEFORE, KEPT, BEFORE):
        if (folder / name / CONFIG).exists():
            return folder / name
    return folder


def keep_model(
    state_dir: Path,
    settings: RunSettings,
    task: Task,
    client: str,
    arrays: Arrays,
    number: int,
    serves: str,
) -> None:
    """Store the model that a client has evaluated in a round, instead of the last one.

    A crash leaves one of the two complete. `settings` are the run's on this device, `client` is
    the client's key. `serves` is "personal" if the run trains no global model, else "global".
    """
    draft = state_dir / DRAFT
    write_model(draft, settings, task, client, arrays, {"round": number, "serves": serves})
    replace_model(state_dir / KEPT, draft, state_dir / BEFORE)
    shutil.rmtree(state_dir / BEFORE, ignore_errors=True)


def write_model(
    draft: Path,
    settings: RunSettings,
    task: Task,
    client: str,
    arrays: Arrays,
    about: Mapping[str, Any],
) -> None:
    """Write a model into a new folder, with notes on it and all that a prediction needs."""
    shutil.rmtree(draft, ignore_errors=True)
    make_folder(draft)
    # Whoever predicts would import a method of the user's, and need not have it.
    left_out = {DEPLOYED, ONE_CLIENT, "method", *marked(Mark.DEVICE)}
    given = sorted(settings.given().items())
    config = {key: value for key, value in given if key not in left_out}
    write_private(
        draft / CONFIG,
        tomli_w.dumps(
            {"run-folder-format": RUN_FOLDER_FORMAT, **config}, multiline_strings=True
        ).encode(),
    )
    if task.schema:
        write_private(draft / SCHEMA_NAME, task.schema.encode())
    write_private(draft / MODEL_MADE_FILE, describe_made(task).encode())
    keep_preprocessing(draft, task, (client,))
    states = folder_of(settings.model_copy(update={"state_dir": "."}), client)
    # the owner's log knows the run by it
    digest = fingerprint_of(settings)[:SHOWN]
    own = {"rows": describe_rows(settings, task.schema), "states": str(states), "settings": digest}
    save_model(draft / MODEL, arrays, {**about, **own}, 0o600)


def replace_model(kept: Path, new: Path, before: Path) -> None:
    """Move a model into the place of another, which becomes the one before; a crash leaves both."""
    if kept.exists():
        shutil.rmtree(before, ignore_errors=True)
        kept.rename(before)
    new.rename(kept)
    sync_folder(kept.parent)


def describe_kept(place: Path) -> str:
    """Return the model in a folder as text: its round, and of which run it was released."""
    about = read_about(place / MODEL)
    words = "the model of round {round} of a trial, not released"
    if "run" in about:
        words = "the model of round {round} of {run}: {method}, seed {seed}, released on {day}"
    return words.format_map(about)
