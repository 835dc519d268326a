"""What an owner says of the device's files, and what the device says of them."""

import re
import tomllib
from pathlib import Path

import pytest

from fairbloom.deploy.device.profile import show_site
from fairbloom.deploy.device.today import read_site
from fairbloom.deploy.operator.profiles import write_schema
from fairbloom.tables.encoding import encode_files
from fairbloom.tables.letters import Letter, compare_letters, decode_letter
from fairbloom.tables.schema import parse_schema, with_files
from fairbloom.tasks.sides import read_columns
from tests.experiments.helpers import captured, fairbloom
from tests.tables.helpers import refused_with
from tests.tables.test_letters import Rows, hospital, renamed, with_cells

from .test_profiles import SCHEMA, Owner, letter, owner as owner, write

FILLED = f'missing = "fill"\n{SCHEMA}'.replace("person", "patient")


def test_an_accepted_schema_has_the_columns_of_that_day(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without one of them, a later run warns; accepting the schema again takes the files as is."""
    toml = bundle / "client.toml"
    schema = bundle / "schema.toml"
    schema.write_text(FILLED)
    (bundle / "owner.toml").write_text('data-dir = "data"\nunit = "patient"\n')
    for rows, known in (
        (hospital(), {"age", "stage", "sex", "outcome"}),
        (renamed(hospital(), age="remark2"), {"stage", "sex", "outcome"}),
    ):
        write(bundle / "data", rows)
        captured(capsys, "client", "accept", toml, "--schema", schema, "--yes")
        assert read_columns(bundle / "state") == known


# Whom a row is about ------------------------------------------------------------------------------


def again(rows: Rows, count: int) -> Rows:
    """Return rows with further ones of the first person."""
    return rows + [row | {"patient": rows[0]["patient"]} for row in hospital(count, seed=1)]


@pytest.mark.parametrize("name", ["patient", "PID", "case no"])
@pytest.mark.parametrize("command", ["profile", "describe"])
def test_a_row_is_no_person_if_one_has_several(
    owner: Owner, capsys: pytest.CaptureFixture[str], command: str, name: str
) -> None:
    """Five rows of one person would count as five persons, who have the same rare words."""
    write(owner.data, renamed(again(hospital(), 5), patient=name))
    schema = owner.bundle / "schema.toml"
    ignored = f'"remark", "{name}"'
    schema.write_text(SCHEMA.replace('unit = "person"', "").replace('"remark"', ignored))
    of_schema = ("--schema", schema) if command == "describe" else ("--out", owner.out)

    def refusal() -> str:
        capsys.readouterr()
        fairbloom("client", command, owner.bundle / "client.toml", "--yes", *of_schema)
        return str(capsys.readouterr().err)

    limits = '[limits]\ndescribe = "counts"'
    owner.say('unit = "row"', limits)
    said = refusal()
    assert f'several rows have the same {name!r}: write unit = "{name}"' in said
    line = re.search(r"If it names none, write (.*)", said)
    assert line
    assert owner.left == []
    owner.say('unit = "row"', line[1], limits)
    assert "several rows" not in refusal()
    owner.say(f'unit = "{name}"', limits)
    assert "several rows" not in refusal()


def test_one_row_a_person_is_no_question(owner: Owner) -> None:
    owner.say('unit = "row"')
    assert owner.send(hospital()).rows == 130
    wards = [row | {"ward no": str(k % 10)} for k, row in enumerate(hospital(seed=1))]
    assert owner.send(wards)
    dated = [row | {"case": f"2025-01-{1 + k % 28:02}"} for k, row in enumerate(hospital(seed=2))]
    assert owner.send(dated)
    owner.say('unit = "row"', "not-persons = [1]")
    with refused_with("not-persons = [1]: it must be a list of texts"):
        owner.send(hospital(seed=3))


# Lines to paste -----------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["999", "-9", "0"])
def test_each_line_of_the_screen_is_one_of_owner_toml(
    owner: Owner, capsys: pytest.CaptureFixture[str], code: str
) -> None:
    write(owner.data, with_cells(hospital(), "age", *[code] * 8))
    toml = owner.bundle / "client.toml"
    asked = ("client", "profile", toml, "--yes", "--out", owner.out)
    shown = captured(capsys, *asked).out
    lines = [line.strip() for line in shown.splitlines() if line.startswith("    ")]
    assert lines == ['[files."*"]', f'fields.age.missingValues = ["{code}"]']
    owner.say('unit = "patient"', *lines)
    assert "far from" not in captured(capsys, *asked).out


def test_the_lines_of_a_screen_can_be_pasted_together(owner: Owner) -> None:
    """A column has one line of a kind, with what owner.toml says already."""

    def shown() -> str:
        return "\n".join(show_site(owner.client, read_site(owner.client)))

    def lines() -> list[str]:
        return [line.strip() for line in shown().splitlines() if line.startswith("    ")]

    rows = with_cells(hospital(), "age", *["999"] * 8, *["-9"] * 6)
    write(owner.data, with_cells(rows, "stage", *["99"] * 8))
    assert lines()[0] == '[files."*"]'
    owner.say('unit = "patient"', *lines())
    assert lines() == []
    for there in ('fields.age.missingValues = ["999"]', 'fields.age.name = "Age"'):
        heading = ('unit = "patient"', '[files."*"]')
        owner.say(*heading, there)
        assert "-9 in 6 rows" in shown()
        assert '[files."*"]' not in lines()
        kept = [there] if "missingValues" not in there else []
        owner.say(*heading, *kept, *lines())
        assert lines() == []
        tomllib.loads((owner.bundle / "owner.toml").read_text())


def test_none_of_a_count_is_no_code(owner: Owner) -> None:
    """0 goes on to 1, 2, 3; of ages, it is far from the others."""
    counts = ["0"] * 71 + ["1"] * 52 + ["2"] * 3 + ["3", "4", "5", "6"]
    write(owner.data, with_cells(hospital(), "age", *counts))
    assert not [each for each in show_site(owner.client, read_site(owner.client)) if "age" in each]
    write(owner.data, with_cells(hospital(), "age", *["0"] * 8))
    shown = "".join(show_site(owner.client, read_site(owner.client)))
    assert "age: 0 in 8 rows" in shown


@pytest.mark.parametrize(
    ("field", "cells", "line"),
    [
        ("age", ["999"] * 8, 'fields.age.missingValues = ["999"]'),
        ("age", ["-9"] * 8, 'fields.age.missingValues = ["-9"]'),
        ("age", ["0"] * 8, 'fields.age.missingValues = ["0"]'),
        ("sex", ["female"] * 60 + ["femalle"] * 3, 'fields.sex.spellings = {female = ["femalle"]}'),
        ("sex", ["yes"] * 60 + [""] * 70, 'fields.sex.spellings = {no = [""]}'),
    ],
)
def test_a_pasted_line_ends_what_a_device_finds(
    owner: Owner,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    field: str,
    cells: list[str],
    line: str,
) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    write(owner.data, with_cells(hospital(), field, *cells))
    schema = owner.bundle / "schema.toml"
    words = '["f", "m", "female", "femalle", "no", "yes"]'
    schema.write_text(FILLED.replace('["f", "m"]', words))
    asked = ("client", "data", owner.bundle / "client.toml", "--schema", schema)

    def shown() -> str:
        return re.sub(r"[\s│]+", " ", str(captured(capsys, *asked).out))

    assert f'{line} under [files."*"]' in shown()
    owner.say('unit = "patient"', '[files."*"]', line)
    assert "if so, say" not in shown()


# Columns that no two sites share ------------------------------------------------------------------


def uncommented(text: str) -> str:
    """Return a text with its lines of TOML in comments, from the first question on."""
    lines = text.splitlines()
    start = next(k for k, line in enumerate(lines) if "look alike" in line)
    own = [line.removeprefix("#").strip() for line in lines[start:]]
    used = [line for line in own if re.match(r"\[fields|type =|categories =|fields\.", line)]
    return "\n".join([*lines[:start], *used, ""])


def test_a_column_of_three_names_is_left_out_by_a_question(
    tmp_path: Path, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"leeds": "sbp", "oslo": "systolic_bp", "sevilla": "presión"}
    letters: dict[str, Letter] = {}
    for seed, (site, name) in enumerate(names.items()):
        rows = [row | {name: f"{120 + k % 40}"} for k, row in enumerate(hospital(160, seed=seed))]
        letters[site] = decode_letter(letter(tmp_path / site, site, rows, unit="patient"))
    _, findings = compare_letters(letters.values())
    said = "\n".join(write_schema(letters, findings, tmp_path / "out", {"target": "outcome"}))
    assert "4 columns are left out: remark" in said
    assert "sbp (only at leeds)" in said
    schema = tmp_path / "out" / "schema.toml"
    draft = schema.read_text()
    assert {*names.values()} <= {*parse_schema(draft).ignore}
    schema.write_text(uncommented(draft).replace('    "sbp",  # only at leeds\n', ""))
    for site, name in names.items():
        block = uncommented((tmp_path / "out" / "clients" / f"{site}.toml").read_text())
        read = parse_schema(with_files(schema.read_text(), tomllib.loads(block)["files"], site))
        found = encode_files([tmp_path / site / "0.csv"], site, read)
        assert "sbp" in found.found, name
        assert not found.faults
    write(bundle / "data", hospital())
    asked = ("client", "accept", bundle / "client.toml", "--schema", schema, "--yes")
    shown = captured(capsys, *asked).out
    assert "It ignores 3 columns: remark, systolic_bp" in shown
