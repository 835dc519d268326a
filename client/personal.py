"""Personal models: kept in the client's context, and on disk where a state folder is set.

Each is stored with the round that made it, and the one before it is kept. So a round that is run again, because the
server went down in its midst, starts from the same personal model as the first time.
"""

from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context
from safetensors.torch import load_file, save_file
from torch import Tensor

from .settings import FINGERPRINT, fingerprint

StateDict = dict[str, Tensor]

MODEL, ABOUT = "personal-model", "personal"


def load(context: Context, client: str, before: int) -> StateDict | None:
    """Return the client's personal model from its last round before round `before`, None where there is none."""
    if ABOUT in context.state.config_records and int(str(context.state.config_records[ABOUT]["round"])) < before:
        return dict(context.state.array_records[MODEL].to_torch_state_dict())
    files = {int(path.stem): path for path in _files(context, client)}
    earlier = [number for number in files if number < before]
    return load_file(files[max(earlier)]) if earlier else None


def save(context: Context, client: str, number: int, model: StateDict) -> None:
    """Keep the personal model of round `number`, and of the files before it the last one."""
    context.state[MODEL] = ArrayRecord(model)
    context.state[ABOUT] = ConfigRecord({"round": number})
    folder = _folder(context, client)
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    earlier = [int(path.stem) for path in _files(context, client) if int(path.stem) < number]
    draft = folder / ".draft"
    save_file({name: array.contiguous() for name, array in model.items()}, draft)
    draft.replace(folder / f"{number}.safetensors")
    for path in _files(context, client):
        if int(path.stem) not in (number, max(earlier, default=number)):
            path.unlink()


def _folder(context: Context, client: str) -> Path | None:
    """Return where this client keeps its state for runs with these settings."""
    state_dir = context.run_config.get("state-dir", "")
    if not state_dir:
        return None
    run = context.run_config.get(FINGERPRINT) or fingerprint(context.run_config)
    return Path(str(state_dir)) / str(run) / client


def _files(context: Context, client: str) -> list[Path]:
    folder = _folder(context, client)
    return [] if folder is None else list(folder.glob("[0-9]*.safetensors"))
