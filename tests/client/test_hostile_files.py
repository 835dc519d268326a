"""Careless and hostile files on a device: whatever they hold, no cell of them is in what the device sends."""

import io
import json
import logging
import pickle
import random
import re
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.common.serde import recorddict_to_proto
from PIL import Image

from fairbloom.client.app import app
from fairbloom.deploy.flower.device.app_process import reason_of
from fairbloom.errors import FairbloomError
from fairbloom.server.settings import Settings
from fairbloom.tasks import find_task, load_task
from fairbloom.tasks.files.reasons import REASONS
from tests.tasks.workbooks import write_workbook

HEADER = "patient,age,sexus,diagnosis,outcome"
PEOPLE = [
    f"{first} {last}"
    for last in ("Lindqvist", "Okonkwo", "Haraldsen", "Petrovic", "Villeneuve")
    for first in ("Astrid", "Bartholomew", "Cordelia", "Dagfinn", "Eulalia", "Ferdinand")
]
ILLS = ("diabetes", "asthma", "migraine")
ASKED: dict[str, Any] = {"csv.target": "outcome", "csv.ignore": "patient"}
"""What an operator would ask of the files as they should be."""

GOOD = {"age", "sexus", "diagnosis", "outcome", "patient", *ILLS, "recovered", "deceased", "female", "male", "other"}
"""What may leave from files as they should be: names of columns, and categories and classes of many rows."""


def rows(separator: str = ",", **cells: str) -> list[str]:
    """Return thirty patients' rows; `cells` replace a column's values, {n} is the row's number and {who} its person."""
    lines = []
    for number, who in enumerate(PEOPLE):
        values = {
            "patient": who,
            "age": str(31 + number),
            "sexus": "female" if number % 2 else "male",
            "diagnosis": ILLS[number % 3],
            "outcome": "recovered" if number % 5 else "deceased",
        }
        values |= {name: cell.format(n=number, who=who, some=number % 2) for name, cell in cells.items()}
        lines.append(separator.join(values.values()))
    return lines


def table(*lines: str, header: str | None = HEADER) -> str:
    return "\n".join([*([header] if header is not None else []), *lines]) + "\n"


@dataclass(frozen=True)
class Case:
    """A file, what an operator asks of it, which words may leave, and what the server must be told of it, if any."""

    content: str | bytes
    settings: Mapping[str, Any] = field(default_factory=lambda: ASKED)
    may_leave: frozenset[str] = frozenset()
    told: str = ""
    name: str = "site"


def case(content: str | bytes, told: str = "", **others: Any) -> Case:
    settings = {**ASKED, **{f"csv.{key}": value for key, value in others.pop("ask", {}).items()}}
    return Case(content, settings, frozenset(others.pop("may_leave", ())), told, others.pop("name", "site"))


def noise(size: int) -> bytes:
    return random.Random(7).randbytes(size)


def packed() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("xl/worksheets/sheet1.xml", table(*rows()))
    return content.getvalue()


