"""Predict for new data with a finished run's model and its preprocessing."""

import csv
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from io import StringIO
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fairbloom.client.guard.evaluated_model import describe_kept, find_model
from fairbloom.client.states import ClientStates, folder_of, state_folder
from fairbloom.client.training import EVALUATION_BATCH, outputs_of, seeded
from fairbloom.errors import MAX_LISTED, FairbloomError, did_you_mean, join_names
from fairbloom.imports import only_trusted_imports
from fairbloom.logs import log
from fairbloom.own_code import digest_own_code
from fairbloom.protocol.names import SIDES_IN
from fairbloom.protocol.settings import RunSettings
from fairbloom.server.run_folder.errors import RunFolderError, explain_write_errors
from fairbloom.server.run_folder.files import (
    BEST,
    CLIENTS,
    CONFIG,
    DATA,
    KNOWN,
    MADE,
    MODEL,
    MODULES,
    PERSONAL,
    PREPROCESSING,
    SCHEMA,
    is_finished,
    is_run_folder,
    read_model,
    refuse_study,
)
from fairbloom.server.run_folder.tables import escape_formula
from fairbloom.system.files import write_whole
from fairbloom.system.versions import Versions
from fairbloom.tables.encoding import Moments
from fairbloom.tables.frames import check_frame
from fairbloom.tables.moved import join_moments
from fairbloom.tables.preprocessing import (
    MAX_INPUT,
    NUMBER,
    TABLE,
    Predictions,
    Preprocessing,
    find_beyond,
)
from fairbloom.tables.schema import Schema, client_of, fold, parse_schema
from fairbloom.tasks import Task, find_task, load_task
from fairbloom.tasks.datasets.store import digest_of
from fairbloom.tasks.inputs import Inputs, split_inputs
from fairbloom.tasks.models.made import Made, check_made
from fairbloom.text import join_first, plural, text_if

from .new_data import NewData, data_of_table, read_new_data
from .output_rows import table_of_frame

if TYPE_CHECKING:
    import pandas

# The models of a run: the final one, the one with the best mean score, and a client's personal one.
LAST, BEST_MODEL, PERSONAL_MODEL = MODELS = ("last", "best", "personal")


# The column of predictions that names a row's numbers far beyond the training numbers.
CLIPPED = "far_beyond_training"


