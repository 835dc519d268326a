"""Whatever is given by mistake, a table of patients too, no message shows what it holds."""

import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow
import pytest
import torch

from fairbloom import FairbloomError
from fairbloom.experiments import api
from fairbloom.prediction.predictor import Predictor, load_predictor
from fairbloom.protocol.settings import RunSettings
from fairbloom.rounds.ranges import names_in, pairs_in
from fairbloom.strategies.registry import name_of
from fairbloom.tasks.checks import guard_task
from fairbloom.tasks.task import Examples, Splits, Task

# A patient's name and number.
NAME = "Grimaldi"
NUMBER = 918273645


class Lazy:
    """A table of a library that is not installed here; its repr has the rows."""

    columns = ("name", "number")

    def __repr__(self) -> str:
        """Return the rows."""
        return f"shape (1, 2) {NAME} {NUMBER}"


def frame() -> pandas.DataFrame:
    """Return a table of patients."""
    return pandas.DataFrame(
        {"name": [NAME] * 3, "number": [NUMBER] * 3, "outcome": ["yes", "no", "yes"]}
    )


# What holds patients, and is neither a text nor a number.
KINDS: Mapping[str, Callable[[], Any]] = {
    "data frame": frame,
    "frame of texts and numbers": lambda: frame().assign(number=[NAME, NUMBER, None]),
    "frame of lists": lambda: frame().assign(number=[[NAME], {NAME: 1}, NUMBER]),
    "frame of huge numbers": lambda: frame().assign(number=[NUMBER * 10**30, 1, 2]),
    "frame of complex numbers": lambda: frame().assign(number=complex(NUMBER, 1)),
    "frame of intervals": lambda: frame().assign(number=pandas.cut([1, 2, NUMBER], 2)),
    "frame with an index": lambda: frame().set_index("name"),
    "frame with two levels": lambda: frame().set_axis(
        pandas.MultiIndex.from_product([["x"], ["name", "number", "outcome"]]), axis=1
    ),
    "frame with a column twice": lambda: frame().set_axis(["a", "a", "outcome"], axis=1),
    "transposed frame": lambda: frame().T,
    "groups of a frame": lambda: frame().groupby("name"),
    "series": lambda: frame()["name"],
    "index": lambda: pandas.Index([NAME, NUMBER]),
    "Arrow table": lambda: pyarrow.Table.from_pandas(frame()),
    "Arrow batch": lambda: pyarrow.RecordBatch.from_pandas(frame()),
    "Arrow column": lambda: pyarrow.chunked_array([[NAME]]),
    "other library's table": Lazy,
    "dict of columns": lambda: frame().to_dict("list"),
    "list of dicts": lambda: frame().to_dict("records"),
    "list of rows": lambda: frame().to_numpy().tolist(),
    "list of numbers": lambda: [float(NUMBER), 0.5],
    "tuple": lambda: (NAME, NUMBER),
    "set": lambda: {NAME},
    "generator": lambda: (row for row in frame().to_numpy().tolist()),
    "bytes": NAME.encode,
    "array of objects": lambda: frame().to_numpy(),
    "array of numbers": lambda: np.full((3, 2), NUMBER),
    "array of records": lambda: frame().to_records(),
    "tensor": lambda: torch.full((3, 2), NUMBER),
    "tensor of one number": lambda: torch.tensor([NUMBER]),
}


def own_task(train: Any = None, **others: Any) -> None:
    """Check a user's task with these attributes, and the examples of its client."""
    x = torch.zeros(3, 2)
    good = Examples(x, torch.zeros(3, dtype=torch.int64))
    made = {
        "clients": ("north",),
        "model": lambda: torch.nn.Linear(2, 2),
        "loss": torch.nn.CrossEntropyLoss(reduction="none"),
        "splits": lambda client: Splits(good if train is None else train, good),
        **others,
    }
    guard_task("mine:task", Task(**made)).splits("north")


def examples(**given: Any) -> Examples:
    """Return three examples, with some of their tensors given."""
    return Examples(
        **{"inputs": torch.zeros(3, 2), "targets": torch.zeros(3, dtype=torch.int64), **given}
    )


