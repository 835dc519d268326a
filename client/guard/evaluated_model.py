"""The model that a device stores for predictions: the global one that it evaluated last.

It is in the state folder, in the format of a run folder, with the settings that the device took
from the run, the schema, and the device's preprocessing. Only the owner can read it, for example by
`fairbloom predict`. The states of `fairbloom.client.states` are in the same state folder.
"""

import shutil
from pathlib import Path

import tomli_w

from fairbloom.protocol.names import DEPLOYED, ONE_CLIENT
from fairbloom.protocol.settings import Mark, RunSettings, marked
from fairbloom.protocol.version import RUN_FOLDER_FORMAT
from fairbloom.system.files import make_folder, sync_folder, write_private
from fairbloom.system.sealed import Arrays, save_model
from fairbloom.tables.schema import SCHEMA_NAME
from fairbloom.tasks import Task
from fairbloom.tasks.models.weights import describe_rows

from ..states import folder_of, keep_preprocessing

CONFIG = "config.toml"
MODEL = "model.safetensors"

# Folders in a state folder: the model, the previous model while it is replaced, and the next model
# while it is written.
KEPT = "model"
BEFORE = "model.before"
DRAFT = "model.draft"


def find_model(folder: Path) -> Path:
    """Return the folder of the model in a state folder; return any other folder unchanged."""
    for name in (KEPT, BEFORE):
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
    kept = state_dir / KEPT
    before = state_dir / BEFORE
    shutil.rmtree(draft, ignore_errors=True)
    make_folder(draft)
    # Whoever predicts would import a method of the user's, and need not have it.
    left_out = {DEPLOYED, ONE_CLIENT, "method", *marked(Mark.DEVICE)}
    config = {key: value for key, value in sorted(settings.given().items()) if key not in left_out}
    write_private(
        draft / CONFIG,
        tomli_w.dumps(
            {"run-folder-format": RUN_FOLDER_FORMAT, **config}, multiline_strings=True
        ).encode(),
    )
    if task.schema:
        write_private(draft / SCHEMA_NAME, task.schema.encode())
    keep_preprocessing(draft, task, (client,))
    states = folder_of(settings.model_copy(update={"state_dir": "."}), client)
    about = {"rows": describe_rows(settings, task.schema), "round": number, "serves": serves}
    save_model(draft / MODEL, arrays, {**about, "states": str(states)}, 0o600)
    if kept.exists():
        shutil.rmtree(before, ignore_errors=True)
        kept.rename(before)
    draft.rename(kept)
    sync_folder(state_dir)
    shutil.rmtree(before, ignore_errors=True)
