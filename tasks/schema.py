"""The data dictionary of a federation: schema.toml, which says what every site's tables hold.

Its terms are those of Frictionless Table Schema and Table Dialect wherever these have one
(https://datapackage.org/standard/table-schema/).
"""

import math
import tomllib
import unicodedata
from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Interval, Len
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from fairbloom.errors import ReportableError, did_you_mean

from .groups import OTHER, GroupBy, parse_groups

Decimal = Literal[".", ","]
"""What stands between a number's whole part and its decimals."""

Missing = Literal["error", "drop", "fill"]
"""What is done with a row that lacks a value."""

MISSING_VALUES = ("", "?", "NA", "NaN", "+NaN", "-NaN", "null", "N/A")
"""What stands for a missing value, in any case of letters, where a schema does not say it."""

MAX_TEXT = 200
"""Longest name of a column, category or class, in characters."""

MAX_CATEGORIES, MAX_COLUMNS, MAX_BYTES = 1_000, 10_000, 2**20
"""Bounds of a column's categories, of a schema's columns, and of its text."""

SCHEMA = "schema.toml"
"""The file of a schema in a run folder, and what errors call one that has come as text."""

EVERY_FILE = "*"
"""Under `files`: what holds for every file that has no table of its own."""


class SchemaError(ReportableError):
    """A schema that cannot be used: the message names its file, the key's path, its value and the remedy."""


def normalise(text: str) -> str:
    """Return a text as it is compared: in Unicode's form NFKC, without invisible characters, with single spaces."""
    if not text.isascii():
        text = "".join(each for each in unicodedata.normalize("NFKC", text) if unicodedata.category(each) != "Cf")
    return " ".join(text.split())


def fold(name: str) -> str:
    """Return the name of a column as it is compared: as `normalise` has it, and in any case of letters."""
    return normalise(name).casefold()


def _as_text(value: object) -> object:
    """Return a category as a text: 1 is "1"."""
    return str(value) if type(value) in (int, float) else value


