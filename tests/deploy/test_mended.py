"""A device's profile is of its columns as they are read then: by owner.toml and the schema."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairbloom.client.guard.accepted_schemas import Schemas, digest_of
from fairbloom.deploy.device.profile import choose_letter, show_site
from fairbloom.deploy.device.table import choose_table
from fairbloom.deploy.device.today import read_site
from fairbloom.deploy.operator.profiles import write_schema
from fairbloom.tables.letters import compare_letters, decode_letter, encode_letter, letter_of
from fairbloom.tables.schema import parse_schema
from tests.experiments.helpers import captured
from tests.tables.helpers import refused_with
from tests.tables.test_letters import Rows, hospital, renamed, site_of, with_cells

from .test_profiles import DAY, Owner, choose, owner as owner, scaled, send_quietly, write

SCHEMA = """
target = "outcome"
unit = "person"
missing = "fill"
ignore = ["remark"]

[fields.age]
type = "number"

[fields.stage]
type = "integer"
categories = [1, 2, 3, 4]

[fields.sex]
type = "string"
categories = ["female", "male"]

[fields.outcome]
type = "integer"
categories = [0, 1]
"""

# The lines of a hospital whose files have months, m and f, and columns of its own.
LINES = (
    '[files."*"]',
    'fields.person.name = "patient"',
    'fields.age.name = "months"',
    "fields.age.factor = 0.0833333333333",
    'fields.age.missingValues = ["9588"]',
    'fields.sex.spellings = {female = ["f"], male = ["m"]}',
)

MENDED = {"person", "age", "sex", "stage", "outcome", "remark"}


def in_months(rows: Rows) -> Rows:
    return renamed([row | {"age": f"{12 * float(row['age']):.0f}"} for row in rows], age="months")


@pytest.mark.parametrize(
    ("cells", "unit", "median"),
    [
        ([f"{20 + k % 60:03}Y" if k % 5 else f"{k:03}M" for k in range(130)], "Y", 39.0),
        ([f"{20 + k % 60} kg" for k in range(130)], "kg", 47.0),
    ],
)
def test_cells_with_their_unit_are_mended_by_a_line(
    owner: Owner, cells: list[str], unit: str, median: float
) -> None:
    rows = [row | {"size at start": cell} for row, cell in zip(hospital(), cells, strict=True)]
    write(owner.data, rows)
    shown = [*show_site(owner.client, read_site(owner.client))]
    assert (
        f"size at start: each cell has its unit, as {unit!r}; to have a profile of numbers, say so"
        in shown
    )
    lines = [line.strip() for line in shown if line.startswith("    ")]
    assert not choose(owner, rows).letter.columns["size at start"].quantiles
    owner.say('unit = "patient"', *lines)  # the remedy
    assert "has its unit" not in "\n".join(show_site(owner.client, read_site(owner.client)))
    made = choose(owner, rows).letter.columns["size at start"]
    assert made.quantiles[3] == pytest.approx(median, abs=2.0)


def accept(owner: Owner, schema: str = SCHEMA) -> None:
    Schemas(Path(owner.client.state_dir)).accept(schema)


@pytest.mark.parametrize("with_schema", [False, True])
def test_a_profile_is_of_the_columns_as_they_are_read(owner: Owner, with_schema: bool) -> None:
    rows = in_months(with_cells(hospital(), "age", *["799"] * 10))  # 9588 months
    raw = choose(owner, rows).letter
    assert (raw.schema, raw.unit) == ("", "patient")
    owner.say('unit = "patient"', *LINES)
    if with_schema:
        accept(owner)
    made = owner.send(rows)
    assert made.columns.keys() == MENDED
    assert made.unit == "person"
    assert made.columns["person"].identifier
    assert made.schema == (digest_of(SCHEMA) if with_schema else "")
    assert 55 < (made.columns["age"].quantiles[3] or 0) < 65
    assert made.columns["age"].missing == {"9588": 10}
    assert made.columns["sex"].values == {"female": 65, "male": 65}
    assert decode_letter(encode_letter(made)) == made


def test_one_files_factor_is_of_its_cells_alone(owner: Owner) -> None:
    """The same text means another number in each of the two files."""
    years = with_cells(hospital(), "age", *["48"] * 60)
    months = with_cells(in_months(hospital(seed=1)), "months", *["48"] * 60)
    write(owner.data, years, "2023.csv")
    write(owner.data, renamed(months, months="age"), "2024.csv")
    every = ('[files."*"]', 'fields.age.unit = "years"')
    owner.say(
        'unit = "patient"', *every, '[files."2024.csv"]', "fields.age.factor = 0.0833333333333"
    )
    client = owner.client
    ages = read_site(client).read["age"]
    numbers = ages.numbers[ages.codes]
    assert (numbers[:60] == 48.0).all()
    np.testing.assert_allclose(numbers[130:190], 4.0)


def test_an_ignored_column_stays(owner: Owner) -> None:
    owner.say('unit = "patient"', '[files."*"]', 'ignore = ["Stage", "remark"]')
    assert owner.send(hospital()).columns.keys() == {"patient", "age", "sex", "outcome"}
    shown = "".join(show_site(owner.client, read_site(owner.client)))
    assert "remark" not in shown
    owner.say('unit = "patient"', '[files."*"]', 'ignore = ["patient"]')
    with refused_with("owner.toml ignores 'patient', the unit: take it out of ignore"):
        owner.send(hospital(seed=1))


def test_a_column_named_as_a_field_of_another_stays(owner: Owner) -> None:
    """Neither a model nor the profile reads it."""
    owner.say('unit = "patient"', '[files."*"]', 'fields.sex.name = "stage"')
    made = owner.send(hospital())
    assert made.columns["sex"].values.keys() == {"1", "2", "3", "4"}
    assert "stage" not in made.columns


def test_a_name_of_persons_is_hidden_under_any_name(owner: Owner) -> None:
    lines = ('fields.amount.name = "case no"', "fields.amount.factor = 0.001")
    owner.say('unit = "row"', '[files."*"]', *lines)
    made = owner.send([row | {"case no": f"{k * 37 + 4711}"} for k, row in enumerate(hospital())])
    assert made.columns["amount"].identifier


# One book -----------------------------------------------------------------------------------------


def test_a_mended_profile_of_the_same_rows_leaves_once(owner: Owner) -> None:
    """With another name and a factor each cell is as it was; a third profile waits for rows."""
    rows = in_months(hospital())
    first = owner.send(rows)
    assert "months" in first.columns
    owner.say('unit = "patient"', *LINES)
    second = owner.send(rows)
    assert {"person", "age"} <= second.columns.keys()
    assert owner.left == ["0001.snapshot"]
    assert owner.send(rows) == second
    owner.say('unit = "patient"', '[files."*"]', 'fields.years.name = "months"')
    chosen = choose(owner, rows)
    assert chosen.letter == second
    assert "owner.toml, or the accepted schema, says otherwise" in chosen.note
    owner.say('unit = "patient"')
    assert owner.send(rows) == first  # as it left
    owner.say('unit = "patient"', '[files."*"]', 'fields.years.name = "months"')
    assert "years" in owner.send(in_months(hospital()[10:] + hospital(10, seed=3))).columns


@pytest.mark.parametrize(("count", "leaves"), [(3, False), (5, True), (10, True)])
@pytest.mark.parametrize("name", ["age", "years"])
def test_few_cells_read_anew_do_not_leave(
    owner: Owner, count: int, leaves: bool, name: str
) -> None:
    """Two profiles of the same rows would show the three cells that one reads as missing."""
    rows = with_cells(hospital(), "age", *["799"] * count)
    assert "age" in owner.send(rows).columns
    lines = [f'fields.{name}.missingValues = ["799"]', f'fields.{name}.name = "age"']
    owner.say('unit = "patient"', '[files."*"]', *lines)
    chosen = choose(owner, rows)
    assert (name in chosen.letter.columns) == leaves
    assert (f"few rows, or persons: {name}." in chosen.note) != leaves


def test_few_cells_with_another_word_do_not_leave(owner: Owner) -> None:
    rows = with_cells(hospital(), "sex", "x", "x", "x")
    assert owner.send(rows).columns["sex"].values == {"f": 60, "m": 60}
    owner.say('unit = "patient"', '[files."*"]', 'fields.sex.spellings = {m = ["x"]}')
    made = owner.send(rows)
    assert "sex" not in made.columns
    assert "age" in made.columns


def test_a_table_is_read_beside_both_profiles(owner: Owner) -> None:
    """Each was read in another way: by the files, by owner.toml, by the schema."""
    limits = ("[limits]", 'describe = "all"')
    rows = in_months(hospital(200))
    owner.say('unit = "patient"', *limits)
    owner.send(rows)
    owner.say('unit = "patient"', *limits, *LINES)
    accept(owner)
    owner.send(rows)
    table = choose_table(owner.client, SCHEMA, DAY)
    assert table.release.columns == ("age", "stage", "sex", "outcome")
    assert table.note == ""
    send_quietly(owner, table)
    owner.say('unit = "patient"', *limits, *LINES[:-1])  # f and m are faults now
    again = choose_table(owner.client, SCHEMA, DAY)
    assert again.release.content == table.release.content


def test_a_profile_is_read_beside_a_table(owner: Owner) -> None:
    rows = with_cells(hospital(200), "sex", "x", "x", "x")
    limits = ("[limits]", 'describe = "all"')
    spelled = 'fields.sex.spellings = {female = ["f"], male = ["m", "x"]}'
    owner.say('unit = "patient"', *limits, '[files."*"]', 'fields.person.name = "patient"', spelled)
    write(owner.data, rows)
    send_quietly(owner, choose_table(owner.client, SCHEMA, DAY))
    owner.say('unit = "patient"', *limits)
    client = owner.client
    chosen = choose_letter(client, read_site(client), DAY)
    assert "sex" not in chosen.letter.columns  # male less m would be three
    assert "age" in chosen.letter.columns


@pytest.mark.parametrize(("count", "leaves"), [(3, False), (5, True)])
@pytest.mark.parametrize("first", ["profile", "table"])
def test_a_table_under_another_name_shows_no_few_rows(
    owner: Owner, first: str, count: int, leaves: bool
) -> None:
    """A profile has the quantiles with some far cells, and a table those without them."""
    write(owner.data, with_cells(hospital(200), "age", *["799"] * count))
    unit = ('unit = "row"', "[limits]", 'describe = "all"')
    lines = ('[files."*"]', 'fields.years.name = "age"', 'fields.years.missingValues = ["799"]')
    schema = SCHEMA.replace('unit = "person"', "").replace("fields.age", "fields.years")
    schema = schema.replace('"remark"', '"patient", "remark"').replace("female", "f")
    schema = schema.replace('"male"', '"m"')
    columns = dict[str, tuple[str, ...]]()
    for kind in (first, "table" if first == "profile" else "profile"):
        owner.say(*unit, *(lines if kind == "table" else ()))
        client = owner.client
        if kind == "profile":
            chosen = choose_letter(client, read_site(client), DAY)
        else:
            chosen = choose_table(client, schema, DAY)
        send_quietly(owner, chosen)
        columns[kind] = chosen.release.columns
    assert ("age" in columns["profile"] and "years" in columns["table"]) == leaves
    assert "stage" in columns["profile"]
    assert "stage" in columns["table"]


@pytest.mark.parametrize("schema", ["x", "0" * 63, 7])
def test_a_letters_schema_is_a_digest(owner: Owner, schema: Any) -> None:
    written = json.loads(encode_letter(owner.send(hospital())))
    with refused_with("it is no profile as a device makes it"):
        decode_letter(json.dumps(written | {"schema": schema}).encode())


def test_a_schema_of_images_reads_no_tables(owner: Owner) -> None:
    accept(owner, 'classes = ["a", "b"]\nsize = [8, 8]\n')
    assert owner.send(scaled(hospital(), 2.0)).schema == ""


# The operator -------------------------------------------------------------------------------------


def with_rare_cells(rows: Rows, seed: int, few: bool) -> Rows:
    """Return rows with columns of texts and codes, of which a site with few rows lists hardly any."""
    random = np.random.default_rng(seed)
    made = []
    for number, row in enumerate(rows):
        ward, odd, lab = random.integers([40, 60, 15])
        usual = not few and number % 5
        own = {"ward": "AB"[number % 2] if usual else f"W{ward}", "odd": f"t{odd}", "lab": f"{lab}"}
        made.append(row | own)
    return made


@pytest.mark.parametrize(
    ("sizes", "floor"),
    [((160, 160, 60), 20), ((15, 15, 15), 5), ((160, 25, 15), 5), ((60, 60, 60), 20)],
)
def test_no_cell_of_a_stand_in_is_in_a_draft(
    tmp_path: Path, sizes: tuple[int, int, int], floor: int
) -> None:
    letters = {}
    for seed, (name, size) in enumerate(zip("abc", sizes, strict=True)):
        rows = with_rare_cells(hospital(size, seed=seed), seed, few=name == "c")
        site = site_of(tmp_path, rows)
        letters[name] = letter_of(site, name, DAY, floor, "patient")
    _, findings = compare_letters(letters.values())
    out = tmp_path / "out"
    list(write_schema(letters, findings, out, {"target": "outcome"}))
    texts = [file.read_text() for file in (out / "schema.toml", *(out / "clients").iterdir())]
    assert not any("rare-" in text for text in texts)
    drafted = parse_schema(texts[0])
    assert "outcome" in drafted.fields
    assert ("age" in drafted.fields) == (160 in sizes)  # else no site shows that it has numbers
    assert {"remark", "odd"} <= {*drafted.ignore}


def test_codes_have_spellings_and_no_factor(
    made: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Of the target, which has categories, no factor is read."""
    files = []
    for seed, name in enumerate("abcd"):
        rows = hospital(160, seed=seed)
        if name == "d":
            rows = [row | {"outcome": f"{int(row['outcome']) + 1}"} for row in rows]
        file = tmp_path / f"{name}.json"
        file.write_bytes(encode_letter(letter_of(site_of(tmp_path, rows), name, DAY, 5, "patient")))
        files.append(file)
    words = ("deploy", "profiles", *files, "--target", "outcome")
    for more in ((), ("--write-schema", tmp_path / "out")):
        said = captured(capsys, *words, *more).out
        assert "d: outcome: its categories, '1', '2', are other ones" in said
        assert 'fields.outcome.spellings = {"0" = ["1"], "1" = ["2"]}' in said
        assert "factor" not in said
