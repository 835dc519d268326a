"""Four clinics that export what their systems hold: what the draft says, and what a person edits."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from fairbloom.protocol.settings import RunSettings
from fairbloom.tasks import describe_data

from .helpers import config, inferred, schema_with

Cells = Sequence[object]


def write_clinics(folder: Path) -> Path:
    """Write the exports: marks, encodings, units, codes, spellings and names all differ."""
    random = np.random.default_rng(7)

    def write(name: str, encoding: str, delimiter: str, columns: dict[str, Cells]) -> None:
        rows = zip(*columns.values(), strict=True)
        lines = [delimiter.join(columns), *(delimiter.join(map(str, row)) for row in rows)]
        (folder / f"{name}.csv").write_bytes(("\n".join(lines) + "\n").encode(encoding))

    def numbers(rows: int, center: float, spread: float, decimals: int = 0) -> list[str]:
        drawn = center + spread * np.clip(random.normal(size=rows), -2.5, 2.5)
        return [f"{number:.{decimals}f}" for number in drawn]

    def codes(cells: list[str], code: str, every: int) -> list[str]:
        return [code if row % every == 3 else cell for row, cell in enumerate(cells)]

    def pick(rows: int, *names: str) -> list[str]:
        return random.choice(names, rows).tolist()

    def with_mark(cells: list[str], mark: str) -> list[str]:
        return [f"{cell[:-3]}{mark}{cell[-3:]}" for cell in cells]

    write(
        "amherst",
        "utf-8",
        ",",
        {
            "Patient ID": [f"A-{4000 + 7 * row}" for row in range(60)],
            "Age": [
                f"{cell} y" if row % 4 else cell for row, cell in enumerate(numbers(60, 63, 9))
            ],
            "Blood Pressure": codes(numbers(60, 128, 12), "999", 15),
            "leukocytes": [f'"{cell}"' for cell in with_mark(numbers(60, 6540, 900), ",")],
            "bmi": numbers(60, 27, 3, 1),
            "stay": codes(numbers(60, 7, 2), "-1", 12),
            "smoker": pick(60, "yes", "no"),
            "outcome": pick(60, "well", "ill"),
        },
    )
    write(
        "bern",
        "cp1252",
        ";",
        {
            "age": numbers(60, 61, 9),
            "blood_pressure": numbers(60, 17, 1.5, 1),
            "leukocytes": with_mark(numbers(60, 7123, 900), "."),
            "bmi": [cell.replace(".", ",") for cell in numbers(60, 26, 3, 1)],
            "stay": numbers(60, 8, 2),
            "smoker": pick(60, "ja", "nein"),
            "größe": numbers(60, 171, 8),
            "outcome": pick(60, "well", "Ill"),
        },
    )
    head, *lines = (folder / "bern.csv").read_bytes().decode("cp1252").splitlines()
    pressures = [line.split(";") for line in lines]
    lines = [";".join([row[0], row[1].replace(".", ","), *row[2:]]) for row in pressures]
    (folder / "bern.csv").write_bytes(("\n".join([head, *lines]) + "\n").encode("cp1252"))
    write(
        "cadiz",
        "utf-16",
        "\t",
        {
            "age": numbers(60, 64, 9),
            "blood_pressure": numbers(60, 131, 12),
            "leukocytes": numbers(60, 6900, 900),
            "bmi": codes(numbers(60, 28, 3, 1), "n.a.", 10),
            "stay": numbers(60, 7, 2),
            "smoker": pick(60, "sí", "no"),
            "outcome": pick(60, "well", "ill"),
        },
    )
    write(
        "davos",
        "utf-8",
        ",",
        {
            "age": numbers(7, 60, 9),
            "blood_pressure": numbers(7, 125, 12),
            "leukocytes": numbers(7, 6800, 900),
            "bmi": numbers(7, 25, 3, 1),
            "stay": numbers(7, 6, 2),
            "smoker": ["1", "0", "0", "1", "0", "1", "0"],
            "outcome": ["well"] * 7,
        },
    )
    return folder


# What a person edits in the draft: an answer to each of its comments.
EDITS = (
    ('missing = "error"', 'missing = "fill"'),
    ('[fields.Age]\ntype = "number"', '[fields.Age]\ntype = "number"\nunit = "y"'),
    (
        '[fields.blood_pressure]\ntype = "number"',
        '[fields.blood_pressure]\ntype = "number"\nmissingValues = ["999"]',
    ),
    ('[fields.stay]\ntype = "number"', '[fields.stay]\ntype = "number"\nmissingValues = ["-1"]'),
    (
        'categories = ["0", "1", "ja", "nein", "no", "sí", "yes"]',
        'categories = ["no", "yes"]\nspellings = {no = ["0", "nein"], yes = ["1", "ja", "sí"]}',
    ),
    (
        '\n[files."bern.csv"]\n',
        '\n[files."bern.csv"]\nfields.blood_pressure = {unit = "kPa", factor = 7.50062}\n',
    ),
)


def test_six_edits_make_four_dirty_clinics_one_table(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    clinics = write_clinics(tmp_path)
    draft = inferred(clinics, target="outcome")
    for words in (
        '"Patient ID",  # only at amherst',
        '"größe",  # only at bern',
        'missing = "error"  # 6 cells have no value',
        "# amherst: '66 y' and the like in 45 cells, a number with the unit 'y'",
        "# amherst: 999 in 4 rows, far from the others",
        "# bern: median 16.4, and 129 elsewhere: it looks like mmHg and kPa",
        'fields.blood_pressure.factor = 7.5006 under [files."bern.csv"]',
        'missingValues = ["n.a."]',
        "# amherst: -1 in 5 rows, and no other number is negative",
        '[files."amherst.csv"]\ngroupChar = ","\nfields.blood_pressure.name = "Blood Pressure"',
        '[files."bern.csv"]\nencoding = "cp1252"\ndecimalChar = ","\ngroupChar = "."',
    ):
        with subtests.test(words=words):
            assert words in draft
    found = describe_data(RunSettings.of(config(clinics, schema_with(*EDITS, text=draft))))
    assert not found["faults"]
    assert not found["remarks"]
    assert {row["client"]: row["train"] for row in found["clients"]} == {
        "amherst": 48,
        "bern": 48,
        "cadiz": 48,
        "davos": 6,
    }
    for name, low, high in (
        ("blood_pressure", 80, 180),
        ("leukocytes", 4_000, 10_000),
        ("bmi", 15, 40),
        ("Age", 30, 90),
    ):
        for row in found["columns"]:
            if row["column"] == name:
                with subtests.test(column=name, client=row["client"]):
                    assert all(low < float(end) < high for end in str(row["values"]).split(" to "))
