"""Texts that are not UTF-8 are read in the likeliest encoding, which is said, or asked about."""

import logging
import tomllib
from pathlib import Path

import pytest

from fairbloom import tables
from fairbloom.errors import FairbloomError
from fairbloom.tables import charsets
from fairbloom.tables.reading import ReadTable
from fairbloom.tables.reasons import REASONS, DataError
from fairbloom.tables.schema import SchemaFile

from .helpers import SCHEMA, Folder, csv_of, inferred, load, refused_with

# A header and cells of each encoding, by language.
LANGUAGES = {
    "German": ("cp1252", "Alter,Größe,Stadt", ["männlich", "Köln", "Straße 5", "schlägt"]),
    "French": ("cp1252", "âge,région,résultat", ["féminin", "sévère", "à domicile", "été"]),
    "Portuguese": ("cp1252", "idade,gênero,região", ["não", "São Paulo", "óbito", "sim"]),
    "Danish": ("cp1252", "alder,køn,udfald", ["død", "rask", "Ålborg", "hjælp"]),
    "Icelandic": ("cp1252", "aldur,kyn,niðurstaða", ["veikur", "lífs", "þyngd", "látinn"]),
    "English": ("cp1252", "age,temp (°C),dose (µg)", ["5–10", "£45", "no", "m²"]),
    "Polish": ("cp1250", "wiek,płeć,wynik", ["mężczyzna", "źle", "kobieta", "Łódź"]),
    "Czech": ("cp1250", "věk,pohlaví,kraj", ["muž", "žena", "zdravý", "Plzeňský"]),
    "Hungarian": ("cp1250", "életkor,nem,megye", ["férfi", "nő", "Győr", "szűrés"]),
    "Romanian": ("cp1250", "vârstă,judeţ,stare", ["bărbat", "femeie", "sănătos", "Iaşi"]),
    "Croatian": ("cp1250", "dob,županija,ishod", ["muško", "žensko", "Međimurska", "općina"]),
    "Russian": ("cp1251", "возраст,пол,исход", ["мужской", "женский", "да", "нет"]),
    "Ukrainian": ("cp1251", "вік,стать,наслідок", ["чоловік", "жінка", "хворий", "ні"]),
    "Serbian": ("cp1251", "узраст,пол,исход", ["мушки", "женски", "љубав", "здрав"]),
    "Chinese": ("gb18030", "年龄,性别,结果", ["男", "女", "健康", "高血压"]),
    "Japanese": ("cp932", "年齢,性別,結果", ["男", "女", "インスリン", "はい"]),
    "Mac, French": ("mac_roman", "âge,sexe,résultat", ["féminin", "âgé", "décédé", "guéri"]),
    "Mac, German": ("mac_roman", "Alter,Größe,Stadt", ["männlich", "müde", "Köln", "Straße"]),
    "Mac, Danish": ("mac_roman", "alder,køn,udfald", ["død", "rask", "Ålborg", "hjælp"]),
}

# Cells that say what they are in a file of ASCII, and their encoding.
CELLS = {
    "größe": "cp1252",
    "Straße": "cp1252",
    "décédé": "cp1252",
    "coração": "cp1252",
    "37 °C": "cp1252",
    "5–10": "cp1252",
    "Größe2": "cp1252",
    "płeć": "cp1250",
    "łódzkie": "cp1250",
    "muž, věk": "cp1250",
    "мужской": "cp1251",
    "нет": "cp1251",
    "健康": "gb18030",
    "高血压": "gb18030",
    "病気": "cp932",
    "インスリン": "cp932",
    "féminin": "mac_roman",
    "sévère": "mac_roman",
}


def read(path: Path, text: str, encoding: str, stated: str = "") -> ReadTable:
    """Return the table of a text in an encoding, which is read as stated, if it is."""
    path.write_bytes(text.encode(encoding))
    return tables.read(path, SchemaFile(encoding=stated) if stated else SchemaFile())


def cells_of(table: ReadTable, name: str) -> list[str]:
    """Return the cells of a column."""
    found: list[str] = table.find(name).to_pylist()
    return found


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return tmp_path / "site.csv"


@pytest.mark.parametrize(("encoding", "header", "cells"), LANGUAGES.values(), ids=LANGUAGES)
def test_the_words_of_a_file_show_its_encoding(
    site: Path, caplog: pytest.LogCaptureFixture, encoding: str, header: str, cells: list[str]
) -> None:
    caplog.set_level(logging.WARNING, "flwr")
    text = header + "\n" + "".join(f"{k % 7},{cells[k % 4]},{cells[k % 3]}\n" for k in range(60))
    table = read(site, text, encoding)
    assert [*table.columns] == header.split(",")
    assert {*cells_of(table, header.split(",")[1])} == {*cells}
    ((column, remark),) = table.remarks
    assert column is None
    assert f"read as {table.file.encoding!r}" in remark
    shown = remark.partition("(")[2].partition(")")[0].split(", ")
    assert len(shown) == 2
    assert all(word in text and not word.isascii() for word in shown)
    assert f"site.csv: {remark}" in caplog.text


