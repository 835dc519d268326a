"""What the acceptance of a schema ends, and what it may show of single people."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

from fairbloom.logs import escape_unprintable
from fairbloom.tasks.schema import shorten_value

from .accepted_schemas import Schemas, digest_of

# Keys by which a schema counts its rows: if two schemas differ in one, their numbers are of
# different rows.
COUNTING = frozenset(
    {
        "groups",
        "classes",
        "categories",
        "spellings",
        "constraints",
        "missing",
        "missingValues",
        "client",
        "files",
    }
)

WARNING = (
    "An update or a published model can reveal single rows, outliers first. The floor, limits.rows"
    " in owner.toml, bounds counts, losses and scores. Against an operator who wants a row, only"
    " noise helps: docs/privacy.md"
)


def describe_acceptance(schemas: Schemas, text: str, *, also: bool) -> Iterator[str]:
    """Yield sentences on what accepting a schema ends, and on what it may show."""
    digest = digest_of(text)
    others = [each for each in schemas.known() if each.digest != digest]
    if not also:
        for each in schemas.accepted():
            if each.digest != digest:
                yield (
                    f"This ends schema {each.label}: runs that began with it keep it, later ones"
                    " are refused. --also keeps both"
                )
    for each in others:
        if found := list(differing_keys(schemas.text_of(each), text)):
            keys = escape_unprintable("; ".join(found))
            yield (
                f"It counts other rows than schema {each.label}: {keys}. The difference of the two"
                " schemas' numbers shows the people between, and what is known of them"
            )
    yield WARNING


def differing_keys(earlier: str, later: str) -> Iterator[str]:
    """Yield each difference between the keys by which two schemas count rows."""
    before = counting_keys(earlier)
    after = counting_keys(later)
    for key in {**before, **after}:
        old = before.get(key)
        new = after.get(key)
        if isinstance(old, list) and isinstance(new, list):
            gone = [each for each in old if each not in new]
            new = [each for each in new if each not in old]
            old = gone
        if old != new:
            yield f"{key}: {_show(old)} there, {_show(new)} here"


def counting_keys(text: str) -> dict[str, Any]:
    """Return the values by which a schema counts rows, by their keys; {} if it is no TOML."""
    try:
        schema = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return {}
    found = {key: value for key, value in schema.items() if key in COUNTING}
    fields = schema.get("fields")
    dropping = list[str]()
    for name, field in fields.items() if isinstance(fields, dict) else ():
        if isinstance(field, dict):
            found |= {f"{name}.{key}": field[key] for key in field if key in COUNTING}
            if field.get("missing", schema.get("missing")) == "drop":
                dropping.append(name)
    # a row without a value in one of these columns is not counted
    return {**found, "columns that drop rows": dropping}


def _show(value: object) -> str:
    return "nothing" if value is None else shorten_value(value)