@dataclass(frozen=True, eq=False)
class Predictor:
    """A model with the preprocessing of new data.

    Attributes
    ----------
    run
        The run folder, or the folder of a device, that it was read from.
    task_name
        The name of the task.
    client
        The client that has the model, or the means and deviations that standardise numbers; "" for
        all.
    model
        The kind of model: "last", "best" or "personal".
    module
        The model in eval mode, on the CPU.
    preprocessing
        The conversions of new data to inputs, and of outputs to predictions; None if the task does
        not have them.
    output
        The name of the output with the predictions, if the model returns several by name.
    """

    run: Path
    task_name: str
    client: str
    model: str
    module: nn.Module
    preprocessing: Preprocessing | None
    output: str = ""

    def outputs(self, inputs: Inputs) -> Tensor:
        """Return the model's outputs, computed in the batches of the clients' evaluations."""
        self.module.eval()
        with torch.no_grad(), seeded(0, torch.device("cpu")):
            return torch.cat(
                [
                    outputs_of(self.module, batch, self.output)
                    for batch in split_inputs(inputs, EVALUATION_BATCH)
                ]
            )

    def reading_by(self, schema: str) -> "Predictor":
        """Return the same model, which reads new tables by another schema.

        Spellings, units and file formats may differ. `schema` is its text. Raise FairbloomError if
        its inputs differ from the run's.
        """
        preprocessing = self._preprocessing()
        given_schema = parse_schema(schema)
        _check_client(given_schema, preprocessing.client)
        given = _categories(given_schema)
        known = _categories(preprocessing.dictionary)
        if given != known:
            differing = sorted(
                name for name in {*given, *known} if given.get(name) != known.get(name)
            )
            raise FairbloomError(
                f"schema: {join_first(differing)} {plural(len(differing), 'is', 'are')} not as in"
                " the run: inputs and their categories must match the run's schema"
            )
        return replace(self, preprocessing=replace(preprocessing, schema=schema))

    def predict(self, frame: "pandas.DataFrame") -> "pandas.DataFrame":
        """Return a data frame with columns of predictions added.

        They are `predicted_TARGET`, and `probability_CLASS` for each class; a quantity has no
        probabilities. If the frame has the target, `true_TARGET` has it as predictions are written.

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
        check_frame("the table", frame)
        own = preprocessing.own
        columns: set[str] = set()
        for name in preprocessing.dictionary.inputs:
            columns.update(map(fold, (name, *own.names_of(name))))
        named = [str(name) for name in frame.index.names if name is not None]
        index = [name for name in named if fold(name) in columns]
        if index:
            raise FairbloomError(
                f"the data frame has {join_names(index)} as its index, which is not read: make it a"
                " column by reset_index(), or drop it by reset_index(drop=True)"
            )
        source = data_of_table(table_of_frame(frame, own), preprocessing)
        return frame.assign(**self._predict(source))

    def predict_file(self, path: Path, out: Path, split: str = "") -> int:
        """Write a CSV file with new data and the predictions, and return their number.

        With a `split`, `path` is the client's file in the run, and only the rows of that split are
        predicted: "train", "test" or "validation". The predictions have the separator and the
        decimal mark of the new data. Next to them are all columns of a table, the number of each
        example of an array, or the names of images.

        Raises
        ------
        FairbloomError
            When data do not fit the model: the message names each line and column, example or
            image. Or when `out` cannot be written.
        """
        preprocessing = self._preprocessing()
        if split:
            source = self._read_split(path, split, preprocessing)
        else:
            source = read_new_data(path, preprocessing)
        predictions = self._predict(source)

        # Quantities have six digits of their deviation: that of a year, say, may be some days.
        decimals = max(0, 6 - int(np.log10(preprocessing.target_scale or 1.0)))
        form = ".6g" if preprocessing.classes else f".{decimals}f"

        def write(value: str | float) -> str:
            if isinstance(value, str):
                return str(escape_formula(value))
            # With the decimal mark of the other columns.
            return text_if(not np.isnan(value), format(value, form)).replace(".", source.decimal)

        columns = {
            **source.columns,
            **{name: map(write, values.tolist()) for name, values in predictions.items()},
        }
        lines = StringIO(newline="")
        rows = zip(*columns.values(), strict=True)
        csv.writer(lines, delimiter=source.delimiter).writerows(chain([tuple(columns)], rows))
        text = lines.getvalue()
        with explain_write_errors(out.name, out.parent):  # ASCII needs no mark
            write_whole(out, text.encode("utf-8" if text.isascii() else source.encoding))
        first, *_ = predictions.values()
        return len(first)

    def _read_split(self, path: Path, split: str, preprocessing: Preprocessing) -> NewData:
        """Return the rows of one split of a client's file, which is read as the run read it."""
        if preprocessing.form != TABLE or not path.is_file():
            raise FairbloomError(
                f"split = {split!r}: {path} is no table: name a client's own table, or leave the"
                " split out"
            )
        name = find_own_file(self.run, path, self.client, preprocessing.dictionary.client)
        with TemporaryDirectory() as folder:
            file = path
            if name != path.name:  # by which the schema finds a file's format, and its client
                file = Path(folder, name)
                file.symlink_to(path.resolve())
            return read_new_data(file, preprocessing, find_rows(self.run, file, self.client, split))

    def describe(self, count: int) -> str:
        """Return the number of predictions as text, and which model of a device made them."""
        text = plural(count, "1 prediction", f"{count:,} predictions")
        if read_kept(self.run):
            own = text_if(self.model == PERSONAL_MODEL, "the client's own beside ")
            text += f" by {own}{describe_kept(self.run)}"
        return text

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
        predictions: list[Predictions] = []
        clipped: list[NDArray[Any]] = []
        for batch in source.batches:
            predictions.append(preprocessing.decode(self.outputs(batch)))
            if preprocessing.form == TABLE:
                clipped.append(_name_clipped(preprocessing, batch.numpy()))
        target = preprocessing.target or "target"
        columns = {} if source.truth is None else {f"true_{target}": source.truth}
        columns[f"predicted_{target}"] = np.concatenate(
            [prediction.values for prediction in predictions]
        )
        if preprocessing.classes:
            names = [f"probability_{name}" for name in preprocessing.classes]
            probabilities = np.concatenate([prediction.probabilities for prediction in predictions])
            columns |= dict(zip(names, probabilities.T, strict=True))
        marks = np.concatenate([np.array([], object), *clipped])
        if marks.any():
            columns[CLIPPED] = marks
            count = int((marks != "").sum())
            log.warning(
                "%s more than %g deviations away from the mean of training: the column %s names"
                " these numbers",
                plural(count, "1 row has a number", f"{count} rows have numbers"),
                MAX_INPUT,
                CLIPPED,
            )
        clash = [name for name in columns if name in source.columns]
        if clash:
            raise FairbloomError(
                f"there is a column {clash[0]!r} already, as a prediction is called: rename it"
            )
        return columns


