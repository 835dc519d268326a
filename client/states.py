"""The states that a client stores between rounds: in memory, and on disk if it has a folder.

A state has a name and consists of tensors, for example the personal model. Each version of it
belongs to the round that made it, and is stored with a checksum; up to two earlier versions are
kept. If the server goes down and resumes from the checkpoint before its last, the repeated rounds
therefore start from the same versions as the first time.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fairbloom.errors import ReportableError
from fairbloom.logs import log
from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.terms import Terms
from fairbloom.system.files import make_folder, write_private
from fairbloom.tables.preprocessing import PREPROCESSING

from .guard.accepted_settings import FINGERPRINT, fingerprint

StateDict = dict[str, Tensor]

# The names of a client's personal model, and of the state of its rule of local work. Versions of
# the personal model are in the client's folder itself, those of each other state in a subfolder
# with its name.
PERSONAL = "personal"
RULE = "rule"

# The name of the bits of what rounding to bfloat16 left of the last update.
ROUNDING = "rounding"

# The name of the values that the run's initial model has for the arrays that a client keeps for
# itself; their only version is of round 0.
INITIAL = "initial"

# The name of the loss and scores of the best model that a client reached without the others.
BASELINE = "baseline"

# The name of a version's checksum in the metadata of its file.
CHECKSUM = "sha256"

# Reading a file with flipped bits raises any of these.
UNREADABLE = (SafetensorError, ValueError, KeyError, TypeError, AttributeError)

# A client's name that is also the name of its folder; for any other name, it is a checksum.
FOLDER = re.compile(r"(?![.%])[^/\\\x00-\x1f\x7f]+")


class Version(NamedTuple):
    """One version of a state: the round that made it, and its tensors by name."""

    made: int
    state: StateDict


class ClientStates:
    """All states of one client in one run, by name and the round that made each version.

    `in_memory` has the versions in memory. They are also stored in `folder`, if there is one.
    `unstored` has the rounds of those that are not on disk.
    """

    def __init__(
        self,
        folder: Path | None,
        versions: Mapping[str, Mapping[int, StateDict]] | None = None,
    ) -> None:
        self.in_memory = {
            name: dict(sorted(each.items())) for name, each in (versions or {}).items()
        }
        self._folder = folder
        self.unstored = dict[str, set[int]]()
        self._origins = dict[str, int | None]()

    def find(self, name: str, before: int) -> Version | None:
        """Return the last version of a round before this one, or None."""
        versions = self.in_memory.get(name, {})
        if earlier := [made for made in versions if made < before]:
            return Version(max(earlier), versions[max(earlier)])
        for made in sorted((made for made in self._files(name) if made < before), reverse=True):
            if (state := self.read(name, made)) is not None:
                return Version(made, state)
        return None

    def at(self, name: str, made: int) -> StateDict | None:
        """Return the version that this round made, or None."""
        versions = self.in_memory.get(name, {})
        if made in versions or made not in self._files(name):
            return versions.get(made)
        state = self.read(name, made)
        if state is not None:
            self.in_memory[name] = dict(sorted({**versions, made: state}.items()))
        return state

    def of_rule(self, terms: Terms) -> Version:
        """Return the state of the client's rule by the terms' `state_round`, or the last one.

        If there is no such state, return an empty one of round 0.
        """
        number = terms.state_round
        if number is None:
            return self.find(RULE, before=terms.server_round) or Version(0, {})
        state = self.at(RULE, number) if 0 < number < terms.server_round else None
        return Version(0, {}) if state is None else Version(number, state)

    def keep(self, name: str, number: int, state: StateDict, origin: int | None = None) -> None:
        """Store the version of round `number` in memory, and in the folder if there is one.

        `origin` is the round of the version that it was made from, 0 if there was none; None: the
        last one. With an origin, that version stays in memory, too, and the versions between the
        two are deleted: the replies of their rounds were not used, or the server has resumed from
        an earlier round.
        """
        versions = self.in_memory.get(name, {})
        before = {made: each for made, each in versions.items() if made == origin}
        self.in_memory[name] = before | {
            number: {key: tensor.detach().clone() for key, tensor in state.items()}
        }
        self.unstored[name] = self.unstored.get(name, set()) & before.keys() | {number}
        self._origins[name] = origin
        with explain_disk_errors("written to"):
            if origin is not None:
                for made in [*self._files(name)]:
                    if made > origin:
                        self._drop(name, made)
            if self._folder is not None:
                self._store(self._folder_of(self._folder, name), name, since=number - 1)

    def made_in(self, number: int) -> dict[str, tuple[int | None, StateDict]]:
        """Return the versions of round `number`: by name, the origin and the tensors."""
        return {
            name: (self._origins.get(name), versions[number])
            for name, versions in self.in_memory.items()
            if number in versions
        }

    def _store(self, folder: Path, name: str, since: int) -> None:
        make_folder(folder)
        for made in sorted(self.unstored[name]):
            save_version(folder / f"{made}.safetensors", self.in_memory[name][made])
        self.unstored[name].clear()
        self.drop_unused(name, since)
        for draft in folder.glob(".*.draft"):  # of a process that was killed
            draft.unlink(missing_ok=True)

    def drop_unused(self, name: str, since: int) -> None:
        """Remove the stored versions of no use to a server that goes back to round `since`."""
        earlier = max((made for made in self._files(name) if made < since), default=None)
        recent = range(since, max(self.in_memory[name]) + 1)
        for made in [*self._files(name)]:
            if made not in recent and made != earlier and made not in self.in_memory[name]:
                self._drop(name, made)

    @staticmethod
    def _folder_of(folder: Path, name: str) -> Path:
        return folder if name == PERSONAL else folder / name

    def _files(self, name: str) -> dict[int, Path]:
        paths = [] if self._folder is None else list_versions(self._folder_of(self._folder, name))
        return {int(path.stem): path for path in paths}

    def _drop(self, name: str, made: int) -> None:
        self._files(name)[made].unlink(missing_ok=True)

    def read(self, name: str, made: int) -> StateDict | None:
        """Return a version on disk, None if its file is damaged; set the file aside then."""
        path = self._files(name)[made]
        with explain_disk_errors("read from"):
            state = load_version(path)
            if state is None:
                damaged = path.replace(path.with_suffix(".damaged"))
                log.warning("%s is damaged: the client continues without it", damaged)
        return state


@contextmanager
def explain_disk_errors(what: str) -> Iterator[None]:
    """Turn a disk error of stored states into a message that the server may read.

    `what` is "written to" or "read from".
    """
    try:
        yield
    except OSError as error:
        raise ReportableError(
            f"what this client keeps between rounds cannot be {what} its state-dir"
            f" ({error.strerror or type(error).__name__}): give it a folder with free space that"
            " the account which runs it may read and write"
        ) from error


def list_versions(folder: Path) -> list[Path]:
    """Return the files in a folder that are named by a number, in ascending order."""
    return sorted(
        (path for path in folder.glob("[0-9]*.safetensors") if path.stem.isdecimal()),
        key=lambda path: int(path.stem),
    )


def save_version(path: Path, state: Mapping[str, Tensor]) -> None:
    """Write tensors and their checksum, atomically."""
    tensors = {name: tensor.contiguous() for name, tensor in state.items()}
    write_private(path, save(tensors, metadata={CHECKSUM: checksum(tensors)}))


def load_version(path: Path, key: str = "") -> StateDict | None:
    """Return the tensors that `save_version` wrote, None if they are damaged.

    The file has them, and their checksum, by names that begin with `key`.
    """
    try:
        with safe_open(path, framework="pt") as file:
            names = [name for name in file.keys() if name.startswith(key)]  # noqa: SIM118 (the handle is not iterable)
            tensors = {name.removeprefix(key): file.get_tensor(name) for name in names}
            written = (file.metadata() or {}).get(key + CHECKSUM)
    except UNREADABLE:
        return None
    return tensors if written == checksum(tensors) else None


def checksum(tensors: StateDict) -> str:
    """Return the checksum of contiguous tensors."""
    return hashlib.sha256(save(tensors)).hexdigest()


def folder_name(client: str) -> str:
    """Return the name of a client's folder: the client's, or a checksum if that might be a path."""
    written = client.encode(errors="surrogatepass")  # a file's name need not be UTF-8
    is_short = len(written) <= 200  # bytes, of the 255 that file systems take
    if FOLDER.fullmatch(client) and is_short and client != PREPROCESSING:
        return client
    return f"%{hashlib.sha256(written).hexdigest()[:32]}"


def state_folder(settings: RunSettings | Mapping[str, Any]) -> Path | None:
    """Return the folder of all clients' states with these settings; None: in memory only."""
    config = settings.run_config() if isinstance(settings, RunSettings) else settings
    state_dir = config.get("state-dir", "")
    if not state_dir:
        return None
    return Path(str(state_dir)) / folder_name(str(config.get(FINGERPRINT) or fingerprint(config)))


def folder_of(settings: RunSettings | Mapping[str, Any], client: str) -> Path | None:
    """Return the folder of a client's states in runs with these settings; None: in memory only."""
    folder = state_folder(settings)
    return None if folder is None else folder / folder_name(client)
