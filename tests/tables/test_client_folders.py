"""A client may have a folder of files, which are read as one table, each as it is written."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, Message, MessageType, RecordDict

from fairbloom.client.app import app
from fairbloom.client.private.account import Known
from fairbloom.errors import FairbloomError
from fairbloom.prediction.predictor import find_own_file
from fairbloom.protocol.names import NUM_EXAMPLES
from fairbloom.protocol.settings import RunSettings
from fairbloom.server.run_folder.files import DATA
from fairbloom.tables import reading
from fairbloom.tables.encoding import encode_files
from fairbloom.tables.folders import files_in
from fairbloom.tables.reasons import DataError
from fairbloom.tables.schema import SchemaError, SchemaFile, parse_schema, with_files
from fairbloom.tasks import describe_data
from fairbloom.tasks.columns import ENDINGS
from fairbloom.tasks.loading import digests
from tests.tasks.made import everything

from .helpers import SCHEMA, config, csv_of, inferred, load, refused_with, schema_with
from .workbooks import write_workbook

FILLED = schema_with(('target = "target"', 'target = "target"\nmissing = "fill"'))


def write(folder: Path, **files: str | bytes) -> Path:
    """Write files by their names, with __ for a folder, and return the folder."""
    for name, content in files.items():
        path = folder / f"{name.replace('__', '/')}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def parts(rows: int = 40) -> tuple[str, str]:
    """Return the halves of the table of `csv_of`, each with the names of the columns."""
    names, *lines = csv_of(rows).splitlines()
    half = rows // 2
    return "\n".join([names, *lines[:half]]) + "\n", "\n".join([names, *lines[half:]]) + "\n"


def faults_of(folder: Path, schema: str) -> list[dict[str, object]]:
    """Return the rows of faults that `fairbloom data` prints."""
    settings = RunSettings.of(config(folder, schema))
    return [dict(row) for row in describe_data(settings, every=False)["faults"]]


def without_faults(folder: Path, schema: str) -> bool:
    return not faults_of(folder, schema)


def inputs_of(folder: Path, schema: str, client: str) -> bytes:
    """Return the bytes of a client's training and test inputs."""
    examples = load(folder, schema).splits(client)
    return b"".join(everything(each)[0].numpy().tobytes() for each in examples if len(each))


# Folders ------------------------------------------------------------------------------------------


