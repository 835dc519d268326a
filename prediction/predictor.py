"""A finished run's model with its preprocessing: what predicts for new data."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fairbloom.client.guard.evaluated_model import find_model
from fairbloom.client.states import folder_of, load_last
from fairbloom.client.training import EVALUATION_BATCH, outputs_of, seeded
from fairbloom.errors import FairbloomError, did_you_mean
from fairbloom.imports import only_trusted_imports
from fairbloom.logs import log
from fairbloom.own_code import digest_own_code
from fairbloom.server.run_folder.errors import RunFolderError, explain_write_errors
from fairbloom.server.run_folder.files import (
    BEST,
    CLIENTS,
    CONFIG,
    KNOWN,
    MODEL,
    MODULES,
    PERSONAL,
    PREPROCESSING,
    SCHEMA,
    is_finished,
    is_run_folder,
    read_model,
    runs_of_study,
)
from fairbloom.server.run_folder.tables import escape_formula
from fairbloom.system.files import whole_file
from fairbloom.tasks import Task, find_task, load_task
from fairbloom.tasks.inputs import Inputs, split_inputs, tensors_of
from fairbloom.tasks.models import frozen_parameters
from fairbloom.tasks.preprocessing import TABLE, Preprocessing
from fairbloom.tasks.schema import parse_schema
from fairbloom.tasks.tables.targets import join_names

from .new_data import NewData, data_of_table, read_new_data
from .output_rows import table_of_frame

if TYPE_CHECKING:
    import pandas

LAST, BEST_MODEL, PERSONAL_MODEL = MODELS = ("last", "best", "personal")
"""The models of a run: the final one, the one with the best mean score, and a client's personal
one."""


@dataclass(frozen=True, eq=False)
class Predictor:
    """A model with what makes its inputs of new data.

    Attributes
    ----------
    run
        The run folder, or the folder of a device, that it comes from.
    task_name
        What is learned.
    client
        The client whose model it is, or by whose means and deviations numbers are standardised; ""
        for all.
    model
        Which model it is: "last", "best" or "personal".
    module
        The model in eval mode, on the CPU.
    preprocessing
        How new data become inputs, and outputs predictions; None where the task does not say it.
    output
        The name of the output that counts, where the model returns several by name.
    """

    run: Path
    task_name: str
    client: str
    model: str
    module: nn.Module
    preprocessing: Preprocessing | None
    output: str = ""

    def outputs(self, inputs: Inputs) -> Tensor:
        """Return the model's outputs for inputs, in batches, as the clients' evaluations compute them."""
        self.module.eval()
        count = len(tensors_of(inputs)[0])
        lengths = [
            min(EVALUATION_BATCH, count - start) for start in range(0, count, EVALUATION_BATCH)
        ]
        with torch.no_grad(), seeded(0, torch.device("cpu")):
            return torch.cat(
                [
                    outputs_of(self.module, batch, self.output)
                    for batch in split_inputs(inputs, lengths)
                ]
            )

    def reading_by(self, schema: str) -> "Predictor":
        """Return the same model, which reads new tables by another schema: other spellings, units, ways to write files.

        `schema` is its text; FairbloomError where its inputs are others than those of the run.
        """
        preprocessing = self._preprocessing()
        found, known = (
            {name: field.categories for name, field in each.inputs.items()}
            for each in (parse_schema(schema), preprocessing.dictionary)
        )
        if found != known:
            differing = sorted(
                name for name in {*found, *known} if found.get(name) != known.get(name)
            )
            raise FairbloomError(
                f"schema: {join_names(differing)} {'is' if len(differing) == 1 else 'are'} not as"
                " in the run: inputs and their categories must be those of the run's schema"
            )
        return replace(self, preprocessing=replace(preprocessing, schema=schema))

    def predict(self, frame: "pandas.DataFrame") -> "pandas.DataFrame":
        """Return a data frame with all of its columns, then the predictions.

        These are `predicted_TARGET`, and `probability_CLASS` for each class; a quantity has no
        probabilities.

        Raises
        ------
        FairbloomError
            When a column is missing or new, or a cell cannot be read; the message names it.
        """
        preprocessing = self._preprocessing()
        if preprocessing.form != TABLE:
            raise FairbloomError(
                f"{self.run} was trained on {preprocessing.form}, and a data frame is a table:"
                " predict a file, or call Predictor.outputs with a tensor"
            )
        return frame.assign(**self._predict(data_of_table(table_of_frame(frame), preprocessing)))

    def predict_file(self, path: Path, out: Path) -> int:
        """Write a CSV file with what stands in a file of new data, then the predictions.

        Return their number.

        A table comes out with all of its columns, arrays with the number of each example, images
        with their names.

        Raises
        ------
        FairbloomError
            When something is not as the model takes it: the message names each line and column,
            example or image. Or when `out` cannot be written.
        """
        preprocessing = self._preprocessing()
        source = read_new_data(path, preprocessing)
        predictions = self._predict(source)

        def write(value: str | float) -> str:  # a number with the decimal mark of the other columns
            text = isinstance(value, str)
            return str(escape_formula(value)) if text else str(value).replace(".", source.decimal)

        texts = {name: map(write, values.tolist()) for name, values in predictions.items()}
        columns = {**source.columns, **texts}
        with explain_write_errors(out.name, out.parent), whole_file(out) as file:
            text = TextIOWrapper(file, "utf-8", newline="")
            csv.writer(text).writerows(chain([tuple(columns)], zip(*columns.values(), strict=True)))
            text.flush()
            text.detach()
        return len(next(iter(predictions.values())))

    def describe(self, count: int) -> str:
        """Return the number of predictions in words, and of which round's model they are where a device keeps it."""
        kept = read_kept(self.run) if self.model == LAST else {}
        by = (
            f" by the model of round {kept['round']} of {settings_in(self.run)['num-rounds']}"
            if kept
            else ""
        )
        return f"{count:,} prediction{'s' if count != 1 else ''}{by}"

    def _preprocessing(self) -> Preprocessing:
        if self.preprocessing is None:
            raise FairbloomError(
                f"task {self.task_name} does not say how files become inputs (Task.preprocessing):"
                " call Predictor.outputs with a tensor of inputs"
            )
        return self.preprocessing

    def _predict(self, source: NewData) -> dict[str, NDArray[Any]]:
        """Return the columns of predictions by their names."""
        preprocessing = self._preprocessing()
        values, probabilities = zip(
            *(preprocessing.decode(self.outputs(batch)) for batch in source.batches), strict=True
        )
        columns = {f"predicted_{preprocessing.target or 'target'}": np.concatenate(values)}
        if preprocessing.classes:
            names = [f"probability_{name}" for name in preprocessing.classes]
            columns |= dict(zip(names, np.concatenate(probabilities).T, strict=True))
        if clash := [name for name in columns if name in source.columns]:
            raise FairbloomError(
                f"there is a column {clash[0]!r} already, as a prediction is called: rename it"
            )
        return columns


