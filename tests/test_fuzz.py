"""Each file that Fairbloom reads, with a wrong structure: it is refused by name or read correctly.

No file may raise another error, silently mean something else, or take much time or memory. A kind
of file is an entry of KINDS; fuzzing.py has the changes of structures.
"""

import atexit
import contextlib
import csv
import io
import json
import shutil
import tarfile
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from hypothesis import HealthCheck, Phase, given, settings, strategies as st

from fairbloom.cli.settings_command import settings_of
from fairbloom.deploy.device.client import ClientSettings
from fairbloom.deploy.edge.unpack import BundleError, read_bundle
from fairbloom.deploy.fleet.enrolment import enroll
from fairbloom.deploy.fleet.federation import DEFAULTS, Federation
from fairbloom.deploy.fleet.members import Members
from fairbloom.deploy.fleet.runs import Order
from fairbloom.errors import FairbloomError
from fairbloom.experiments.recipe import load_recipe
from fairbloom.experiments.study import find_study
from fairbloom.protocol.scores import GroupScore, Score
from fairbloom.server.checkpoint import list_checkpoints, load_checkpoint, save_checkpoint
from fairbloom.server.run_folder import files
from fairbloom.server.run_folder.group_rows import Grouped
from fairbloom.server.run_folder.tables import read_table
from fairbloom.server.settings import Settings, check_used
from fairbloom.tables.cells import different_cells
from fairbloom.tables.preprocessing import InputColumn, Preprocessing
from fairbloom.tables.reading import read
from fairbloom.tables.schema import SchemaFile

from .fuzzing import MEMORY_BYTES, Kind, Structure, check_mutant, peak_memory, same
from .simulation.helpers import run
from .tables.helpers import csv_of

# How structures become bytes ----------------------------------------------------------------------


def toml(structure: Structure) -> bytes:
    return tomli_w.dumps(structure).encode()


def as_json(structure: Structure) -> bytes:
    return json.dumps(structure).encode()


def table(structure: Structure) -> bytes:
    """Return a table of the form {"header": [...], "rows": [[...]]} as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([structure["header"], *structure["rows"]])
    return text.getvalue().encode()


def safetensors(structure: Structure) -> bytes:
    header = as_json(structure["header"])
    return len(header).to_bytes(8, "little") + header + structure["data"]


def packed(structure: Structure) -> bytes:
    """Return a tar.gz of [name, content] pairs."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, each in structure:
            info = tarfile.TarInfo(name)
            info.size = len(each)
            archive.addfile(info, io.BytesIO(each))
    return content.getvalue()


def arrays(structure: Structure) -> bytes:
    content = io.BytesIO()
    np.savez(content, **structure)
    return content.getvalue()


# What readers take --------------------------------------------------------------------------------


def in_json(file: files.File[Any]) -> Callable[[Path], Structure]:
    """Return the reader of a run folder's file: it reads the file and writes the result again."""
    return lambda path: json.loads(file.encode(file.read(path.parent)))


def only(*keys: str) -> Callable[[Structure], Structure]:
    """Return a function that removes the keys that no reader knows."""
    return lambda structure: {key: structure[key] for key in keys}


def read_settings(path: Path) -> Structure:
    try:
        given = tomllib.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise FairbloomError("Flower and the command line refuse other TOML") from error
    return taken_of(given)


def taken_of(given: Mapping[str, Any]) -> Structure:
    """Return the settings that a run takes from those given."""
    settings = Settings.of(given)
    check_used(given, [settings.method], settings.task)
    taken = settings.run_config()
    # case is ignored, and a name may look like a number
    names = ("method", "optimizer", "training-clients", "scores")
    spelt = {key: str(taken[key]).lower() for key in names}

    def again(key: str) -> Structure:
        return given[key] if str(given[key]).lower() == spelt.get(key) else taken[key]

    return {key: again(key) for key in given}


def client_of(structure: Structure) -> Structure:
    plain = asdict(ClientSettings.of({}, bundle() / "client.toml"))
    return {**plain, **{key.replace("-", "_"): value for key, value in structure.items()}}


