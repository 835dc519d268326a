"""The data dictionary of a federation: schema.toml, which describes every site's tables.

Where possible, its keys are the keys of Frictionless Table Schema and Table Dialect
(https://datapackage.org/standard/table-schema/).
"""

import math
import re
import tomllib
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tomli_w
from annotated_types import Interval, Len
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PrivateAttr,
    TypeAdapter,
    ValidationError,
)

from fairbloom.errors import ReportableError, did_you_mean, reason_of
from fairbloom.system.files import expand_home, read_text

from .groups import GroupBy, read_groups
from .scripts import as_latin
from .units import is_unit

# What a name has in brackets at its end.
IN_BRACKETS = re.compile(r"[\[(]([^\[\]()]*)[\])]\s*$")

# The decimal mark of numbers.
Decimal = Literal[".", ","]

# Thousands separators.
GroupMark = Literal["", " ", ".", ",", "'", "’", "_"]

# The treatment of a row with a missing value.
Missing = Literal["error", "drop", "fill"]

# What SAS and Stata write for a missing value, of several kinds.
MISSING_CODES = [f".{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]

# What Excel writes into a cell without a value.
MISSING_BY_EXCEL = [
    "#N/A",
    "#N/A N/A",
    "#NA",
    "#NV",
    "#DIV/0!",
    "#NAME?",
    "#NULL!",
    "#NUM!",
    "#REF!",
    "#VALUE!",
]

# The default markers of a missing value, in any case of letters.
MISSING_VALUES = (
    "",
    "?",
    "NA",
    "NaN",
    "+NaN",
    "-NaN",
    "null",
    "N/A",
    "<NA>",  # pandas
    "NaT",
    "\\N",  # dumps of databases
    ".",
    *MISSING_CODES,
    *MISSING_BY_EXCEL,
)

# Longest name of a column, category or class, in characters.
MAX_TEXT = 200

# Categories of a column.
MAX_CATEGORIES = 1_000

# Columns of a schema.
MAX_COLUMNS = 10_000

# The last row that may name a file's columns.
MAX_HEADER = 1_000

# Characters of a schema's text.
MAX_BYTES = 2**20

# The most dots of a key: Python reads one of thousands for minutes. A schema has four.
MAX_DEPTH = 16

# What a line of TOML consists of: parts of keys, with the blanks around them, and anything else.
# Each branch matches where it begins to, so that the time is in proportion to the line.
TOKEN = re.compile(r"""(?P<part>[ \t]+|[\w-]+|"(?:[^"\\]|\\.)*"?|'[^']*'?)|.""", re.DOTALL)

# The file of a schema in a run folder, and its name in errors if it came as text.
SCHEMA_NAME = "schema.toml"

# The file in which a device's owner describes its files.
OWNERS_FILE = "owner.toml"

# The server gets this text if a device's description of its own files has a fault.
OWN_FILES = (
    "its owner.toml says something of a file that the schema does not have: its own log says what"
)

# The key under `files` for all clients that have no table of their own, and for all files.
EVERY_FILE = "*"


# Signs that mean another thing than the digits, letters and accents that NFKC makes of them.
RAISED = re.compile("[″ª²³´¹º¼-¾ʰ-ʸˠ-ˤᴬ-ᵪᶛ-ᶿ⁰-₟℠™⅐-⅟①-⓿]")

# The variants of an apostrophe, a quotation mark and a hyphen, which are no difference of cells.
FOLDED = str.maketrans("’‘‚‛‹›ʻʼˈ′´`“”„‟″«»‐‑‒–—―⁃−﹣", "'" * 12 + '"' * 7 + "-" * 9)


class SchemaError(ReportableError):
    """A schema that cannot be used; the message names file, key, value and remedy."""


def normalise(text: str) -> str:
    """Return a text for comparisons: in form NFKC, without invisible characters, single spaces.

    Superscripts, subscripts and fractions stay: A2² is not A22, and 1½ is not 11/2.
    """
    if not text.isascii():
        parts = [
            letter if RAISED.match(letter) else unicodedata.normalize("NFKC", letter)
            for letter in unicodedata.normalize("NFC", text)
            if unicodedata.category(letter) != "Cf"
        ]
        text = unicodedata.normalize("NFC", "".join(parts))
    return " ".join(text.split())


def fold(name: str) -> str:
    """Return a column's name, or a unit, for comparisons: in lower case, and kg/m² is kg/m2."""
    return normalise(unicodedata.normalize("NFKC", name)).casefold()


def squash(name: str) -> str:
    """Return a column's name without case, accents, spaces, _, - and ., and a unit in brackets.

    Other words in brackets say what a column is of: (systolic), (choice=Asthma). Letters of other
    scripts that look like Latin ones are these.
    """
    plain = "".join(
        letter
        for letter in unicodedata.normalize("NFKD", name)
        if not unicodedata.combining(letter)
    )
    bracket = IN_BRACKETS.search(plain)
    if bracket and is_unit(bracket[1]):
        plain = plain[: bracket.start()]
    return re.sub(r"[\s_.\-]", "", as_latin(plain).casefold()) or name


def say_apart(name: str, other: str) -> bool:
    """Return whether two names of columns are the same but for other words in brackets."""
    stem, words = _split_bracket(name)
    other_stem, other_words = _split_bracket(other)
    return squash(stem) == squash(other_stem) and squash(words) != squash(other_words)


def _split_bracket(name: str) -> tuple[str, str]:
    """Return a name without a bracket at its end, and what that has unless it is a unit."""
    bracket = IN_BRACKETS.search(name)
    if bracket is None:
        return name, ""
    return name[: bracket.start()], "" if is_unit(bracket[1]) else bracket[1]


def squash_apart(sites: Iterable[Collection[str]]) -> dict[str, str]:
    """Return what joins the columns of sites, by name: the same for two that may be one.

    It is the squashed name; if a site has two columns of that, the folded one.
    """
    squashed: dict[str, str] = {}
    taken: set[str] = set()
    for names in sites:
        of_site = {fold(name): squash(name) for name in names}
        counts = Counter(of_site.values())
        taken |= {form for form, count in counts.items() if count > 1}
        squashed |= {name: squash(name) for name in names}
    return {name: fold(name) if form in taken else form for name, form in squashed.items()}


def fold_cell(text: str) -> str:
    """Return a normalised cell for comparisons: in lower case, with one variant of each mark."""
    return text.translate(FOLDED).casefold()


def fold_look(text: str) -> str:
    """Return a normalised cell for comparisons by the look of its letters, in lower case."""
    return fold_cell(as_latin(text))


def client_of(file: str) -> str:
    """Return the client of a file, in form NFC: its folder, or its name without the ending."""
    folder, is_in_folder, _ = file.partition("/")
    return unicodedata.normalize("NFC", folder if is_in_folder else Path(file).stem)


def is_of_client(key: str) -> bool:
    """Return whether a key under `files` names all files of a client: bern.csv, or bern/*."""
    return "/" not in key or key.endswith("/*")


def key_of_client(client: str, file: str) -> str:
    """Return the key under `files` for a client, one of whose files has this name."""
    return file if client_of(file) == client else f"{client}/*"


# A text, or a number that means it: 1 is "1".
Name = Annotated[
    str, BeforeValidator(lambda value: str(value) if type(value) in (int, float) else value)
]

Category = Annotated[Name, Len(1, MAX_TEXT)]

# A way to write a category; an empty cell may be one.
Spelling = Annotated[Name, Len(0, MAX_TEXT)]


def _check_factor(factor: float) -> float:
    if not 0.0 < abs(factor) < math.inf:
        raise ValueError("it must be a number other than 0")
    return factor


def _check_encoding(name: str) -> str:
    try:
        "a".encode(name)
    except LookupError as error:
        raise ValueError("no such encoding: write utf-8, cp1251 or utf-16") from error
    return name


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Constraints(_Table):
    """Limits of a column's numbers: from `minimum` to `maximum`, one of `enum`.

    If `required`, a missing value is a fault.
    """

    minimum: float = -math.inf
    maximum: float = math.inf
    enum: tuple[float, ...] = ()
    required: bool = False


class Field(_Table):
    """A column.

    `categories` are its values, in the order of the model's inputs or classes, () for a number;
    `spellings` has other ways to write each. `unit` is the unit of its numbers; a cell may have it
    after the number, or one of `flags`, which are not read. `missingValues` adds markers for this
    column; `missing` overrides the schema's policy. `input`: whether it is an input of the model; a
    column that only makes groups need not be. Numbers are standardised as (number - center) /
    scale; None: by each site's own mean and deviation.
    """

    type: Literal["number", "integer", "string"]
    categories: Annotated[tuple[Category, ...], Len(0, MAX_CATEGORIES)] = ()
    spellings: Mapping[str, tuple[Spelling, ...]] = {}
    constraints: Constraints = Constraints()
    unit: str = ""
    flags: tuple[Category, ...] = ()
    missingValues: tuple[Name, ...] = ()  # noqa: N815 (Frictionless calls it so)
    missing: Missing | None = None
    input: bool = True
    center: Annotated[float, Interval(gt=-math.inf, lt=math.inf)] | None = None
    scale: Annotated[float, Interval(ge=0.0, lt=math.inf)] | None = None

    @cached_property
    def places(self) -> dict[str, int]:
        """The index of the category that each spelling means; -1 for a missing value."""
        places = {normalise(name): place for place, name in enumerate(self.categories)}
        places |= {
            normalise(text): place
            for place, name in enumerate(self.categories)
            for text in self.spellings.get(name, ())
        }
        # Last: at one client, a marker may be what others call a category.
        return places | dict.fromkeys(map(normalise, self.missingValues), -1)

    @cached_property
    def _folded_places(self) -> dict[str, int | None]:
        """The index by the folded spelling; None if that means several categories."""
        folded: dict[str, int | None] = {}
        for spelling, place in self.places.items():
            if folded.setdefault(fold_cell(spelling), place) != place:
                folded[fold_cell(spelling)] = None
        return folded

    def place(self, text: str, missing: Collection[str]) -> int | None:
        """Return the index of the category that a normalised text means; None if it is in none.

        Return -1 for a missing value: one of the markers `missing`, which are in lower case. Upper
        and lower case, and the variants of a mark, differ in other texts only if the categories do.
        """
        if (place := self.places.get(text)) is not None:
            return place
        return -1 if text.casefold() in missing else self._folded_places.get(fold_cell(text))

    def of_client(self, own: "FileField") -> "Field":
        """Return the field with a client's own spellings and markers of a missing value."""
        if not (own.spellings or own.missingValues):
            return self
        # In any case of letters, as cells are compared, and before what others call a category.
        said: dict[str, str] = {}
        for name, texts in {"": own.missingValues, **own.spellings}.items():
            said |= {fold_cell(normalise(text)): name for text in texts}
        exact = {*chain(own.missingValues, *own.spellings.values())}
        again: dict[str, list[str]] = {name: [] for name in ("", *self.categories)}
        for text in self.categories:
            means = said.get(fold_cell(normalise(text)))
            if means in again and means != text and text not in exact:
                again[means].append(text)
        spellings: dict[str, tuple[str, ...]] = {}
        for name in self.categories:
            usual = [
                text
                for text in self.spellings.get(name, ())
                if fold_cell(normalise(text)) not in said
            ]
            spellings[name] = (*own.spellings.get(name, ()), *again[name], *usual)
        markers = (*self.missingValues, *own.missingValues, *again[""])
        # model_copy would copy `places`
        return Field(**self.model_dump() | {"spellings": spellings, "missingValues": markers})


class FileField(_Table):
    """A column that one client has under another `name`, in another `unit` or other words.

    Each of its files has one of several names. Its numbers, times `factor`, plus `offset`, are in
    the schema's unit. `spellings` and `missingValues` add to those of the schema, and replace them
    if they mean something else.
    """

    name: Annotated[
        tuple[str, ...],
        BeforeValidator(lambda names: (names,) if isinstance(names, str) else names),
    ] = ()
    unit: str = ""
    factor: Annotated[float, AfterValidator(_check_factor)] = 1.0
    offset: Annotated[float, Interval(gt=-math.inf, lt=math.inf)] = 0.0
    spellings: Mapping[str, tuple[Spelling, ...]] = {}
    missingValues: tuple[Name, ...] = ()  # noqa: N815


class SchemaFile(_Table):
    """The format of a client's files, or of one, and the `fields` of the client.

    Keys that are missing are inferred from the file. `headerRows` has the line, or the row of a
    sheet, that names the columns: those above it are not read, nor are those that begin with
    `commentChar`. `sheet` is the name of a workbook's sheet. The file may also have the columns to
    `ignore`.
    """

    delimiter: Literal[",", ";", "\t", "|"] | None = None
    encoding: Annotated[str, AfterValidator(_check_encoding)] = "utf-8"
    decimalChar: Decimal | None = None  # noqa: N815 (Frictionless calls it so)
    groupChar: GroupMark = ""  # noqa: N815
    headerRows: Annotated[  # noqa: N815
        tuple[Annotated[int, Interval(ge=1, le=MAX_HEADER)], ...], Len(1, 1)
    ] = (1,)
    commentChar: str = ""  # noqa: N815
    sheet: str = ""
    ignore: tuple[str, ...] = ()
    fields: Mapping[str, FileField] = {}
    _key: str = PrivateAttr("")

    @property
    def key(self) -> str:
        """The key under `files` that a remedy names."""
        return self._key or EVERY_FILE

    def changed_by(self, other: "SchemaFile") -> "SchemaFile":
        """Return it with the keys that another one states, and so for each of its `fields`."""
        fields = {
            name: self.field(name).model_copy(update=about.model_dump(exclude_unset=True))
            for name, about in other.fields.items()
        }
        stated = {key: getattr(other, key) for key in other.model_fields_set}
        return self.model_copy(update={**stated, "fields": {**self.fields, **fields}})

    def field(self, name: str) -> FileField:
        """Return how the client has a column of the schema."""
        return self.fields.get(name, FileField())

    def names_of(self, name: str) -> tuple[str, ...]:
        """Return the client's names of a column of the schema, of which each file has one."""
        return self.field(name).name or (name,)


class Schema(_Table):
    """The tables of all sites: their columns by name, in the order of the model's inputs.

    `target` is the column that is predicted: a class if it has categories, else a quantity.
    `positive` is the positive one of two classes ("": the second). `client` is the column of each
    row's site, if one file has the rows of several. `unit` is the column of each row's person, or
    another unit with several rows, which are never split between training and test. Rows are
    grouped by `groups`: columns with categories, or comparisons such as "age>=60" and "race=White".
    The target follows from the columns `determining`: they may be known only after it. Files may
    also have the columns to `ignore`. `missing` is the treatment of rows with a missing value,
    `missingValues` are the markers of one. `files` has the formats of single files by name.
    """

    target: str
    positive: Name = ""
    client: str = ""
    unit: str = ""
    groups: tuple[str, ...] = ()
    determining: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    missing: Missing = "error"
    missingValues: tuple[Name, ...] = MISSING_VALUES  # noqa: N815
    fields: Annotated[Mapping[str, Field], Len(0, MAX_COLUMNS)]
    files: Mapping[str, SchemaFile] = {}
    _text: str = PrivateAttr("")

    def __hash__(self) -> int:
        """Return the hash of the text: values can be kept by their schema."""
        return hash(self._text)

    @property
    def text(self) -> str:
        """The text that it was parsed from; "" if it was made otherwise."""
        return self._text

    @property
    def predicted(self) -> Field:
        """The target's field."""
        return self.fields[self.target]

    @property
    def inputs(self) -> Mapping[str, Field]:
        """The columns that are inputs of the model."""
        return {
            name: field
            for name, field in self.fields.items()
            if name not in (self.target, self.unit) and field.input
        }

    @property
    def groupings(self) -> tuple[GroupBy, ...]:
        """The groupings of rows."""
        return read_groups("groups", self.groups, self.fields)

    @property
    def group_names(self) -> dict[str, tuple[str | None, ...]]:
        """The groups of each grouping, by its name; the last, None, is without a value."""
        return {
            by.name: (*by.groups(self.fields[by.column].categories), None) for by in self.groupings
        }

    @property
    def differs(self) -> bool:
        """Whether clients have different `fields`, so that a file can only be read for a client."""
        every = self.files.get(EVERY_FILE, SchemaFile()).fields
        return not self.client and any(
            about.fields != every
            for key, about in self.files.items()
            if about.fields and client_of(key) != EVERY_FILE
        )

    def file(self, name: str, client: str = "") -> SchemaFile:
        """Return the format of a file that is read for a client, or for the one it is named as.

        What is stated of the file goes before what is stated of the client's files.
        """
        client = client or client_of(name)
        keys = [key for key in self.files if is_of_client(key) and client_of(key) == client]
        file = self.files.get(next(iter(keys), EVERY_FILE), SchemaFile())
        file = file.changed_by(self.files.get(name, SchemaFile()))
        # A file that is named as another client does not have that client's fields.
        file = file.model_copy(update={"fields": self.fields_of(client)})
        for key in (f"{EVERY_FILE}/{name}", f"{client}/{name}"):
            file = file.changed_by(self.files.get(key, SchemaFile()))
        file._key = key_of_client(client, name)
        return file

    def fields_of(self, client: str) -> Mapping[str, FileField]:
        """Return how a client has the columns of the schema, unless a file has them otherwise."""
        for key, about in self.files.items():
            # A column of clients is that of a single file.
            is_own = is_of_client(key) and (self.client or client_of(key) == client)
            if about.fields and is_own:
                return about.fields
        return self.files.get(EVERY_FILE, SchemaFile()).fields

    def of_client(self, own: Mapping[str, FileField]) -> "Schema":
        """Return the schema with a client's own spellings and markers of a missing value."""
        fields = {
            name: self.fields[name].of_client(about)
            for name, about in own.items()
            if name in self.fields
        }
        return self.model_copy(update={"fields": {**self.fields, **fields}})

    def missing_of(self, name: str) -> Missing:
        """Return the treatment of a row in which this column's value is missing."""
        field = self.fields[name]
        if field.constraints.required:
            return "error"
        chosen = field.missing or self.missing
        return "drop" if name == self.target and chosen == "fill" else chosen


def read_schema(place: str) -> str:
    """Return the text of a schema; `place` is its file, or the text itself (several lines)."""
    if "\n" in place or not place:
        return place
    try:
        text = read_text(expand_home(place))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not in UTF-8"
        raise SchemaError(
            f"schema = {place!r} cannot be read ({why}): name a file, as fairbloom data DIR"
            " --write-schema FILE writes one"
        ) from error
    return text if "\n" in text else f"{text}\n"


def without_client(text: str) -> str:
    """Return a schema's text without its column of clients, for a file of one site."""
    written = parse_toml(text)
    written.pop("client", None)
    return tomli_w.dumps(written)


@lru_cache(maxsize=16)
def parse_schema(text: str, name: str = SCHEMA_NAME) -> Schema:
    """Return the schema in a text; raise SchemaError with the key, or line, of its first fault."""
    schema = _parse(Schema, text, name)
    check_schema(schema, text, name)
    schema._text = text
    return schema


def check_schema(schema: Schema, text: str, name: str) -> None:
    """Raise SchemaError if a schema's text is too long, or with its first contradiction."""
    _check_length(text, name)
    for fault in _find_contradictions(schema):
        raise SchemaError(f"{name}: {fault}")


class ImageSchema(_Table):
    """The images of all sites: classes, width and height in pixels, whether grey, or resized.

    `positive` is the positive one of two classes ("": the second).
    """

    classes: Annotated[tuple[str, ...], Len(2)]
    positive: Name = ""
    size: tuple[
        Annotated[int, Interval(ge=1, le=10_000)], Annotated[int, Interval(ge=1, le=10_000)]
    ]
    grey: bool = False
    resize: bool = False

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        return (1 if self.grey else 3, self.size[1], self.size[0])


def parse_image_schema(text: str, name: str = SCHEMA_NAME) -> ImageSchema:
    """Return the schema of images in a text; raise SchemaError with its first fault."""
    schema = _parse(ImageSchema, text, name)
    if fault := _find_wrong_positive(schema.positive, schema.classes):
        raise SchemaError(f"{name}: {fault}")
    return schema


def with_files(text: str, files: Mapping[str, Any], client: str = "") -> str:
    """Return a schema's text with the formats of a device's own files, which replace the schema's.

    `files` is a TOML table of owner.toml. All files of a device are of one client: what the schema
    says of the `client`, in which "*" of `files` replaces keys, holds for every file, unless
    `files` says something else of it. If neither has `fields`, those of one of `files` hold. Raise
    SchemaError if `files` has a fault, or does not fit the schema. The server may not read names of
    the device's own files and columns, so it gets OWN_FILES instead of such an error.
    """
    read = _read_own_files(files)
    written = parse_toml(text, OWNERS_FILE)
    if "fields" not in written or not (files or "files" in written):
        return text
    schema = parse_schema(text)  # its own faults are the run's, and the server may read them
    together = {**written, "files": {**written.get("files", {}), **files}}
    try:
        check_schema(validate(Schema, together, OWNERS_FILE), text, OWNERS_FILE)
    except SchemaError as error:
        raise SchemaError(str(error), OWN_FILES) from error
    written["files"] = _dump_files(_join_files(schema, read, client))
    return tomli_w.dumps(written)


def files_alone(files: Mapping[str, Any], client: str) -> str:
    """Return what a device says of its own files as the text of a schema that has only files.

    `files` is a TOML table of owner.toml. Raise SchemaError if it has a fault.
    """
    read = _read_own_files(files)
    schema = Schema(target="", fields={})
    return tomli_w.dumps({"files": _dump_files(_join_files(schema, read, client))})


def parse_files(text: str) -> Schema:
    """Return the schema in a text that may have only files, of `files_alone`."""
    written = parse_toml(text)
    if "fields" in written:
        return parse_schema(text)
    return validate(Schema, {"target": "", "fields": {}, **written})


def _read_own_files(files: Mapping[str, Any]) -> dict[str, SchemaFile]:
    """Return what a device says of its own files; raise SchemaError if it has a fault."""
    try:
        return TypeAdapter(dict[str, SchemaFile]).validate_python(files)
    except ValidationError as error:
        raise SchemaError(f"{OWNERS_FILE}: files.{_explain(error)}", OWN_FILES) from error


def _join_files(
    schema: Schema, read: Mapping[str, SchemaFile], client: str
) -> dict[str, SchemaFile]:
    """Return the files of a schema with what a device says of its own."""
    own = {key.rpartition("/")[2]: about for key, about in read.items()}
    every = schema.file("", client).changed_by(own.pop(EVERY_FILE, SchemaFile()))
    said = [about.fields for about in own.values() if about.fields]
    if not every.fields and any(fields != said[0] for fields in said):
        raise SchemaError(
            f"{OWNERS_FILE}: files has different fields, and all files of a device are of one"
            " client: keep one table with fields, or say under"
            f" [files.{EVERY_FILE!r}] what holds for all",
            OWN_FILES,
        )
    every = every.changed_by(SchemaFile(fields=every.fields or next(iter(said), {})))
    tables = dict(schema.files)
    if every.fields:
        for key, about in schema.files.items():
            tables[key] = about.model_copy(update={"fields": {}})
    for file, about in [*schema.files.items(), *own.items()]:
        if file in own or (client_of(file) == client and not is_of_client(file)):
            tables[f"{EVERY_FILE}/{file.rpartition('/')[2]}"] = about
    tables[EVERY_FILE] = every
    return tables


def _dump_files(files: Mapping[str, SchemaFile]) -> dict[str, Any]:
    """Return files as the keys that they state."""
    return {key: about.model_dump(mode="json", exclude_unset=True) for key, about in files.items()}


AnyTable = TypeVar("AnyTable", bound=_Table)


def _parse(kind: type[AnyTable], text: str, name: str) -> AnyTable:
    _check_length(text, name)
    try:
        return validate(kind, parse_toml(text, name), name)
    except RecursionError as error:
        raise _too_deep(name) from error


def parse_toml(text: str, name: str = SCHEMA_NAME) -> dict[str, Any]:
    """Return the tables in a text, within seconds whoever wrote it; raise SchemaError for none."""
    _check_length(text, name)
    if any(
        line.count(".") > MAX_DEPTH and _depth_of(line) > MAX_DEPTH for line in text.split("\n")
    ):
        raise _too_deep(name)
    try:
        return tomllib.loads(text)
    except ValueError as error:  # also of a number with too many digits
        raise SchemaError(f"{name} is not valid TOML: {error}: correct that line") from error
    except RecursionError as error:
        raise _too_deep(name) from error


def _too_deep(name: str) -> SchemaError:
    return SchemaError(f"{name} is nested too deeply: take tables within tables out")


def _depth_of(line: str) -> int:
    """Return how many dots the longest key in a line of TOML has."""
    longest = depth = 0
    for token in TOKEN.finditer(line):
        if token[0] == ".":
            depth += 1
            longest = max(longest, depth)
        elif token.lastgroup != "part":
            depth = 0
    return longest


def _check_length(text: str, name: str) -> None:
    if len(text) > MAX_BYTES:
        raise SchemaError(
            f"{name} has {len(text):,} characters, and {MAX_BYTES:,} are the most: shorten it"
        )


def validate(
    kind: type[AnyTable], written: Mapping[str, object], name: str = SCHEMA_NAME
) -> AnyTable:
    """Return a table of a schema by its keys; raise SchemaError with the first fault of one."""
    try:
        return kind.model_validate(written)
    except ValidationError as error:
        raise SchemaError(f"{name}: {_explain(error)}") from error


def _explain(error: ValidationError) -> str:
    """Return the first fault, an unknown key before others, as the key's path, value and remedy."""
    fault = min(error.errors(), key=lambda detail: detail["type"] != "extra_forbidden")
    path = ".".join(map(str, fault["loc"]))
    if fault["type"] == "missing":
        return f"{path} is missing: add it"
    if fault["type"] == "extra_forbidden":
        key = str(fault["loc"][-1])
        if "files" in fault["loc"] and key in Field.model_fields:
            return (
                f"{path} holds for all clients: say it in fields.{fault['loc'][-2]}, without files"
            )
        known: list[str] = []
        for kind in (Schema, Field, Constraints, SchemaFile, FileField, ImageSchema):
            known += [each for each in kind.model_fields if each != key]
        return f"{path} is unknown: {did_you_mean(key, known)}correct it, or leave it out"
    message = reason_of(fault)
    return f"{path} = {shorten_value(fault['input'])}: {message[0].lower()}{message[1:]}"


def _find_contradictions(schema: Schema) -> Iterator[str]:
    """Yield contradictions between the parts of a schema, each as key, value and remedy."""
    yield from _find_wrong_names(schema)
    if schema.target not in schema.fields:
        yield (
            f"target = {schema.target!r}: {did_you_mean(schema.target, schema.fields)}it must be"
            " one of the fields"
        )
        return
    for key, column in (("target", schema.target), ("client", schema.client)):
        if schema.unit and fold(schema.unit) == fold(column):
            yield f"unit = {schema.unit!r}: it is the {key}: name the column of persons, or none"
    for name in schema.determining:
        if name not in schema.inputs:
            near = did_you_mean(name, schema.inputs)
            yield f"determining = {name!r}: {near}name fields that are inputs"
    for name, field in schema.fields.items():
        for fault in _find_faults_of(field):
            yield f"fields.{name}.{fault}"
    if not schema.inputs:
        yield "fields has no column but the target: nothing to learn from: add one"
    yield from _find_wrong_target(schema)
    yield from find_wrong_groups(schema)
    clients: dict[str, str] = {}  # the first table with fields of each client
    for file, about in schema.files.items():
        for fault in _find_wrong_file(schema, file, about, clients):
            yield f"files.{file}.{fault}"


def _find_wrong_names(schema: Schema) -> Iterator[str]:
    """Yield the names of columns that are too long, empty, or there twice."""
    named = [("fields", name) for name in schema.fields]
    named += [("ignore", name) for name in schema.ignore]
    if schema.client:
        named.append(("client", schema.client))
    seen: dict[str, str] = {}
    for key, name in named:
        if not 1 <= len(name) <= MAX_TEXT:
            yield (
                f"{key}.{shorten_value(name)}: the name of a column has 1 to {MAX_TEXT} characters:"
                " shorten it"
            )
        if fold(name) in seen:
            yield (
                f"{key} has {name!r}, and {seen[fold(name)]!r} is the same in another case of"
                " letters: name it once"
            )
        seen[fold(name)] = name


def _find_wrong_target(schema: Schema) -> Iterator[str]:
    """Yield what a target lacks: a scale, a second class, or the positive one."""
    classes = schema.predicted.categories
    of_target = f"fields.{schema.target}"
    if not classes and schema.predicted.center is None:
        yield (
            f"{of_target}.center is missing: a quantity is learned in units of its scale around its"
            " center"
        )
    if len(classes) == 1:
        yield (f"{of_target}.categories has one class: a target has two or more: add the others")
    if wrong_positive := _find_wrong_positive(schema.positive, classes):
        yield wrong_positive


def _find_wrong_file(
    schema: Schema, file: str, about: SchemaFile, clients: dict[str, str]
) -> Iterator[str]:
    """Yield the faults of a file's table; it joins `clients` if it has the fields of one."""
    if about.fields and is_of_client(file):
        client = "" if schema.client else client_of(file)
        other = clients.setdefault(client, file)
        if other != file:
            yield f"fields: files.{other} has those of the same client: leave one out"
    if about.groupChar and about.groupChar == about.decimalChar:
        yield (
            f"groupChar = {about.groupChar!r}: it is the decimal mark, too: choose one of the two"
        )
    yield from _find_wrong_ignored(schema, about)
    for name in about.fields.keys() - {*schema.fields, schema.unit}:
        called = [field for field, own in about.fields.items() if name in own.name]
        if called:
            yield f"fields.{name}: the schema calls this column {called[0]!r}: say it there"
            continue
        yield f"fields.{name}: {did_you_mean(name, schema.fields)}it must be one of the fields"
    for name in about.fields.keys() & schema.fields:
        own = about.fields[name]
        categories = schema.fields[name].categories
        for fault in _find_wrong_spellings(categories, own.spellings, with_names=False):
            yield f"fields.{name}.{fault}"
        if categories and (own.unit, own.factor, own.offset) != ("", 1.0, 0.0):
            yield f"fields.{name}: it has categories: leave unit, factor and offset out"


def _find_wrong_ignored(schema: Schema, about: SchemaFile) -> Iterator[str]:
    """Yield the columns that a file's table ignores, and that are read."""
    if not about.ignore:
        return
    read = {*map(fold, (*schema.fields, schema.unit, schema.client))}
    for own in about.fields.values():
        read.update(map(fold, own.name))
    for name in about.ignore:
        if fold(name) in read:
            yield (
                f"ignore = {name!r}: it is read as one of the fields, the unit or the client: leave"
                " it out"
            )


def _find_wrong_positive(positive: str, classes: Sequence[str]) -> str:
    """Return why a positive class is not one of two classes; "" if it is, or is not stated."""
    if not positive or (len(classes) == 2 and positive in classes):
        return ""
    but = f"the classes are {', '.join(classes)}" if classes else "the target is a quantity"
    return f"positive = {positive!r}: it must be one of two classes, and {but}"


def _find_faults_of(field: Field) -> Iterator[str]:
    """Yield the faults of one column, each as key, value and remedy."""
    texts = (*field.categories, *chain(*field.spellings.values()))
    limits = field.constraints
    if field.type == "string" and not field.categories:
        yield "categories is missing: a column of texts needs them; or name the column in ignore"
    for marker in field.missingValues:
        if marker in texts:
            yield f"missingValues: {marker!r} is a category, or spells one: leave it out of one"
    if field.categories and limits != Constraints(required=limits.required):
        yield (
            "constraints is for numbers: a column of categories has no minimum, maximum or enum:"
            " leave them out"
        )
    if not limits.minimum <= limits.maximum:
        yield (
            f"constraints.minimum = {limits.minimum:g} is above the maximum, {limits.maximum:g}:"
            " exchange them"
        )
    if (field.center is None) != (field.scale is None):
        missing = "scale" if field.scale is None else "center"
        yield f"{missing} is missing: center and scale belong together"
    yield from _find_wrong_spellings(field.categories, field.spellings, with_names=True)


def _find_wrong_spellings(
    categories: Sequence[str], spellings: Mapping[str, Sequence[str]], *, with_names: bool
) -> Iterator[str]:
    """Yield the faults of spellings as key, value and remedy.

    `with_names`: the categories' own names are spellings, too.
    """
    seen: dict[str, int] = {}
    for place, name in enumerate(categories):
        texts = spellings.get(name, ())
        for text in (name, *texts) if with_names else texts:
            other = seen.setdefault(normalise(text), place)
            if other != place:
                yield (
                    f"categories: {text!r} is a spelling of {categories[other]!r} and of {name!r}:"
                    " leave it out of one"
                )
    for name in {*spellings} - {*categories}:
        yield f"spellings.{name}: {did_you_mean(name, categories)}it must be one of the categories"


def find_wrong_groups(schema: Schema, key: str = "groups") -> Iterator[str]:
    """Yield the faults of a schema's groups, each as `key`, value and remedy."""
    for by in schema.groupings:
        if (field := schema.fields.get(by.column)) is None:
            yield (
                f"{key} = {by.name!r}: {did_you_mean(by.column, schema.fields)}the column must be"
                " one of the fields"
            )
        elif by.column == schema.target:
            yield (
                f"{key} = {by.name!r}: it is the target: name a column that is known before the"
                " target is"
            )
        elif isinstance(by.to, float) == bool(field.categories):
            problem = (
                f"the column holds categories: give only its name, {by.column!r}"
                if field.categories
                else f"the column holds numbers: divide it, as in '{by.column}>=60'"
            )
            yield f"{key} = {by.name!r}: {problem}"
        elif by.sign == "=" and by.to not in field.categories:
            yield (
                f"{key} = {by.name!r}: {did_you_mean(str(by.to), field.categories)}the categories"
                f" are {', '.join(field.categories)}"
            )


def shorten_value(value: object) -> str:
    """Return a value's repr, cut off after 60 characters."""
    try:
        written = repr(value)
    except ValueError:  # Python writes no more than 4,300 digits, and 0x… may have a million
        written = "a number of thousands of digits"
    return written if len(written) <= 60 else f"{written[:60]}…"
