"""The states of all clients of one process: a file for each checkpoint, not a folder a client.

A file has the versions that were made since the checkpoint before. The names of a version's arrays
and of its checksum begin with its client, its name and its round.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save

from fairbloom.logs import log
from fairbloom.system.files import make_folder, write_private

from .states import (
    CHECKSUM,
    UNREADABLE,
    ClientStates,
    StateDict,
    checksum,
    list_versions,
    load_version,
)

# A file has this many bytes of tensors, because they are copied in memory to be written, and those
# of one version more. Versions are about equally large.
MAX_BYTES = 1 << 28


class Archive:
    """The files of all clients' states in a folder; with None for it, nothing is stored.

    Attributes
    ----------
    files
        By a client and the name of a state: the file of each version, by the round that made it. Of
        several files with the same version, the last is taken.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.files = defaultdict[tuple[str, str], dict[int, Path]](dict)
        self._counts = dict[Path, int]()
        for file in list_versions(folder) if folder else []:
            self._add(file)

    def store(self, clients: Iterable["ArchivedStates"], since: int) -> None:
        """Write the versions that are not on disk; remove those of no use after round `since`."""
        new = [(each, name) for each in clients for name in each.unstored if each.unstored[name]]
        if self.folder is None or not new:
            return
        make_folder(self.folder)
        self._write(
            self.folder,
            (
                (json.dumps([each.client, name, made]), each.in_memory[name][made])
                for each, name in new
                for made in sorted(each.unstored[name])
            ),
        )
        for each, name in new:
            each.unstored[name].clear()
            each.drop_unused(name, since)
        self._tidy(self.folder)

    def _tidy(self, folder: Path) -> None:
        """Remove files without a version in use; write those in use anew if most are not."""
        used = Counter(file for versions in self.files.values() for file in versions.values())
        for file in self._counts.keys() - used.keys():
            del self._counts[file]
            file.unlink(missing_ok=True)
        if 2 * used.total() < sum(self._counts.values()):
            self._write(
                folder,
                (
                    (json.dumps([client, name, made]), state)
                    for (client, name), versions in [*self.files.items()]
                    for made in [*versions]
                    if (state := ArchivedStates(client, self).read(name, made)) is not None
                ),
            )
            self._tidy(folder)

    def _write(self, folder: Path, versions: Iterator[tuple[str, StateDict]]) -> None:
        """Write versions, each with the beginning of its names, to the next file, or to several."""
        tensors: StateDict = {}
        about: dict[str, str] = {}
        for key, given in versions:
            state = {each: tensor.contiguous() for each, tensor in given.items()}
            tensors |= {key + each: tensor for each, tensor in state.items()}
            about[key + CHECKSUM] = checksum(state)
            if len(about) * sum(tensor.nbytes for tensor in state.values()) > MAX_BYTES:
                break
        if about:
            last = max((int(file.stem) for file in list_versions(folder)), default=0)
            file = folder / f"{last + 1}.safetensors"
            write_private(file, save(tensors, metadata=about))
            self._add(file)
            self._write(folder, versions)

    def _add(self, file: Path) -> None:
        try:
            with safe_open(file, framework="pt") as opened:
                keys = [json.loads(name.removesuffix(CHECKSUM)) for name in opened.metadata()]
        except UNREADABLE:
            log.warning("%s is damaged: clients continue without the states in it", file)
            return
        self._counts[file] = len(keys)
        for client, name, made in keys:
            self.files[client, name][made] = file


class ArchivedStates(ClientStates):
    """The states of a client, which are stored with those of the others by `Archive.store`."""

    def __init__(self, client: str, archive: Archive) -> None:
        super().__init__(None)
        self.client = client
        self._archive = archive

    def _files(self, name: str) -> dict[int, Path]:
        return self._archive.files[self.client, name]

    def read(self, name: str, made: int) -> StateDict | None:
        """Return a stored version, None if it is damaged; leave it out then."""
        file = self._files(name)[made]
        state = load_version(file, json.dumps([self.client, name, made]))
        if state is None:
            self._drop(name, made)
            log.warning("%s is damaged: client %s continues without it", file, self.client)
        return state

    def _drop(self, name: str, made: int) -> None:
        del self._files(name)[made]
