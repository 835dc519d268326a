"""The states that a client stores between rounds: in memory, and on disk if it has a folder.

A state has a name and consists of tensors, for example the personal model. Each version of it
belongs to the round that made it; up to two earlier versions are kept. If the server goes down and
resumes from the checkpoint before its last, the repeated rounds therefore start from the same
versions as the first time.
"""

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from safetensors.torch import load, save
from torch import Tensor

from fairbloom.errors import ReportableError
from fairbloom.logs import log
from fairbloom.protocol.settings import FINGERPRINT, RunSettings, fingerprint
from fairbloom.protocol.terms import Terms
from fairbloom.system.files import make_folder, write_private
from fairbloom.system.retry import retry_write
from fairbloom.system.versions import Point, VersionEntry, Versions, needed_since
from fairbloom.tables.preprocessing import PREPROCESSING, Preprocessing
from fairbloom.tasks import Task

StateDict = dict[str, Tensor]

# The names of a client's personal model, and of the state of its rule of local work.
PERSONAL = "personal"
RULE = "rule"

# The name of the bits of what rounding to bfloat16 left of the last update.
ROUNDING_STATE = "rounding"

# The name of the values that the run's initial model has for the arrays that a client keeps for
# itself; their only version is of round 0.
INITIAL = "initial"

# The name of the loss and scores of the best model that a client reached without the others.
BASELINE = "baseline"

# The name of the numbers of a model with arrays of its own that a device has reported in a round.
REPORTED = "reported"

# A client's name that is also the name of its folder; for any other name, it is a checksum.
FOLDER = re.compile(r"(?![.%])[^/\\\x00-\x1f\x7f]+")


class Version(NamedTuple):
    """One version of a state: the round that made it, and its tensors by name."""

    made: int
    state: StateDict


class ClientStates:
    """All states of one client in one run, by name and the round that made each version.

    `in_memory` has the versions in memory. They are also stored in `files`, if there are any: at
    once, or with the states of other clients by `store`. `unstored` has the rounds of the versions
    that are not on disk. A write that the disk refuses may be tried again; see
    `fairbloom.system.retry`.
    """

    def __init__(
        self,
        files: Versions | None = None,
        client: str = "",
        in_memory: Mapping[str, Mapping[int, StateDict]] | None = None,
        *,
        at_once: bool = True,
    ) -> None:
        self.in_memory = {
            name: dict(sorted(each.items())) for name, each in (in_memory or {}).items()
        }
        self.unstored = dict[str, set[int]]()
        self._files = files
        self._client = client
        self._at_once = at_once

    def find(self, name: str, before: int) -> Version | None:
        """Return the last version of a round before this one, or None."""
        versions = self.in_memory.get(name, {})
        for made in sorted({*versions, *self._stored(name)}, reverse=True):
            if made < before:
                state = versions[made] if made in versions else self._read(name, made)
                if state is not None:
                    return Version(made, state)
        return None

    def at(self, name: str, made: int) -> StateDict | None:
        """Return the version that this round made, or None."""
        versions = self.in_memory.get(name, {})
        if made in versions:
            return versions[made]
        state = self._read(name, made)
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
        """Keep the version of round `number` in memory, and store it if it is stored at once.

        `origin` is the round of the version that it was made from, 0 if there was none; None: the
        last one. With an origin, that version stays in memory, too, and the versions between the
        two are dropped: the replies of their rounds were not used, or the server has resumed from
        an earlier round.
        """
        versions = self.in_memory.get(name, {})
        before = {made: each for made, each in versions.items() if made == origin}
        self.in_memory[name] = before | {
            number: {key: tensor.detach().clone() for key, tensor in state.items()}
        }
        self.unstored[name] = self.unstored.get(name, set()) & before.keys() | {number}
        if origin is not None:
            self._retain(name, [made for made in self._stored(name) if made <= origin])
        if self._at_once and (files := self._files) is not None:
            with explain_disk_errors("written to"):
                retry_write(lambda: store(files, [self], number - 1), files.folder)

    def take_unstored(self) -> Iterator[VersionEntry]:
        """Yield the versions that are not on disk, as they are stored."""
        yield from (
            VersionEntry(self._key(name), Point(made), serialize(self.in_memory[name][made]))
            for name, rounds in self.unstored.items()
            for made in sorted(rounds)
        )

    def note_stored(self, since: int) -> None:
        """Drop the stored versions of no use to a server that goes back to round `since`."""
        for name in [name for name, rounds in self.unstored.items() if rounds]:
            self.unstored[name].clear()
            last = max(self.in_memory[name])
            steps = [Point(made) for made in self._stored(name) if made <= last]
            needed = {step.round for step in needed_since(steps, since)}
            self._retain(name, needed | self.in_memory[name].keys())

    def _key(self, name: str) -> str:
        return json.dumps([self._client, name])

    def _stored(self, name: str) -> list[int]:
        """Return the rounds of the versions on disk."""
        steps = [] if self._files is None else self._files.steps(self._key(name))
        return [step.round for step in steps]

    def _read(self, name: str, made: int) -> StateDict | None:
        if self._files is None:
            return None
        with explain_disk_errors("read from"):
            content = self._files.read(self._key(name), Point(made))
        return None if content is None else load(content)

    def _retain(self, name: str, rounds: Collection[int]) -> None:
        if self._files is not None:
            self._files.retain(self._key(name), [Point(made) for made in rounds])


