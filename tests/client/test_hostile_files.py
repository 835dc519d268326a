"""Careless and hostile files on a device: whatever they hold, no cell of them is in what the device
sends.

A device with its own data reports faults of its files, and none of their content.
"""

import io
import json
import logging
import pickle
import random
import re
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.common.serde import recorddict_to_proto
from PIL import Image

from fairbloom.client.app import app
from fairbloom.deploy.fleet.app_process import reason_of
from fairbloom.errors import FairbloomError, reportable
from fairbloom.server.settings import Settings
from fairbloom.tables.reasons import REASONS
from fairbloom.tables.schema import OWN_FILES
from fairbloom.tasks import load_task
from tests.tables.helpers import SCHEMA, config, csv_of

HEADER = "patient,age,sexus,diagnosis,outcome"
PEOPLE = [
    f"{first} {last}"
    for last in ("Lindqvist", "Okonkwo", "Haraldsen", "Petrovic", "Villeneuve")
    for first in ("Astrid", "Bartholomew", "Cordelia", "Dagfinn", "Eulalia", "Ferdinand")
]
ILLS = ("diabetes", "asthma", "migraine")
# What the federation has agreed on.
PATIENTS = """
target = "outcome"
ignore = ["patient"]

[fields.age]
type = "number"

[fields.sexus]
type = "string"
categories = ["female", "male"]

[fields.diagnosis]
type = "string"
categories = ["diabetes", "asthma", "migraine"]

[fields.outcome]
type = "string"
categories = ["recovered", "deceased"]
"""

# What is in the schema, which the server has, of files as they should be.
GOOD = {
    "age",
    "sexus",
    "diagnosis",
    "outcome",
    "patient",
    *ILLS,
    "recovered",
    "deceased",
    "female",
    "male",
    "other",
}


def rows(separator: str = ",", **cells: str) -> list[str]:
    """Return thirty patients' rows; `cells` replace a column's values, {n} is the row's number and
    {who} its person."""
    lines = []
    for number, who in enumerate(PEOPLE):
        values = {
            "patient": who,
            "age": str(31 + number),
            "sexus": "female" if number % 2 else "male",
            "diagnosis": ILLS[number % 3],
            "outcome": "recovered" if number % 5 else "deceased",
        }
        values |= {
            name: cell.format(n=number, who=who, some=number % 2) for name, cell in cells.items()
        }
        lines.append(separator.join(values.values()))
    return lines


def table(*lines: str, header: str | None = HEADER) -> str:
    return "\n".join([*([header] if header is not None else []), *lines]) + "\n"


# A file, the schema by which it is read, the reason that the server must get, "" if none, and the
# file's name.
Case = tuple[str | bytes, str, str, str]


def case(
    content: str | bytes, reason: str = "", change: tuple[str, str] = ("", ""), name: str = "site"
) -> Case:
    """Return a case; `change` replaces a text of its schema."""
    assert change[0] in PATIENTS
    return content, PATIENTS.replace(*change) if change[0] else PATIENTS, reason, name


def noise(size: int) -> bytes:
    return random.Random(7).randbytes(size)


def packed() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("xl/worksheets/sheet1.xml", table(*rows()))
    return content.getvalue()