@cache
def bundle() -> Path:
    """Return the bundle of a client, which exists as long as this process."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return enroll(
        Federation.init(Path(folder, "federation"), ["localhost"], 9092), "site-a"
    ).absolute()


def read_client(path: Path) -> Structure:
    names = {"ca": "ca.crt", "certificate": "certificate", "key": "key", "state-dir": "state"}
    return {
        **asdict(
            ClientSettings.of({key: str(bundle() / name) for key, name in names.items()}, path)
        )
    }


def read_enrolled(path: Path) -> Structure:
    members = Members(path.parent)
    members.refresh()  # it logs files that cannot be used
    if not members.by_name:
        raise FairbloomError(f"{path} cannot be used")
    return [asdict(member) for member in members.by_name.values()]


def read_federation(path: Path) -> Structure:
    found = asdict(Federation.read(path.parent))
    return {key: found[key.replace("-", "_")] for key in DEFAULTS}


def read_order(path: Path) -> Structure:
    try:
        return asdict(Order.read(path))
    except (ValueError, KeyError) as error:  # the server logs these errors
        raise FairbloomError(f"{path} cannot be used: {error}") from error


def read_rounds(path: Path, *, finished: bool) -> Structure:
    return read_table(path, ("round",), finished=finished)


def rows_of(structure: Structure) -> Structure:
    """Return a table's rows as dicts of texts.

    A table with a repeated column or a row of another length has none.
    """
    header = [text_of(name) for name in structure["header"]]
    assert len({*header}) == len(header)
    return [dict(zip(header, map(text_of, row), strict=True)) for row in structure["rows"] if row]


def spelt(structure: Structure) -> list[str]:
    """Return the words of --set for [key, value] pairs."""
    return [
        f"{key}={json.dumps(value) if isinstance(value, bool) else value}"
        for key, value in structure
    ]


def words(structure: Structure) -> bytes:
    lines = spelt(structure)
    if any("\0" in line for line in lines):
        raise ValueError  # no command line has such a word
    return as_json(lines)


def read_words(path: Path) -> Structure:
    try:
        lines = [str(line) for line in json.loads(path.read_bytes())]
    except (ValueError, TypeError, RecursionError) as error:
        raise FairbloomError("which holds no words") from error
    return taken_of(settings_of(lines))


def meant_by(structure: Structure) -> Structure:
    """Return the values of words as Python reads them; a key with two values is refused."""
    found: dict[str, Structure] = {}
    for line in spelt(structure):
        key, _, text = (part.strip() for part in line.partition("="))
        with contextlib.suppress(ValueError, RecursionError):
            read = NOT_IN_JSON[text] if text in NOT_IN_JSON else json.loads(text)
            text = read if isinstance(read, str | int | float) else text
        assert same(found.setdefault(key, text), text)
    return found


def text_of(cell: Structure) -> str:
    return "" if cell is None else str(cell)


def whole_rows_of(structure: Structure) -> Structure:
    """Return the rows of an unfinished run's table; the last row may be torn."""
    rows = [row for row in structure["rows"] if len(row) >= len(structure["header"])]
    return rows_of({**structure, "rows": rows})


def read_csv(path: Path) -> Structure:
    found = {
        name: different_cells(column) for name, column in read(path, SchemaFile()).columns.items()
    }
    return {name: [cells[code].strip() for code in codes] for name, (cells, codes) in found.items()}


def columns_of(structure: Structure) -> Structure:
    header = [text_of(name).strip() for name in structure["header"]]
    named = all(len(row) == len(header) + 1 for row in structure["rows"])  # as R names rows
    rows = [[text_of(cell).strip() for cell in row[named:]] for row in structure["rows"]]
    assert len({*header}) == len(header)
    return {name: [row[k] for row in rows if any(row)] for k, name in enumerate(header)}


def read_split(path: Path) -> Structure:
    split = files.SPLIT.read(path.parent)
    assert split.counts().sum() == len(split.row)
    return {
        "clients": np.array(split.clients),
        "parts": SPLIT["parts"],
        **{name: getattr(split, name) for name in ("client", "part", "row", "label")},
    }


def split_of(structure: Structure) -> Structure:
    assert len({*structure["clients"]}) == len(structure["clients"])
    return {name: np.asarray(structure[name]) for name in SPLIT}


# The kinds of files -------------------------------------------------------------------------------

MODEL = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(2, np.float32)}
STATE = {
    "round": 7,
    "rows": [np.array([1, 2, 3])],
    "loss": 0.1,
    "names": {"site-a": 3, "site-b": None},
}


def checkpoint() -> Structure:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "7.safetensors")
        save_checkpoint(path, MODEL, STATE)
        content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    return {"header": json.loads(content[8:start]), "data": content[start:]}


