"""The schemas that a device's owner has accepted: only by them its tables are read.

In the state folder, `accepted` has a line with the digest of each accepted schema; `refused.toml`
is the schema that was refused last, which `fairbloom client accept` takes.
"""

from difflib import unified_diff
from hashlib import sha256
from pathlib import Path

from fairbloom.errors import FairbloomError
from fairbloom.system.files import make_folder, write_private

from .accepted_settings import SettingRefusedError

FOLDER = "schemas"
ACCEPTED = "accepted"
REFUSED = "refused.toml"
LATEST = "accepted.toml"


def check_accepted(text: str, state_dir: Path | None, allowed: str) -> None:
    """Raise SettingRefusedError and store the schema of a run if its owner has not accepted it.

    `allowed` is `schema` of the owner's limits; "any" accepts every schema. `state_dir` is None if
    the device stores nothing.
    """
    if not text or allowed == "any":
        return
    if state_dir is None:
        raise SettingRefusedError(
            "the run has a schema, and this device has no state-dir to keep the accepted ones: set"
            ' one, or schema = "any" under limits in owner.toml'
        )
    folder = state_dir / FOLDER
    if digest_of(text) in read_accepted(folder):
        return
    make_folder(folder)
    write_private(folder / REFUSED, text.encode())
    raise SettingRefusedError(
        "the run's schema is not one that this device's owner has accepted: fairbloom client"
        " accept, on the device, shows it and takes it"
    )


def digest_of(text: str) -> str:
    """Return the digest of a schema."""
    return sha256(text.encode()).hexdigest()


def read_accepted(folder: Path) -> list[str]:
    """Return the digests of the accepted schemas."""
    path = folder / ACCEPTED
    return path.read_text().split() if path.exists() else []


def read_refused(state_dir: Path) -> str:
    """Return the schema that was refused last; raise FairbloomError if there is no such schema."""
    path = state_dir / FOLDER / REFUSED
    if not path.exists():
        raise FairbloomError(
            f"{state_dir} keeps no refused schema: there is nothing to accept; a run brings one"
        )
    return path.read_text(encoding="utf-8")


def describe_change(state_dir: Path, text: str) -> str:
    """Return a schema, or its difference from the schema that was accepted last."""
    lines = text.splitlines()
    latest = state_dir / FOLDER / LATEST
    if latest.exists():
        before = latest.read_text(encoding="utf-8").splitlines()
        lines = list(unified_diff(before, lines, "accepted", "new", lineterm=""))
    # The text comes from the server: control characters, which a terminal obeys, are replaced.
    shown = (
        "".join(each if each.isprintable() or each == "\t" else "\ufffd" for each in line)
        for line in lines
    )
    return "".join(f"{line}\n" for line in shown)


def accept_schema(state_dir: Path, text: str) -> None:
    """Accept a schema, so that runs may have it."""
    folder = state_dir / FOLDER
    make_folder(folder)
    digests = [*read_accepted(folder), digest_of(text)]
    write_private(folder / LATEST, text.encode())
    write_private(folder / ACCEPTED, ("\n".join(digests) + "\n").encode())
    (folder / REFUSED).unlink(missing_ok=True)