HEADLESS = table(*rows(), header=None)
STRANGE = "it has no column"
CASES: dict[str, Case] = {
    # No header, or none that is one
    "no header": case(HEADLESS, STRANGE),
    "a patient's row above the header": case(
        table(rows()[0], HEADER, *rows(), header=None), STRANGE
    ),
    "a comment above the header": case(
        table("# of ward 7, for Dr Haraldsen", HEADER, *rows(), header=None)
    ),
    "a header with a value of its column": case(
        table(*rows(), header="patient,age,b,migraine,outcome"), STRANGE
    ),
    "a header with a person twice": case(
        table(*rows(), header="Astrid Lindqvist,Astrid Lindqvist,b,c,outcome"),
        "columns 1 and 2 have the same name",
    ),
    "a header with a hole": case(
        table(*rows(), header="Astrid Lindqvist,,b,c,outcome"), "column 2 has no name"
    ),
    "a header of free text": case(
        table(*rows(), header=f"{'Haraldsen said that ' * 20},a,b,c,outcome"),
        "the name of column 1 has",
    ),
    "a header over several lines": case(
        table(*rows(), header='patient,age,sexus,"diag\nLindqvist",outcome')
    ),
    "a column more, called as a person": case(
        table(*(f"{each},1" for each in rows()), header=f"{HEADER},Astrid Lindqvist"),
        "columns that the schema does not name (1)",
    ),
    "the header twice": case(table(HEADER, *rows())),
    "one column": case(HEADLESS.replace(",", " "), "names one column only"),
    # Encodings and separators
    "UTF-16": case(table(*rows()).encode("utf-16")),
    "UTF-16, big end first": case(b"\xfe\xff" + table(*rows()).encode("utf-16-be")),
    "UTF-16 without a mark": case(table(*rows()).encode("utf-16-le"), "in UTF-16"),
    "UTF-32": case(table(*rows()).encode("utf-32"), "no text"),
    "latin 1": case(
        table(*rows(patient="Håkan Lindqvist")).encode("latin-1"),
        "line 2 of its file is neither in UTF-8 nor",
    ),
    "decimal commas": case(table(*rows(";", age="36,{n}"), header=HEADER.replace(",", ";"))),
    "old Mac lines": case(table(*rows()).replace("\n", "\r")),
    # No table at all
    "empty": case("", "is empty"),
    "a header alone": case(table(), "0 rows"),
    "noise": case(noise(4000) + PEOPLE[0].encode()),
    "zero bytes": case(table(*rows()).replace("Astrid", "As\0trid"), "no text"),
    "a packed workbook": case(packed()),
    "a pickle": case(pickle.dumps({"rows": rows()})),
    "JSON": case(
        json.dumps(
            [dict(zip(HEADER.split(","), line.split(","), strict=True)) for line in rows()],
            indent=1,
        )
    ),
    "a dump of a database": case(
        "INSERT INTO ward VALUES\n" + ",\n".join(f"({k}, '{who}')" for k, who in enumerate(PEOPLE))
    ),
    # Cells
    "a huge cell": case(table(*rows(), f"{'Lindqvist ' * 20_000},1,male,asthma,recovered")),
    "a huge cell of a feature": case(
        table(*rows(), f"Astrid,1,male,{'Lindqvist ' * 100},recovered"),
        "line 32, column 'diagnosis' is not in",
    ),
    "thousands of columns": case(
        "".join(",".join(f"{who} {k}" for k in range(3000)) + "\n" for who in PEOPLE[:8]), STRANGE
    ),
    "a quote that is not closed": case(table(*rows()).replace("Dagfinn", '"Dagfinn')),
    "a line in a cell": case(
        table(*rows(diagnosis='"seen by\nHaraldsen {n}"')), "column 'diagnosis' is not in"
    ),
    "names as categories": case(
        table(*rows())
        .replace("diagnosis", "diag")
        .replace("patient", "diagnosis")
        .replace("diag,", "patient,", 1)
    ),
    "dates": case(table(*rows(diagnosis="2024-03-1{some}")), "column 'diagnosis' is not in"),
    "a rare illness": case(
        table(*rows(), "Eve,70,male,kuru,recovered", *rows()), "line 32, column 'diagnosis'"
    ),
    "a text among numbers": case(
        table(*rows(), "Eve,Lindqvist,male,asthma,recovered"),
        "line 32, column 'age' is not a number",
    ),
    "an endless number": case(
        table(*rows(), "Eve,inf,male,asthma,recovered"), "column 'age' is not a number"
    ),
    "a number beyond what is allowed": case(
        table(*rows(), "Eve,147,male,asthma,recovered"),
        "line 32, column 'age' is outside the range",
        ('"number"', '"number"\nconstraints = {maximum = 120}'),
    ),
    "a missing value": case(table(*rows(), "Eve,,male,asthma,recovered"), "has no value"),
    "a short row": case(table(*rows(), "Eve Okonkwo,7"), "line 32 has 2 values"),
    "classes that are not those of the schema": case(
        table(*rows(outcome="{who}")), "column 'outcome' is not in"
    ),
    "a column that is not there": case(
        table(*rows()).replace("diagnosis", "Lindqvist"), "no column 'diagnosis'"
    ),
    "names as clients": case(
        table(*rows()),
        "its data cannot be used",
        ('ignore = ["patient"]', 'client = "patient"'),
    ),
    "rows without a client": case(
        table(*rows(), ",7,male,asthma,recovered"),
        "names no client in 1 rows",
        ('ignore = ["patient"]', 'client = "patient"'),
    ),
    # Files as they should be
    "a good file": case(table(*rows())),
    "a good file whose name is a person's": case("", "empty", name="Astrid Lindqvist"),
}


