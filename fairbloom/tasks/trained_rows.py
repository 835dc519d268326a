"""Which rows trained a model: its file says so, and a run that begins with it tests on no other's.

A run with the same split has the same test rows. After a model of all rows there are none, until
others come.
"""

from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from fairbloom.errors import FairbloomError
from fairbloom.protocol.settings import RunSettings
from fairbloom.system.sealed import DamagedFileError, read_about

from .loading import find_task
from .models.weights import digest_weights

# The settings of a split, of which the last one is of devices only.
SPLIT = ("seed", "test-share", "validation-share", "after-all-rows")


def describe_rows(
    settings: RunSettings, schema: str, data: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return which rows train a run's model, for the key `rows` of what its file says.

    `schema` is a text. `data` has the checksum of each file that the clients read in this process;
    None on devices.
    """
    return {
        "task": settings.task,
        "schema": sha256(schema.encode()).hexdigest(),
        "data": sorted((data or {}).values()),
        **{key: settings.run_config()[key] for key in SPLIT},
    }


def find_all_rows(weights: str) -> str:
    """Return the digest of the model of all rows that a file's goes back to, "" without one."""
    rows = _read_rows(weights)
    is_of_all = rows.get("test-share") == 0.0
    return digest_weights(weights) if is_of_all else str(rows.get("after-all-rows", ""))


def check_rows(settings: RunSettings, schema: str, data: Mapping[str, str] | None) -> None:
    """Raise FairbloomError if a run would test on rows that trained its initial weights.

    For `schema` and `data` see `describe_rows`.
    """
    weights = settings.initial_weights
    before = _read_rows(weights)
    now = describe_rows(settings, schema, data)
    is_other = any(before.get(key) != now[key] for key in ("task", "schema"))
    if before.get("data") and now["data"]:
        is_other = is_other or {*before["data"]}.isdisjoint(now["data"])
    is_split = find_task(settings.task).tests_by_seed(settings.run_config()) == "split"
    if is_other or not is_split or not settings.test_share:
        return
    wanted = {key: before[key] for key in (SPLIT[:3] if data is not None else SPLIT)}
    if not before["test-share"]:
        wanted = {SPLIT[3]: digest_weights(weights)}
        if data is not None:
            raise FairbloomError(
                f"initial-weights = {weights!r} was trained on all rows of these data, so that none"
                " can test it: set test-share = 0, or take other data"
            )
    if any(now[key] != value for key, value in wanted.items()):
        there = ", ".join(f"{key} = {value!r}" for key, value in wanted.items())
        here = ", ".join(f"{key} = {now[key]!r}" for key in wanted)
        raise FairbloomError(
            f"initial-weights = {weights!r} goes with {there}, and the run has {here}, so that rows"
            f" that trained it would test it: set {there}"
        )


def _read_rows(weights: str) -> Mapping[str, Any]:
    """Return what `describe_rows` said of a model, {} for a file that is not ours."""
    with suppress(DamagedFileError):
        rows: Mapping[str, Any] = read_about(Path(weights).expanduser()).get("rows", {})
        return rows
    return {}