def _name_clipped(preprocessing: Preprocessing, inputs: NDArray[np.float32]) -> NDArray[Any]:
    """Return for each row of a table the columns in which its number is cut off, or ""."""
    names = np.full(len(inputs), "", object)
    for name, rows in find_beyond(preprocessing.columns, inputs).items():
        names[rows] = [f"{before}, {name}" if before else name for before in names[rows]]
    return names


def _categories(schema: Schema) -> dict[str, Any]:
    """Return the categories of each input of a schema."""
    return {name: field.categories for name, field in schema.inputs.items()}


def load_predictor(
    folder: Path,
    *,
    client: str = "",
    model: str = LAST,
    trust: bool = False,
    module_only: bool = False,
) -> Predictor:
    """Return a predictor with a run's model.

    `folder` is a run folder, or the state folder of a device. `model` is "last", "best" (by mean
    score) or "personal". `trust` allows imports of modules that the run's settings name.
    `module_only`: only the module is wanted, so no client needs to be named for its means and
    deviations.
    """
    folder = find_model(Path(folder).absolute())
    if model not in MODELS:
        raise FairbloomError(
            f"model = {model!r}: {did_you_mean(model, MODELS)}there are {', '.join(MODELS)}"
        )
    settings = settings_in(folder)
    with only_trusted_imports(trust):
        task = _load_task(folder, settings)
        check_made_of(folder, task)
        module = task.model()
        preprocessing = PREPROCESSING.read(folder)
        if not preprocessing and task.preprocessing:
            preprocessing = task.preprocessing("")
    per_client = preprocessing is not None and preprocessing.per_client and not module_only
    need = text_if(model == PERSONAL_MODEL, "each client has a personal model")
    if per_client:
        need = "each client has its own means and deviations, unless the schema states center and"
        need += " scale"
    own = _own_folder(folder, settings, client, need)
    if own is not None and per_client:
        preprocessing = _own_preprocessing(folder, own, client)
    if preprocessing is not None and client and preprocessing.client not in ("", client):
        raise FairbloomError(
            f"client = {client!r}: {folder} is that of client {preprocessing.client}: leave the"
            " client out"
        )
    kept = str(settings.get("personal-parameters", ""))
    if own is not None and (model == PERSONAL_MODEL or (kept and model == LAST)):
        arrays = _personal_arrays(folder, own, client, module.state_dict().keys())
    else:
        arrays = global_arrays(folder, model, settings)
        if model == BEST_MODEL and not settings.get("validation-share"):
            log.warning(
                "model best was chosen by the test examples, as the run had no validation examples:"
                " its scores on them flatter it"
            )
        if kept:
            log.warning(
                "this model has the initial values of the parameters that each client keeps for"
                " itself, personal-parameters = %r: take a client's by --client",
                kept,
            )
    try:
        module.load_state_dict({name: torch.as_tensor(array) for name, array in arrays.items()})
    except RuntimeError as error:
        raise FairbloomError(f"the run's arrays do not fit its model: {error}") from error
    if preprocessing is not None:
        client = client or preprocessing.client
        preprocessing = replace(preprocessing, client=client)
        if preprocessing.schema and not module_only:
            _check_client(preprocessing.dictionary, client)
    return Predictor(
        folder, str(settings["task"]), client, model, module.eval(), preprocessing, task.output
    )


def _check_client(schema: Schema, client: str) -> None:
    """Raise FairbloomError if tables can only be read for a client, and none is named."""
    if schema.differs and not client:
        raise FairbloomError(
            "the schema says under [files] what the cells of single clients mean, and not for which"
            " client these are read: name it by --client"
        )