HEADLESS = table(*rows(), header=None)
DOUBTFUL = "line 1 may hold values"
CASES: dict[str, Case] = {
    # No header, or none that is one
    "no header": case(HEADLESS, DOUBTFUL, may_leave={"outcome"}),
    "no header and no target named": case(HEADLESS, DOUBTFUL, ask={"target": ""}),
    "no header, and a value that is a target's usual name": case(
        table(*rows(outcome="y")[:1], *rows(outcome="n")[:9], *rows(outcome="y")[9:], header=None),
        DOUBTFUL,
        ask={"target": ""},
    ),
    "no header, all texts, and classes stated": case(
        table(*(line.rpartition(",")[0] + (",n" if k else ",y") for k, line in enumerate(rows())), header=None),
        ask={"target": "y", "classes": "y,n"},
    ),
    "no header, and a class is asked for as the target": case(HEADLESS, ask={"target": "deceased"}),
    "no header, and a person is asked for as the target": case(
        HEADLESS, ask={"target": PEOPLE[0]}, may_leave={"Astrid", "Lindqvist"}
    ),
    "no header, all texts, none twice, and a value that is a target's usual name": case(
        "\n".join(f"{who},flat {k} of Villa {who},{'yn'[k > 0 and k % 3 > 0]}" for k, who in enumerate(PEOPLE)),
        "as in column 3",
        ask={"target": "", "classes": "y,n"},
    ),
    "no header but quotes": case(HEADLESS.replace(",", '","').replace("\n", '"\n"')[:-1], "line"),
    "a patient's row above the header": case(table(rows()[0], HEADER, *rows(), header=None), "line 1 may hold values"),
    "a comment above the header": case(table("# of ward 7, for Dr Haraldsen", HEADER, *rows(), header=None)),
    "a header of numbers": case(table(*rows(), header="4711,0,1,2,outcome"), DOUBTFUL),
    "a header of dates": case(table(*rows(), header="patient,2024-03-17,17.3.2024,diagnosis,outcome"), DOUBTFUL),
    "a header with a mail address": case(table(*rows(), header="a.lindqvist@ward.example,a,b,c,outcome"), DOUBTFUL),
    "a header with a decimal comma": case(table(*rows(";"), header="patient;36,6;b;c;outcome"), DOUBTFUL),
    "a header with a value of its column": case(table(*rows(), header="patient,age,b,migraine,outcome"), DOUBTFUL),
    "the same in other letters": case(table(*rows(), header="patient,age,b,MIGRAINE,outcome"), DOUBTFUL),
    "a header with a person twice": case(
        table(*rows(), header="Astrid Lindqvist,Astrid Lindqvist,b,c,outcome"), "columns 1 and 2 have the same name"
    ),
    "a header with a hole": case(table(*rows(), header="Astrid Lindqvist,,b,c,outcome"), "column 2 has no name"),
    "a header of free text": case(
        table(*rows(), header=f"{'Haraldsen said that ' * 20},a,b,c,outcome"), "the name of column 1 has"
    ),
    "a header over several lines": case(table(*rows(), header='patient,age,sexus,"diag\nLindqvist",outcome')),
    "the header twice": case(table(HEADER, *rows()), "line 1 may hold values"),
    "one column": case(HEADLESS.replace(",", " "), "names one column only"),
    "columns of fixed width": case("\n".join(f"{who:<30}{k:>4}" for k, who in enumerate(PEOPLE)), "one column only"),
    # Encodings and separators
    "UTF-8 with a mark and no header": case(b"\xef\xbb\xbf" + HEADLESS.encode(), DOUBTFUL),
    "UTF-16": case(table(*rows()).encode("utf-16"), may_leave=GOOD),
    "UTF-16, big end first": case(b"\xfe\xff" + table(*rows()).encode("utf-16-be"), may_leave=GOOD),
    "UTF-16 without header": case(HEADLESS.encode("utf-16"), DOUBTFUL),
    "UTF-16 that ends too early": case(table(*rows()).encode("utf-16")[:-1], "line 31 of its file is neither"),
    "UTF-16 without a mark": case(table(*rows()).encode("utf-16-le"), "in UTF-16"),
    "UTF-32": case(table(*rows()).encode("utf-32"), "no text"),
    "a line that states the separator, and no header": case("sep=,\n" + HEADLESS, "states the separator"),
    "latin 1 that is asked for, and no header": case(
        HEADLESS.replace("Astrid", "Håkan").encode("latin-1"), DOUBTFUL, ask={"encoding": "latin-1"}
    ),
    "decimal points where commas are asked for": case(
        table(*rows(age="36.{n}")),
        "line 2, column 'age' holds a number with a point",
        ask={"decimal": ","},
        may_leave={"age"},
    ),
    "latin 1": case(table(*rows(patient="Håkan Lindqvist")).encode("latin-1"), "line 2 of its file is not in UTF-8"),
    "old Windows": case(table(*rows(diagnosis="“asthma” of {who}")).encode("cp1252"), "not in UTF-8"),
    "tabs without header": case(HEADLESS.replace(",", "\t"), DOUBTFUL),
    "semicolons without header": case(HEADLESS.replace(",", ";"), DOUBTFUL),
    "bars without header": case(HEADLESS.replace(",", "|"), DOUBTFUL),
    "decimal commas": case(
        table(*rows(";", age="36,{n}"), header=HEADER.replace(",", ";")),
        "line 2, column 'age' holds a number with a comma",
        may_leave={"age"},
    ),
    "old Mac lines": case(table(*rows()).replace("\n", "\r"), may_leave=GOOD),
    # No table at all
    "empty": case("", "is empty"),
    "blank lines": case("\n\n\n", "empty"),
    "a header alone": case(table(), "0 rows"),
    "one row alone": case(rows()[0], DOUBTFUL),
    "two rows": case(table(*rows()[:2]), "2 rows"),
    "noise": case(noise(4000) + PEOPLE[0].encode()),
    "zero bytes": case(table(*rows()).replace("Astrid", "As\0trid"), "no text"),
    "a packed workbook": case(packed()),
    "a pickle": case(pickle.dumps({"rows": rows()})),
    "JSON": case(json.dumps([dict(zip(HEADER.split(","), line.split(","), strict=True)) for line in rows()], indent=1)),
    "a page": case("<table>\n" + "\n".join(f"<tr><td>{who}</td>, <td>4</td></tr>" for who in PEOPLE)),
    "a dump of a database": case(
        "INSERT INTO ward VALUES\n" + ",\n".join(f"({k}, '{who}')" for k, who in enumerate(PEOPLE))
    ),
    "a log": case("\n".join(f"2024-03-17 08:15:{k:02}, INFO, admitted {who}" for k, who in enumerate(PEOPLE))),
    # Cells
    "a huge cell": case(table(*rows(), f"{'Lindqvist ' * 20_000},1,male,asthma,recovered"), may_leave=GOOD),
    "a huge cell of a feature": case(
        table(*rows(), f"Astrid,1,male,{'Lindqvist ' * 100},recovered"), "holds a text of", may_leave={"diagnosis"}
    ),
    "thousands of columns": case(
        "\n".join(",".join(f"{who} {k}" for k in range(3000)) for who in PEOPLE[:8]), "no column 'outcome'"
    ),
    "formulas": case(table(*rows(diagnosis="=HYPERLINK(A{n})&'{who}'")), "30 different texts", may_leave={"diagnosis"}),
    "a quote that is not closed": case(table(*rows()).replace("Dagfinn", '"Dagfinn')),
    "quotes in the midst": case(table(*rows(diagnosis='asth"ma" of "{who}"')), "line 2 cannot be read"),
    "a line in a cell": case(
        table(*rows(diagnosis='"seen by\nHaraldsen {n}"')), "30 different texts", may_leave={"diagnosis"}
    ),
    "colours of a terminal": case(
        table(*rows(diagnosis="\x1b[31m{who}\x1b[0m")), "30 different texts", may_leave={"diagnosis"}
    ),
    "text from right to left": case(
        table(*rows(diagnosis="\u202e{who}\u202c")), "30 different texts", may_leave={"diagnosis"}
    ),
    "names as categories": case(
        table(*rows()), "holds 30 different texts in 30 rows", ask={"ignore": ""}, may_leave={"patient"}
    ),
    "names as categories, two rows each": case(table(*rows(), *rows()), ask={"ignore": ""}, may_leave=GOOD),
    "names as categories that are asked for": case(
        table(*rows()), ask={"ignore": "", "categories": "patient"}, may_leave=GOOD
    ),
    "numbers of cases": case(
        table(*rows(diagnosis="MRN-00471{some}")), "look like numbers of persons", may_leave={"diagnosis"}
    ),
    "universal identifiers": case(
        table(*rows(diagnosis="8c5e4f7a-92c1-4f27-9d55-0c6f7f1c2b{some}a")), "like numbers of", may_leave={"diagnosis"}
    ),
    "dates": case(table(*rows(diagnosis="2024-03-1{some}")), "look like dates", may_leave={"diagnosis"}),
    "dates with times": case(
        table(*rows(diagnosis="17.03.2024 8:1{some}")), "look like dates", may_leave={"diagnosis"}
    ),
    "telephone numbers": case(table(*rows(diagnosis="+46 70 123 45 6{some}")), "addresses", may_leave={"diagnosis"}),
    "mail addresses": case(table(*rows(diagnosis="anna{some}@ward.example")), "addresses", may_leave={"diagnosis"}),
    "remarks": case(table(*rows(diagnosis="{who} fell on the stairs")), "30 different texts", may_leave={"diagnosis"}),
    "paths": case(table(*rows(diagnosis="/home/haraldsen/scans/{who}.dcm")), "30 different", may_leave={"diagnosis"}),
    "a rare illness": case(table(*rows(), "Eve,70,male,kuru,recovered", *rows()), may_leave=GOOD),
    "a text among numbers": case(
        table(*rows(), "Eve,Lindqvist,male,asthma,recovered"), "column 'age' is not a number", may_leave={"age"}
    ),
    "an endless number": case(table(*rows(), "Eve,inf,male,asthma,recovered"), "too large", may_leave={"age"}),
    "a missing value": case(table(*rows(), "Eve,,male,asthma,recovered"), "has no value", may_leave={"age"}),
    "a short row": case(table(*rows(), "Eve Okonkwo,7"), "line 32 has 2 values"),
    "a long row": case(table(*rows(), "Okonkwo, Eve,7,male,asthma,recovered"), "line 32 has 6 values"),
    # What is asked for
    "a target of names": case(
        table(*rows()), "30 different values in 30 rows", ask={"target": "patient", "ignore": ""}, may_leave={"outcome"}
    ),
    "a target of names to be predicted as numbers": case(
        table(*rows()),
        "is not a number to predict",
        ask={"target": "patient", "ignore": "", "kind": "regression"},
        may_leave={"patient", "outcome"},
    ),
    "a name in a target of numbers": case(
        table(*rows(outcome="{some}"), "Eve,7,male,asthma,Villeneuve"),
        "not a number, while most of the target is",
        may_leave={"outcome"},
    ),
    "classes that are not those stated": case(
        table(*rows(outcome="{who}")),
        "none of the stated classes",
        ask={"classes": "recovered,deceased"},
        may_leave={"outcome"},
    ),
    "a column that is not there": case(
        table(*rows()).replace("diagnosis", "Lindqvist"),
        "no column 'diagnosis'",
        ask={"categories": "diagnosis"},
        may_leave={"diagnosis"},
    ),
    "a column that is nearly there": case(
        table(*rows()), "no column 'outcom'", ask={"target": "outcom"}, may_leave={"outcom"}
    ),
    "names as clients": case(table(*rows()), "holds the data of 30 clients", ask={"client": "patient", "ignore": ""}),
    "illnesses as clients": case(table(*rows()), "holds the data of 3 clients", ask={"client": "diagnosis"}),
    "rows without a client": case(
        table(*rows(), ",7,male,asthma,recovered"),
        "names no client in 1 rows",
        ask={"client": "patient", "ignore": ""},
        may_leave={"patient"},
    ),
    # Files as they should be
    "a good file": case(table(*rows()), may_leave=GOOD),
    "a good file whose name is a person's": case("", "empty", name="Astrid Lindqvist"),
}


