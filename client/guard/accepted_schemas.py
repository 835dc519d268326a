"""The schemas that a device's owner has accepted: only by them its tables are read.

In the state folder, `schemas` has the text of each schema that was ever accepted, `DIGEST.toml`,
and what became of it, `accepted.json`. `admitted.json` has the schema with which each run was let
in last, and the fingerprint of the run's settings, because the server chooses the number of a run.
`refused.toml` is the schema that was refused last, which `fairbloom client accept` takes.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from difflib import unified_diff
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Any

from fairbloom.errors import FairbloomError, join_names
from fairbloom.logs import escape_unprintable
from fairbloom.protocol.settings import FINGERPRINT
from fairbloom.system.files import make_folder, write_private
from fairbloom.tables.schema import SchemaError, parse_toml, shorten_value

from .accepted_settings import SCHEMA_KEY, SettingRefusedError

FOLDER = "schemas"
ACCEPTED = "accepted.json"
RUNS = "admitted.json"
REFUSED = "refused.toml"

# Runs that keep their schema after it has ended: the latest ones.
MAX_RUNS = 50

# The most steps of a comparison of two schemas; 10^7 take about a second.
MOST_STEPS = 10**8

# Characters of a digest that are shown and logged.
SHOWN = 12

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


class State(StrEnum):
    """What became of a schema: only runs that began with an ended one still have it."""

    ACCEPTED = "accepted"
    ENDED = "ended"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True)
class KnownSchema:
    """A schema that was accepted at some time, `since` (ISO 8601) for the last time."""

    digest: str
    since: str
    state: State

    @property
    def label(self) -> str:
        """Its digest's beginning, with the day of its acceptance."""
        return f"{self.digest[:SHOWN]}, accepted on {self.since[:10]}"


class Schemas:
    """The accepted schemas of one device, in its state folder."""

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir / FOLDER

    def known(self) -> list[KnownSchema]:
        """Return the schemas that were ever accepted, in the order of their acceptance."""
        return [
            KnownSchema(**{**entry, "state": State(entry["state"])})
            for entry in read_json(self._folder / ACCEPTED, [])
        ]

    def accepted(self) -> list[KnownSchema]:
        """Return the schemas that new runs may have."""
        return [schema for schema in self.known() if schema.state == State.ACCEPTED]

    def text_of(self, schema: KnownSchema) -> str:
        """Return a schema's text."""
        return self.path_of(schema).read_text(encoding="utf-8")

    def path_of(self, schema: KnownSchema) -> Path:
        """Return the file of a schema's text."""
        return self._folder / f"{schema.digest}.toml"

    def runs_of(self, schema: KnownSchema) -> list[str]:
        """Return the numbers of the runs that were let in with a schema."""
        return [
            run
            for run, (digest, _) in read_json(self._folder / RUNS, {}).items()
            if digest == schema.digest
        ]

    def accept(self, text: str, *, also: bool = False) -> None:
        """Accept a schema for new runs, in place of the accepted ones or `also`."""
        make_folder(self._folder)
        digest = digest_of(text)
        others = [
            schema if also or schema.state != State.ACCEPTED else replace(schema, state=State.ENDED)
            for schema in self.known()
            if schema.digest != digest
        ]
        write_private(self._folder / f"{digest}.toml", text.encode())
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._write([*others, KnownSchema(digest, now, State.ACCEPTED)])
        (self._folder / REFUSED).unlink(missing_ok=True)

    def withdraw(self, start: str) -> None:
        """Withdraw the schema with a digest that starts so, from running runs too."""
        known = self.known()
        found = [schema for schema in known if schema.digest.startswith(start)]
        if not start or len(found) != 1:
            choices = ", ".join(schema.digest[:SHOWN] for schema in known) or "none"
            raise FairbloomError(
                f"{start!r} is not the beginning of one schema's digest; there are {choices}"
            )
        (chosen,) = found
        withdrawn = replace(chosen, state=State.WITHDRAWN)
        self._write([withdrawn if schema == chosen else schema for schema in known])

    def admits(self, digest: str, run: int, settings: str) -> bool:
        """Return whether a run may have a schema; keep the schema of a run that is let in.

        `settings` is the fingerprint of the run's settings.
        """
        state = next((schema.state for schema in self.known() if schema.digest == digest), None)
        runs: dict[str, list[str]] = read_json(self._folder / RUNS, {})
        is_same = runs.get(str(run)) == [digest, settings]
        if state == State.ACCEPTED and not is_same:
            latest = dict([*runs.items(), (str(run), [digest, settings])][-MAX_RUNS:])
            write_private(self._folder / RUNS, json.dumps(latest).encode())
        return state == State.ACCEPTED or (state == State.ENDED and is_same)

    def refuse(self, text: str) -> None:
        """Keep a schema that was refused, for the owner to see."""
        make_folder(self._folder)
        path = self._folder / REFUSED
        content = text.encode()
        if not path.exists() or path.read_bytes() != content:
            write_private(path, content)

    def _write(self, known: Sequence[KnownSchema]) -> None:
        content = json.dumps([asdict(schema) for schema in known], indent=2)
        write_private(self._folder / ACCEPTED, content.encode())


