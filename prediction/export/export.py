"""Exports a model: writes it in a form, tries what was written, and puts a model card beside it."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from fairbloom import __version__
from fairbloom.client.personal import folder_name
from fairbloom.errors import did_you_mean
from fairbloom.prediction.predictor import Predictor
from fairbloom.server.run_folder.errors import explain_write_errors
from fairbloom.server.run_folder.files import EXPORTS
from fairbloom.system.files import whole_folder, write_whole

from .errors import ExportError, quiet
from .form import Form
from .mlflow import MLFLOW
from .onnx import ONNX
from .safetensors import SAFETENSORS
from .subject import Subject
from .torch_program import TORCH
from .trial import TOLERANCE, Trial

FORMS = {form.name: form for form in (ONNX, TORCH, SAFETENSORS, MLFLOW)}
"""The forms by what the command line calls them."""

CARD, RECORD = "README.md", "export.json"
"""The files of the model card, and of what was exported and how it was checked."""


@dataclass(frozen=True)
class Exported:
    """What was exported, and how its predictions differ from the model's.

    Attributes
    ----------
    to
        The form.
    run
        The name of the run folder.
    client, model
        Whose preprocessing or personal model it is, and which model: last, best or personal.
    rows
        How many rows it was tried on.
    largest_difference, tolerance
        Of a probability, or of a quantity in units of its deviation in training.
    fairbloom
        The version that has exported it.
    """

    to: str
    run: str
    client: str
    model: str
    rows: int
    largest_difference: float
    tolerance: float = TOLERANCE
    fairbloom: str = __version__


Card = Callable[[Subject, Form, Exported], str]
"""Returns the model card."""


def export_model(predictor: Predictor, to: str, card: Card, out: Path | None = None) -> Path:
    """Return the folder that a model was exported to.

    Parameters
    ----------
    predictor
        The model with its preprocessing.
    to
        The name of a form.
    card
        Returns the model card.
    out
        The folder, which is made; one of an earlier export is replaced. By default one in the run folder.

    Raises
    ------
    FairbloomError
        When there is no such form, what it needs is not installed, the model cannot be exported to it, what was
        exported predicts something else, or the folder holds other things. Nothing is changed then.
    """
    if to not in FORMS:
        raise ExportError(f"--to {to}: {did_you_mean(to, FORMS)}a model is exported to {', '.join(FORMS)}")
    form, folder = FORMS[to], out or default_folder(predictor, to)
    check_free(folder)
    subject = Subject.of(predictor)
    with explain_write_errors("the export", folder), whole_folder(folder) as draft:
        with quiet():
            form.write(subject, draft)
            difference = Trial.of(subject).check(form.predict(subject, draft), to)
        done = Exported(to, predictor.run.name, predictor.client, predictor.model, len(subject.raw), difference)
        write_whole(draft / CARD, card(subject, form, done).encode())
        write_whole(draft / RECORD, json.dumps(asdict(done), indent=2, ensure_ascii=False).encode())
    return folder


def default_folder(predictor: Predictor, to: str) -> Path:
    """Return where a model is exported to if nobody says it."""
    client = [folder_name(predictor.client)] if predictor.client else []
    return EXPORTS.path_in(predictor.run) / "-".join([to, predictor.model, *client])


def check_free(folder: Path) -> None:
    """Raise ExportError where a folder holds anything but an earlier export, which may be replaced."""
    if folder.exists() and not (folder.is_dir() and ((folder / RECORD).exists() or not any(folder.iterdir()))):
        raise ExportError(f"{folder} is there and holds no export: name another folder by --out")