def test_files_of_any_format_are_the_table_of_one_file(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole", coban=csv_of(40), lund=csv_of(20, 1))
    first, second = parts()
    swapped = second.replace(",", ";").replace(".", ",")
    split = write(tmp_path / "split", coban__2024=first, coban__2025=swapped, lund=csv_of(20, 1))
    rows = [line.split(",") for line in second.splitlines()]
    books = write(tmp_path / "books", coban__2024=first, lund=csv_of(20, 1))
    numbers = [[float(age), float(dose), ward, int(target)] for age, dose, ward, target in rows[1:]]
    write_workbook(books / "coban" / "2025.xlsx", {"Data": [rows[0], *numbers]})
    expected = inputs_of(whole, SCHEMA, "coban")
    assert inputs_of(split, SCHEMA, "coban") == expected
    assert inputs_of(books, SCHEMA, "coban") == expected
    assert load(split, SCHEMA).clients == ("coban", "lund")


def test_rows_of_a_person_in_two_files_stay_together(tmp_path: Path) -> None:
    there = write(tmp_path, a__1="id,x,target\np1,1,0\n,2,1\n", a__2="id,x,target\nP1,1,0\n,2,1\n")
    schema = 'target="target"\nunit="id"\nfields.x.type="number"\n' + (
        'fields.target = {type="integer", categories=[0, 1]}'
    )
    units = encode_files(files_in(str(there), ENDINGS)["a"], "a", parse_schema(schema)).units
    assert units is not None
    assert units[0] == units[2]
    assert len({*units.tolist()}) == 3


def test_what_is_no_table_makes_no_client(tmp_path: Path) -> None:
    there = write(tmp_path, lund=csv_of(20), coban__2024=csv_of(20), notes__deep__x=csv_of(20))
    for name in (".hidden/1.csv", "coban/~$2024.csv", "coban/.2023.csv", "coban/letter.txt"):
        (there / name).parent.mkdir(exist_ok=True)
        (there / name).write_text("age,dose\n1,2\n")
    (there / "old.csv").mkdir()
    write(there, runs__config=csv_of(20))
    for name in ("config.toml", "env.json"):
        (there / "runs" / name).write_text("")
    found = files_in(str(there), ENDINGS)
    assert found == {"coban": (there / "coban/2024.csv",), "lund": (there / "lund.csv",)}
    recorded = digests(RunSettings.of(config(there, SCHEMA)))
    assert recorded.keys() == {"lund.csv", "coban/2024.csv", "coban/~$2024.csv"}


def test_clients_of_folders_that_cannot_be_told_are_refused(tmp_path: Path) -> None:
    there = write(tmp_path, coban=csv_of(20), coban__2024=csv_of(20))
    with pytest.raises(DataError, match=r"coban and coban\.csv would both be client coban: rename"):
        files_in(str(there), ENDINGS)
    (there / "coban").rename(there / "lund")
    (there / "lund" / "2023.ods").write_text("")
    with pytest.raises(DataError, match=r"lund/2023\.ods: it holds a table, and \.ods files are"):
        files_in(str(there), ENDINGS)
    (there / "deep" / "er").mkdir(parents=True)
    (there / "deep" / "er" / "a").mkdir()
    write(there / "deep" / "er" / "a", x=csv_of(20))
    with pytest.raises(DataError, match="or in a folder in it, but er: name the folder that has"):
        files_in(str(there / "deep"), ENDINGS)
    assert [*files_in(str(there / "deep" / "er"), ENDINGS)] == ["a"]


def test_a_client_of_few_rows_is_named_by_its_folder(tmp_path: Path) -> None:
    there = write(tmp_path, coban__1=csv_of(1), coban__2=csv_of(1, 1), lund=csv_of(20))
    with pytest.raises(DataError, match=r"/coban has 2 rows: "):
        load(there, SCHEMA).splits("coban")


def test_a_column_of_clients_is_for_a_single_file(tmp_path: Path) -> None:
    there = write(tmp_path, all__1=csv_of(20), all__2=csv_of(20))
    with pytest.raises(DataError, match="has 2 files: leave it out"):
        load(there, f'client = "ward"\n{SCHEMA}'.replace('[fields.ward]\ntype = "string"\n', "", 1))


def test_faults_name_the_file_and_line_of_a_client(tmp_path: Path) -> None:
    first, second = parts()
    wrong = [first.replace("north", "nord", 1), second.replace("west", "ouest", 2)]
    wrong[1] = f"{wrong[1]}200,0.5,south,1\n"
    there = write(tmp_path, coban__2024=wrong[0], coban__2025=wrong[1], lund=csv_of(20))
    schema = schema_with(('"number"', '"number"\nconstraints = {maximum = 150}'))
    places = [k for k, line in enumerate(wrong[1].splitlines(), start=1) if "ouest" in line]
    assert {(row["file"], row["line"], row["value"]) for row in faults_of(there, schema)} == {
        ("2024.csv", "2", "nord"),
        ("2025.csv", f"{places[0]} to {places[1]}, 1 more", "ouest"),
        ("2025.csv", "22", "200"),
    }
    for name, text, said in (
        ("2025", second, r"coban/2024\.csv, line 2, column 'ward' holds 'nord'"),
        ("2024", first, ""),
        ("2025", f"{second}200,0.5,south,1\n", r"coban/2025\.csv, line 22, column 'age'"),
    ):
        write(there, **{f"coban__{name}": text})
        if not said:
            assert load(there, schema).splits("coban")
            continue
        with pytest.raises(DataError, match=said):
            load(there, schema).splits("coban")


# What is said of files ----------------------------------------------------------------------------


def test_a_files_entry_goes_before_its_clients(tmp_path: Path) -> None:
    schema = parse_schema(
        SCHEMA
        + """
[files."coban/*"]
encoding = "cp1252"
decimalChar = ","
fields.age = {name = "edad", factor = 2.0}
[files."coban/2025.csv"]
decimalChar = "."
fields.age = {factor = 3.0}
fields.dose = {factor = 5.0}
[files."*/2025.csv"]
groupChar = "'"
fields.age = {factor = 4.0}
[files."lund.csv"]
encoding = "utf-16"
fields.age = {factor = 7.0}
"""
    )
    read: Mapping[str, SchemaFile] = {
        name: schema.file(name, client)
        for name, client in (("2024.csv", "coban"), ("2025.csv", "coban"), ("2026.csv", "coban"))
    }
    assert read["2024.csv"] == read["2026.csv"]
    assert (read["2024.csv"].encoding, read["2024.csv"].decimalChar) == ("cp1252", ",")
    assert (read["2025.csv"].encoding, read["2025.csv"].decimalChar) == ("cp1252", ".")
    ages = [read[name].field("age") for name in read]
    assert [(age.name, age.factor) for age in ages] == [
        (("edad",), factor) for factor in (2.0, 3.0, 2.0)
    ]
    assert read["2025.csv"].field("dose").factor == 5.0
    assert read["2025.csv"].groupChar == schema.file("2025.csv", "oslo").groupChar == "'"
    assert schema.file("2025.csv", "oslo").field("age").factor == 4.0
    # The format of a client's only file holds for its later ones, too; one that is named as
    # another's is written so, and means what its own client's cells mean.
    assert schema.file("later.csv", "lund").encoding == "utf-16"
    assert schema.file("lund.csv", "coban").encoding == "utf-16"
    assert schema.file("lund.csv", "coban").field("age").factor == 2.0
    assert [schema.file("x.csv", name).key for name in ("coban", "x")] == ["coban/*", "x.csv"]


def test_an_entry_of_no_file_is_refused(tmp_path: Path) -> None:
    there = write(tmp_path, coban__2024=csv_of(20), lund=csv_of(20))
    for key, is_there in {
        "coban/*": True,
        "coban": True,
        "coban/2024.csv": True,
        "*/2030.csv": True,
        "lund.csv": True,
        "coban/2025.csv": False,
        "cobam/*": False,
        "lund/2024.csv": False,
    }.items():
        schema = f'{SCHEMA}\n[files."{key}"]\nencoding = "cp1252"\n'
        if is_there:
            assert without_faults(there, schema), key
            continue
        with pytest.raises(SchemaError, match=re.escape(f"files.{key}: ")):
            faults_of(there, schema)


RENAMED = (csv_of(20), csv_of(20, 1).replace("dose", "dose_mg"))


def test_a_new_name_is_offered_before_it_is_ignored(tmp_path: Path) -> None:
    there = write(tmp_path, coban__1=RENAMED[0], coban__2=RENAMED[1], lund=csv_of(20, 2))
    (fault,) = faults_of(there, FILLED)
    said = re.search(
        r"^has a column 'dose_mg'.*: if it is dose, say (.*) under (\[files\.[^]]*\]), or ",
        str(fault["problem"]) + ": " + str(fault["remedy"]),
    )
    assert said
    schema = f"{FILLED}\n{said[2]}\n{said[1]}\n"
    assert tomllib.loads(schema)["files"] == {
        "coban/*": {"fields": {"dose": {"name": ["dose", "dose_mg"]}}}
    }
    assert without_faults(there, schema)
    one = write(tmp_path / "one", coban__1=csv_of(20), coban__2=csv_of(20, 1), lund=csv_of(20, 2))
    assert inputs_of(there, schema, "coban") == inputs_of(one, FILLED, "coban")
    # A file that lacks none has nothing to rename.
    write(there, coban__2=csv_of(20, 1).replace("ward", "ward,more").replace("south", "south,1"))
    problem = str(faults_of(there, schema))
    assert "if it is" not in problem


def test_two_names_of_a_column_in_one_file_are_a_fault(tmp_path: Path) -> None:
    names, *lines = csv_of(20).splitlines()
    both = "\n".join([f"{names},dose_mg", *(f"{line},7" for line in lines)])
    there = write(tmp_path, coban__1=csv_of(20), coban__2=both, lund=csv_of(20, 2))
    own = '\n[files."coban/*"]\nfields.dose = {name = ["dose", "dose_mg"]}\n'
    (fault,) = faults_of(there, SCHEMA + own)
    assert (fault["file"], fault["column"]) == ("2.csv", "dose")
    said = re.search(r"put it in ignore and .* under \[files\.'(.*)'\]", str(fault["remedy"]))
    assert said
    mended = f'ignore = ["dose_mg"]{SCHEMA}{own}[files."{said[1]}"]\nfields.dose.name = "dose"\n'
    assert without_faults(there, mended)


OWN_NAME = '\n[files."*"]\nfields.dose.name = "dose_mg"\n'


def test_the_schemas_own_name_is_read_beside_a_stated_one(tmp_path: Path) -> None:
    """Last year's file has the client's name of a column, this year's has the schema's."""
    there = write(tmp_path, coban__1=RENAMED[1], coban__2=csv_of(20), lund=csv_of(20, 2))
    one = write(tmp_path / "one", coban__1=csv_of(20, 1), coban__2=csv_of(20), lund=csv_of(20, 2))
    assert without_faults(there, FILLED + OWN_NAME)
    assert inputs_of(there, FILLED + OWN_NAME, "coban") == inputs_of(one, FILLED, "coban")


def test_a_line_for_the_own_name_is_sent_to_the_schemas() -> None:
    """An owner has pasted it before there was a schema."""
    own = 'fields.dose_mg.missingValues = ["999"]\n'
    with refused_with("fields.dose_mg: the schema calls this column 'dose': say it there"):
        parse_schema(f"{SCHEMA}{OWN_NAME}{own}")
    assert parse_schema(f"{SCHEMA}{OWN_NAME}{own.replace('dose_mg', 'dose')}")
    with refused_with("fields.dose_mg: did you mean dose? it must be one of the fields"):
        parse_schema(f'{SCHEMA}[files."*"]\n{own}')


def test_a_name_that_means_another_column_is_not_read(tmp_path: Path) -> None:
    """A file without `dose_mg` has `dose`, which its client says is `age`."""
    mixed = f'{OWN_NAME}fields.age.name = "dose"\n'
    table = csv_of(20).replace("age,dose", "ignored,dose")
    there = write(tmp_path, a=table, b=csv_of(20, 2).replace("age,dose", "dose,dose_mg"))
    schema = parse_schema(f'ignore = ["ignored"]\n{FILLED}{mixed}')
    file = encode_files(files_in(str(there), ENDINGS)["a"], "a", schema)
    assert "dose" not in file.found
    assert np.isnan(file.columns["dose"]).all()
    doses = [float(line.split(",")[1]) for line in table.splitlines()[1:]]
    np.testing.assert_array_equal(file.columns["age"], doses)


def test_a_filled_column_that_no_file_has_is_said(tmp_path: Path) -> None:
    there = write(tmp_path, a=csv_of(20, columns="age,ward,target"), b=csv_of(30, 2))

    def row() -> dict[str, object]:
        settings = RunSettings.of(config(there, FILLED))
        rows = describe_data(settings, every=False)["columns"]
        return next(each for each in rows if each["column"] == "dose")

    assert row()["missing"] == 20
    assert str(row()["values"]).endswith("; not at a")
    write(there, a=csv_of(20))
    assert row()["missing"] == 0
    assert "not at" not in str(row()["values"])


def test_a_client_ignores_a_column_of_its_own(tmp_path: Path) -> None:
    names, *lines = csv_of(20).splitlines()
    wider = "\n".join([f"{names},bmi", *(f"{line},27" for line in lines)])
    there = write(tmp_path, a=wider, b=csv_of(20, 2))
    (fault,) = faults_of(there, SCHEMA)
    said = re.search(r"ignore, .* or under (\[files\.'.*'\])", str(fault["remedy"]))
    assert said
    assert without_faults(there, f'{SCHEMA}{said[1]}\nignore = ["bmi"]\n')
    write(there, b=wider)  # which another client has to say for itself
    assert faults_of(there, f'{SCHEMA}{said[1]}\nignore = ["bmi"]\n')


@pytest.mark.parametrize("name", ["Age", "person", "dose_mg"])
def test_what_is_read_is_not_ignored(name: str) -> None:
    text = f'unit = "person"\n{SCHEMA}{OWN_NAME}'
    assert parse_schema(f'{text}ignore = ["bmi"]\n').files["*"].ignore == ("bmi",)
    with refused_with("files.*.ignore = ", "it is read as one of the fields"):
        parse_schema(f'{text}ignore = ["{name}"]\n')


def test_a_unit_may_be_that_of_one_file(tmp_path: Path) -> None:
    schema = SCHEMA + '[files."a/2.csv"]\nfields.dose = {name = "dose_mg", factor = 10.0}\n'
    there = write(tmp_path, a__1=RENAMED[0], a__2=RENAMED[1], b=csv_of(20, 2))
    dose = encode_files(files_in(str(there), ENDINGS)["a"], "a", parse_schema(schema)).columns[
        "dose"
    ]
    read = [float(line.split(",")[1]) for text in RENAMED for line in text.splitlines()[1:]]
    np.testing.assert_array_equal(dose, np.array(read) * ([1.0] * 20 + [10.0] * 20))


def test_a_split_is_of_a_clients_only_file(tmp_path: Path) -> None:
    there = write(tmp_path, lund=csv_of(20), coban__1=csv_of(20, 1))
    DATA.write(tmp_path, digests(RunSettings.of(config(there, SCHEMA))))
    assert find_own_file(tmp_path, there / "lund.csv", "", "") == "lund.csv"
    with pytest.raises(FairbloomError, match="read as a client's only one"):
        find_own_file(tmp_path, there / "coban" / "1.csv", "coban", "")


# Notes, comments and sheets -----------------------------------------------------------------------

NOTE = 'Export of the "ward system, 2024, confidential\n'


@pytest.mark.parametrize(
    ("before", "said"),
    [
        (NOTE, "headerRows = [2]"),
        ("\n" + NOTE, "headerRows = [3]"),
        (NOTE + "# a note\n", 'headerRows = [2]\ncommentChar = "#"'),
        ("# a note\n#\n", 'commentChar = "#"'),
        ("age\n", "headerRows = [2]"),
    ],
)
def test_lines_that_are_not_read_are_counted(tmp_path: Path, before: str, said: str) -> None:
    text = csv_of(20).replace("south", "sud", 1)
    there = write(tmp_path, coban__1=before + text, lund=csv_of(20))
    line = (before + text).splitlines().index(next(x for x in text.splitlines() if "sud" in x)) + 1
    (fault,) = faults_of(there, f'{SCHEMA}[files."coban/*"]\n{said}\n')
    assert (fault["line"], fault["value"]) == (str(line), "sud")


@pytest.mark.parametrize("note", ["a note, in two parts\n", "a note\n"])
def test_a_note_names_the_setting_as_remedy(tmp_path: Path, note: str) -> None:
    there = write(tmp_path, coban__1=note + csv_of(20), lund=csv_of(20))
    with pytest.raises(DataError) as error:
        load(there, SCHEMA).splits("coban")
    said = re.search(r"state (headerRows.*) under (\[.*\]) in the schema", str(error.value))
    assert said
    assert without_faults(there, f"{SCHEMA}{said[2]}\n{said[1]}\n")


def test_a_sheet_of_several_is_named(tmp_path: Path) -> None:
    there = write(tmp_path, lund=csv_of(20))
    rows: list[list[object]] = [[*line.split(",")] for line in csv_of(20).splitlines()]
    (there / "coban").mkdir()
    legend = [["# code"], ["column", "code"], ["ward", 1]]
    write_workbook(there / "coban" / "1.xlsx", {"Legend": legend, "Births": rows})
    with pytest.raises(DataError, match=r"2 sheets .* 'Legend', 'Births'") as error:
        load(there, SCHEMA).splits("coban")
    said = re.search(r"as sheet under (\[.*\])", str(error.value))
    assert said
    named = f"{SCHEMA}{said[1]}\nsheet = "
    assert without_faults(there, named + '"Births"\n')
    assert "no visible sheet 'Deaths' holds a value" in str(faults_of(there, named + '"Deaths"\n'))
    for more in ("headerRows = [3]", 'commentChar = "#"'):
        write_workbook(there / "coban" / "1.xlsx", {"Births": [["# note"], ["# 2"], *rows]})
        assert without_faults(there, f"{SCHEMA}{said[1]}\n{more}\n")


# Drafts -------------------------------------------------------------------------------------------


def files_of_draft(folder: Path) -> dict[str, object]:
    found: dict[str, object] = tomllib.loads(inferred(folder)).get("files", {})
    return found


def test_a_draft_proposes_what_it_can_see(tmp_path: Path) -> None:
    text = csv_of(20).replace("north", "nørth på")
    there = write(
        tmp_path,
        antigua__1=csv_of(20),
        coban__1=text.encode("cp1252"),
        coban__2=csv_of(20, 1).replace(",", ";"),
        flores__1="A note, in 2024\n" + RENAMED[0],
        flores__2="A note, in 2025\n" + RENAMED[1],
        zacapa="A note\n" + csv_of(20),
        lund="sep=,\n" + csv_of(20),
    )
    rows: list[list[object]] = [[*line.split(",")] for line in csv_of(20).splitlines()]
    (there / "solola").mkdir()
    write_workbook(there / "solola" / "1.xlsx", {"Legend": [["a", "b"], [1, 2]], "Births": rows})
    assert files_of_draft(there) == {
        "coban/1.csv": {"encoding": "cp1252"},
        "flores/*": {"headerRows": [2]},
        "flores/2.csv": {"fields": {"dose": {"name": "dose_mg"}}},
        "solola/*": {"sheet": "Births"},
        "zacapa.csv": {"headerRows": [2]},
        "lund.csv": {"headerRows": [2]},
    }
    assert without_faults(there, inferred(there))


def test_a_new_name_of_another_column_is_a_question(tmp_path: Path) -> None:
    """In the place of sbp, a file has dbp: the same numbers are one column, others may be two."""

    def visits(name: str, center: float) -> str:
        head, *lines = csv_of(40).splitlines()
        numbers = np.random.default_rng(0).normal(center, 12, len(lines)).round(1)
        cells = [f"{number},{line}" for number, line in zip(numbers, lines, strict=True)]
        return "\n".join([f"{name},{head}", *cells]) + "\n"

    for center, are_one in ((130, True), (80, False)):
        files = {"a__1": visits("sbp", 130), "a__2": visits("dbp", center)}
        there = write(tmp_path / str(center), b=visits("sbp", 130), c=visits("sbp", 131), **files)
        named = {"a/2.csv": {"fields": {"sbp": {"name": "dbp"}}}}
        assert files_of_draft(there) == (named if are_one else {})
        question = "# a/2.csv has 'dbp' in the place of 'sbp': are they one column?; if so, say:\n"
        lines = '# [files."a/2.csv"]\n# fields.sbp.name = "dbp"\n'
        assert (question + lines in inferred(there)) != are_one


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("age,target\n", "age,target\n"),
        (csv_of(20), csv_of(20).replace("age,dose", "years,grams")),
        (csv_of(20), csv_of(20).replace("dose,ward", "ward2,dose")),
    ],
)
def test_a_draft_proposes_no_uncertain_name(tmp_path: Path, first: str, second: str) -> None:
    there = write(tmp_path, a__1=first, a__2=second, b=csv_of(20, 1), c=csv_of(20, 2))
    assert files_of_draft(there) == {}