@pytest.mark.parametrize(("cell", "encoding"), CELLS.items())
def test_one_cell_of_a_thousand_shows_the_encoding(site: Path, cell: str, encoding: str) -> None:
    for place in (0, 700, 999):
        rows = [f'{k},"{cell if k == place else "a"}",ill\n' for k in range(1000)]
        table = read(site, "age,ward,outcome\n" + "".join(rows), encoding)
        assert cells_of(table, "ward")[place] == cell


@pytest.mark.parametrize(
    ("cell", "encoding", "others"),
    [
        ("død", "cp1252", ("'cp1252' (død)", "'cp1250' (dřd)")),
        ("Gdańsk", "cp1250", ("'cp1252' (Gdañsk)", "'cp1250' (Gdańsk)")),
        ("ДА", "cp1251", ("'cp1251' (ДА)", "'gb18030' (")),
        ("à", "mac_roman", ("'mac_roman' (à)", " or ")),
    ],
)
def test_what_may_be_either_is_asked_with_its_words(
    site: Path, cell: str, encoding: str, others: tuple[str, ...]
) -> None:
    text = f"age,ward\n3,b\n4,{cell}\n"
    with pytest.raises(DataError) as caught:
        read(site, text, encoding)
    assert [word for word in others if word not in str(caught.value)] == []
    assert "line 3 is not UTF-8" in str(caught.value)
    assert caught.value.reportable == REASONS["not-utf-8"].format(line=3)
    table = read(site, text, encoding, encoding)
    assert cells_of(table, "ward") == ["b", cell]
    assert not table.remarks


def test_readings_that_are_the_same_are_no_question(site: Path) -> None:
    for encoding in ("cp1252", "cp1250"):
        assert cells_of(read(site, "age,ward\n3,Köln\n", encoding), "ward") == ["Köln"]


@pytest.mark.parametrize(
    ("text", "encoding"),
    [("age,ward\n1,άνδρας\n2,γυναίκα\n", "cp1253"), ("age,ward\n1,癫痫\n", "gb18030")],
)
def test_words_of_no_encoding_are_asked_about(site: Path, text: str, encoding: str) -> None:
    with refused_with("its encoding cannot be told: state its encoding under [files.'*']"):
        read(site, text, encoding)
    assert cells_of(read(site, text, encoding, encoding), "ward")[0] in text


def test_a_stated_encoding_is_not_guessed(site: Path) -> None:
    text = "age,ward\n3,мужской\n"
    for stated in ("utf-8", "ascii"):
        with refused_with(f"line 2 cannot be read as {stated}: state another encoding"):
            read(site, text, "cp1251", stated)
    site.write_bytes("a,b\n1,ж\n".encode("utf-16") + b"\0")
    with refused_with("cannot be read as utf-16: state another encoding"):
        tables.read(site, SchemaFile())
    assert cells_of(read(site, text, "cp1251", "cp1252"), "ward") == ["ìóæñêîé"]


def test_the_first_lines_of_a_large_file_decide(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "age,ward\n" + "1,больница\n" * 2 + "1,яЯяЯ\n2,Яяяя яЯ\n"
    with refused_with("cannot be told"):
        read(site, text, "cp1251")
    monkeypatch.setattr(charsets, "MAX_LINES", 2)
    assert cells_of(read(site, text, "cp1251"), "ward")[2] == "яЯяЯ"


def test_a_draft_says_and_states_what_it_read(folder: Folder) -> None:
    russian = csv_of(30).replace("north", "север").replace("south", "юг")
    there = folder(a=russian.encode("cp1251"), b=russian)
    draft = inferred(there)
    assert "# a.csv: it is not UTF-8, and read as 'cp1251' (север, юг)" in draft
    assert tomllib.loads(draft)["files"] == {"a.csv": {"encoding": "cp1251"}}
    assert load(there, draft).clients == ("a", "b")


def test_a_run_by_a_schema_remarks_what_it_read(folder: Folder) -> None:
    russian = csv_of(30).replace("north", "север")
    schema = SCHEMA.replace('"north"', '"север"')
    described = load(folder(a=russian.encode("cp1251"), b=russian), schema).describe(False)
    remarks = [row for row in described["remarks"] if row["column"] == ""]
    assert [row["client"] for row in remarks if "'cp1251' (север)" in str(row["remark"])] == ["a"]


def test_a_draft_without_an_encoding_names_the_remedy(folder: Folder) -> None:
    there = folder(a=csv_of(30).replace("north", "død").encode("cp1252"))
    with pytest.raises(FairbloomError, match=r"state encoding = 'cp1252' \(død\) or 'cp1250'"):
        inferred(there)