def context_of(folder: Path, settings: Mapping[str, Any], **node: Any) -> Context:
    config = Settings.of({"task": "csv", "device": "cpu", **settings}).run_config()
    config = {key: value for key, value in config.items() if key != "data-dir"}
    return Context(1, 2, {"partition-id": 0, "data-dir": str(folder), **node}, RecordDict(), config)


def sent(context: Context, kind: str, content: RecordDict) -> tuple[str, RecordDict | None]:
    """Return all that a message's answer has on the wire as text, and its content where it is no
    error."""
    try:
        reply = app(Message(content, dst_node_id=2, message_type=kind), context).content
    except Exception as error:  # as deploy/fleet/app_process.py makes an error reply
        return reason_of(error), None
    return recorddict_to_proto(reply).SerializeToString().decode("utf-8", "ignore"), reply


def everything_sent(context: Context) -> tuple[list[str], bool]:
    """Return what a client sends to be asked, trained and evaluated, and whether its data could be
    used."""
    asked, reply = sent(context, MessageType.QUERY, RecordDict())
    model = (
        load_task({**context.run_config, "data-dir": ""}).model()
        if context.run_config.get("schema")
        else torch.nn.Linear(1, 1)
    )
    arrays = ArrayRecord(model.state_dict())
    config = ConfigRecord({"server-round": 1, "measure": ["loss-before", "train-loss"]})
    work = [
        sent(context, kind, RecordDict({"arrays": arrays, "config": config}))[0]
        for kind in (MessageType.TRAIN, MessageType.EVALUATE)
    ]
    return [asked, *work], reply is not None


def words_of(texts: Iterable[str]) -> set[str]:
    """Return the words of four letters or more, and numbers of four digits or more, in small
    letters."""
    return {word for text in texts for word in re.findall(r"[^\W_]{4,}", text.lower())}


# Words of the reasons themselves, which say nothing about a file that has them, too.
SENTENCES = words_of([*REASONS.values(), "what it says stays in this client's own log"])


def words_in(content: str | bytes) -> set[str]:
    """Return the words that a file holds, however it is encoded."""
    if isinstance(content, str):
        return words_of([content])
    encodings = ("utf-8", "latin-1", "cp1252", "utf-16-le", "utf-16-be", "utf-32")
    return words_of(content.decode(encoding, "ignore") for encoding in encodings)


def written(folder: Path, name: str, content: str | bytes) -> Path:
    folder.mkdir(parents=True)
    (folder / f"{name}.csv").write_bytes(
        content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
    )
    return folder