def test_a_draft_takes_no_row_of_numbers_for_names(tmp_path: Path) -> None:
    names, *lines = csv_of(20).splitlines()
    rownames = "\n".join([names, *(f"{k % 9},{line}" for k, line in enumerate(lines))])
    lacking = "age,dose,wårdø\n1.5,2.5,x\n2.5,3.5,y\n".encode("cp1252")
    there = write(tmp_path, a__1=rownames, b=csv_of(20), c=csv_of(20, 1), e=lacking)
    rows: list[list[object]] = [[*line.split(",")] for line in lines]
    write_workbook(there / "d.xlsx", {"One": [names.split(","), *rows], "Two": [["target"], [1]]})
    draft = inferred(there)
    assert "1.csv is left out of this draft" in draft
    assert "d.xlsx is left out of this draft" in draft
    assert [*tomllib.loads(draft)["files"]] == ["e.csv"]


# Devices ------------------------------------------------------------------------------------------


def asked(folder: Path, **node: str) -> str:
    """Return the number of training examples that a deployed client replies, or its error."""
    run_config = {key: value for key, value in config(folder, SCHEMA).items() if key != "data-dir"}
    context = Context(
        run_id=1,
        node_id=2,
        node_config={"data-dir": str(folder), **node},
        state=RecordDict(),
        run_config=run_config,
    )
    message = Message(RecordDict(), dst_node_id=2, message_type=MessageType.QUERY)
    try:
        return str(app(message, context).content["client"][NUM_EXAMPLES])
    except FairbloomError as error:
        return str(error)