def store(files: Versions | None, clients: Iterable[ClientStates], since: int) -> None:
    """Write the clients' versions that are not on disk; drop those of no use after round `since`.

    Without `files`, nothing is stored.
    """
    changed = [each for each in clients if any(each.unstored.values())]
    if files is None or not changed:
        return
    files.write(version for each in changed for version in each.take_unstored())
    for client in changed:
        client.note_stored(since)
    files.tidy()


def serialize(state: StateDict) -> bytes:
    """Return the bytes of a state; `safetensors.torch.load` reads them."""
    content: bytes = save({name: tensor.contiguous() for name, tensor in state.items()})
    return content


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


def folder_name(client: str) -> str:
    """Return the name of a client's folder: the client's, or a checksum if that might be a path."""
    written = client.encode(errors="surrogatepass")  # a file's name need not be UTF-8
    is_short = len(written) <= 200  # bytes, of the 255 that file systems take
    if FOLDER.fullmatch(client) and is_short and client != PREPROCESSING:
        return client
    return f"%{hashlib.sha256(written).hexdigest()[:32]}"


def state_folder(settings: RunSettings) -> Path | None:
    """Return the folder of all clients' states with these settings; None: in memory only."""
    if not settings.state_dir:
        return None
    return Path(settings.state_dir) / folder_name(fingerprint_of(settings))


def fingerprint_of(settings: RunSettings) -> str:
    """Return the digest of the settings that define a run; a device gets it with the settings."""
    return str(settings.parameters.get(FINGERPRINT) or fingerprint(settings.run_config()))


def folder_of(settings: RunSettings, client: str) -> Path | None:
    """Return the folder of a client's states in runs with these settings; None: in memory only."""
    folder = state_folder(settings)
    return None if folder is None else folder / folder_name(client)


def keep_preprocessing(folder: Path | None, task: Task, clients: Sequence[str]) -> None:
    """Write the preprocessing of a client, or of several, into a folder; only log a disk error."""
    if folder is None or task.preprocessing is None:
        return
    path = folder / PREPROCESSING
    content = _encode(task.preprocessing, tuple(clients))
    try:
        if path.exists() and path.read_bytes() == content:
            return
        make_folder(folder)
        write_private(path, content)
    except OSError as error:
        log.warning(
            "%s cannot be written, so that nothing can be predicted by it: %s", path, error.strerror
        )


@lru_cache(maxsize=1)  # called with every message to a deployed client
def _encode(preprocessing: Callable[[str], Preprocessing], clients: tuple[str, ...]) -> bytes:
    if len(clients) == 1:
        return preprocessing(*clients).encode()
    return preprocessing("").of_clients(map(preprocessing, clients)).encode()
