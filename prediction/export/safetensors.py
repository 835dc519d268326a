"""A model as its weights in safetensors, with config.json and preprocessing: as the Hugging Face hub keeps models."""

import copy
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model, save_model

from fairbloom.client.training import outputs_of
from fairbloom.server.run_folder.files import CONFIG, PREPROCESSING
from fairbloom.system.files import write_whole
from fairbloom.tasks.preprocessing import Predictions

from .errors import read_preprocessing
from .exportable import Exportable
from .form import Form

WEIGHTS, ABOUT = "model.safetensors", "config.json"
"""The files of the weights and of what they belong to, under the names that the hub knows."""


def write_safetensors(exported: Exportable, folder: Path) -> None:
    """Write weights, what builds the module, and the preprocessing."""
    save_model(exported.predictor.module, str(folder / WEIGHTS), metadata={"format": "pt"})
    write_whole(folder / ABOUT, json.dumps(_about(exported), indent=2, ensure_ascii=False).encode())
    PREPROCESSING.write(folder, exported.preprocessing)


def _about(exported: Exportable) -> dict[str, Any]:
    preprocessing, settings = exported.preprocessing, CONFIG.read(exported.predictor.run).settings
    module = type(exported.predictor.module)
    return {
        "model_type": "fairbloom",
        "architectures": [module.__qualname__],
        "module": f"{module.__module__}:{module.__qualname__}",
        "network": settings.get("model", ""),
        **exported.about,
        "input_shape": list(exported.shapes[0]),
        "outputs": len(preprocessing.classes) or 1,
        "id2label": {str(place): name for place, name in enumerate(preprocessing.classes)},
    }


def predict(exported: Exportable, folder: Path) -> Predictions:
    """Return what the written weights predict with the written preprocessing, in a module like the predictor's."""
    preprocessing = read_preprocessing(folder)
    module = copy.deepcopy(exported.predictor.module)
    with torch.no_grad():
        for tensor in module.state_dict().values():
            tensor.zero_()  # so that nothing is left of the weights that were written
        load_model(module, str(folder / WEIGHTS))
        return preprocessing.decode(outputs_of(module, exported.inputs, exported.predictor.output))


def listing(exported: Exportable) -> str:
    """Return lines of Python that load the weights into a module, which Fairbloom builds."""
    return f"""\
import json

import torch
from fairbloom.tasks.models import build
from safetensors.torch import load_model

with open("{ABOUT}") as file:
    about = json.load(file)
module = build(about["network"], tuple(about["input_shape"]), about["outputs"], seed=0).eval()
load_model(module, "{WEIGHTS}")
print(module(torch.zeros({(5, *exported.shapes[0])})))  # inputs as {PREPROCESSING.name} says"""


SAFETENSORS = Form(
    name="safetensors",
    title="Weights in safetensors, with what builds the module and its preprocessing",
    library="fairbloom",
    write=write_safetensors,
    predict=predict,
    listing=listing,
)