def find_own_file(run: Path, path: Path, client: str, column: str) -> str:
    """Return the name under which a run read a client's file, of which `path` may be a copy.

    `column` is the schema's column of clients, or "". Raise FairbloomError if the run read no file
    with these bytes, or if it is that of several clients, and none is named.
    """
    recorded = DATA.read(run)
    if not recorded:
        log.warning(
            "the run in %s recorded no digests of its data, so it is not checked that it read %s:"
            " its rows are split as client %s has them",
            run,
            path,
            client or path.stem,
        )
        return f"{client}{path.suffix}" if client and not column else path.name
    names = {
        client_of(name): name
        for name, digest in recorded.items()
        if digest == digest_of(path, "sha256") and "/" not in name
    }
    if not names:
        raise FairbloomError(
            f"{path} is not a file that the run in {run} read as a client's only one, so its rows"
            " have no split: name such a file, with the bytes that it had then"
        )
    if len(names) > 1 and client not in names:
        raise FairbloomError(
            f"{path} is the file of {join_names(names)}: say which one by --client"
        )
    return names.get(client) or next(iter(names.values()))


def find_rows(run: Path, path: Path, client: str, split: str) -> NDArray[np.int64]:
    """Return the rows of a client's file that a run trained, tested or validated with.

    Raise FairbloomError if the run's data are no tables.
    """
    settings = settings_in(run)
    task = load_task(
        {
            **settings,
            "schema": schema_in(run, settings),
            "data-dir": str(path),
            "held-out-clients": 0.0,  # it may be a client that was not in training
            SIDES_IN: str(run.parent) if read_kept(run) else "",
        }
    )
    if task.parts is None:
        raise FairbloomError(f"split = {split!r}: only the rows of tables have one: leave it out")
    name = client or client_of(path.name)
    if name not in task.clients:
        raise FairbloomError(
            f"{path.name} has no rows of client {name}: {did_you_mean(name, task.clients)}name its"
            f" file, or by --client one of {join_names(task.clients)}"
        )
    rows = task.parts(name)[split]
    if not len(rows):
        raise FairbloomError(f"split = {split!r}: the run has no such rows: leave it out")
    return rows


def check_new(out: Path) -> None:
    """Raise RunFolderError if a file of predictions already exists, or its folder does not."""
    if out.exists():
        raise RunFolderError(f"{out} is there already: name another file by --out, or delete it")
    if not out.parent.is_dir():
        raise RunFolderError(
            f"{out.parent} is not a folder: make it, or name a file in another one by --out"
        )


def _load_task(folder: Path, settings: Mapping[str, Any]) -> Task:
    """Return the task of a run, without the files that its clients read."""
    settings_here = {**settings, "schema": schema_in(folder, settings)}
    if find_task(str(settings["task"])).reads:
        settings_here["data-dir"] = ""
    task = load_task(settings_here)
    recorded = MODULES.read(folder)
    for name, digest in digest_own_code(
        [str(settings["task"]), str(settings.get("model", ""))]
    ).items():
        if recorded.get(name, digest) != digest:
            log.warning(
                "module %s, from which the run in %s has its task or model, has changed since:"
                " predictions may differ; restore the earlier file",
                name,
                folder,
            )
    return task


def check_made_of(folder: Path, task: Task) -> None:
    """Raise FairbloomError if the model of a run's task is made here otherwise than in the run."""
    there = MADE.read(folder)
    if there is not None:
        here = Made.of(task.model(), there.form, task.output)
        check_made(here, there, f"the run in {folder}")


def settings_in(folder: Path) -> Mapping[str, Any]:
    """Return the settings of the run in a folder; raise FairbloomError if it has no task."""
    if not is_run_folder(folder):
        refuse_study(folder)
        raise RunFolderError(
            f"{folder} holds no run: name a run folder, with a {CONFIG.name}, or a device's"
            " state-dir"
        )
    settings = CONFIG.read(folder).settings
    if "task" not in settings:
        raise FairbloomError(
            f"{folder} is a run of your own Flower app, which has no task, so its model cannot be"
            " built here: build it, and load the arrays of fairbloom.load(run).arrays() into it"
        )
    return settings


def read_kept(folder: Path) -> Mapping[str, Any]:
    """Return a device's notes on a model that it keeps (`round`, `states`, `serves`), else {}."""
    about = MODEL.read_about(folder) if MODEL.exists_in(folder) else {}
    return about if "states" in about else {}


def schema_in(folder: Path, settings: Mapping[str, Any]) -> str:
    """Return the text of a run's schema, given or inferred; "" if it has none."""
    return SCHEMA.read(folder) or str(settings.get("schema", ""))


