"""Write a schema, and parts of one, as TOML: the only place that does."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import BaseModel

from fairbloom.logs import escape_unprintable
from fairbloom.text import text_if

from .schema import Field, FileField, Schema, SchemaFile

# Keys with a table for each column, or file.
TABLES = ("fields", "files")

# The keys that lead to a value: ("fields", "age", "unit").
Place = tuple[str, ...]


@dataclass(frozen=True)
class Note:
    """A comment: above the line of its place, or `behind` it.

    `is_line`: it is a line of TOML that a person may uncomment. `asks`: it is a question on how the
    files are read; `lines` of TOML, which follow it, are what a person may say then.
    """

    text: str
    behind: bool = False
    is_line: bool = False
    asks: bool = False
    lines: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the comment, of several lines if it has `lines`."""
        text = self.text if self.is_line else escape_unprintable(self.text)
        if self.lines:
            text = f"{text}; if so, say:"
        return "\n".join([f"# {each}" for each in (text, *self.lines)])


Notes = Mapping[Place, Sequence[Note]]


class Question(NamedTuple):
    """A question on how a `column` is read, "" for all; what a person may say is in the text."""

    column: str
    text: str


def questions_in(notes: Notes) -> Iterator[Question]:
    """Yield the questions among the notes on a schema."""
    for place, of_place in notes.items():
        column = ""
        if len(place) > 1 and place[0] in ("fields", "ignore"):
            column = place[1]
        elif len(place) > 3 and place[0] == "files":
            column = place[3]
        for note in of_place:
            if note.asks:
                under = f"[fields.{write_key(column)}]"
                say = f"; if so, say {' and '.join(note.lines)} under {under}"
                yield Question(column, f"{note.text}{text_if(note.lines, say)}")


def quote(value: object) -> str:
    """Return a text, a number or a list as TOML writes it; what steers a terminal is escaped."""
    written = json.dumps(value, ensure_ascii=False)
    if written.isprintable():
        return written
    return "".join(each if each.isprintable() else f"\\U{ord(each):08x}" for each in written)


def write_key(name: str) -> str:
    """Return a key as TOML writes it, in quotation marks where it needs them."""
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else quote(name)


def write_table(values: Mapping[str, object], write_name: Callable[[str], str] = write_key) -> str:
    """Return values by name as TOML writes them in one line."""
    parts = [f"{write_name(name)} = {write_value(value)}" for name, value in values.items()]
    return f"{{{', '.join(parts)}}}"


def write_value(value: object) -> str:
    """Return a value of a schema as TOML writes it."""
    if isinstance(value, BaseModel):
        return write_table(value.model_dump(exclude_unset=True))
    return write_table(value) if isinstance(value, Mapping) else quote(value)


def write_schema(schema: Schema, notes: Notes) -> str:
    """Return a schema as TOML, with notes; keys that were not stated are not written."""
    lines = [
        *_above(notes, ()),
        *write_keys(schema, notes),
        *write_fields(schema.fields, notes),
        *_write_files(schema.files, notes),
    ]
    return "\n".join(lines) + "\n"


def write_fields(fields: Mapping[str, Field], notes: Notes) -> Iterator[str]:
    """Yield the lines of columns, each below an empty one."""
    for name, field in fields.items():
        place = ("fields", name)
        yield ""
        yield from _above(notes, place)
        yield f"[fields.{write_key(name)}]"
        yield from write_keys(field, notes, place)


def _write_files(files: Mapping[str, SchemaFile], notes: Notes) -> Iterator[str]:
    """Yield the lines of files that something is said of, each below an empty one."""
    for key, file in files.items():
        if not file.model_fields_set:
            continue
        place = ("files", key)
        yield ""
        yield f"[files.{write_key(key)}]"
        yield from write_keys(file, notes, place)
        for name, own in file.fields.items():
            yield from _above(notes, (*place, "fields", name))
            yield from write_own(name, own)


def write_own(name: str, own: FileField) -> Iterator[str]:
    """Yield the lines of a client's own column, in the table of its files."""
    for key in FileField.model_fields:
        if key in own.model_fields_set:
            value = getattr(own, key)
            is_one_name = key == "name" and len(value) == 1
            written = write_value(value[0] if is_one_name else value)
            yield f"fields.{write_key(name)}.{key} = {written}"


def write_keys(table: BaseModel, notes: Notes, place: Place = ()) -> Iterator[str]:
    """Yield a line for each key of a table that is stated, without the tables in it."""
    for key in type(table).model_fields:
        yield from _above(notes, (*place, key))
        if key in table.model_fields_set and key not in TABLES:
            yield from _write_stated(table, key, notes, (*place, key))


def _write_stated(table: BaseModel, key: str, notes: Notes, place: Place) -> Iterator[str]:
    """Yield the line of a key, or if the members of its list have notes, a line for each."""
    value = getattr(table, key)
    if isinstance(value, tuple) and any((*place, each) in notes for each in value):
        yield f"{key} = ["
        for each in value:
            yield f"    {quote(each)},{_behind(notes, (*place, each))}"
        yield "]"
    else:
        yield write_line(table, key) + _behind(notes, place)


def write_line(table: BaseModel, key: str) -> str:
    """Return the line of a key of a table."""
    return f"{key} = {write_value(_value_of(table, key))}"


def _value_of(table: BaseModel, key: str) -> Any:
    """Return the value of a key as it is written: categories of plain numbers are numbers."""
    value = getattr(table, key)
    if isinstance(table, Field) and table.type == "integer" and key == "categories":
        numbers = [int(name) for name in value]
        return numbers if [*map(str, numbers)] == [*value] else value
    return value


def _above(notes: Notes, place: Place) -> Iterator[str]:
    return (str(note) for note in notes.get(place, ()) if not note.behind)


def _behind(notes: Notes, place: Place) -> str:
    return "".join(f"  {note}" for note in notes.get(place, ()) if note.behind)