def load_predictor(
    folder: Path, *, client: str = "", model: str = LAST, trust: bool = False
) -> Predictor:
    """Return what predicts with a run's model.

    `folder` is a run folder, or the state folder of a device.

    `model` is "last", "best" (by mean score) or "personal"; `trust` lets modules be imported that
    the run's settings name.
    """
    folder = find_model(Path(folder).absolute())
    if model not in MODELS:
        raise FairbloomError(
            f"model = {model!r}: {did_you_mean(model, MODELS)}there are {', '.join(MODELS)}"
        )
    settings = settings_in(folder)
    with only_trusted_imports(trust):
        task = _load_task(folder, settings)
        module = task.model()
        preprocessing = PREPROCESSING.read(folder) or (
            task.preprocessing("") if task.preprocessing else None
        )
    per_client = preprocessing is not None and preprocessing.per_client
    need = "each client has a personal model" if model == PERSONAL_MODEL else ""
    if per_client:
        need = (
            "each client has its own means and deviations, unless the schema states center and"
            " scale"
        )
    own = _own_folder(folder, settings, client, need)
    if own is not None and per_client and (preprocessing := PREPROCESSING.read(own)) is None:
        raise FairbloomError(
            f"the means and deviations of client {own.name} are not in {folder}: predict on its own"
            " device, or restore the folder clients from a copy"
        )
    if preprocessing is not None and client and preprocessing.client not in ("", client):
        raise FairbloomError(
            f"client = {client!r}: {folder} is that of client {preprocessing.client}: leave the"
            " client out"
        )
    if own is not None and model == PERSONAL_MODEL:
        arrays = _personal_arrays(folder, own, frozen_parameters(module))
    else:
        arrays = global_arrays(folder, model, settings)
        if model == BEST_MODEL and not settings.get("validation-share"):
            log.warning(
                "model best was chosen by the test examples, as the run had no validation examples:"
                " its scores on them flatter it"
            )
    try:
        module.load_state_dict({name: torch.as_tensor(array) for name, array in arrays.items()})
    except RuntimeError as error:
        raise FairbloomError(f"the run's arrays do not fit its model: {error}") from error
    client = client or ("" if preprocessing is None else preprocessing.client)
    return Predictor(
        folder, str(settings["task"]), client, model, module.eval(), preprocessing, task.output
    )


def check_new(out: Path) -> None:
    """Raise RunFolderError where a file of predictions is there already, or the folder for it is not."""
    if out.exists():
        raise RunFolderError(f"{out} is there already: name another file by --out, or delete it")
    if not out.parent.is_dir():
        raise RunFolderError(
            f"{out.parent} is no folder: make it, or name a file in another one by --out"
        )


