"""Exports a model: writes it in a form, tries what was written, and puts a model card next to it."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from fairbloom import __version__
from fairbloom.client.states import folder_name
from fairbloom.errors import did_you_mean
from fairbloom.prediction.predictor import Predictor
from fairbloom.server.run_folder.errors import explain_write_errors
from fairbloom.server.run_folder.files import EXPORTS
from fairbloom.system.files import whole_folder, write_whole

from .check import TOLERANCE, check_export
from .described import DescribedModel
from .errors import ExportError, quiet
from .exportable import Exportable
from .mlflow import MLFLOW
from .onnx import ONNX
from .safetensors import SAFETENSORS
from .torch_program import TORCH

FORMS = {form.name: form for form in (ONNX, TORCH, SAFETENSORS, MLFLOW)}
"""The forms by what the command line calls them."""

CARD_ALONE = "card"
"""What the command line calls the model card without a model."""

CARD, RECORD = "README.md", "export.json"
"""The files of the model card, and of what was exported and how it was checked."""


@dataclass(frozen=True)
class Exported:
    """What was exported, and how its predictions differ from the model's.

    The largest difference is one of probabilities, or of a quantity in units of its standard deviation in training.
    """

    to: str
    run: str
    client: str
    model: str
    rows: int
    largest_difference: float
    probabilities: bool
    tolerance: float = TOLERANCE
    fairbloom: str = __version__

    @property
    def checked(self) -> str:
        """How it was checked, in a sentence."""
        unit = "" if self.probabilities else " of the target's deviation"
        what = "probability" if self.probabilities else "prediction"
        return (
            f"Its predictions were compared with the model's own on {self.rows} rows when it was exported: the largest "
            f"difference of a {what} was {self.largest_difference:.1e}{unit}."
        )


def export_model(predictor: Predictor, to: str, card: Callable[[DescribedModel], str], out: Path | None = None) -> Path:
    """Return the folder that a model was exported to: `out`, or by default one in the run folder.

    An earlier export there is replaced. FairbloomError: no such form, a library is missing, the model cannot be
    exported, the export predicts something else, or the folder holds other things. Nothing is changed then.
    """
    if to not in FORMS:
        raise ExportError(
            f"--to {to}: {did_you_mean(to, (*FORMS, CARD_ALONE))}there are {', '.join((*FORMS, CARD_ALONE))}"
        )
    form, folder = FORMS[to], out or default_folder(predictor.run, to, predictor.client, predictor.model)
    check_free(folder)
    exported = Exportable.of(predictor)
    with explain_write_errors("the export", folder), whole_folder(folder) as draft:
        with quiet():
            form.write(exported, draft)
            difference = check_export(exported, form.predict(exported, draft), to)
        of = exported.preprocessing.classes != ()
        done = Exported(to, predictor.run.name, predictor.client, predictor.model, exported.count, difference, of)
        described = DescribedModel(
            task=predictor.task_name,
            client=predictor.client,
            model=predictor.model,
            preprocessing=exported.preprocessing,
            library=form.library,
            form=form.title,
            listing=form.listing(exported),
            checked=done.checked,
        )
        write_whole(draft / CARD, card(described).encode())
        write_whole(draft / RECORD, json.dumps(asdict(done), indent=2, ensure_ascii=False).encode())
    return folder


def export_card(run: Path, card: str, client: str, model: str, out: Path | None = None) -> Path:
    """Return the folder that a model card was written to, alone; see `export_model`."""
    folder = out or default_folder(run, CARD_ALONE, client, model)
    check_free(folder)
    with explain_write_errors("the model card", folder), whole_folder(folder) as draft:
        write_whole(draft / CARD, card.encode())
        write_whole(draft / RECORD, json.dumps({"to": CARD_ALONE, "run": run.name}).encode())
    return folder


def default_folder(run: Path, to: str, client: str, model: str) -> Path:
    """Return where a model of a run is exported to if nobody says it."""
    return EXPORTS.path_in(run) / "-".join([to, model, *([folder_name(client)] if client else [])])


def check_free(folder: Path) -> None:
    """Raise ExportError where a folder holds anything but an earlier export, which may be replaced."""
    if folder.exists() and not (folder.is_dir() and ((folder / RECORD).exists() or not any(folder.iterdir()))):
        raise ExportError(f"{folder} is there and holds no export: name another folder by --out")