def context_of(folder: Path, settings: Mapping[str, Any], **node: Any) -> Context:
    config = Settings.of({"task": "csv", "device": "cpu", **settings}).run_config()
    told = {key: value for key, value in config.items() if key != "data-dir"}
    return Context(1, 2, {"partition-id": 0, "data-dir": str(folder), **node}, RecordDict(), told)


def sent(context: Context, kind: str, content: RecordDict) -> tuple[str, RecordDict | None]:
    """Return all that a message's answer has on the wire as text, and its content where it is no error."""
    try:
        reply = app(Message(content, dst_node_id=2, message_type=kind), context).content
    except Exception as error:  # as deploy/flower/device/inbox.py makes an error reply
        return reason_of(error), None
    wire = recorddict_to_proto(reply).SerializeToString().decode("utf-8", "ignore")
    about = reply.config_records["client"].get("about") if "client" in reply.config_records else None
    return wire + (json.dumps(json.loads(str(about)), ensure_ascii=False) if about else ""), reply


def everything_sent(context: Context, agreed: str = "") -> tuple[list[str], bool]:
    """Return what a client sends to be asked, trained and evaluated, and whether its data could be used."""
    first, _ = sent(context, MessageType.QUERY, RecordDict())
    asked, reply = sent(context, MessageType.QUERY, RecordDict({"config": ConfigRecord({"about": True})}))
    task = find_task(str(context.run_config["task"]))
    if reply is not None:
        told = json.loads(str(reply.config_records["client"]["about"]))
        agreed, _ = task.agreement({"site": told})
    model = load_task({**context.run_config, "agreed": agreed}).model() if agreed else torch.nn.Linear(1, 1)
    arrays = ArrayRecord(model.state_dict())
    config = ConfigRecord({"server-round": 1, "agreed": agreed, "measure": ["loss-before", "train-loss"]})
    work = [
        sent(context, kind, RecordDict({"arrays": arrays, "config": config}))[0]
        for kind in (MessageType.TRAIN, MessageType.EVALUATE)
    ]
    return [first, asked, *work], reply is not None


