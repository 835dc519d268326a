"""The initial weights that a device's owner has accepted, and the check of a run's first model.

A server that chooses a model can read single rows from its first update or loss. So the first model
is that of the seed, which the device makes itself, with weights of a file only if the owner has
accepted these, or the device knows them as the final model of a run in which it trained. In the
state folder, `weights` has the accepted files' arrays, `DIGEST.safetensors`, `accepted.json` with
the schema and the model that each was accepted for, `refused.json` with those of the run that was
refused last, and `trained.json` with the fingerprints of the runs in which the device has trained.
"""

import json
from pathlib import Path

from safetensors.torch import save

from fairbloom.errors import FairbloomError, ReportableError
from fairbloom.protocol.codec import digest_arrays
from fairbloom.protocol.settings import RunSettings
from fairbloom.system.files import make_folder, write_private
from fairbloom.tasks.models import arrays_of, sendable
from fairbloom.tasks.models.weights import load_initial_weights, read_weights

from ..local import LocalClient
from ..states import StateDict, fingerprint_of
from .accepted_schemas import SHOWN, digest_of, read_json
from .accepted_settings import SettingRefusedError

FOLDER = "weights"
ACCEPTED = "accepted.json"
REFUSED = "refused.json"
TRAINED = "trained.json"

# How far a number of the first model may be from the device's own, as a share of its array's
# largest number, or with messages in bfloat16 of its own size: one unit in the last place.
TOLERANCE = 1e-5
ULP = 2.0**-7

REMEDY = (
    "its owner looks at where they come from, brings their file to the device and accepts it by"
    " fairbloom client accept --weights FILE; on a node without our client, by weights ="
    ' "DIGEST" in its node config'
)


def check_weights(settings: RunSettings, known: str) -> None:
    """Raise SettingRefusedError if a run begins with weights that the owner has not accepted.

    They are accepted for one schema and model. `known` is the digest that the owner of a node
    without our client has accepted, in its node config.
    """
    digest = settings.weights_digest
    if digest in ("", known):
        return
    about = about_weights(settings, digest)
    if settings.state_dir:
        folder = Path(settings.state_dir, FOLDER)
        if about in read_json(folder / ACCEPTED, []):
            return
        make_folder(folder)
        write_private(folder / REFUSED, json.dumps(about).encode())
    raise SettingRefusedError(
        f"the run begins with weights of a file (initial-weights, {digest[:SHOWN]}) that this"
        f" device has not accepted for its schema and model: {REMEDY}"
    )


def about_weights(settings: RunSettings, digest: str) -> list[str]:
    """Return what weights are accepted by: their digest, the schema's, and the model."""
    return [digest, digest_of(settings.schema_), settings.model]


def note(state_dir: Path, list_name: str, entry: object) -> None:
    """Add an entry to a list: what `about_weights` returns, or a fingerprint to TRAINED."""
    file = state_dir / FOLDER / list_name
    entries = read_json(file, [])
    if entry not in entries:
        make_folder(file.parent)
        write_private(file, json.dumps([*entries, entry]).encode())


def accept_final(settings: RunSettings, state_dir: Path, digest: str) -> None:
    """Let runs begin with the final model of a run, if this device has trained in the run.

    A server could call any model final. But it could as well have sent that model to be trained in
    the run's next round, so that a later run reads no more from it.
    """
    if fingerprint_of(settings) in read_json(state_dir / FOLDER / TRAINED, []):
        note(state_dir, ACCEPTED, about_weights(settings, digest))


def accept_weights(state_dir: Path, file: Path) -> None:
    """Accept the weights of the run that was refused last, which are those of a file.

    Raise FairbloomError if no run was refused, or its weights are others.
    """
    folder = state_dir / FOLDER
    about = read_json(folder / REFUSED, [])
    if not about:
        raise FairbloomError(
            f"{state_dir} keeps no run that was refused for its weights: there is nothing to"
            " accept; a run brings the digest"
        )
    arrays = read_weights(file)
    digest = digest_arrays(arrays_of(arrays))
    if digest != about[0]:
        raise FairbloomError(
            f"{file} holds other weights ({digest[:SHOWN]}) than the refused run"
            f" ({about[0][:SHOWN]}): take the file that the run's operator names"
        )
    own = {name: array.contiguous().clone() for name, array in arrays.items()}
    write_private(folder / f"{digest}.safetensors", save(own))
    note(state_dir, ACCEPTED, about)
    (folder / REFUSED).unlink()


def check_first_model(client: LocalClient, received: StateDict, *, rounded: bool) -> None:
    """Raise ReportableError if a first round's model is not the seed's, with the accepted weights.

    `rounded` is whether it has come in bfloat16.
    """
    digest = client.settings.weights_digest
    model = client.task.model()
    file = Path(client.settings.state_dir, FOLDER, f"{digest}.safetensors")
    if client.settings.state_dir and file.exists():
        load_initial_weights(model, str(file))
    elif digest and digest_arrays(arrays_of(received)) == digest:
        return
    for name, own in sendable(model.state_dict()).items():
        array = received.get(name)
        if array is None or own.shape != array.shape:
            break
        wanted = own.double()
        if not wanted.numel():
            continue
        share = wanted.abs() * ULP if rounded else TOLERANCE * wanted.abs().max()
        if not bool(((array.cpu().double() - wanted).abs() <= share).all()):
            break
    else:
        return
    raise ReportableError(
        f"the first model's {name} is not that of the run's seed, which this device makes itself"
        " (a task of your own must make the same model each time): a run that begins with other"
        f" weights names their digest (weights-digest), and {REMEDY}"
    )