def test_a_devices_folder_is_one_client_with_its_files(tmp_path: Path) -> None:
    first, second = parts()
    here = write(tmp_path / "ward", **{"2024": first, "2025": second})
    assert asked(here, name="coban") == "32"
    assert "holds the data of 2 clients" in asked(here)
    both = write(tmp_path / "both", lund=csv_of(20), coban__2024=first, coban__2025=second)
    assert asked(both, name="coban") == "32"
    assert asked(both, name="lund") == "16"
    assert asked(write(tmp_path / "files", lund=csv_of(20), oslo=second), name="lund") == "16"
    assert "holds the data of 2 clients" in asked(both, name="oslo")
    before = Known.of({}, str(here)).digests
    write(here, **{"2025": second + second.splitlines()[1] + "\n"})
    assert Known.of({}, str(here)).digests != before


def test_an_owner_says_what_one_file_means() -> None:
    common = SCHEMA + '[files."coban/*"]\nencoding = "cp1252"\nfields.age.name = "edad"\n'
    common += '[files."coban/2023.csv"]\nfields.dose = {factor = 3.0}\n'
    one = {"2025.csv": {"decimalChar": ",", "fields": {"age": {"factor": 2.0}}}}
    for files in (one, {f"ward/{name}": about for name, about in one.items()}):
        schema = parse_schema(with_files(common, files, "coban"))
        assert not schema.differs
        for client in ("", "ward", "coban"):
            read = [schema.file(f"{year}.csv", client) for year in (2023, 2024, 2025)]
            assert [each.encoding for each in read] == ["cp1252"] * 3
            assert [each.decimalChar for each in read] == [None, None, ","]
            assert [each.field("age").name for each in read] == [("edad",)] * 3
            assert [each.field("age").factor for each in read] == [1.0, 1.0, 2.0]
            assert [each.field("dose").factor for each in read] == [3.0, 1.0, 1.0]
    every = {"*": {"fields": {"age": {"name": "years"}}}, **one}
    read = [
        parse_schema(with_files(SCHEMA, every, "oslo")).file(name) for name in ("x", "2025.csv")
    ]
    assert [each.field("age").factor for each in read] == [1.0, 2.0]
    assert [each.field("age").name for each in read] == [("years",)] * 2


