"""schema.toml: its keys, and errors that name file, key and remedy."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fairbloom.server.settings import Settings
from fairbloom.tables.schema import (
    MAX_CATEGORIES,
    SchemaError,
    normalise,
    parse_image_schema,
    parse_schema,
    read_schema,
    without_client,
)

from .helpers import SCHEMA, csv_of, refused_with, schema_with

# What is changed in the schema of `csv_of`, and what the error must name.
WRONG: list[tuple[tuple[str, str], list[str]]] = [
    (('target = "target"', "target = 3"), ["target = 3"]),
    (('target = "target"', 'target = "tarket"'), ["target = 'tarket'", "did you mean target?"]),
    (
        ('target = "target"', 'target = "target"\ntagret = 1'),
        ["tagret is unknown", "did you mean target?"],
    ),
    (('type = "number"', 'type = "numbr"'), ["fields.age.type = 'numbr'", "number"]),
    (('type = "number"', 'typ = "number"'), ["fields.age.typ is unknown", "did you mean type?"]),
    (('type = "number"\n', ""), ["fields.age.type is missing"]),
    (('categories = ["north", "south", "west"]', ""), ["fields.ward.categories is missing"]),
    (
        ('["north", "south", "west"]', '["north", "south", "south"]'),
        ["fields.ward.categories", "'south'"],
    ),
    (('["north", "south", "west"]', '["north", "", "west"]'), ["fields.ward.categories", "''"]),
    (
        ('["north", "south", "west"]', str([f"w{k}" for k in range(MAX_CATEGORIES + 1)])),
        ["fields.ward.categories"],
    ),
    (
        ('"west"]', '"west"]\nspellings = {noth = ["N"]}'),
        ["fields.ward.spellings.noth", "did you mean north?"],
    ),
    (
        ('"west"]', '"west"]\nspellings = {north = ["W"], west = ["W"]}'),
        ["fields.ward.categories", "'W'"],
    ),
    (('"west"]', '"west"]\nconstraints = {minimum = 3}'), ["fields.ward.constraints"]),
    (
        ('"number"', '"number"\nconstraints = {minimum = 3, maximum = 2}'),
        ["fields.age.constraints.minimum = 3"],
    ),
    (
        ('"number"', '"number"\nconstraints = {minimun = 3}'),
        ["fields.age.constraints.minimun", "minimum"],
    ),
    (('"number"', '"number"\ncenter = 3.0'), ["fields.age.scale is missing"]),
    (('"number"', '"number"\ncenter = 3.0\nscale = -1.0'), ["fields.age.scale = -1.0"]),
    (("categories = [0, 1]", "categories = [0]"), ["fields.target.categories has one class"]),
    (("categories = [0, 1]", ""), ["fields.target.center is missing"]),
    (('target = "target"', 'target = "target"\npositive = 2'), ["positive = '2'", "0, 1"]),
    (('target = "target"', 'target = "target"\nmissing = "skip"'), ["missing = 'skip'"]),
    (('target = "target"', 'target = "target"\nignore = ["Age"]'), ["ignore has 'Age'", "'age'"]),
    (('target = "target"', 'target = "target"\nignore = ["age"]'), ["ignore has 'age'"]),
    (('target = "target"', 'target = "target"\ngroups = ["sex"]'), ["groups = 'sex'"]),
    (('target = "target"', 'target = "target"\ngroups = ["age"]'), ["groups = 'age'", "age>=60"]),
    (
        ('target = "target"', 'target = "target"\ngroups = ["ward>=2"]'),
        ["groups = 'ward>=2'", "'ward'"],
    ),
    (('target = "target"', 'target = "target"\ngroups = ["target"]'), ["groups = 'target'"]),
    (
        ('target = "target"', 'target = "target"\ngroups = ["ward=noth"]'),
        ["groups = 'ward=noth'", "did you mean north?"],
    ),
    (
        ('target = "target"', 'target = "target"\ngroups = ["age=60"]'),
        ["groups = 'age=60'", "age>=60"],
    ),
    (
        ("categories = [0, 1]", "categories = [0, 1]\n[files.'a.csv']\ndelimiter = '!'"),
        ["files.a.csv.delimiter"],
    ),
    (
        ("categories = [0, 1]", "categories = [0, 1]\n[files.'a.csv']\nencoding = 'x'"),
        ["files.a.csv.encoding = 'x'"],
    ),
    (
        ("categories = [0, 1]", "categories = [0, 1]\n[files.a.fields.agee]\nfactor = 2"),
        ["files.a.fields.agee"],
    ),
    (
        ("categories = [0, 1]", "categories = [0, 1]\n[files.a.fields.age]\nfactor = 0"),
        ["files.a.fields.age.factor"],
    ),
    (
        ("categories = [0, 1]", "categories = [0, 1]\n[files.a.fields.age]\ntype = 'number'"),
        ["files.a.fields.age.type holds for all clients", "fields.age"],
    ),
    (
        (
            "categories = [0, 1]",
            "categories = [0, 1]\n[files.a.fields.ward]\nspellings = {north = ['w'], west = ['w']}",
        ),
        ["files.a.fields.ward.categories", "'w'"],
    ),
    (
        (
            "categories = [0, 1]",
            "categories = [0, 1]\n[files.a.fields.ward]\nspellings = {noth = ['n']}",
        ),
        ["files.a.fields.ward.spellings.noth", "did you mean north?"],
    ),
    (
        ("categories = [0, 1]", "categories = [0, 1]\n[files.a.fields.ward]\nunit = 'm'"),
        ["files.a.fields.ward", "unit"],
    ),
    (
        ("categories = [0, 1]", "categories = [0, 1]\n[files.a.fields.ward]\nfactor = 2.0"),
        ["files.a.fields.ward", "factor"],
    ),
    (
        ("categories = [0, 1]", "categories = [0, 1]\n[files.a.fields.ward]\noffset = 2"),
        ["files.a.fields.ward", "offset"],
    ),
    (
        ("categories = [0, 1]", "categories = [0, 1]\n[files.a.fields.age]\noffset = inf"),
        ["files.a.fields.age.offset"],
    ),
    (
        (
            "categories = [0, 1]",
            "categories = [0, 1]\n[files.'a.csv'.fields.age]\nname = 'a'\n[files.'a.xlsx'.fields.age]"
            "\nname = 'b'",
        ),
        ["files.a.xlsx.fields", "files.a.csv"],
    ),
    (('"west"]', '"west"]\nmissingValues = ["west"]'), ["fields.ward.missingValues", "'west'"]),
    (
        ('"west"]', '"west"]\nspellings = {north = ["N"]}\nmissingValues = ["N"]'),
        ["fields.ward.missingValues", "'N'"],
    ),
    (
        ("categories = [0, 1]", "categories = [0, 1]\n[files.a.fields.age]\nfactr = 2"),
        ["files.a.fields.age.factr"],
    ),
    (("categories = [0, 1]", "categories = [0, 1\n]]"), ["not valid TOML", "line 1"]),
]


@pytest.mark.parametrize(("change", "words"), WRONG)
def test_a_wrong_schema_is_refused_by_key_and_value(
    change: tuple[str, str], words: list[str]
) -> None:
    assert parse_schema(SCHEMA).predicted.categories == ("0", "1")
    with refused_with("clinics.toml", *words):
        parse_schema(schema_with(change), "clinics.toml")


@pytest.mark.parametrize("parse", [parse_schema, parse_image_schema])
def test_deep_nesting_is_refused(parse: Callable[[str, str], object]) -> None:
    with pytest.raises(SchemaError, match=r"clinics\.toml is nested too deeply"):
        parse(f"target = {'[' * 5000}{']' * 5000}", "clinics.toml")


def test_categories_are_compared_normalised() -> None:
    alike = (
        "hög klass",
        "ho\u0308g klass",
        "hög\u00a0klass",
        "h\u200bög  klass ",
        "\ufeffhög klass",
    )
    assert {normalise(each) for each in alike} == {"hög klass"}
    assert normalise("Hög klass") != normalise("hög klass")


def test_a_schema_is_a_file_or_its_text(tmp_path: Path) -> None:
    file = tmp_path / "clinics.toml"
    with pytest.raises(SchemaError, match=r"clinics\.toml"):
        read_schema(str(file))
    file.write_bytes(b"\xef\xbb\xbf" + SCHEMA.encode())
    assert read_schema(str(file)) == SCHEMA == read_schema(SCHEMA)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").write_text(csv_of(20))
    settings = Settings.of({"task": "csv", "data-dir": str(tmp_path / "data"), "schema": str(file)})
    assert settings.run_config()["schema"] == SCHEMA


@pytest.mark.parametrize(
    ("task", "key", "value"), [("digits", "schema", SCHEMA), ("csv", "csv.target", "age")]
)
def test_a_schema_goes_with_tables_and_no_other_setting(task: str, key: str, value: str) -> None:
    with pytest.raises(ValueError, match=key):
        Settings.of({"task": task, "schema": SCHEMA, key: value})


def test_a_schema_can_lose_its_column_of_clients() -> None:
    text = schema_with(('target = "target"', 'target = "target"\nclient = "site"'))
    assert parse_schema(text).client == "site"
    assert parse_schema(without_client(text)).client == ""
