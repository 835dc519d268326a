"""What a client keeps between rounds: in memory, and on disk where it has a folder.

Each thing that it keeps has a name and is made of tensors, its personal model for example. Every version of it is
called by the round that made it and is stored with a checksum; up to two earlier ones are kept. So the rounds since the
server's last two checkpoints start from the same versions as the first time when they are run again, because the
server went down and had to go back to the checkpoint before its last.
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

from .settings import FINGERPRINT, fingerprint

StateDict = dict[str, Tensor]

PERSONAL, RULE = "personal", "rule"
"""The names of a client's personal model, and of the state of its rule of local work, among what it keeps. Versions of
the first lie in the client's folder itself; those of all else lie in a folder of its name there."""

BASELINE = "baseline"
"""The name of what a client keeps of its training alone: the loss and scores of the best model that it met."""

FOLDER = re.compile(r"(?![.%])[^/\\\x00-\x1f\x7f]+")
"""A client's name that is the name of its folder as well; any other has a folder that is called after its checksum."""


class Version(NamedTuple):
    """One version of what a client keeps: the round that made it, and its tensors by name."""

    made: int
    state: StateDict


class Made(NamedTuple):
    """What a round has made of something that a client keeps.

    `origin` is the round of the version that it was made from, 0 where the client began again; None: the last one.
    """

    state: StateDict
    origin: int | None = None


class KeptVersions:
    """The versions of one thing that a client keeps in one run, by the round that made each.

    They are stored in `folder`, if there is one: each when it is made if `stored_at_once`, else by `store` with every
    checkpoint.
    """

    def __init__(
        self, folder: Path | None, versions: Mapping[int, StateDict] | None = None, *, stored_at_once: bool = True
    ) -> None:
        self.in_memory = dict(sorted((versions or {}).items()))
        self._folder = folder
        self._at_once = stored_at_once
        self._unstored: set[int] = set()
        self._origin: int | None = None

    @property
    def last(self) -> Version | None:
        """The last version in memory."""
        return Version(*max(self.in_memory.items(), key=lambda item: item[0])) if self.in_memory else None

    def before(self, number: int) -> StateDict | None:
        """Return the last version of a round before round `number`, None where there is none."""
        found = self.find(number)
        return None if found is None else found.state

    def find(self, before: int) -> Version | None:
        """Return the last version of a round before this one, and its round; None where there is none."""
        if earlier := [made for made in self.in_memory if made < before]:
            return Version(max(earlier), self.in_memory[max(earlier)])
        for made in sorted((made for made in self._files() if made < before), reverse=True):
            state = self._read(made)
            if state is not None:
                return Version(made, state)
        return None

    def at(self, made: int) -> StateDict | None:
        """Return the version that this round made, None where it is not here."""
        if made not in self.in_memory and made in self._files() and (state := self._read(made)) is not None:
            self.in_memory = dict(sorted({**self.in_memory, made: state}.items()))
        return self.in_memory.get(made)

    def keep(self, number: int, state: StateDict, origin: int | None = None) -> None:
        """Keep the version of round `number` in memory, and on disk where each is stored at once.

        With an `origin`, the version that it was made from stays in memory as well, and those between the two are
        deleted: the replies of their rounds were not used, or the server has gone back to an earlier round.
        """
        before = {} if origin is None else {made: each for made, each in self.in_memory.items() if made == origin}
        self.in_memory = before | {number: {name: tensor.detach().clone() for name, tensor in state.items()}}
        self._unstored = (self._unstored & before.keys()) | {number}
        self._origin = origin
        with explain_disk_errors("written to"):
            if origin is not None:
                for made, path in self._files().items():
                    if made > origin:
                        path.unlink(missing_ok=True)
            if self._at_once:
                self.store(since=number - 1)

    def made_in(self, number: int) -> Made | None:
        """Return what `keep` has kept in round `number`, None where it has kept nothing."""
        return Made(self.in_memory[number], self._origin) if number in self.in_memory else None

    def store(self, since: int) -> None:
        """Write what is not on disk, and remove the versions that no round after `since` goes on from."""
        if self._folder is None or not self._unstored:
            return
        make_folder(self._folder)
        earlier = max((made for made in self._files() if made < since), default=None)
        for made in sorted(self._unstored):
            save_version(self._folder / f"{made}.safetensors", self.in_memory[made])
        self._unstored, last = set(), max(self.in_memory)
        for made, path in self._files().items():
            if made not in range(since, last + 1) and made != earlier and made not in self.in_memory:
                path.unlink(missing_ok=True)
        for draft in self._folder.glob(".*.draft"):  # of a process that was killed
            draft.unlink(missing_ok=True)

    def _files(self) -> dict[int, Path]:
        return {} if self._folder is None else {int(path.stem): path for path in list_versions(self._folder)}

    def _read(self, made: int) -> StateDict | None:
        """Return a version that is on disk, None where it is not as it was written: that file is set aside."""
        path = self._files()[made]
        with explain_disk_errors("read from"):
            state = load_version(path)
            if state is None:
                damaged = path.replace(path.with_suffix(".damaged"))
                log.warning("%s does not hold what was written: the client goes on without it", damaged)
        return state