def doors(thing: Callable[[], Any], folder: Path) -> dict[str, Callable[[], object]]:
    """Return calls by which a user may hand over a thing."""
    run = partial(api.run, out=folder / "out", rounds=1, progress=False)
    options = ("task", "method", "seed", "data_dir", "schema", "model", "partition", "score")
    return {
        "run data": lambda: run(data=thing(), target="outcome"),
        "run a client's data": lambda: run(data={"north": thing()}, target="outcome"),
        "run target": lambda: run(data={"north": frame()}, target=thing()),
        **{f"run {name}": lambda name=name: run(**{name: thing()}) for name in options},
        "run setting": lambda: run("digits", settings={"learning-rate": thing()}),
        "run setting twice": lambda: run(data_dir=thing(), settings={"data-dir": thing()}),
        "check data": lambda: api.check_data(thing(), target="outcome"),
        "check a client's data": lambda: api.check_data({"north": thing()}, target="outcome"),
        "compare baseline": lambda: api.compare("digits", baseline=thing(), out=folder / "out"),
        "settings": lambda: RunSettings.of({"batch-size": thing(), "engine": thing()}),
        "method": lambda: name_of(thing()),
        "names": lambda: names_in(groups=thing()),
        "pairs": lambda: pairs_in(thresholds=[thing()]),
        "load": lambda: api.load(thing()),
        "task clients": lambda: own_task(clients=(thing(),)),
        "task groups": lambda: own_task(groupings={"sex": (NAME, NAME)}),
        "task seeds": lambda: own_task(seeds=[thing()]),
        "splits": lambda: own_task(splits=lambda client: thing()),
        "train": lambda: own_task(thing()),
        **{
            name: lambda name=name: own_task(examples(**{name: thing()}))
            for name in ("inputs", "targets", "rows")
        },
        "groups": lambda: own_task(
            examples(groups=thing()), groupings={"sex": ("F", "M"), "age": ("old", "young")}
        ),
    }


def said_by(call: Callable[[], object]) -> str:
    """Return the whole traceback with which a call fails, "" if it does not."""
    try:
        call()
    except Exception as error:
        return "".join(traceback.format_exception(error))
    return ""


@pytest.fixture(scope="module")
def predictor(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    """The predictor of a run on two small tables."""
    rows = pandas.DataFrame({"number": range(20), "outcome": ["yes", "no"] * 10})
    run = api.run(
        data={"north": rows, "south": rows},
        target="outcome",
        out=tmp_path_factory.mktemp("run"),
        rounds=1,
        progress=False,
    )
    return load_predictor(run.folder, client="north")


@pytest.mark.parametrize("kind", KINDS)
def test_no_message_shows_what_a_value_holds(
    kind: str, tmp_path: Path, predictor: Predictor, subtests: pytest.Subtests
) -> None:
    thing = KINDS[kind]
    calls = {**doors(thing, tmp_path), "predict": lambda: predictor.predict(thing())}
    for door, call in calls.items():
        with subtests.test(door=door):
            said = said_by(call)
            assert NAME not in said
            assert str(NUMBER) not in said


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "data frame"])
def test_what_is_no_usable_table_is_refused(kind: str) -> None:
    with pytest.raises(FairbloomError):
        api.check_data({"north": KINDS[kind]()}, target="outcome")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("Arrow table", r"is a pyarrow\.lib\.Table, not .*: its to_pandas\(\) makes one"),
        ("list of dicts", r"is a list, not .*: pandas\.DataFrame\(…\) makes one"),
        ("series", r"is a pandas\.(\S+\.)?Series, not a data frame of pandas"),
    ],
)
def test_what_is_no_data_frame_is_told_how_to_be_one(
    kind: str, words: str, predictor: Predictor, tmp_path: Path
) -> None:
    calls = (
        lambda: api.check_data({"north": KINDS[kind]()}, target="outcome"),
        lambda: predictor.predict(KINDS[kind]()),
    )
    for call in calls:
        with pytest.raises(FairbloomError, match=words):
            call()


def test_the_remedy_of_a_table_that_is_no_frame_works() -> None:
    rows = pandas.DataFrame({"number": range(20), "outcome": ["yes", "no"] * 10})
    tables = {name: pyarrow.Table.from_pandas(rows) for name in ("north", "south")}
    records = {name: rows.to_dict("records") for name in ("north", "south")}
    for remedied in (
        {name: table.to_pandas() for name, table in tables.items()},
        {name: pandas.DataFrame(each) for name, each in records.items()},
    ):
        assert len(api.check_data(remedied, target="outcome")["clients"]) == 2