def _load_task(folder: Path, settings: Mapping[str, Any]) -> Task:
    """Return the task of a run; the files that its clients read need not be there."""
    reads_files = bool(find_task(str(settings["task"])).reads)
    here = {"schema": schema_in(folder, settings), **({"data-dir": ""} if reads_files else {})}
    task = load_task({**settings, **here})
    recorded = MODULES.read(folder)
    for name, digest in digest_own_code(
        [str(settings["task"]), str(settings.get("model", ""))]
    ).items():
        if recorded.get(name, digest) != digest:
            log.warning(
                "module %s, from which the run in %s has its task or model, has changed since:"
                " predictions may be others; put the file of then back",
                name,
                folder,
            )
    return task


def settings_in(folder: Path) -> Mapping[str, Any]:
    """Return the settings of the run in a folder.

    Raise FairbloomError where it is no run with a task.
    """
    if not is_run_folder(folder):
        if runs := runs_of_study(folder):
            raise RunFolderError(
                f"{folder} holds several runs: name one in {folder / 'runs'}: {join_names(runs)}"
            )
        raise RunFolderError(
            f"{folder} holds no run: name a run folder, with a {CONFIG.name}, or a device's"
            " state-dir"
        )
    settings = CONFIG.read(folder).settings
    if "task" not in settings:
        raise FairbloomError(
            f"{folder} is of your own Flower app, which has no task, so that nothing says how its"
            " model is built: build it, and load the arrays of fairbloom.load(run).arrays()"
            " into it"
        )
    return settings


def read_kept(folder: Path) -> Mapping[str, Any]:
    """Return what a device notes of a model that it keeps: `round`, `states`, `serves`.

    Empty for a run folder.
    """
    about = MODEL.read_about(folder) if MODEL.exists_in(folder) else {}
    return about if "states" in about else {}


def schema_in(folder: Path, settings: Mapping[str, Any]) -> str:
    """Return the text of the schema of the run in a folder, as given or as inferred.

    "" where it has none.
    """
    return SCHEMA.read(folder) or str(settings.get("schema", ""))


def _own_folder(folder: Path, settings: Mapping[str, Any], client: str, need: str) -> Path | None:
    """Return where a client on this machine keeps what is its own.

    None where no client is named, and there is no need.

    `need` is a sentence that says why a client must be named, or empty.
    """
    if kept := read_kept(folder):
        return folder.parent / str(kept["states"])
    names = (
        tuple(sorted({row["client"] for row in CLIENTS.read(folder)})) or KNOWN.read(folder).known
    )
    if not client and need:
        raise FairbloomError(
            f"{folder}: {need}: name a client by --client with one of {join_names(names)}"
        )
    if client and client not in names:
        raise FairbloomError(
            f"client = {client!r}: no client of {folder} is called like that:"
            f" {did_you_mean(client, names)}there are {join_names(names)}"
        )
    state = settings.get("state-dir") or str(PERSONAL.path_in(folder))
    return folder_of({**settings, "state-dir": state}, client) if client else None


def _personal_arrays(folder: Path, own: Path, frozen: Sequence[str]) -> Mapping[str, Any]:
    """Return a client's last personal model, with the frozen parameters of the global one."""
    found = load_last(own)
    if found is None:
        raise FairbloomError(
            f"{own} has no personal model: a run has them with a method for personal models"
            " (ditto), or with the setting personal-lambda, and a deployed client keeps its own on"
            " its device"
        )
    lacking = {name for name in frozen if name not in found.state}
    shared = _last_arrays(folder) if lacking else {}
    return {name: array for name, array in shared.items() if name in lacking} | found.state


def global_arrays(folder: Path, model: str, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the last or the best global model of a run with these settings.

    FairbloomError where there is none.
    """
    if model == BEST_MODEL and not BEST.exists_in(folder):
        raise FairbloomError(
            f"{folder} has no {BEST.name}: no round was evaluated, or a device keeps it; take last"
        )
    arrays = BEST.read(folder) if model == BEST_MODEL else _last_arrays(folder)
    serves = read_kept(folder).get("serves")
    if serves is None:  # a device keeps it with the model, and lacks the solver of methods
        from fairbloom.strategies.registry import served_model  # imported late

        serves = served_model(str(settings.get("method", "")))
    if serves == PERSONAL_MODEL:
        raise FairbloomError(
            f"the run in {folder} trains no global model: take model personal, of one of the"
            " clients, or to evaluate a site a run of another method"
        )
    return arrays


def _last_arrays(folder: Path) -> Mapping[str, Any]:
    """Return the global model after the last round."""
    arrays = read_model(folder)
    if arrays is None:
        raise FairbloomError(f"{folder} has no {MODEL.name} yet: no round is finished")
    if not is_finished(folder):
        log.warning("the run in %s is not finished: its last checkpoint predicts", folder)
    return arrays
