"""The book of all that has left of a device's rows: snapshots and their releases, in its state.

In the state folder, `profiles` has a sealed file for each snapshot, with the digests of its cells
under the device's secret. A release is written there before it leaves.
"""

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from fairbloom.system.values import decode, encode
from fairbloom.system.versions import FOLDER, read_kept, secret_of, write_kept
from fairbloom.tables.releases import Release, Snapshot

# The files of snapshots, in the folder for all that a device keeps of its rows.
SNAPSHOT = "*.snapshot"

# The attributes that are arrays; the others are JSON.
OF_SNAPSHOT = ("written", "read")
OF_RELEASE = ("cells", "classes")

# What the loss of a file means.
LOSS = "without it what leaves next may show single rows. Bring the state-dir back from a copy"


def read_book(state_dir: Path) -> list[Snapshot]:
    """Return the snapshots of which something has left, in order.

    Raise ReportableError for a damaged one.
    """
    secret = secret_of(state_dir)
    paths = sorted(Path(state_dir, FOLDER).glob(SNAPSHOT))
    return [_decode(read_kept(path, secret, LOSS)) for path in paths]


def enter(state_dir: Path, snapshot: Snapshot, release: Release) -> None:
    """Enter a release into the book, with its snapshot."""
    entered = replace(snapshot, releases=(*snapshot.releases, release))
    path = Path(state_dir, FOLDER, f"{snapshot.number:04}.snapshot")
    write_kept(path, _encode(entered), secret_of(state_dir))


def _encode(snapshot: Snapshot) -> bytes:
    head = encode(snapshot)
    arrays = {name: head.pop(name) for name in OF_SNAPSHOT}
    for place, release in enumerate(head["releases"]):
        arrays |= {f"{name}{place}": release.pop(name) for name in OF_RELEASE}
    written = io.BytesIO()
    np.savez_compressed(written, head=np.array(json.dumps(head)), **arrays)
    return written.getvalue()


def _decode(content: bytes) -> Snapshot:
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        head = json.loads(str(arrays["head"]))
        head |= {name: arrays[name] for name in OF_SNAPSHOT}
        for place, release in enumerate(head["releases"]):
            release |= {name: arrays[f"{name}{place}"] for name in OF_RELEASE}
    return decode(Snapshot, head)