def check_accepted(
    settings: Mapping[str, Any], state_dir: Path | None, allowed: str, run: int
) -> None:
    """Raise SettingRefusedError and store the schema of a run if its owner has not accepted it.

    `settings` are the run's accepted settings. `allowed` is `schema` of the owner's limits; "any"
    accepts every schema. `state_dir` is None if the device stores nothing. `run` is the run's
    number.
    """
    text = str(settings.get(SCHEMA_KEY, ""))
    if not text or allowed == "any":
        return
    if state_dir is None:
        raise SettingRefusedError(
            "the run has a schema, and this device has no state-dir to keep the accepted ones: set"
            ' one, or schema = "any" under limits in owner.toml'
        )
    schemas = Schemas(state_dir)
    if schemas.admits(digest_of(text), run, settings[FINGERPRINT]):
        return
    schemas.refuse(text)
    raise SettingRefusedError(
        "the run's schema is not one that this device's owner has accepted: fairbloom client"
        " accept, on the device, shows it and takes it"
    )


def read_json(file: Path, default: Any) -> Any:
    """Return the content of a JSON file, or the default if it is missing."""
    return json.loads(file.read_text()) if file.exists() else default


def digest_of(text: str) -> str:
    """Return the digest of a schema."""
    return sha256(text.encode()).hexdigest()


def read_refused(state_dir: Path) -> str:
    """Return the schema that was refused last; raise FairbloomError if there is no such schema."""
    path = state_dir / FOLDER / REFUSED
    if not path.exists():
        raise FairbloomError(
            f"{state_dir} keeps no refused schema: there is nothing to accept; a run brings one"
        )
    return path.read_text(encoding="utf-8")


def describe_change(schemas: Schemas, text: str) -> Iterator[str]:
    """Yield the lines of a schema, or its difference from the schema that was accepted last."""
    lines = text.splitlines()
    earlier = schemas.accepted() or schemas.known()
    before = schemas.text_of(earlier[-1]).splitlines() if earlier else []
    if before == lines:
        return
    if before and is_comparable(before, lines):
        lines = [*unified_diff(before, lines, "accepted", "new", lineterm="")]
    elif before:
        yield "It has too many lines in common with the accepted one to be compared; all of it is:"
    # the text comes from the server: a terminal would obey its control characters
    yield from map(escape_unprintable, lines)


def is_comparable(before: Sequence[str], after: Sequence[str]) -> bool:
    """Return whether difflib compares texts within seconds.

    In each of its steps, of which there may be one for each line, it looks at all pairs of equal
    lines. It leaves out a line that is more than 1 % of 200 lines or more.
    """
    counts = Counter(after)
    most = len(after) // 100 + 1 if len(after) >= 200 else len(after)
    pairs = sum(counts[line] for line in before if counts[line] <= most)
    return pairs * min(len(before), len(after)) <= MOST_STEPS


def describe_schemas(schemas: Schemas) -> Iterator[str]:
    """Yield a line on each schema that was ever accepted, with the runs that it let in."""
    known = schemas.known()
    if not known:
        yield "no schema was accepted"
    for each in known:
        runs = join_names(schemas.runs_of(each)) if schemas.runs_of(each) else "none"
        yield f"{each.state}: {each.label}, runs: {runs}; {schemas.path_of(each)}"


# What an acceptance ends, and what it may show of single people -----------------------------------


def describe_acceptance(schemas: Schemas, text: str, *, also: bool) -> Iterator[str]:
    """Yield sentences on what accepting a schema ends, and on what it may show."""
    digest = digest_of(text)
    others = [schema for schema in schemas.known() if schema.digest != digest]
    ended = [] if also else [other for other in others if other.state == State.ACCEPTED]
    yield from (
        f"This ends schema {other.label}: runs that began with it keep it, later ones are"
        " refused. --also keeps both"
        for other in ended
    )
    for other in others:
        keys = "; ".join(differing_keys(schemas.text_of(other), text))
        if keys:
            yield (
                f"It counts other rows than schema {other.label}: {escape_unprintable(keys)}."
                " The difference of the two schemas' numbers shows the people between, and what"
                " is known of them"
            )
    ignored = read_toml_text(text).get("ignore")
    if isinstance(ignored, list) and ignored:
        names = [escape_unprintable(f"{name}") for name in ignored]
        yield f"It ignores {len(ignored)} columns: {join_names(names)}"
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


def read_toml_text(text: str) -> dict[str, Any]:
    """Return the keys of a text in TOML; {} if it is none."""
    try:
        return parse_toml(text)
    except SchemaError:
        return {}


def counting_keys(text: str) -> dict[str, Any]:
    """Return the values by which a schema counts rows, by their keys; {} if it is no TOML."""
    schema = read_toml_text(text)
    if not schema:
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