@pytest.mark.parametrize("which", CASES)
def test_no_cell_of_a_file_is_in_what_its_device_sends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, which: str
) -> None:
    caplog.set_level(logging.CRITICAL, "flwr")
    content, schema, reason, name = CASES[which]
    folder = written(tmp_path / "0" / "Kungsgatan", name, content)
    messages, usable = everything_sent(context_of(folder, {"schema": schema}, name="site"))
    words = words_in(content) - SENTENCES - words_of(GOOD) - {"site", "name"}
    of_place = words_of(["Kungsgatan", name]) - {"site"}
    for message in messages:
        for word in words | of_place:
            quoted = re.search(rf"(?<![^\W_]){re.escape(word)}(?![^\W_])", message.lower())
            assert not quoted, (word, message[:500])
    assert reason in messages[0]
    assert usable or reason or len(messages[0]) < 400
    assert not (usable and reason)
    assert usable or which not in ("a good file", "old Mac lines", "decimal commas")


# Images and tasks of one's own --------------------------------------------------------------------


def test_no_name_of_a_folder_or_image_leaves_in_an_error(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for who in PEOPLE[:2]:
        (tmp_path / "site" / who).mkdir(parents=True)
        for number in range(5):
            Image.new("L", (8, 8 + number), number).save(
                tmp_path / "site" / who / f"Haraldsen{number}.png"
            )
    for classes in (["cat", "dog"], PEOPLE[:2]):
        with subtests.test(classes=classes):
            schema = f"classes = {json.dumps(classes)}\nsize = [8, 8]\n"
            context = context_of(tmp_path, {"task": "image-folder", "schema": schema}, name="site")
            messages, usable = everything_sent(context)
            assert not usable
            assert not words_of(messages) & words_of([*PEOPLE, "Haraldsen", tmp_path.parent.name])
    (tmp_path / "site" / PEOPLE[0] / "Haraldsen0.png").write_bytes(b"Petrovic")
    context.run_config["schema"] = schema + "resize = true\n"
    messages, usable = everything_sent(context)
    assert not usable
    assert {*messages} == {REASONS["unreadable"]}


OWN = """
from pathlib import Path

import torch

from fairbloom.errors import {error}
from fairbloom.tasks import Task


def patients(setup):
    def splits(client):
        rows = dict(line.split(",") for line in Path(setup.data_dir, "rows.csv").read_text().splitlines())
        raise {error}(rows["{key}"]) if "{key}" in rows else KeyError(next(iter(rows)))

    return Task(clients=("site",), model=lambda: torch.nn.Linear(1, 1), loss=None, splits=splits)
"""


@pytest.mark.parametrize(
    ("module", "text", "reason", "logged"),
    [
        (
            "hostile_known",
            OWN.format(error="FairbloomError", key=PEOPLE[0]),
            "FairbloomError in hostile_known.py, line 13",
            "diabetes",
        ),
        (
            "hostile_unknown",
            OWN.format(error="FairbloomError", key="nobody"),
            "KeyError in hostile_unknown.py, line 13",
            "Astrid",
        ),
        (
            "hostile_words",
            OWN.format(error="ReportableError", key=PEOPLE[0]).replace(
                '"])', '"], "a row is damaged")'
            ),
            "a row is damaged",
            "",
        ),
    ],
    ids=["known", "unknown", "words"],
)
def test_an_own_tasks_error_is_told_by_kind_or_its_own_words(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    module: str,
    text: str,
    reason: str,
    logged: str,
) -> None:
    (tmp_path / "rows.csv").write_text("Astrid Lindqvist,diabetes\n")
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{module}.py").write_text(text)
    with caplog.at_level(logging.ERROR, "flwr"):
        messages, usable = everything_sent(
            context_of(tmp_path, {"task": f"{module}:patients"}, name="site")
        )
    assert not usable
    ending = ": what it says stays in this client's own log" if logged else ""
    assert {*messages} == {reason + ending}
    assert logged in caplog.text


@pytest.mark.parametrize("key", ["", "data-dir"])
def test_a_place_of_a_known_data_set_stays_on_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    place = str(tmp_path / "Kungsgatan")
    monkeypatch.setenv("FAIRBLOOM_DATA", place)
    (tmp_path / "Kungsgatan").mkdir()
    context = context_of(tmp_path, {"task": "heart-disease"})
    context.node_config = {"partition-id": 0, **({key: place} if key else {})}
    said, _ = sent(context, MessageType.QUERY, RecordDict())
    assert "stays in this client's own log" in said
    assert "Kungsgatan" not in said


def device(folder: Path, **node: int | str) -> Context:
    """Return the context of a deployed client; one of a simulation has num-partitions."""
    run_config = {key: value for key, value in config(folder, SCHEMA).items() if key != "data-dir"}
    where = {"partition-id": 3, "data-dir": str(folder), **node}
    return Context(
        run_id=1, node_id=2, node_config=where, state=RecordDict(), run_config=run_config
    )


def asked(context: Context) -> Message:
    return app(Message(RecordDict(), dst_node_id=2, message_type=MessageType.QUERY), context)


def test_a_devices_only_file_is_its_own_whatever_its_number(tmp_path: Path) -> None:
    nowhere = device(tmp_path)
    nowhere.node_config = {"partition-id": 0}
    with pytest.raises(
        FairbloomError,
        match=r"task csv reads its data from a folder: .* data-dir in its client\.toml",
    ):
        asked(nowhere)
    (tmp_path / "lund.csv").write_text(csv_of(20))
    assert asked(device(tmp_path)).content["client"]["name"] == "lund"
    (tmp_path / "oslo.csv").write_text(csv_of(20))
    with pytest.raises(
        FairbloomError,
        match=r"holds the data of 2 clients, none with this client's name: .* client\.toml",
    ):
        asked(device(tmp_path))


def test_a_simulation_tells_all_and_a_numbered_device_does_not(tmp_path: Path) -> None:
    lines = csv_of(20).splitlines()
    (tmp_path / "lund.csv").write_text(
        "\n".join([lines[0], "Anna Svensson,0.2,north,1", *lines[1:]]) + "\n"
    )
    numbered = device(tmp_path, **{"num-partitions": 1, "partition-id": 0})
    with pytest.raises(FairbloomError) as refusal:
        asked(numbered)
    assert "Svensson" not in str(refusal.value)
    numbered.run_config = config(tmp_path)
    numbered.node_config = {"partition-id": 0, "num-partitions": 1}
    with pytest.raises(FairbloomError, match="Svensson"):
        asked(numbered)


def test_the_owner_says_how_the_devices_files_are_written(tmp_path: Path) -> None:
    (tmp_path / "lund.csv").write_text(
        csv_of(20).replace(",", ";").replace(".", ",").replace("age", "Alter", 1)
    )
    with pytest.raises(FairbloomError, match="no column 'age'"):
        asked(device(tmp_path))
    own = device(
        tmp_path,
        files=json.dumps({"lund.csv": {"decimalChar": ",", "fields": {"age": {"name": "Alter"}}}}),
    )
    assert asked(own).content["client"]["num-examples"] == 16
    # they replace what the run's schema says of the same file
    own.run_config["schema"] = f"{SCHEMA}\n[files.'lund.csv']\ndecimalChar = '.'\n"
    assert asked(own).content["client"]["num-examples"] == 16


@pytest.mark.parametrize(
    "table",
    [
        {"fields": {"Zebrafish, MRN 1931": {"unit": "mg"}}},
        {"fields": {"age": {"name": "Alter", "factor": 0}}},
        {"groupChar": ",", "decimalChar": ","},
        {"Zebrafish, MRN 1931": 1},
    ],
    ids=["column", "factor", "marks", "key"],
)
def test_names_in_owner_toml_stay_on_the_device(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, table: dict[str, Any]
) -> None:
    (tmp_path / "lund.csv").write_text(csv_of(20))
    own = device(tmp_path, files=json.dumps({"aa_Quasimodo.csv": table}))
    with pytest.raises(FairbloomError) as refusal:
        asked(own)
    assert reportable(refusal.value) == OWN_FILES
    assert "owner.toml: files.aa_Quasimodo.csv" in caplog.text
