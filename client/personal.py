"""Personal models of a client: the last one in memory, and a few on disk where it has a folder.

Each is stored with the round that made it and a checksum, and up to two earlier ones are kept. So the rounds since the
server's last two checkpoints start from the same personal models as the first time when they are run again, because the
server went down and had to go back to the checkpoint before its last.
"""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fairbloom.logs import log
from fairbloom.protocol.settings import RunSettings
from fairbloom.system.files import make_folder, write_private

from .settings import FINGERPRINT, fingerprint

StateDict = dict[str, Tensor]

FOLDER = re.compile(r"(?![.%])[^/\\\x00-\x1f\x7f]+")
"""A client's name that is the name of its folder as well; any other has a folder that is called after its checksum."""

LONGEST_FOLDER = 200
"""Bytes of a folder's name; no file system takes more than 255."""


class PersonalModels:
    """The personal models of one client in one run.

    Parameters
    ----------
    folder
        Where they are stored; None: nowhere but in memory.
    last
        The round that made the last one, and the model; None: there is none in memory.
    stored_at_once
        Whether each is stored when it is made. Where not, `store` does it, and is called with every checkpoint.
    """

    def __init__(
        self, folder: Path | None, last: tuple[int, StateDict] | None = None, *, stored_at_once: bool = True
    ) -> None:
        self.last = last
        self._folder = folder
        self._at_once = stored_at_once
        self._stored = last is not None

    def before(self, number: int) -> StateDict | None:
        """Return the model of the last round before round `number`, None where there is none."""
        if self.last is not None and self.last[0] < number:
            return self.last[1]
        files = {int(path.stem): path for path in self._files()}
        for made in sorted((made for made in files if made < number), reverse=True):
            model = load_model(files[made])
            if model is not None:
                return model
            damaged = files[made].replace(files[made].with_suffix(".damaged"))
            log.warning(
                "%s does not hold what was written: an earlier personal model is taken, if there is one", damaged
            )
        return None

    def keep(self, number: int, model: StateDict) -> None:
        """Keep the model of round `number` in memory, and on disk where each is stored at once."""
        self.last = (number, {name: tensor.detach().clone() for name, tensor in model.items()})
        self._stored = False
        if self._at_once:
            self.store(since=number - 1)

    def store(self, since: int) -> None:
        """Write the last model, if it is not on disk, and remove those that no round after `since` starts from."""
        if self.last is None or self._folder is None or self._stored:
            return
        number, model = self.last
        make_folder(self._folder)
        earlier = [int(path.stem) for path in self._files() if int(path.stem) < since]
        save_model(self._folder / f"{number}.safetensors", model)
        self._stored = True
        for path in self._files():
            if int(path.stem) not in range(since, number + 1) and int(path.stem) != max(earlier, default=number):
                path.unlink()
        for draft in self._folder.glob(".*.draft"):  # of a process that was killed
            draft.unlink()

    def _files(self) -> list[Path]:
        return [] if self._folder is None else list_models(self._folder)


def list_models(folder: Path) -> list[Path]:
    """Return the files of a client's personal models, each called by the round that made it."""
    return list(folder.glob("[0-9]*.safetensors"))


def load_last(folder: Path) -> tuple[int, StateDict] | None:
    """Return the newest personal model in a client's folder that is whole, and its round; None where there is none."""
    for path in sorted(list_models(folder), key=lambda path: -int(path.stem)):
        if (model := load_model(path)) is not None:
            return int(path.stem), model
        log.warning("%s does not hold what was written: an earlier personal model is taken, if there is one", path)
    return None


def save_model(path: Path, model: StateDict) -> None:
    """Write a model whole, with a checksum of it."""
    tensors = {name: tensor.contiguous() for name, tensor in model.items()}
    write_private(path, save(tensors, metadata={"sha256": _checksum(tensors)}))


def load_model(path: Path) -> StateDict | None:
    """Return the model that `save_model` wrote, None where the file is not as it was written."""
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
    if FOLDER.fullmatch(client) and len(written) <= LONGEST_FOLDER:
        return client
    return f"%{hashlib.sha256(written).hexdigest()[:32]}"


def state_folder(settings: RunSettings | Mapping[str, Any]) -> Path | None:
    """Return where clients keep their personal models in these runs, each in a folder of its `folder_name`.

    None where they keep none.
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
