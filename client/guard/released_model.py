"""The model that the operator has released to a device, and its owner's choice of it.

Once there is one, the device predicts by it, and no later run replaces it. In the state folder,
`released` has it, `released.before` the one that it replaced, and `released.waiting` one that waits
for the owner, or that the owner has put back.
"""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fairbloom.errors import FairbloomError
from fairbloom.protocol.codec import digest_arrays
from fairbloom.protocol.names import ASK, METRICS, TAKE
from fairbloom.system.sealed import Arrays, DamagedFileError, load_model, read_about

from ..local import LocalClient
from .evaluated_model import (
    MODEL,
    RELEASED,
    RELEASED_BEFORE,
    describe_kept,
    find_model,
    replace_model,
    write_model,
)
from .initial_weights import ACCEPTED, about_weights, note
from .log_files import read_entries

WAITING = "released.waiting"
DRAFT = "released.draft"

# The owner's choices: which model is used, where the used one goes, and the error if there is none.
CHOICES = {
    TAKE: (
        WAITING,
        RELEASED_BEFORE,
        "no model waits here: its operator sends one by fairbloom deploy release",
    ),
    "back": (
        RELEASED_BEFORE,
        WAITING,
        f"no model was released before: to use the one that was evaluated last, remove {RELEASED}"
        " from the state-dir",
    ),
}


def store_released(
    state_dir: Path, local: LocalClient, arrays: Arrays, about: Mapping[str, Any], rule: str
) -> str:
    """Store a released model, as `rule` says: take or ask; return what was done.

    `about` has its `run`, `method`, `round` and `day`. A model that is there already stays where it
    is. A crash leaves the one before or the new one.
    """
    weights = about_weights(local.settings, digest_arrays(arrays))
    about = {**about, "seed": local.settings.seed, "serves": "global", "weights": weights}
    draft = state_dir / DRAFT
    waiting = state_dir / WAITING
    for place, known in ((waiting, ASK), (state_dir / RELEASED, TAKE)):
        if _holds(place, about):
            return known
    write_model(draft, local.settings, local.task, local.key, arrays, about)
    shutil.rmtree(waiting, ignore_errors=True)
    if rule == TAKE:
        replace_model(state_dir / RELEASED, draft, state_dir / RELEASED_BEFORE)
    else:
        draft.rename(waiting)
    return rule


def _holds(place: Path, about: Mapping[str, Any]) -> bool:
    """Return whether a folder has the model of these notes, undamaged."""
    try:
        _, kept = load_model(place / MODEL)
    except DamagedFileError:
        return False
    return all(kept[key] == about[key] for key in ("run", "weights"))


def choose(state_dir: Path, choice: str, rule: str) -> None:
    """Use the model that waits (take), or the one that was released before (back).

    If the owner's `rule` is to ask, runs may begin with the taken one. Raise FairbloomError if
    there is none, or if it is damaged.
    """
    source, aside, lacking = CHOICES[choice]
    if not (state_dir / source).exists():
        raise FairbloomError(lacking)
    _, about = load_model(state_dir / source / MODEL)
    replace_model(state_dir / RELEASED, state_dir / source, state_dir / aside)
    if (choice, rule) == (TAKE, ASK):
        note(state_dir, ACCEPTED, about["weights"])


def describe_models(state_dir: Path) -> Iterator[str]:
    """Yield a line on the model that is used, the one that waits, and the one before."""
    for place, words in (
        (find_model(state_dir), "predictions use"),
        (state_dir / WAITING, "take would use"),
        (state_dir / RELEASED_BEFORE, "back would use"),
    ):
        if (place / MODEL).exists():
            yield f"{words} {describe_kept(place)}"


def read_scores(state_dir: Path) -> Iterator[tuple[int, Mapping[str, float]]]:
    """Yield the rounds of the run of the model in use, with the metrics that were reported."""
    about = read_about(find_model(state_dir) / MODEL)
    for entry in read_entries(state_dir):
        digest = entry.get("settings-digest")
        if entry["asked"] == "evaluate" and digest == about["settings"] and "terms" in entry:
            sent = dict((entry.get("sent") or {}).get(METRICS, {}))
            numbers = {name: each for name, each in sent.items() if isinstance(each, int | float)}
            yield int(dict(entry["terms"])["server-round"]), numbers
