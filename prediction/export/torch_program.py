"""A model as a program of torch.export, which PyTorch runs without the module's source, and its preprocessing."""

import copy
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from fairbloom.client.training import choose_output
from fairbloom.server.run_folder.files import PREPROCESSING
from fairbloom.tasks.inputs import tensors_of
from fairbloom.tasks.preprocessing import Predictions, Preprocessing

from .errors import explained, read_preprocessing
from .exportable import Exportable
from .form import Form

PROGRAM = "model.pt2"
"""The file of the program."""


MERGE = "merge_and_unload"
"""The method by which peft's models merge their adapters."""


def merged(module: nn.Module) -> nn.Module:
    """Return a copy of a model with its adapters merged into their layers, or the model itself if it has none."""
    has_adapters = any(hasattr(each, MERGE) for each in module.modules())
    return _merged(copy.deepcopy(module)) if has_adapters else module


def _merged(module: nn.Module) -> nn.Module:
    """Merge the adapters of a module, or of those inside it, in place; return what takes its place."""
    if hasattr(module, MERGE):
        plain: nn.Module = getattr(module, MERGE)()
        return plain
    for name, child in list(module.named_children()):
        setattr(module, name, _merged(child))
    return module


class Predicting(nn.Module):
    """A model with the meaning of its outputs: probabilities of classes, or a quantity in its own unit."""

    def __init__(self, exported: Exportable) -> None:
        super().__init__()
        self.model = merged(exported.predictor.module)
        self._output, preprocessing = exported.predictor.output, exported.preprocessing
        self._names = list(exported.inputs) if isinstance(exported.inputs, Mapping) else []
        self._of_classes = bool(preprocessing.classes)
        self._center, self._scale = preprocessing.target_center, preprocessing.target_scale

    def forward(self, *tensors: Tensor) -> Tensor:
        """Return the probability of each class, shape (n, classes), or the quantity, shape (n,) and torch.float64."""
        named = dict(zip(self._names, tensors, strict=True)) if self._names else {}
        outputs = choose_output(self.model, self.model(**named) if named else self.model(*tensors), self._output)
        if self._of_classes:
            return outputs.float().softmax(dim=1)
        return outputs.reshape(-1).double() * self._scale + self._center


def export_program(exported: Exportable, form: str) -> torch.export.ExportedProgram:
    """Return the program of a model and its predictions, traced with three examples, for any number of them."""
    examples = tuple(torch.zeros(3, *each.shape[1:], dtype=each.dtype) for each in tensors_of(exported.inputs))
    shapes = tuple({0: torch.export.Dim("batch")} for _ in examples)
    start = torch.ones(1, requires_grad=True)
    torch.autograd.grad(start.sum(), start)  # the first gradient starts threads, which forked processes would lack
    with explained(form, "safetensors, which holds the weights alone"):
        return torch.export.export(Predicting(exported).eval(), examples, dynamic_shapes=(shapes,))


def write_program(exported: Exportable, folder: Path, form: str = "torch") -> None:
    """Write the program and the preprocessing; raise ExportError when PyTorch cannot follow the module."""
    program = export_program(exported, form)
    torch.export.save(program, folder / PROGRAM)
    PREPROCESSING.write(folder, exported.preprocessing)


def predict(exported: Exportable, folder: Path) -> Predictions:
    """Return what the program in a folder predicts with the preprocessing next to it."""
    program = torch.export.load(folder / PROGRAM).module()
    with torch.no_grad():
        return named(program(*tensors_of(exported.inputs)), read_preprocessing(folder))


def named(found: Tensor, preprocessing: Preprocessing) -> Predictions:
    """Return predictions with the names of classes, of what a program returns."""
    if not preprocessing.classes:
        return Predictions(found.numpy(), None)
    return Predictions(preprocessing.choose(found.numpy()), found.numpy())


def listing(exported: Exportable) -> str:
    """Return lines of Python that run the program by PyTorch."""
    what = "probabilities of the classes" if exported.preprocessing.classes else "the quantity in its own unit"
    zeros = [f"torch.zeros({(5, *each.shape[1:])}, dtype={each.dtype})" for each in tensors_of(exported.inputs)]
    return f"""\
import torch

program = torch.export.load("{PROGRAM}").module()
inputs = [{", ".join(zeros)}]  # as {PREPROCESSING.name} says
print(program(*inputs))  # {what}"""


TORCH = Form(
    name="torch",
    title="A program of torch.export, with its preprocessing beside it",
    library="pytorch",
    write=write_program,
    predict=predict,
    listing=listing,
)
