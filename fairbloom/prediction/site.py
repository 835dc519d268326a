"""Evaluate a run's model on the data of a site that took no part in the run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.stats import binomtest

from fairbloom.client.guard.evaluated_model import find_model
from fairbloom.client.local import LocalClient
from fairbloom.client.local_round import evaluate_client
from fairbloom.errors import FairbloomError, did_you_mean, join_names
from fairbloom.logs import log
from fairbloom.protocol.names import NUM_EXAMPLES, SIDES_IN
from fairbloom.protocol.scores import ACCURACY, Score, put_first
from fairbloom.protocol.settings import SETTINGS, RunSettings
from fairbloom.protocol.terms import Terms
from fairbloom.server.run_folder.files import is_finished
from fairbloom.tables import DataError
from fairbloom.tables.encoding import Moments, encode_files
from fairbloom.tables.folders import files_in
from fairbloom.tables.moved import find_moved
from fairbloom.tables.schema import (
    client_of,
    key_of_client,
    parse_schema,
    with_files,
    without_client,
)
from fairbloom.tasks import find_task, load_task
from fairbloom.tasks.columns import ENDINGS
from fairbloom.tasks.score import decide_score
from fairbloom.text import text_if

from .predictor import (
    check_made_of,
    find_training,
    global_arrays,
    read_kept,
    schema_in,
    settings_in,
)

MODELS = ("last", "best")


class SiteScores(NamedTuple):
    """The scores of a model at a site, with the fields of `fairbloom.Evaluation`."""

    site: str
    train_examples: int
    test_examples: int
    scores: tuple[Score, ...]
    values: Mapping[str, float]
    interval: tuple[float, float] | None
    only_class: str


def evaluate_site(run: Path, data_dir: str, client: str, model: str) -> SiteScores:
    """Measure a finished run's model on a site's test examples.

    `run` is a run folder or the state folder of a device. `client` may be "" if the data are of one
    client, or name the client of the run in whose words and units they are. `model` is "last" or
    "best".
    """
    run = find_model(run.absolute())
    if model not in MODELS:
        raise FairbloomError(
            f"model = {model!r}: {did_you_mean(model, MODELS)}there are {', '.join(MODELS)}"
        )
    settings: dict[str, Any] = {
        **settings_in(run),
        **{"data-dir": data_dir, "state-dir": "", "device": "auto", "pooled": False},
        SIDES_IN: str(run.parent) if read_kept(run) else "",
    }
    if data_dir:  # a site may be one that was not in training
        settings |= {
            "held-out-clients": 0.0,
            "test-share": settings.get("test-share") or SETTINGS["test-share"].default,
        }
    schema = schema_in(run, settings)
    settings["schema"] = with_files(schema, {}, client)
    # such a client has its own words and units in a file of any name
    has_own = settings["schema"] != with_files(schema, {})
    if not is_finished(run):
        raise FairbloomError(f"the run in {run} is not finished: evaluate it when it is over")
    arrays = global_arrays(run, model, settings)
    find_task(str(settings["task"])).check_readable(data_dir)
    try:
        clients = load_task(settings).clients
    except DataError as error:
        if error.why != "no-column":
            raise
        # a file without a column of clients has the data of one client
        settings["schema"] = without_client(str(settings["schema"]))
        clients = load_task(settings).clients
    if has_own and len(clients) == 1:
        client = clients[0]
    name = _find_client(clients, client, data_dir or "the task")
    if settings["task"] == "csv":
        words = parse_schema(str(settings["schema"]))
        if words.differs and not words.fields_of(name):
            log.warning(
                "%s is read in the words and units of all: if it is %s, name it by --client",
                name,
                " or ".join(client_of(file) for file, about in words.files.items() if about.fields),
            )
    try:
        local = LocalClient.of(RunSettings.of(settings), clients.index(name), name)
    except FairbloomError as error:
        raise FairbloomError(f"the data of {name} do not fit the run in {run}: {error}") from error
    check_made_of(run, local.task)
    _warn_of_moved(local, data_dir, find_training(run, client))
    state = {each: torch.as_tensor(np.array(array)) for each, array in arrays.items()}
    found = evaluate_client(local, state, Terms(server_round=1))
    count = int(found[NUM_EXAMPLES])
    if not count:
        raise FairbloomError(f"{name} has no test examples: it needs more rows")
    scores = put_first(local.task.scores, decide_score(local.settings, local.task, deployed=True))
    values = {score.name: score.shown(found[score.name]) for score in scores if score.name in found}
    interval = None
    if ACCURACY in scores:
        wilson = binomtest(round(found[ACCURACY.name] * count), count).proportion_ci(
            method="wilson"
        )
        interval = ACCURACY.shown(float(wilson.low)), ACCURACY.shown(float(wilson.high))
    trained = len(local.splits.train)
    return SiteScores(name, trained, count, scores, values, interval, _find_only_class(local))


def _warn_of_moved(local: LocalClient, data_dir: str, training: Mapping[str, Moments]) -> None:
    """Log the columns of a site that seem to be in another unit than in training.

    Without a `data_dir`, the data are the run's own.
    """
    if not data_dir or local.settings.task != "csv":
        return
    setup = local.settings
    schema = parse_schema(setup.schema_)
    files = files_in(setup.data_dir, ENDINGS)
    paths = next(iter(files.values())) if schema.client else files[local.key]
    file = encode_files(paths, paths[0].stem if schema.client else local.key, schema)
    key = key_of_client(local.key, paths[0].name)
    for name, moments in training.items():
        values = file.columns[name]
        if file.rows is not None:
            values = values[file.rows[local.key]]
        moved = find_moved(name, values, moments)
        if moved is not None:
            own = schema.file(paths[0].name, local.key).field(name)
            log.warning("%s: %s", local.key, moved.say(own, text_if(file.rows is None, key)))


def _find_only_class(local: LocalClient) -> str:
    """Return the class of all of a client's test examples, "" if they have several, or none."""
    task = local.task
    if not task.classes:
        return ""
    classes = {*local.splits.test.all_targets.tolist()}
    if len(classes) != 1:
        return ""
    (place,) = classes
    return task.class_names[place] if place < len(task.class_names) else str(place)


def _find_client(clients: Sequence[str], client: str, source: str) -> str:
    if client and client not in clients:
        raise FairbloomError(
            f"client = {client!r}: {source} has no data of a client with this name:"
            f" {did_you_mean(client, clients)}there are {join_names(clients)}"
        )
    if not client and len(clients) != 1:
        raise FairbloomError(
            f"{source} has the data of {len(clients)} clients: say which one by --client:"
            f" {join_names(clients)}"
        )
    return client or clients[0]