class ClientStates(dict[str, KeptVersions]):
    """All that one client keeps between the rounds of one run: the versions of each thing by its name."""

    def __init__(
        self,
        folder: Path | None,
        versions: Mapping[str, Mapping[int, StateDict]] | None = None,
        *,
        stored_at_once: bool = True,
    ) -> None:
        super().__init__()
        self._folder = folder
        self._at_once = stored_at_once
        self.load(versions or {})

    def __missing__(self, name: str) -> KeptVersions:
        """Return the versions of what has this name: there are none yet."""
        self[name] = self._make(name, {})
        return self[name]

    @property
    def personal(self) -> KeptVersions:
        """The client's personal models."""
        return self[PERSONAL]

    def load(self, versions: Mapping[str, Mapping[int, StateDict]]) -> None:
        """Have these versions in memory, by name and round, and no others."""
        self.clear()
        self.update({name: self._make(name, in_memory) for name, in_memory in versions.items()})

    def _make(self, name: str, in_memory: Mapping[int, StateDict]) -> KeptVersions:
        folder = self._folder if self._folder is None or name == PERSONAL else self._folder / name
        return KeptVersions(folder, in_memory, stored_at_once=self._at_once)

    @property
    def in_memory(self) -> dict[str, dict[int, StateDict]]:
        """The versions in memory, by name and the round that made each."""
        return {name: kept.in_memory for name, kept in self.items() if kept.in_memory}

    def of_rule(self, terms: Terms) -> Version:
        """Return the state of the terms' `state_round`, or the last one, for the client's rule.

        Without one, an empty state.
        """
        if terms.state_round is None:
            return self[RULE].find(before=terms.server_round) or Version(0, {})
        there = 0 < terms.state_round < terms.server_round
        state = self[RULE].at(terms.state_round) if there else None
        return Version(0, {}) if state is None else Version(terms.state_round, state)

    def made_in(self, number: int) -> dict[str, Made]:
        """Return what the client has kept in round `number`, by name."""
        return {name: each for name, kept in self.items() if (each := kept.made_in(number)) is not None}

    def keep(self, number: int, made: Mapping[str, Made]) -> None:
        """Keep what round `number` has made, by name."""
        for name, each in made.items():
            self[name].keep(number, each.state, each.origin)

    def store(self, since: int) -> None:
        """Write what is not on disk, and remove the versions that no round after `since` goes on from."""
        for kept in self.values():
            kept.store(since)


@contextmanager
def explain_disk_errors(what: str) -> Iterator[None]:
    """Turn a disk error of what a client keeps into words that the server may read.

    `what` is "written to" or "read from".
    """
    try:
        yield
    except OSError as error:
        raise ReportableError(
            f"what this client keeps between rounds cannot be {what} its state-dir "
            f"({error.strerror or type(error).__name__}): give it a folder with free space that the account which runs "
            "it may read and write"
        ) from error


def list_versions(folder: Path) -> list[Path]:
    """Return the files of versions in a folder, each called by the round that made it; others are no versions."""
    return [path for path in folder.glob("[0-9]*.safetensors") if path.stem.isdecimal()]


def load_last(folder: Path) -> Version | None:
    """Return the newest personal model in a client's folder that is whole, and its round; None where there is none."""
    for path in sorted(list_versions(folder), key=lambda path: -int(path.stem)):
        if (model := load_version(path)) is not None:
            return Version(int(path.stem), model)
        log.warning("%s does not hold what was written: an earlier personal model is taken, if there is one", path)
    return None


def save_version(path: Path, state: Mapping[str, Tensor]) -> None:
    """Write tensors whole, with a checksum of them."""
    tensors = {name: tensor.contiguous() for name, tensor in state.items()}
    write_private(path, save(tensors, metadata={"sha256": _checksum(tensors)}))


def load_version(path: Path) -> StateDict | None:
    """Return the tensors that `save_version` wrote, None where the file is not as it was written."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (the handle is not iterable)
            written = (file.metadata() or {}).get("sha256")
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError):  # all that flipped bits lead to
        return None
    return tensors if written == _checksum(tensors) else None


def _checksum(tensors: StateDict) -> str:
    return hashlib.sha256(save(tensors)).hexdigest()


def folder_name(client: str) -> str:
    """Return what the folder of a client is called: its name, or where that might be a path, a checksum of it."""
    written = client.encode(errors="surrogatepass")  # the name of a file may be no UTF-8
    if FOLDER.fullmatch(client) and len(written) <= 200:  # bytes, of the 255 that file systems take
        return client
    return f"%{hashlib.sha256(written).hexdigest()[:32]}"


def state_folder(settings: RunSettings | Mapping[str, Any]) -> Path | None:
    """Return where clients keep their states in runs with these settings, each in a folder of its own.

    None: nowhere.
    """
    config = settings.run_config() if isinstance(settings, RunSettings) else settings
    state_dir = config.get("state-dir", "")
    if not state_dir:
        return None
    return Path(str(state_dir)) / folder_name(str(config.get(FINGERPRINT) or fingerprint(config)))


def folder_of(settings: RunSettings | Mapping[str, Any], client: str) -> Path | None:
    """Return where a client keeps its personal models in runs with these settings, None where it keeps none."""
    folder = state_folder(settings)
    return None if folder is None else folder / folder_name(client)
