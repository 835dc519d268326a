"""Personal models of a client: the last one in memory, and a few on disk where it has a folder.

Each is stored with the round that made it, and up to two earlier ones are kept. So the rounds since the server's last
two checkpoints start from the same personal models as the first time when they are run again, because the server went
down and had to go back to the checkpoint before its last.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save
from torch import Tensor

from .settings import FINGERPRINT, fingerprint

StateDict = dict[str, Tensor]


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
        earlier = [made for made in files if made < number]
        return load_file(files[max(earlier)]) if earlier else None

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
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        earlier = [int(path.stem) for path in self._files() if int(path.stem) < since]
        draft = self._folder / ".draft"
        draft.write_bytes(save({name: tensor.contiguous() for name, tensor in model.items()}))
        draft.replace(self._folder / f"{number}.safetensors")
        self._stored = True
        for path in self._files():
            if int(path.stem) not in range(since, number + 1) and int(path.stem) != max(earlier, default=number):
                path.unlink()

    def _files(self) -> list[Path]:
        return [] if self._folder is None else list(self._folder.glob("[0-9]*.safetensors"))


def state_folder(settings: Mapping[str, Any]) -> Path | None:
    """Return where clients keep their personal models in runs with these settings, each in a folder of its name.

    None where they keep none.
    """
    state_dir = settings.get("state-dir", "")
    if not state_dir:
        return None
    return Path(str(state_dir)) / str(settings.get(FINGERPRINT) or fingerprint(settings))


def folder_of(settings: Mapping[str, Any], client: str) -> Path | None:
    """Return where a client keeps its personal models in runs with these settings, None where it keeps none."""
    folder = state_folder(settings)
    return None if folder is None else folder / client
