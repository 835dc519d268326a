"""A model as a program of torch.export, which PyTorch runs without the module's source, and its preprocessing."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fairbloom.prediction.adapters import merged
from fairbloom.server.run_folder.files import PREPROCESSING
from fairbloom.tasks.preprocessing import Predictions, Preprocessing

from .errors import explained, read_preprocessing
from .form import Form
from .subject import Subject, inputs_of

PROGRAM = "model.pt2"
"""The file of the program."""

TRACED = 3
"""The number of examples that the program is traced with; it takes any number."""


class Predicting(nn.Module):
    """A model with the meaning of its outputs: probabilities of classes, or a quantity in its own unit."""

    def __init__(self, model: nn.Module, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.model = model
        self._of_classes = bool(preprocessing.classes)
        self._center, self._scale = preprocessing.target_center, preprocessing.target_scale

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the probability of each class, shape (n, classes), or the quantity, shape (n,) and torch.float64."""
        outputs: Tensor = self.model(inputs)
        if self._of_classes:
            return outputs.float().softmax(dim=1)
        return outputs.reshape(-1).double() * self._scale + self._center


def export_program(subject: Subject, form: str) -> torch.export.ExportedProgram:
    """Return the program of a model and its predictions, for any number of examples.

    Raises
    ------
    ExportError
        When PyTorch cannot follow the module.
    """
    shape, preprocessing = subject.shape, subject.preprocessing
    with explained(form, "safetensors, which holds the weights alone"):
        predicting = Predicting(merged(subject.predictor.module), preprocessing).eval()
        examples = (torch.zeros(TRACED, *shape),)
        return torch.export.export(predicting, examples, dynamic_shapes=({0: torch.export.Dim("batch")},))


def write_program(subject: Subject, folder: Path, form: str = "torch") -> None:
    """Write the program and the preprocessing; raise ExportError when PyTorch cannot follow the module."""
    program = export_program(subject, form)
    torch.export.save(program, folder / PROGRAM)
    PREPROCESSING.write(folder, subject.preprocessing)


def predict(subject: Subject, folder: Path) -> Predictions:
    """Return what the program in a folder predicts with the preprocessing beside it."""
    preprocessing = read_preprocessing(folder)
    program = torch.export.load(folder / PROGRAM).module()
    with torch.no_grad():
        return named(program(inputs_of(preprocessing, subject.raw)), preprocessing)


def named(found: Tensor, preprocessing: Preprocessing) -> Predictions:
    """Return predictions with the names of classes, of what a program returns."""
    if not preprocessing.classes:
        return Predictions(found.numpy(), None)
    return Predictions(np.array(preprocessing.classes, object)[found.argmax(dim=1)], found.numpy())


def listing(subject: Subject) -> str:
    """Return lines of Python that run the program by PyTorch."""
    what = "probabilities of the classes" if subject.preprocessing.classes else "the quantity in its own unit"
    return "\n".join(
        [
            "import torch",
            "",
            f'program = torch.export.load("{PROGRAM}").module()',
            f"inputs = torch.zeros({(5, *subject.shape)})  # as {PREPROCESSING.name} says",
            f"print(program(inputs))  # {what}",
        ]
    )


TORCH = Form(
    name="torch",
    title="A program of torch.export, with its preprocessing beside it",
    library="pytorch",
    write=write_program,
    predict=predict,
    listing=listing,
)