def words_of(texts: Iterable[str]) -> set[str]:
    """Return the words of four letters or more, and numbers of four digits or more, in small letters."""
    return {word for text in texts for word in re.findall(r"[^\W_]{4,}", text.lower())}


SENTENCES = words_of([*REASONS.values(), "what it says stays in this client's own log"])
"""Words of the reasons themselves, which say nothing about a file that has them, too."""


def words_in(content: str | bytes) -> set[str]:
    """Return the words that a file holds, however it is encoded."""
    if isinstance(content, str):
        return words_of([content])
    encodings = ("utf-8", "latin-1", "cp1252", "utf-16-le", "utf-16-be", "utf-32")
    return words_of(content.decode(encoding, "ignore") for encoding in encodings)


def written(folder: Path, name: str, content: str | bytes) -> Path:
    folder.mkdir()
    (folder / f"{name}.csv").write_bytes(
        content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
    )
    return folder


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return what clients with good files have agreed on, before one of them got another file."""
    folder = written(tmp_path_factory.mktemp("good") / "data", "site", table(*rows()))
    told = load_task({**context_of(folder, ASKED).run_config, "data-dir": str(folder), "deployed": True}).about
    assert told is not None
    return find_task("csv").agreement({"site": json.loads(json.dumps(told("site")))})[0]


@pytest.mark.parametrize("which", CASES)
def test_no_cell_of_a_file_is_in_what_its_device_sends(
    tmp_path: Path, which: str, good: str, caplog: pytest.LogCaptureFixture
) -> None:
    chosen = CASES[which]
    folder = written(tmp_path / "Kungsgatan", chosen.name, chosen.content)
    with caplog.at_level(logging.CRITICAL, "flwr"):
        messages, usable = everything_sent(context_of(folder, chosen.settings, name="site"), good)
    words = words_in(chosen.content) - SENTENCES - words_of(chosen.may_leave) - {"site", "name"}
    of_place = words_of(["Kungsgatan", chosen.name]) - {"site"}
    for message in messages:
        for word in words | of_place:
            assert not re.search(rf"(?<![^\W_]){re.escape(word)}(?![^\W_])", message.lower()), (word, message[:500])
    assert chosen.told in messages[1]
    assert usable or chosen.told or len(messages[1]) < 400
    assert not (usable and chosen.told)
    assert usable or which not in ("a good file", "a rare illness", "old Mac lines")


def in_another_format(path: Path, names: str, *lines: str) -> None:
    """Write a table as the format that a file's ending names, with texts alone."""
    cells = [line.split(",") for line in (names, *lines)]
    if path.suffix == ".parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        table = pytest.importorskip("pyarrow").table(
            dict(zip(cells[0], map(list, zip(*cells[1:], strict=True)), strict=True))
        )
        parquet.write_table(table, path)
    else:
        pytest.importorskip("python_calamine")
        write_workbook(path, {"Haraldsen's ward": cells})


