"""What is written as TOML is read as it was, whatever its names and notes are."""

import pytest

from fairbloom.tables.comparison import IN_ROWS, InRows
from fairbloom.tables.schema import (
    Constraints,
    Field,
    FileField,
    Schema,
    SchemaFile,
    parse_schema,
)
from fairbloom.tables.toml import Note, write_fields, write_keys, write_schema

AWKWARD = ("a b", 'say "x"', "a.b", "größe", "#x", "x = [1]", "tab\there", "back\\slash", "\x7f")

NUMBER = Field(type="number")
YES = Field(type="string", categories=("no", "yes"))
TOLD = Field(
    type="number",
    constraints=Constraints(minimum=0.5, enum=(1.0, 2.5)),
    unit="mmol/l",
    flags=("H", "L"),
    missingValues=("-", "n.a."),
    missing="fill",
    center=1e-05,
    scale=2.0,
)


def schema_of(**keys: object) -> Schema:
    return Schema.model_validate({"target": "y", "fields": {"y": YES, "x": NUMBER}, **keys})


@pytest.mark.parametrize(
    "schema",
    [
        schema_of(),
        schema_of(positive="yes", client="site", unit="person", determining=("x",)),
        schema_of(groups=("x>=1",), missing="drop", missingValues=("", "none")),
        schema_of(fields={"y": YES, "x": TOLD}),
        schema_of(ignore=AWKWARD),
        schema_of(fields={"y": YES, **dict.fromkeys(AWKWARD, NUMBER)}),
        schema_of(
            fields={
                "x": NUMBER,
                "y": Field(type="string", categories=AWKWARD, spellings={AWKWARD[1]: ("", "z")}),
            }
        ),
        schema_of(
            files={
                "a b.csv": SchemaFile(decimalChar=",", groupChar=".", headerRows=(3,)),
                "c/*": SchemaFile(fields={"x": FileField(name=("u", 'v"'), factor=2.0)}),
                "*": SchemaFile(fields={"y": FileField(name=("z",), spellings={"no": ("0",)})}),
            }
        ),
    ],
)
def test_a_written_schema_is_read_as_it_was(schema: Schema) -> None:
    again = parse_schema(write_schema(schema, {}))
    assert again.model_dump(exclude_unset=True) == schema.model_dump(exclude_unset=True)
    assert [*again.fields] == [*schema.fields]


@pytest.mark.parametrize("text", ["a\nx = 1", "a\u2028x = 1", "\x00", '"', "]"])
def test_a_note_writes_no_line_of_a_schema(text: str) -> None:
    schema = schema_of(ignore=("z", "w"), files={"c.csv": SchemaFile(encoding="cp1252")})
    above = [Note(text)]
    behind = [Note(text, behind=True)]
    places = [(), ("target",), ("fields", "x"), ("fields", "x", "type"), ("ignore",)]
    notes = dict.fromkeys(places, above) | {("ignore", "z"): behind, ("missing",): behind}
    written = write_schema(schema, notes)
    assert parse_schema(written).model_dump() == schema.model_dump()
    assert written.count("# ") == len(places) + 1  # a key that is not written has no line


def test_members_of_a_list_with_notes_have_own_lines() -> None:
    notes = {("ignore", "z"): [Note("why", behind=True)]}
    written = write_schema(schema_of(ignore=("z", "w")), notes)
    assert 'ignore = [\n    "z",  # why\n    "w",\n]\n' in written


@pytest.mark.parametrize(
    ("kind", "names", "written"),
    [
        ("integer", ("0", "12"), "categories = [0, 12]"),
        ("integer", ("0", "007"), 'categories = ["0", "007"]'),
        ("string", ("0", "12"), 'categories = ["0", "12"]'),
    ],
)
def test_plain_numbers_of_integers_are_no_texts(
    kind: str, names: tuple[str, ...], written: str
) -> None:
    field = Field.model_validate({"type": kind, "categories": names})
    assert [*write_keys(field, {})] == [f'type = "{kind}"', written]
    assert Field.model_validate({"type": kind, "categories": names}).categories == names


def test_a_line_to_uncomment_stands_above_its_place() -> None:
    note = Note('unit = "kg\u200b"', is_line=True)  # it is TOML, and stays as it is
    lines = [*write_fields({"x": TOLD}, {("fields", "x", "missing"): [note]})]
    place = lines.index(f"# {note.text}")
    assert lines[place - 1].startswith("missingValues")
    assert lines[place + 1].startswith("missing = ")


def test_each_kind_that_only_rows_show_has_a_code() -> None:
    kinds = [InRows]
    for kind in kinds:
        kinds += kind.__subclasses__()
    said = {kind for kind in kinds if not kind.__abstractmethods__}
    assert {*IN_ROWS.values()} == said
    assert all(IN_ROWS[kind.kind] is kind for kind in said)
