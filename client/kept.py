"""What a client keeps of a run that is over: the final global model, in the form of a run folder.

It lies beside what the client keeps between rounds (`fairbloom.client.states.folder_of`), readable by its owner alone:
`config.toml` has the settings that this device took of the run, its schema too, and
`model.safetensors` the model, which is written last. A folder without that keeps no model.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import tomli_w
from torch.nn import Module

from fairbloom.errors import FairbloomError, ReportableError
from fairbloom.logs import log
from fairbloom.protocol.names import DEPLOYED, FLOOR, PERSONAL
from fairbloom.protocol.settings import Mark, marked
from fairbloom.protocol.version import RUN_FOLDER_FORMAT
from fairbloom.system.files import make_folder, write_private
from fairbloom.system.sealed import Arrays, DamagedFileError, load_model, save_model
from fairbloom.tasks.models import arrays_of

from .states import list_versions

CONFIG, MODEL = "config.toml", "model.safetensors"

MAX_RUNS = 5
"""The most runs of which a client keeps the final model; the oldest goes when another one comes."""


@dataclass(frozen=True)
class About:
    """What is known of a final model: its run, last round, and checksum in the server's run folder.

    `serves` is "personal" where the run trained no global model.
    """

    run: str
    round: int
    checksum: str
    serves: str = "global"

    @classmethod
    def of(cls, run: object, round_: object, checksum: object, serves: object) -> Self:
        """Return what a server says of a model; raise ReportableError where that cannot be."""
        if not isinstance(checksum, str) or not isinstance(run, str) or not isinstance(round_, int):
            raise ReportableError("the server does not say of which run the final model is, or which one")
        name = "".join(each if each.isprintable() else "\ufffd" for each in run[:200])
        return cls(name, round_, checksum, PERSONAL if serves == PERSONAL else "global")


def find_kept(folder: Path) -> About | None:
    """Return what is known of the model that a folder keeps, None where there is none, or it is damaged."""
    path = folder / MODEL
    if not path.exists():
        return None
    try:
        _, about = load_model(path)
        run, checksum, serves = (str(about[key]) for key in ("run", "checksum", "serves"))
        return About(run, int(about["round"]), checksum, serves)
    except (DamagedFileError, KeyError, TypeError, ValueError) as error:
        log.warning("%s; the server gives it again when the finished run is submitted once more", error)
        return None


@dataclass(frozen=True)
class KeptRun:
    """What a client keeps of one run: its folder, what is known of the final model, and the personal models' rounds."""

    folder: Path
    about: About | None
    personal_rounds: tuple[int, ...]


def list_kept(state_dir: Path) -> list[KeptRun]:
    """Return what clients keep in a state folder, the latest run first; the folder of one run may be named, too."""
    folders = (
        [state_dir] if (state_dir / CONFIG).exists() else [path.parent for path in state_dir.glob(f"*/*/{CONFIG}")]
    )
    if not folders:
        raise FairbloomError(
            f"{state_dir} keeps no models: name a client's state-dir, or the folder of a run in it. The model of a run "
            "comes when the run is over, and when the finished run is submitted again"
        )
    return [
        KeptRun(folder, find_kept(folder), tuple(sorted(int(path.stem) for path in list_versions(folder))))
        for folder in sorted(folders, key=_when_kept, reverse=True)
    ]


def choose_kept(state_dir: Path, run: str = "") -> KeptRun:
    """Return what is kept of a run, by its name; of the latest where none is named."""
    kept = list_kept(state_dir)
    named = [each for each in kept if not run or (each.about is not None and each.about.run == run)]
    if not named:
        names = dict.fromkeys(each.about.run for each in kept if each.about is not None)
        raise FairbloomError(f"run = {run!r}: {state_dir} keeps no model of it; there are {', '.join(names) or 'none'}")
    return named[0]


def _when_kept(folder: Path) -> float:
    model = folder / MODEL
    return (model if model.exists() else folder / CONFIG).stat().st_mtime


def keep_model(folder: Path, config: Mapping[str, Any], arrays: Arrays, about: About) -> None:
    """Write a run's final model and what it needs into a client's own folder; an earlier one of the run is replaced.

    A crash in between never leaves a model with the settings of another one.
    """
    make_folder(folder)
    path, content = folder / CONFIG, _encode(config)
    if not path.exists() or path.read_bytes() != content:
        (folder / MODEL).unlink(missing_ok=True)
        write_private(path, content)
    save_model(folder / MODEL, arrays, asdict(about), 0o600)


def check_fits(arrays: Arrays, module: Module) -> None:
    """Raise ReportableError unless arrays are a finite model of this module's."""
    wanted = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    found = {name: tuple(array.shape) for name, array in arrays.items()}
    if wanted != found:
        differing = sorted(name for name in {*wanted, *found} if wanted.get(name) != found.get(name))
        raise ReportableError(
            f"the final model does not fit the model that this client trains: {', '.join(differing[:3])} differ"
        )
    fresh = arrays_of(module.state_dict())
    for name, array in arrays.items():
        strange = ~np.isfinite(array)  # but for constants, as −inf in a mask
        if not np.array_equal(array[strange], fresh[name][strange], equal_nan=array.dtype.kind == "f"):
            raise ReportableError(f"the final model is not finite: {name} is not")


def _encode(config: Mapping[str, Any]) -> bytes:
    """Return a run's settings as config.toml has them, without this device's places."""
    left_out = {DEPLOYED, FLOOR, "method", *marked(Mark.DEVICE)}  # of which who predicts would import it
    settings = {key: value for key, value in sorted(config.items()) if key not in left_out}
    return tomli_w.dumps({"run-folder-format": RUN_FOLDER_FORMAT, **settings}, multiline_strings=True).encode()


def forget_oldest(state_dir: Path, name: str) -> None:
    """Remove the final models of a client's oldest runs, where there are too many.

    `name` is its folder in each run's.
    """
    kept = [path for run in state_dir.iterdir() if (path := run / name / MODEL).exists()]
    for path in sorted(kept, key=lambda path: path.stat().st_mtime)[:-MAX_RUNS]:
        path.unlink()