FIRST = rows()[0].replace("Astrid Lindqvist", "Astrid")
OTHER_FORMATS: dict[str, tuple[Mapping[str, Any], tuple[str, ...], str, bool]] = {
    "a good table": (ASKED, (HEADER, *rows()), "", True),
    "no header": (ASKED, (FIRST, *rows()), "may hold values", False),
    "a text among numbers": (ASKED, (HEADER, *rows(), "Petrovic,old,male,asthma,recovered"), "row 3", False),
    "names as categories": ({**ASKED, "csv.ignore": ""}, (HEADER, *rows()), "30 different texts", False),
    "a typo": ({**ASKED, "csv.target": "outcom"}, (HEADER, *rows()), "no column 'outcom'", False),
}


@pytest.mark.parametrize("ending", [".parquet", ".xlsx"])
@pytest.mark.parametrize("which", OTHER_FORMATS)
def test_no_cell_of_another_format_is_in_what_a_device_sends(
    tmp_path: Path, which: str, ending: str, good: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings, lines, told, fits = OTHER_FORMATS[which]
    (tmp_path / "Kungsgatan").mkdir()
    in_another_format(tmp_path / "Kungsgatan" / f"site{ending}", *lines)
    with caplog.at_level(logging.CRITICAL, "flwr"):
        messages, usable = everything_sent(context_of(tmp_path / "Kungsgatan", settings, name="site"), good)
    assert usable == fits
    assert told in messages[1]
    may_leave = words_of(GOOD) if fits else set()
    words = words_of([*lines, "Haraldsen's ward", "Kungsgatan"]) - words_of(HEADER.split(",")) - SENTENCES - may_leave
    for message in messages:
        assert not words & words_of([message]), message[:500]


@pytest.mark.parametrize("ending", [".parquet", ".xlsx", ".xls", ".csv.gz"])
def test_noise_in_another_format_is_told_to_be_no_table(tmp_path: Path, ending: str, good: str) -> None:
    for package in ("pyarrow", "python_calamine"):
        pytest.importorskip(package)
    (tmp_path / f"site{ending}").write_bytes(packed() if ending == ".xlsx" else noise(900) + PEOPLE[0].encode())
    messages, usable = everything_sent(context_of(tmp_path, ASKED, name="site"), good)
    assert not usable
    assert messages[1] == REASONS["no-table" if ending == ".xlsx" else "other-format"]
    assert not words_of(messages) & words_of([*PEOPLE, tmp_path.parent.name])


# Images and tasks of one's own ----------------------------------------------------------------------------------------


def test_no_name_of_a_folder_or_image_leaves_in_an_error(tmp_path: Path) -> None:
    for who in PEOPLE[:2]:
        (tmp_path / "site" / who).mkdir(parents=True)
        for number in range(5):
            Image.new("L", (8, 8 + number), number).save(tmp_path / "site" / who / f"Haraldsen{number}.png")
    for own in ({}, {"image-folder.classes": "cat,dog"}):
        messages, usable = everything_sent(context_of(tmp_path, {"task": "image-folder", **own}, name="site"))
        assert not usable
        assert not words_of(messages) & words_of([*PEOPLE, "Haraldsen", tmp_path.parent.name])
    (tmp_path / "site" / PEOPLE[0] / "Haraldsen0.png").write_bytes(b"Petrovic")
    messages, usable = everything_sent(
        context_of(tmp_path, {"task": "image-folder", "image-folder.size": 8}, name="site")
    )
    assert usable  # the folders of classes are told, as the targets of a table are
    assert messages[2] == messages[3] == REASONS["unreadable"]
    assert not words_of(messages) & {"haraldsen0", "petrovic", tmp_path.parent.name}


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


@pytest.mark.parametrize("key", ["Astrid Lindqvist", "nobody"])
def test_an_own_tasks_error_is_told_by_kind_and_place_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    module = f"hostile_{'known' if key in PEOPLE else 'unknown'}"
    (tmp_path / f"{module}.py").write_text(OWN.format(error="FairbloomError", key=key))
    (tmp_path / "rows.csv").write_text("Astrid Lindqvist,diabetes\n")
    monkeypatch.chdir(tmp_path)
    with caplog.at_level(logging.ERROR, "flwr"):
        messages, usable = everything_sent(context_of(tmp_path, {"task": f"{module}:patients"}, name="site"))
    assert not usable
    for message in messages:
        kind = "FairbloomError" if key in PEOPLE else "KeyError"
        assert message == f"{kind} in {module}.py, line 13: what it says stays in this client's own log"
    assert ("diabetes" if key in PEOPLE else "Astrid") in caplog.text


def test_an_own_task_may_say_in_words_what_the_server_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = OWN.format(error="ReportableError", key="Astrid Lindqvist").replace('"])', '"], "a row is damaged")')
    (tmp_path / "reporting_task.py").write_text(text)
    (tmp_path / "rows.csv").write_text("Astrid Lindqvist,diabetes\n")
    monkeypatch.chdir(tmp_path)
    messages, _ = everything_sent(context_of(tmp_path, {"task": "reporting_task:patients"}, name="site"))
    assert set(messages) == {"a row is damaged"}


def test_a_wrong_enrolled_number_is_told() -> None:
    context = context_of(Path("/nowhere"), {"task": "digits"})
    context.node_config = {"partition-id": 99}
    with pytest.raises(FairbloomError, match="partition-id = 99 in the node config"):
        app(Message(RecordDict(), dst_node_id=2, message_type=MessageType.QUERY), context)


def test_a_place_of_a_known_data_set_stays_on_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRBLOOM_DATA", str(tmp_path / "Kungsgatan"))
    (tmp_path / "Kungsgatan").mkdir()
    for place in ({}, {"data-dir": str(tmp_path / "Kungsgatan")}):
        context = context_of(tmp_path, {"task": "heart-disease"})
        context.node_config = {"partition-id": 0, **place}
        said, _ = sent(context, MessageType.QUERY, RecordDict())
        assert "stays in this client's own log" in said
        assert "Kungsgatan" not in said