@pytest.mark.parametrize(
    ("end", "is_whole"),
    [
        (b"\n", True),
        (b"\r\n", True),
        (b"\r", True),
        ("\n".encode("utf-16-le"), True),
        ("\n".encode("utf-32-le"), True),
        (b"", False),
        (b" ", False),
    ],
)
def test_a_devices_file_that_ends_within_a_line_is_refused(
    tmp_path: Path, end: bytes, is_whole: bool
) -> None:
    """A copy is read before it is finished; the second file of the folder, too."""
    folder = write(tmp_path / "site", a="x,y\n1,2\n", b=b"x,y\n1,2" + end, c="")
    files_in(str(folder), ENDINGS)  # many clients' files are no device's
    if is_whole:
        assert len(files_in(str(folder), ENDINGS, of_one=True)["site"]) == 3
        return
    for place in (folder, folder / "b.csv"):
        with pytest.raises(DataError, match=r"b\.csv ends in the middle of a line"):
            files_in(str(place), ENDINGS, of_one=True)
    (folder / "b.csv").write_bytes(b"x,y\n1,2\n")  # the remedy
    assert files_in(str(folder), ENDINGS, of_one=True)


def test_a_workbook_ends_as_it_likes(tmp_path: Path) -> None:
    write_workbook(tmp_path / "a.xlsx", {"s": [["x", "y"], [1, 2]]})
    assert files_in(str(tmp_path), ENDINGS, of_one=True)


@pytest.mark.parametrize("change", ["grows", "leaves"])
def test_a_file_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    for name in "ab":
        write(tmp_path, **{name: csv_of(20)})
    path = tmp_path / "b.csv"
    check = reading.columns_by_name

    def name_columns(*about: object) -> object:
        if about[0] == path and change == "grows":
            path.write_text(path.read_text() + "\n")
        elif about[0] == path:
            path.unlink()
        return check(*about)  # type: ignore[arg-type]

    with monkeypatch.context() as changed:
        changed.setattr(reading, "columns_by_name", name_columns)
        words = "changed while it was read" if change == "grows" else "cannot be read: No such file"
        with pytest.raises(DataError, match=rf"b\.csv {words}"):
            encode_files([path], "b", parse_schema(SCHEMA))
        encode_files([tmp_path / "a.csv"], "a", parse_schema(SCHEMA))
    write(tmp_path, b=csv_of(20))
    assert len(encode_files([path], "b", parse_schema(SCHEMA))) == 20  # the remedy