def _own_folder(folder: Path, settings: Mapping[str, Any], client: str, need: str) -> Path | None:
    """Return the folder of a client's state on this machine, None if no client is named.

    `need` is the reason why a client must be named, or "".
    """
    kept = read_kept(folder)
    if kept:
        return folder.parent / str(kept["states"])
    asked = {row["client"] for row in CLIENTS.read(folder)}
    names = tuple(sorted(asked)) or KNOWN.read(folder).known
    if not client and need:
        raise FairbloomError(
            f"{folder}: {need}: name a client by --client with one of"
            f" {join_first(names, MAX_LISTED)}"
        )
    if client and client not in names:
        raise FairbloomError(
            f"client = {client!r}: no client of {folder} has this name:"
            f" {did_you_mean(client, names)}there are {join_first(names, MAX_LISTED)}"
        )
    if not client:
        return None
    state = settings.get("state-dir") or str(PERSONAL.path_in(folder))
    return folder_of(RunSettings.of({**settings, "state-dir": state}), client)


def _own_preprocessing(folder: Path, own: Path, client: str) -> Preprocessing:
    """Return the preprocessing of a client, from its folder or from the folder of all clients."""
    together = PREPROCESSING.read(own.parent)
    if together is not None and client in together.moments:
        return together.of_client(client, together.moments[client])
    kept = PREPROCESSING.read(own)
    if kept is not None:
        return kept
    raise FairbloomError(
        f"the means and deviations of client {client} are not in {folder}: predict on its own"
        " device, or restore the folder clients from a copy"
    )


def find_training(folder: Path, client: str) -> dict[str, Moments]:
    """Return mean and deviation of a table's columns of numbers in training, by name.

    `folder` is a run folder, or a device's model. Where clients have their own, they are the
    client's if it took part, else those of all clients, each counted once. A column of which only
    devices know them is left out.
    """
    kept = read_kept(folder)
    if kept:
        states = folder.parent / str(kept["states"])
    else:
        settings = settings_in(folder)
        place = settings.get("state-dir") or str(PERSONAL.path_in(folder))
        states = state_folder(RunSettings.of({**settings, "state-dir": place})) or folder
    preprocessing = PREPROCESSING.read(states) or PREPROCESSING.read(folder)
    if preprocessing is None or preprocessing.form != TABLE:
        return {}
    found: dict[str, Moments] = {}
    for column in preprocessing.columns:
        if column.kind == NUMBER and column.name not in preprocessing.per_client:
            found[column.name] = (column.center, column.scale)
    moments = preprocessing.moments
    clients = [moments[client]] if client in moments else [*moments.values()]
    for place, name in enumerate(preprocessing.per_client if clients else ()):
        found[name] = join_moments(np.array([each[place] for each in clients]))
    return found


def _personal_arrays(
    folder: Path, own: Path, client: str, names: Collection[str]
) -> Mapping[str, Any]:
    """Return the arrays of a client's last personal model, by the names of a whole one.

    Parameters that the client does not keep, such as frozen ones, come from the global model.
    """
    if read_kept(folder):  # a device has the states of one client
        states = ClientStates(Versions(own))
    else:
        states = ClientStates(Versions(own.parent), client)
    found = states.find(PERSONAL_MODEL, before=sys.maxsize)
    if found is None:
        raise FairbloomError(
            f"{own} has no personal model: clients that have trained have one with a method for"
            " personal models (ditto), or with the setting personal-lambda or personal-parameters,"
            " and a deployed client keeps its own on its device; without a client, the common model"
            " is taken"
        )
    lacking = {name for name in names if name not in found.state}
    shared = _last_arrays(folder) if lacking else {}
    return {name: array for name, array in shared.items() if name in lacking} | found.state


def global_arrays(folder: Path, model: str, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the last or the best global model of a run; raise FairbloomError if it has none."""
    if model == BEST_MODEL and not BEST.exists_in(folder):
        raise FairbloomError(
            f"{folder} has no {BEST.name}: no round was evaluated, or a device keeps it; take last"
        )
    arrays = BEST.read(folder) if model == BEST_MODEL else _last_arrays(folder)
    # A device stores it with the model, as it may not have the methods' solver.
    serves = read_kept(folder).get("serves")
    if serves is None:
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
