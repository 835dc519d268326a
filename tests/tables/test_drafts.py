"""The law of drafts: a schema that was inferred from files reads these files, without a fault that
its own comments do not announce."""

import csv
import io
import os
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st

from fairbloom.errors import FairbloomError
from fairbloom.tables import infer
from fairbloom.tables.encoding import read_columns
from fairbloom.tables.folders import files_in
from fairbloom.tables.inference import Wanted
from fairbloom.tables.reading import CellError, read
from fairbloom.tables.schema import parse_schema
from fairbloom.tasks.columns import ENDINGS
from fairbloom.tasks.targets import POSITIVE_WORDS

# Cells that columns are made of: each line is what one system may export.
CELLS = (
    ("1", "2", "3", "0"),
    ("0", "1", "2", "3+"),
    ("K", "1", "2", "3"),
    ("0_no", "1_yes"),
    ("0 no", "1 yes", "2 perhaps"),
    ("27.3", "0.5", "12.25", "-1.5"),
    ("27,3", "0,5", "-1,5"),
    ("9.123", "1.500", "12.000"),
    ("6,540", "12,000", "1,234"),
    ("1,250.50", "12,000.25"),
    ("1.250,50", "12.000,25"),
    ("1 020", "12 500", "1\u00a0250"),
    ("1'020", "12'500.5"),
    ("63 y", "41 y", "7y"),
    ("45 kg", "100 lb"),
    ("45 %", "7%"),
    ("$45", "$1", "€7"),
    ("10:30", "9:15"),
    ("<30", "30–59", "60+"),
    ("<30", "<5", ">60", "≥1.5"),
    ("20±2", "17 ± 1"),
    ("−3", "–4", "-5"),
    ("1e5", "1E-3", "2e200"),
    ("inf", "1_000", "0x10", "+5", ".5", "5."),
    ("007", "012", "100"),
    ("NA", "", "?", "null", "#N/A", "<NA>", "NaT", "\\N", "#DIV/0!"),
    ("None", "none", "-", "n.a.", ".", "unknown", "missing"),
    ("-9", "999", "-1", "0"),
    ("ja", "nein", "Ja", "NEIN"),
    ("yes", "no", "Yes", "1", "0"),
    ("ﬁne", "fine", "Fine ", "Stra\u00dfe", "STRASSE", "Ω", "Å", "A\u030a"),
    ("2024-03-17", "17.03.2024", "2024-03"),
    ("P-00123", "4711/B", "a1b2c3d4"),
    ("I25.1", "250.01", "E11"),
    ("True", "False"),
    ("a\tb", 'a"b', "a;b", "a,b", "a\nb", "#", "=1+1"),
)

NAMES = (
    ("blood pressure", "Blood_Pressure", "BLOOD-PRESSURE"),
    ("age", "Age"),
    ("größe", "grosse", "Groesse"),
    ("x_1", "X.1"),
    ("T",),
    ("patient id", "PatientID"),
    ('a "b"', "a.b"),
)


def unannounced(folder: Path, **wanted: Any) -> Iterator[str]:
    """Yield the faults of files by the schema that they suggest, except those that it names."""
    asked = Wanted(positive_words=POSITIVE_WORDS, **wanted)
    text = infer(files_in(str(folder), ENDINGS), asked).text
    schema = parse_schema(text)
    comments: dict[str, str] = {}
    for part in text.split("\n\n")[1:]:
        lines = part.splitlines()
        for name in [line for line in lines if line.startswith("[fields.")]:
            (field,) = parse_fields(name)
            comments[field] = "\n".join(line for line in lines if line.startswith("#"))
    for (path,) in files_in(str(folder), ENDINGS).values():
        for fault in read_columns(read(path, schema.file(path.name)), schema)[1]:
            assert isinstance(fault, CellError)
            said = comments.get(fault.column, "")
            announcements = {
                "missing": "no value" in text.split("\n\n")[0],
                "no-column": "not at" in said,
                "no-category": fault.problem.partition(", as ")[0] in said,
                "no-number": fault.problem.partition(", as ")[0] in said,
            }
            if not announcements.get(fault.why, False):
                yield f"{fault}\n{text}"


def parse_fields(line: str) -> list[str]:
    return [*tomllib.loads(f"{line}\n")["fields"]]


def csv_text(rows: list[list[str]], delimiter: str) -> str:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="\n").writerows(rows)
    return text.getvalue()


@st.composite
def tables(draw: st.DrawFn) -> dict[str, bytes]:
    """Return files by name, whose columns have cells of one, two or three systems each."""
    pools = {
        spellings: draw(st.lists(st.sampled_from(CELLS), min_size=1, max_size=3))
        for spellings in draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True))
    }
    target = draw(st.lists(st.sampled_from(CELLS), min_size=1, max_size=2))
    files: dict[str, bytes] = {}
    for name in "abc"[: draw(st.integers(1, 3))]:
        rows = draw(st.integers(6, 45))
        random = draw(st.randoms(use_true_random=False))
        header: list[str] = []
        cells: list[list[str]] = []
        for spellings, pool in pools.items():
            if header and random.random() < 0.1:
                continue
            here = [each for each in pool if random.random() < 0.7] or pool
            header.append(random.choice(spellings))
            cells.append([random.choice(random.choice(here)) for _ in range(rows)])
        header.append("target")
        cells.append([random.choice(random.choice(target)) for _ in range(rows)])
        files[f"{name}.csv"] = csv_text(
            [header, *map(list, zip(*cells, strict=True))], random.choice(",;\t")
        ).encode(random.choice(["utf-8", "utf-8", "utf-16"]))
    return files


WITH_A_POINT = "level,target\n" + '"1.250,50",1\n"1.301,75",2\n' * 13 + "5.,1\n"


@settings(max_examples=100)
@given(files=tables())
@example(files={"a.csv": WITH_A_POINT.encode()})
@example(files={"a.csv": f"{WITH_A_POINT}none,2\n".encode()})
def test_a_draft_announces_the_faults_of_its_files(files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            Path(folder, name).write_bytes(content)
        try:
            faults = [*unannounced(Path(folder))]
        except FairbloomError:
            return  # there is nothing to learn, or no table
        assert not faults, faults[0]


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("contraception.csv", {"target": "use", "client": "district"}),
        ("chem97.csv", {"target": "high", "client": "school"}),
        ("hsb82.csv", {"target": "mAch", "client": "school"}),
        ("star.csv", {"target": "math", "client": "sch"}),
        ("insteval.csv", {"target": "good", "client": "lecturer"}),
        pytest.param("acs-income", {"target": "PINCP"}, marks=pytest.mark.slow),
    ],
)
def test_drafts_of_real_federations_announce_faults(path: str, wanted: dict[str, str]) -> None:
    place = Path(os.environ.get("FAIRBLOOM_DATA", ""), "federations", path)
    if not place.exists():
        pytest.skip(f"FAIRBLOOM_DATA names no folder with federations/{path}")
    faults = [*unannounced(place, **wanted)]
    assert not faults, faults[0]