SETTINGS = {
    "task": "digits",
    "clients": 4,
    "method": "fedfv",
    "fedfv.alpha": 0.2,
    "num-rounds": 3,
    "fraction": 0.5,
    "learning-rate": 0.1,
    "batch-size": 16,
    "partition": "dirichlet",
    "dirichlet-alpha": 0.5,
    "seed": 3,
    "training-clients": "client-1, client-2, client-3",
    "device": "cpu",
    "optimizer": "sgd",
    "evaluate-every": 2,
    "personal-lambda": 0.0,
    "scores": "",
}
# Numbers for the command line that JSON does not have.
NOT_IN_JSON = {"nan": np.nan, "inf": np.inf, "+inf": np.inf, "-inf": -np.inf}
PREPROCESSING = Preprocessing(
    form="table",
    columns=(
        InputColumn("age", "number", center=50.0, scale=2.5),
        InputColumn("ward", "category", ("a", "b"), True),
    ),
    target="y",
    classes=("no", "yes"),
)
SPLIT = {
    "clients": np.array(["site-a", "site-b"]),
    "parts": np.array(["train", "test", "validation"]),
    "client": np.array([0, 0, 1, 1], np.int32),
    "part": np.array([0, 1, 0, 2], np.uint8),
    "row": np.array([4, 2, 0, 1]),
    "label": np.array([1, 0, 1, 1]),
}
ROUNDS = {
    "header": ["round", "clients_asked", "refused", "seconds"],
    "rows": [
        ["1", "4", "", "0.25"],
        ["2", "4", 'site-a: it\'s "odd", really', "0.5"],
        ["3", "3", "", "1e-3"],
    ],
}
ENROLLED = {
    "name": "site-a",
    "partition": 0,
    "key": "77aa",
    "revoked": "",
    "enrolled": "2026-01-01T00:00:00+00:00",
    "examples": 5,
}
UNSET = {"revoked": "", "enrolled": "", "examples": 0}
CLIENT = {
    "server": "fl.example.org:9092",
    "partition-id": 2,
    "allow": ["mine:load"],
    "limits": {"rows": 10},
}
RECIPE = {
    "title": "Small",
    "what": "Does it work?",
    "source": "Nobody",
    "measures": ["mean", "worst_10"],
    "notes": ["a"],
    "settings": {"task": "digits", "clients": 4, "num-rounds": 2},
    "rows": [{"label": "FedAvg", "settings": {"method": "fedavg"}}],
}
STUDY = {
    "kind": "search",
    "arms": [
        {"label": "FedAvg", "method": "fedavg", "settings": {}, "evaluated": "global"},
        {
            "label": "Ditto (lam=0.1)",
            "method": "ditto",
            "settings": {"ditto.lam": 0.1},
            "evaluated": "personal",
        },
    ],
    "seeds": [1, 2],
    "baseline": "fedavg",
    "settings": {"clients": 4, "average-models": True},
    "failed": {"runs/ditto-lam=0.1-seed2": "it diverged"},
    "criterion": "worst_10",
    "mean_within": 1.5,
    "found": {"best": ["FedAvg"], "fresh": [1001]},
    "recipe": "",
    "quick": False,
    "overrides": {},
}
CSV = {
    "header": csv_of(1).split("\n")[0].split(","),
    "rows": [row.split(",") for row in csv_of(12).split("\n")[1:-1]],
}
SCORES = [asdict(Score("accuracy", percent=True)), asdict(Score("mae", higher_is_better=False))]
GROUPED = json.loads(Grouped({"sex": ("m", "f")}, (GroupScore("accuracy", percent=True),)).encode())


def read_config(path: Path) -> dict[str, Any]:
    recorded = files.CONFIG.read(path.parent)
    return {"run-folder-format": recorded.format, **recorded.settings}


