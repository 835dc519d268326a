"""What a client keeps between rounds: in memory, and on disk where it has a folder.

Each thing that it keeps has a name and is made of tensors, its personal model for example. Every
version of it is called by the round that made it and is stored with a checksum; up to two earlier
ones are kept. So the rounds since the server's last two checkpoints start from the same versions as
the first time when they are run again, because the server went down and had to go back to the
checkpoint before its last.
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

from .guard.accepted_settings import FINGERPRINT, fingerprint

StateDict = dict[str, Tensor]

PERSONAL = "personal"
RULE = "rule"
"""The names of a client's personal model, and of the state of its rule of local work, among what it
keeps. Versions of the first lie in the client's folder itself; those of all else lie in a folder of
its name there."""

BASELINE = "baseline"
"""The name of what a client keeps of its training alone: the loss and scores of the best model that
it met."""

FOLDER = re.compile(r"(?![.%])[^/\\\x00-\x1f\x7f]+")
"""A client's name that is the name of its folder as well; any other has a folder that is called
after its checksum."""


class Version(NamedTuple):
    """One version of what a client keeps: the round that made it, and its tensors by name."""

    made: int
    state: StateDict


class ClientStates:
    """All that one client keeps in one run: of each thing, by its name, the versions by the round that made each.

    `in_memory` has the versions in memory. They are stored in `folder`, if there is one: each when
    it is made if `stored_at_once`, else by `store` with every checkpoint.
    """

    def __init__(
        self,
        folder: Path | None,
        versions: Mapping[str, Mapping[int, StateDict]] | None = None,
        *,
        stored_at_once: bool = True,
    ) -> None:
        self.in_memory = {
            name: dict(sorted(each.items())) for name, each in (versions or {}).items()
        }
        self._folder = folder
        self._at_once = stored_at_once
        self._unstored = dict[str, set[int]]()
        self._origins = dict[str, int | None]()

    def find(self, name: str, before: int) -> Version | None:
        """Return the last version of a round before this one, and its round.

        None where there is none.
        """
        versions = self.in_memory.get(name, {})
        if earlier := [made for made in versions if made < before]:
            return Version(max(earlier), versions[max(earlier)])
        for made in sorted((made for made in self._files(name) if made < before), reverse=True):
            if (state := self._read(name, made)) is not None:
                return Version(made, state)
        return None

    def at(self, name: str, made: int) -> StateDict | None:
        """Return the version that this round made, None where it is not here."""
        versions = self.in_memory.get(name, {})
        if (
            made not in versions
            and made in self._files(name)
            and (state := self._read(name, made)) is not None
        ):
            versions = self.in_memory[name] = dict(sorted({**versions, made: state}.items()))
        return versions.get(made)

    def of_rule(self, terms: Terms) -> Version:
        """Return the state of the terms' `state_round`, or the last one, for the client's rule.

        Without one, an empty state.
        """
        number = terms.state_round
        if number is None:
            return self.find(RULE, before=terms.server_round) or Version(0, {})
        state = self.at(RULE, number) if 0 < number < terms.server_round else None
        return Version(0, {}) if state is None else Version(number, state)

    def keep(self, name: str, number: int, state: StateDict, origin: int | None = None) -> None:
        """Keep the version of round `number` in memory, and on disk where each is stored at once.

        `origin` is the round of the version that it was made from, 0 where the client began again;
        None: the last one. With an origin, that version stays in memory as well, and those between
        the two are deleted: the replies of their rounds were not used, or the server has gone back
        to an earlier round.
        """
        versions = self.in_memory.get(name, {})
        before = {made: each for made, each in versions.items() if made == origin}
        self.in_memory[name] = before | {
            number: {key: tensor.detach().clone() for key, tensor in state.items()}
        }
        self._unstored[name] = self._unstored.get(name, set()) & before.keys() | {number}
        self._origins[name] = origin
        with explain_disk_errors("written to"):
            if origin is not None:
                for made, path in self._files(name).items():
                    if made > origin:
                        path.unlink(missing_ok=True)
            if self._at_once:
                self.store(since=number - 1)

    def made_in(self, number: int) -> dict[str, tuple[int | None, StateDict]]:
        """Return what `keep` has kept in round `number`: by name, the origin of each and its tensors."""
        there = {
            name: versions[number]
            for name, versions in self.in_memory.items()
            if number in versions
        }
        return {name: (self._origins.get(name), state) for name, state in there.items()}

    def store(self, since: int) -> None:
        """Write what is not on disk, and remove the versions that no round after `since` goes on from."""
        for name, unstored in self._unstored.items():
            if self._folder is None or not unstored:
                continue
            versions = self.in_memory[name]
            folder = self._folder_of(self._folder, name)
            make_folder(folder)
            earlier = max((made for made in self._files(name) if made < since), default=None)
            for made in sorted(unstored):
                save_version(folder / f"{made}.safetensors", versions[made])
            unstored.clear()
            for made, path in self._files(name).items():
                if (
                    made not in range(since, max(versions) + 1)
                    and made != earlier
                    and made not in versions
                ):
                    path.unlink(missing_ok=True)
            for draft in folder.glob(".*.draft"):  # of a process that was killed
                draft.unlink(missing_ok=True)

    @staticmethod
    def _folder_of(folder: Path, name: str) -> Path:
        return folder if name == PERSONAL else folder / name

    def _files(self, name: str) -> dict[int, Path]:
        paths = [] if self._folder is None else list_versions(self._folder_of(self._folder, name))
        return {int(path.stem): path for path in paths}

    def _read(self, name: str, made: int) -> StateDict | None:
        """Return a version that is on disk, None where it is not as it was written: that file is set aside."""
        path = self._files(name)[made]
        with explain_disk_errors("read from"):
            state = load_version(path)
            if state is None:
                damaged = path.replace(path.with_suffix(".damaged"))
                log.warning(
                    "%s does not hold what was written: the client goes on without it", damaged
                )
        return state


@contextmanager
def explain_disk_errors(what: str) -> Iterator[None]:
    """Turn a disk error of what a client keeps into words that the server may read.

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
    """Return the files of versions in a folder, each called by the round that made it.

    Others are no versions.
    """
    return [path for path in folder.glob("[0-9]*.safetensors") if path.stem.isdecimal()]


def load_last(folder: Path) -> Version | None:
    """Return the newest personal model in a client's folder that is whole, and its round.

    None where there is none.
    """
    for path in sorted(list_versions(folder), key=lambda path: -int(path.stem)):
        if (model := load_version(path)) is not None:
            return Version(int(path.stem), model)
        log.warning(
            "%s does not hold what was written: an earlier personal model is taken, if there"
            " is one",
            path,
        )
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
    except (
        SafetensorError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
    ):  # all that flipped bits lead to
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