Name = Annotated[str, BeforeValidator(_as_text)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Constraints(_Table):
    """What a value must be: from `minimum` to `maximum`, one of `enum`; `required` makes a missing value a fault."""

    minimum: float = -math.inf
    maximum: float = math.inf
    enum: tuple[float, ...] = ()
    required: bool = False


class Field(_Table):
    """A column.

    Attributes
    ----------
    type
        "number", "integer" or "string".
    categories
        Its values, in the order of the model's inputs or classes; () for a number.
    spellings
        Other ways to write a category, by category.
    constraints
        What a number must be.
    unit
        Of its numbers. A cell may say it behind the number.
    missingValues
        What stands for a missing value in this column, besides what does so in all.
    missing
        What is done with a row that lacks its value, where that is not what the schema says of all.
    input
        Whether the model sees it; one that only makes groups may be none.
    center, scale
        What numbers are standardised by, (number - center) / scale; None: each site's own mean and deviation.
    """

    type: Literal["number", "integer", "string"]
    categories: tuple[Name, ...] = ()
    spellings: Mapping[str, tuple[Name, ...]] = {}
    constraints: Constraints = Constraints()
    unit: str = ""
    missingValues: tuple[Name, ...] = ()  # noqa: N815 (Frictionless calls it so)
    missing: Missing | None = None
    input: bool = True
    center: float | None = None
    scale: float | None = None

    @cached_property
    def places(self) -> dict[str, int]:
        """The place of each spelling among the categories."""
        found = {normalise(name): place for place, name in enumerate(self.categories)}
        for place, name in enumerate(self.categories):
            found |= {normalise(each): place for each in self.spellings.get(name, ())}
        return found


class FileField(_Table):
    """How one file has a column: under another `name`, in another `unit`; times `factor` it is in the schema's."""

    name: str = ""
    unit: str = ""
    factor: float = 1.0


class File(_Table):
    """How one file is written; what is not said is found in the file."""

    delimiter: Literal[",", ";", "\t", "|"] | None = None
    decimalChar: Decimal | None = None  # noqa: N815 (Frictionless calls it so)
    groupChar: Literal["", " ", ".", ",", "'"] = ""  # noqa: N815
    encoding: str = "utf-8"
    fields: Mapping[str, FileField] = {}

    def called(self, name: str) -> str:
        """Return what the file calls a column of the schema."""
        return self.fields.get(name, FileField()).name or name


class Schema(_Table):
    """What the tables of all sites hold.

    Attributes
    ----------
    target
        The column that is predicted: a class where it has categories, else a quantity.
    positive
        Which of two classes is the positive one; "": the second.
    client
        The column that names each row's site, where one file has the rows of several.
    groups
        What rows are grouped by: the names of columns with categories, or comparisons as "age>=60".
    ignore
        The columns that files may have besides.
    missing, missingValues
        What is done with a row that lacks a value, and what stands for one.
    fields
        The columns by name, in the order of the model's inputs.
    files
        How single files are written, by name.
    """

    target: str
    positive: Name = ""
    client: str = ""
    groups: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    missing: Missing = "error"
    missingValues: tuple[Name, ...] = MISSING_VALUES  # noqa: N815
    fields: Mapping[str, Field]
    files: Mapping[str, File] = {}

    @property
    def predicted(self) -> Field:
        """The target's field."""
        return self.fields[self.target]

    @property
    def inputs(self) -> Mapping[str, Field]:
        """The columns that the model sees."""
        return {name: field for name, field in self.fields.items() if name != self.target and field.input}

    @cached_property
    def groupings(self) -> tuple[GroupBy, ...]:
        """What rows are grouped by."""
        return parse_groups("groups", ",".join(self.groups))

    @property
    def group_names(self) -> dict[str, tuple[str, ...]]:
        """The groups of each grouping, by its name; the last one has the rows that belong to no other."""
        return {by.name: (*(by.halves or self.fields[by.column].categories), OTHER) for by in self.groupings}

    def file(self, name: str) -> File:
        """Return how a file is written."""
        return self.files.get(name) or self.files.get(EVERY_FILE) or File()

    def missing_of(self, name: str) -> Missing:
        """Return what is done with a row that lacks this column's value."""
        field = self.fields[name]
        if field.constraints.required:
            return "error"
        chosen = field.missing or self.missing
        return "drop" if name == self.target and chosen == "fill" else chosen


def read_schema(place: str) -> str:
    """Return the text of a schema, which a setting names by its file, or which it is already."""
    if "\n" in place or not place:
        return place
    try:
        text = Path(place).expanduser().read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not in UTF-8"
        raise SchemaError(
            f"schema = {place!r} cannot be read ({why}): name a file, as fairbloom data DIR --write-schema FILE "
            "writes one"
        ) from error
    return text if "\n" in text else f"{text}\n"


def without_client(text: str) -> str:
    """Return a schema's text for a file of one site: without the column that names each row's client."""
    client = parse_schema(text).client
    lines = (line for line in text.splitlines() if not line.startswith("client ="))
    rest = "\n".join(lines) + "\n"
    return rest if not client or parse_schema(rest).client == "" else text


@lru_cache(maxsize=16)
def parse_schema(text: str, name: str = SCHEMA) -> Schema:
    """Return the schema that a text holds; raise SchemaError with the key's path, or the line, of its first fault."""
    if len(text) > MAX_BYTES:
        raise SchemaError(f"{name} has {len(text):,} characters, and {MAX_BYTES:,} are the most: shorten it")
    written = _parse_toml(text, name)
    try:
        schema = Schema.model_validate(written)
    except ValidationError as error:
        raise SchemaError(f"{name}: {_explain(error, written)}") from error
    fault = next(_find_contradictions(schema), "")
    if fault:
        raise SchemaError(f"{name}: {fault}")
    return schema


class ImageSchema(_Table):
    """What the images of all sites hold: classes, width and height in pixels, whether they are grey, or resized."""

    classes: Annotated[tuple[str, ...], Len(min_length=2)]
    size: tuple[Annotated[int, Interval(ge=1, le=10_000)], Annotated[int, Interval(ge=1, le=10_000)]]
    grey: bool = False
    resize: bool = False

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        return (1 if self.grey else 3, self.size[1], self.size[0])


def parse_image_schema(text: str, name: str = SCHEMA) -> ImageSchema:
    """Return the schema of images that a text holds; raise SchemaError with its first fault."""
    written = _parse_toml(text, name)
    try:
        return ImageSchema.model_validate(written)
    except ValidationError as error:
        fault = error.errors()[0]
        path = ".".join(map(str, fault["loc"]))
        raise SchemaError(f"{name}: {path} = {_shorten(fault['input'])}: {fault['msg']}") from error


def _parse_toml(text: str, name: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SchemaError(f"{name} is no TOML: {error}: correct that line") from error
    except RecursionError as error:
        raise SchemaError(f"{name} is nested too deeply: take tables within tables out") from error


def _explain(error: ValidationError, written: Mapping[str, Any]) -> str:
    """Return the first fault: the key's path, its value, and the remedy."""
    fault = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    *above, key = map(str, fault["loc"])
    path = ".".join((*above, key))
    if fault["type"] == "missing":
        return f"{path} is missing: add it"
    if fault["type"] == "extra_forbidden":
        known = _keys_of(fault["loc"][:-1])
        return f"{path} is unknown: {did_you_mean(key, known)}there are {', '.join(known)}"
    return f"{path} = {_shorten(fault['input'])}: {fault['msg'][0].lower()}{fault['msg'][1:]}"


def _keys_of(place: tuple[int | str, ...]) -> list[str]:
    """Return the keys that a table may have, by its place in a schema."""
    kind: type[BaseModel] = Schema
    names = [each for each in place if isinstance(each, str)]
    for level, name in enumerate(names):
        tables = {"fields": FileField if "files" in names[:level] else Field, "files": File, "constraints": Constraints}
        kind = tables.get(name, kind) if name not in names[:level] or name == "fields" else kind
    return [*kind.model_fields]


def _find_contradictions(schema: Schema) -> Iterator[str]:
    """Yield what fits no other part of a schema, each as key, value and remedy."""
    names = [*schema.fields]
    if len(names) > MAX_COLUMNS:
        yield f"fields has {len(names):,} columns, and {MAX_COLUMNS:,} are the most: leave some out"
    folded: dict[str, str] = {}
    for name in (*names, *schema.ignore, *([schema.client] if schema.client else [])):
        if not name or len(name) > MAX_TEXT:
            yield f"fields.{_shorten(name)}: the name of a column has 1 to {MAX_TEXT} characters: shorten it"
        if (other := folded.setdefault(fold(name), name)) != name or names.count(name) > 1:
            yield f"{name!r} and {other!r} are one column, as upper and lower case are the same: name it once"
        if name in names and (name in schema.ignore or name == schema.client):
            key = "ignore" if name in schema.ignore else "client"
            yield f"{key} has {name!r}, which is one of the fields, too: leave it out of one of the two"
    if schema.target not in names:
        yield f"target = {schema.target!r}: {did_you_mean(schema.target, names)}it must be one of the fields"
        return
    if not schema.inputs:
        yield "fields has no column but the target: nothing to learn from: add one"
    for name, field in schema.fields.items():
        yield from (f"fields.{name}.{fault}" for fault in _find_faults_of(field))
    if not schema.predicted.categories and schema.predicted.center is None:
        yield f"fields.{schema.target}.center is missing: a quantity is learned in units of its scale around its center"
    if len(schema.predicted.categories) == 1:
        yield f"fields.{schema.target}.categories has one class: a target has two or more: add the others"
    classes = schema.predicted.categories
    if schema.positive and (len(classes) != 2 or schema.positive not in classes):
        there = f"the classes are {', '.join(classes)}" if classes else "the target is a quantity"
        yield f"positive = {schema.positive!r}: it must be one of two classes, and {there}"
    yield from _find_wrong_groups(schema)
    for file, about in schema.files.items():
        yield from (
            f"files.{file}.fields.{name}: {did_you_mean(name, names)}it must be one of the fields"
            for name in about.fields
            if name not in names
        )
        if about.groupChar and about.groupChar == about.decimalChar:
            yield f"files.{file}.groupChar = {about.groupChar!r}: it is the decimal mark, too: choose one of the two"
        try:
            "a".encode(about.encoding)
        except LookupError:
            yield f"files.{file}.encoding = {about.encoding!r}: no such encoding: write utf-8, cp1252 or utf-16"
        for name, how in about.fields.items():
            if not 0.0 < abs(how.factor) < math.inf:
                yield f"files.{file}.fields.{name}.factor = {how.factor}: it must be a number other than 0"


def _find_faults_of(field: Field) -> Iterator[str]:
    """Yield what is wrong with one column, each as key, value and remedy."""
    if field.type == "string" and not field.categories:
        yield "categories is missing: a column of texts needs them; or name the column in ignore"
    if len(field.categories) > MAX_CATEGORIES:
        yield f"categories has {len(field.categories):,}, and {MAX_CATEGORIES:,} are the most: put the column in ignore"
    seen: dict[str, str] = {}
    for name in field.categories:
        for spelling in (name, *field.spellings.get(name, ())):
            if not spelling or len(spelling) > MAX_TEXT:
                yield f"categories has {_shorten(spelling)}: a category has 1 to {MAX_TEXT} characters"
            if seen.setdefault(normalise(spelling), name) != name or field.categories.count(name) > 1:
                yield (
                    f"categories: {spelling!r} stands for {seen[normalise(spelling)]!r} and for {name!r}: leave it out "
                    "of one of the two"
                )
    for name in field.spellings:
        if name not in field.categories:
            yield f"spellings.{name}: {did_you_mean(name, field.categories)}it must be one of the categories"
    limits = field.constraints
    if field.categories and (limits.enum or limits.minimum > -math.inf or limits.maximum < math.inf):
        yield "constraints is for numbers: a column of categories has no minimum, maximum or enum: leave them out"
    if not limits.minimum <= limits.maximum:
        yield f"constraints.minimum = {limits.minimum:g} is above the maximum, {limits.maximum:g}: exchange them"
    if (field.center is None) != (field.scale is None):
        yield f"{'scale' if field.scale is None else 'center'} is missing: center and scale belong together"
    if field.scale is not None and not 0.0 <= field.scale < math.inf:
        yield f"scale = {field.scale}: it must be a number from 0 on"


def _find_wrong_groups(schema: Schema) -> Iterator[str]:
    for by in schema.groupings:
        field = schema.fields.get(by.column)
        if field is None:
            yield f"groups = {by.name!r}: {did_you_mean(by.column, schema.fields)}the column must be one of the fields"
        elif by.column == schema.target:
            yield f"groups = {by.name!r}: it is the target: name a column that is known before the target is"
        elif bool(by.sign) == bool(field.categories):
            remedy = f"name it alone, {by.column!r}" if by.sign else f"divide it, as in '{by.column}>=60'"
            held = "categories" if field.categories else "numbers"
            yield f"groups = {by.name!r}: the column holds {held}: {remedy}"


def _shorten(value: object) -> str:
    written = repr(value)
    return written if len(written) <= 60 else f"{written[:60]}…"