KINDS: Mapping[str, Kind] = {
    "a checkpoint": Kind(
        "7.safetensors",
        checkpoint(),
        safetensors,
        lambda path: [*load_checkpoint(path)],
        lambda structure: [MODEL, STATE],
        sealed=True,
    ),
    "the settings of a run folder": Kind(
        "config.toml",
        {"run-folder-format": 3, **SETTINGS},
        toml,
        read_config,
    ),
    "the known clients": Kind(
        "known.json",
        {"began": ["a", "b"], "known": ["a", "b", "c"]},
        as_json,
        in_json(files.KNOWN),
        only("began", "known"),
    ),
    "the scores": Kind(
        "scores.json",
        SCORES,
        as_json,
        in_json(files.SCORES),
        lambda structure: [
            {"column": Score(each["name"]).column(), **only(*SCORES[0])(each)} for each in structure
        ],
    ),
    "the groups": Kind(
        "groups.json",
        GROUPED,
        as_json,
        in_json(files.GROUPED),
        lambda structure: {  # what a score need not have
            **structure,
            "scores": [
                {"measured_in": "", "noisy": False, "by": None, **each}
                for each in structure["scores"]
            ],
        },
    ),
    "a preprocessing": Kind(
        "preprocessing.json",
        json.loads(PREPROCESSING.encode()),
        as_json,
        in_json(files.PREPROCESSING),
    ),
    "a split": Kind("split.npz", SPLIT, arrays, read_split, split_of, sealed=True),
    "a finished table": Kind(
        "rounds.csv", ROUNDS, table, partial(read_rounds, finished=True), rows_of
    ),
    "a begun table": Kind(
        "rounds.csv", ROUNDS, table, partial(read_rounds, finished=False), whole_rows_of
    ),
    "the settings of a run": Kind("settings.toml", SETTINGS, toml, read_settings, names_file=False),
    "the words of --set": Kind(
        "words.json",
        [[*each] for each in SETTINGS.items()],
        words,
        read_words,
        meant_by,
        names_file=False,
    ),
    "the settings of a client": Kind(
        "client.toml", CLIENT, toml, read_client, client_of, names_file=False
    ),
    "an enrolled client": Kind(
        "site-a.toml", ENROLLED, toml, read_enrolled, lambda each: [{**UNSET, **each}]
    ),
    "a federation": Kind(
        "federation.toml",
        {
            "server": "fl.example.org:9092",
            "listen": "0.0.0.0:9092",
            "pin-keys": True,
            "max-reply": 5,
        },
        toml,
        read_federation,
        lambda structure: {**DEFAULTS, **structure},
    ),
    "a recipe": Kind(
        "small.toml", RECIPE, toml, lambda path: load_recipe(str(path)) and RECIPE, lambda _: RECIPE
    ),
    "the order of a run": Kind(
        "run.toml",
        {
            "app": "a:b",
            "distribution": "c",
            "version": "1",
            "folder": "",
            "settings": {"seed": 3, "task": "digits"},
        },
        toml,
        read_order,
    ),
    "the bundle of a client": Kind(
        "site-a.tar.gz",
        [
            *(["site-a/ca.crt", b"authority"], ["site-a/certificate", b"certificate"]),
            *(["site-a/client.toml", b'server = "a:1"'], ["site-a/key", b"secret"]),
        ],
        packed,
        read_bundle,
        lambda structure: {name.partition("/")[2]: content for name, content in structure},
        BundleError,
        sealed=True,
        names_file=False,
    ),
    "a study": Kind(
        "study.json",
        STUDY,
        as_json,
        lambda path: json.loads(json.dumps(asdict(find_study(path.parent)))),
    ),
    "a table of data": Kind("site-a.csv", CSV, table, read_csv, columns_of),
}


# Without the phase `shrink`, which reads a file thousands of times; add it to shrink a failure.
PHASES = [Phase.explicit, Phase.generate]


def fuzz(kind: Kind, examples: int) -> None:
    """Read this many mutants of a kind of file."""

    @settings(
        max_examples=examples,
        phases=PHASES,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    @given(st.data())
    def read_mutants(data: st.DataObject) -> None:
        check_mutant(kind, Path(folder), data.draw)

    before = peak_memory()
    with tempfile.TemporaryDirectory() as folder:
        read_mutants()
    assert peak_memory() - before < MEMORY_BYTES


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_another_structure_is_refused_by_name(kind: str) -> None:
    fuzz(KINDS[kind], 12)


def test_a_whole_checkpoint_of_another_content_is_refused(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    """The checksum is right, as in a file of another version."""
    begun = run(tmp_path / "begun", num_rounds=2)
    (begun / "model.safetensors").unlink()
    (last,) = list_checkpoints(begun / "checkpoint")[:1]
    model, state = load_checkpoint(last)
    others = [(model, {key: state[key] for key in state if key != left}) for left in state]
    others += [
        (
            model,
            {
                **state,
                "strategy": {key: each for key, each in state["strategy"].items() if key != left},
            },
        )
        for left in (
            "method",
            "finished_rounds",
            "steps",
            "kept",
            "memory",
            "first_counts",
            "norms",
            "best",
            "stopping",
            "losses",
            "participations",
        )
    ]
    name, array = next(iter(model.items()))
    others += [
        ({**model, name: changed}, state) for changed in (array[:1], array.astype(np.float64))
    ]
    others += [({key: model[key] for key in model if key != name}, state)]
    for number, content in enumerate(others):
        with subtests.test(number=number, content=content):
            folder = shutil.copytree(begun, tmp_path / str(number))
            for path in list_checkpoints(folder / "checkpoint"):
                path.unlink()
            save_checkpoint(folder / "checkpoint" / last.name, *content)
            with pytest.raises(
                FairbloomError,
                match=r"the last checkpoint in .* is whole, but not .*: it.*Put back a copy",
            ):
                run(folder, num_rounds=3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_hundreds_of_mutants_are_refused_by_name(kind: str) -> None:
    fuzz(KINDS[kind], 600)
